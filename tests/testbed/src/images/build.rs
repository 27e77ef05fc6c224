//! Builds several images at once.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::built::Built;
use super::compile::program_folder;
use super::lists;
use super::queue::{Next, Queue};
use super::recipes::Recipe;
use super::store::{Build, Store};
use crate::base_images;
use crate::layout::repository;
use crate::lock::Lock;
use crate::progress::Step;

pub(super) struct Wanted {
    pub(super) recipe: Recipe,
    /// The images that it starts from.
    pub(super) bases: Vec<Built>,
    pub(super) built: Built,
}

/// The fewest and the most builds at once. At least a few, since they also wait for the network; not more, since each
/// takes memory and disk space.
const AT_ONCE: (usize, usize) = (2, 4);

/// Younger archives stay: they may belong to another work tree.
const KEPT: Duration = Duration::from_hours(1);

/// Builds images; stops at the first that fails.
pub(super) fn build_all(lock: &Lock, missing: &[&Wanted]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let store = Store::open(lock)?;
    let lists = shared_lists(&store, missing)?;
    let queue = Mutex::new(Queue::new(missing.iter().map(|wanted| &wanted.recipe)));
    let changed = Condvar::new();
    let workers = std::thread::available_parallelism().map_or(AT_ONCE.0, NonZero::get);
    let work = || -> Result<()> {
        let locked = || queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = locked();
        loop {
            let recipe = match left.next() {
                Next::Build(recipe) => recipe,
                Next::Wait => {
                    left = changed.wait(left).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                Next::End => return Ok(()),
            };
            drop(left);
            let built = missing
                .iter()
                .find(|wanted| wanted.recipe.name == recipe.name)
                .with_context(|| format!("{} is not wanted", recipe.name))
                .and_then(|wanted| build_one(&store, wanted, &lists));
            left = locked();
            match &built {
                Ok(()) => left.built(recipe),
                Err(_) => left.stop(),
            }
            changed.notify_all();
            built?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers.clamp(AT_ONCE.0, AT_ONCE.1))
            .map(|_| scope.spawn(work))
            .collect();
        let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        ended.into_iter().try_for_each(|ended| match ended {
            Ok(result) => result,
            Err(_) => bail!("a thread that builds images panicked"),
        })
    })?;
    store.close();
    Ok(())
}

/// The arguments that give builds the lists of Debian's packages, if any of the images needs them.
fn shared_lists(store: &Store, missing: &[&Wanted]) -> Result<Vec<String>> {
    let debian = missing
        .iter()
        .filter(|wanted| wanted.recipe.runs_on_debian)
        .flat_map(|wanted| &wanted.bases)
        .find(|base| base.archive.name == base_images::DEBIAN);
    debian.map_or(Ok(Vec::new()), |debian| lists::shared(store, debian))
}

fn build_one(store: &Store, wanted: &Wanted, lists: &[String]) -> Result<()> {
    let Wanted { recipe, bases, built } = wanted;
    let title = format!("build the image {}", recipe.name);
    let mut step = Step::begin(title.as_str());
    bases.iter().try_for_each(|base| store.ensure(base))?;
    let mut arguments = vec![format!("--build-arg=BIN_DIR={}", program_folder()?)];
    arguments.extend_from_slice(&recipe.arguments);
    if recipe.runs_on_debian {
        arguments.extend_from_slice(lists);
    }
    let archive = &built.archive.path;
    let partial = archive.with_extension("partial");
    let build = Build {
        containerfile: &recipe.containerfile,
        context: repository(),
        arguments: &arguments,
        archive: &partial,
    };
    store
        .build(&build, |line| step.update(line))
        .with_context(|| format!("failed to {title}"))?;
    std::fs::rename(&partial, archive).with_context(|| format!("failed to put {} in place", archive.display()))?;
    if let Some(folder) = archive.parent() {
        remove_older(folder, &recipe.file_name(), archive);
    }
    step.done("");
    Ok(())
}

/// Builds a Containerfile that is not one of the repository's images, in the same way as those, and discards the
/// result. It copies files from its own folder, and starts from `busybox:1`.
pub fn try_out(containerfile: &Path) -> Result<()> {
    let lock = Lock::images()?;
    let store = Store::open(&lock)?;
    store.ensure(&Built::of_base(base_images::busybox()?))?;
    let context = containerfile.parent().context("a Containerfile is in a folder")?;
    let archive = context.join("archive.tar");
    let build = Build {
        containerfile,
        context,
        arguments: &[],
        archive: &archive,
    };
    let result = store.build(&build, |_| {});
    let _ = std::fs::remove_file(&archive);
    result.with_context(|| format!("failed to build {}", containerfile.display()))?;
    store.close();
    Ok(())
}

/// Removes the archives of an image's earlier builds.
fn remove_older(folder: &Path, file_name: &str, keep: &Path) {
    let prefix = format!("{file_name}-");
    let older = |path: &PathBuf| {
        path != keep
            && path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix(&prefix))
                // The rest has to be a hash: "provisioner-base" is not an earlier build of "provisioner".
                .is_some_and(|rest| !rest.contains('-'))
            && path
                .metadata()
                .and_then(|metadata| metadata.modified())
                .is_ok_and(|made| made.elapsed().is_ok_and(|age| age > KEPT))
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in files.map(|entry| entry.path()).filter(older) {
        let _ = std::fs::remove_file(path);
    }
}
