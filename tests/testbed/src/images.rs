//! Mooring's images: built from their Containerfiles if one of their ingredients changed, and delivered to the cluster.

mod build;
mod containerfile;
mod lists;
mod notices;
mod queue;
mod recipes;
mod seclusion;
mod store;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use build::try_out;
pub use notices::notices;
pub use recipes::{Recipe, recipes};
pub(crate) use seclusion::{contained, secluded};

use build::Wanted;

use crate::base_images::{self, Archive};
use crate::binaries::{ensure_for_image, host_target, names_for_images};
use crate::command::{cargo, output, watched};
use crate::layout::{cache, make_folder, repository, write_file};
use crate::lock::Lock;
use crate::progress::{Step, say};

/// The tag of every image: the version of the workspace.
pub const TAG: &str = env!("CARGO_PKG_VERSION");

/// The first part of every image's name.
pub const HOST: &str = "mooring.dev";

/// An image that was built.
#[derive(Debug, Clone)]
pub struct Built {
    /// Its full name and its OCI archive.
    pub archive: Archive,
    /// Hash of all its ingredients.
    pub hash: String,
}

/// The folder of programs that Containerfiles copy, relative to the repository.
pub fn program_folder() -> Result<String> {
    Ok(format!("target/{}/dist", host_target()?))
}

/// The packages whose programs go into the images.
const PACKAGES: [&str; 4] = ["flex-provisioner", "mooring-mounter", "mooring-shim", "pv"];

/// Builds the static programs that go into the images. The compiled crates are kept in the cache, where every work tree
/// finds those of other projects; the programs go to where `cargo build` would put them.
pub fn build_programs() -> Result<()> {
    let mut step = Step::begin("build the programs for the images");
    let target = host_target()?;
    let compiled = compiled_programs()?;
    let flags = flags_of_programs(target);
    leave_nothing_of_other_work_trees(&compiled, target)?;
    let mut build = cargo([
        "build",
        "--profile",
        "dist",
        "--target",
        target,
        "--config",
        &flags,
        "--bins",
        "--target-dir",
    ])?;
    build.arg(&compiled);
    for package in PACKAGES {
        build.args(["--package", package]);
    }
    watched(&mut build, |line| step.update(line.trim()))?;
    let folder = repository().join(program_folder()?);
    make_folder(&folder)?;
    for program in ["flex-provisioner", "mounter", "vcs", "pv"] {
        put(&compiled.join(target).join("dist").join(program), &folder.join(program))?;
    }
    write_file(&folder.join(notices::FILE), notices()?)?;
    step.done("");
    Ok(())
}

/// The file that says which work tree's crates were compiled last.
const WORK_TREE: &str = "work-tree";

/// Removes what was compiled from another work tree. cargo names the crates of a work tree by their places within it,
/// and compares times: it would take another work tree's crates for this one's where they were compiled after this
/// one's last change.
fn leave_nothing_of_other_work_trees(compiled: &Path, target: &str) -> Result<()> {
    let (record, this) = (compiled.join(WORK_TREE), repository().to_string_lossy().into_owned());
    if std::fs::read_to_string(&record).is_ok_and(|last| last == this) {
        return Ok(());
    }
    make_folder(compiled)?;
    let mut clean = cargo([
        "clean",
        "--workspace",
        "--profile",
        "dist",
        "--target",
        target,
        "--target-dir",
    ])?;
    output(clean.arg(compiled))?;
    write_file(&record, this)
}

/// Where cargo compiles programs for images.
fn compiled_programs() -> Result<PathBuf> {
    Ok(cache()?.join("programs"))
}

/// A setting for cargo: the programs need no library and have a fixed address. So nothing has to be relocated at each
/// start, which every mount has, and relocation takes no memory.
pub(crate) fn flags_of_programs(target: &str) -> String {
    format!("target.{target}.rustflags=[\"-Ctarget-feature=+crt-static\",\"-Crelocation-model=static\"]")
}

/// Puts a program in place atomically: it may be running.
fn put(from: &Path, to: &Path) -> Result<()> {
    let partial = to.with_extension("partial");
    std::fs::copy(from, &partial)
        .and_then(|_| std::fs::rename(&partial, to))
        .with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))
}

/// Which images are selected.
#[derive(Debug, Clone, Copy)]
pub enum Selection {
    /// All images of the repository.
    All,
    /// Those whose names end with these parts, and the images that they start from.
    Named(&'static [&'static str]),
}

/// Builds the selected images that are missing or outdated; returns all selected ones, each after those that it starts
/// from.
pub fn build(selection: Selection) -> Result<Vec<Built>> {
    let lock = Lock::images()?;
    build_programs()?;
    let folder = cache()?.join("images");
    make_folder(&folder)?;
    let recipes = selected(recipes(repository(), &program_folder()?)?, selection);
    put_programs_of_others(&recipes)?;
    let mut wanted: Vec<Wanted> = Vec::new();
    for recipe in recipes {
        let bases = recipe
            .bases
            .iter()
            .map(|base| find_base(base, &wanted))
            .collect::<Result<Vec<_>>>()
            .with_context(|| format!("failed to find what {} is made from", recipe.name))?;
        let hash = recipe.hash(&bases)?;
        let archive = Archive {
            name: recipe.name.clone(),
            path: folder.join(format!("{}-{hash}.tar", recipe.file_name())),
        };
        let built = Built { archive, hash };
        wanted.push(Wanted { recipe, bases, built });
    }
    let missing: Vec<_> = wanted
        .iter()
        .filter(|wanted| !wanted.built.archive.path.is_file())
        .collect();
    build::build_all(&lock, &missing)?;
    Ok(wanted.into_iter().map(|wanted| wanted.built).collect())
}

/// Puts other projects' programs that these images copy beside Mooring's own.
fn put_programs_of_others(recipes: &[Recipe]) -> Result<()> {
    for program in names_for_images() {
        let place = repository().join(program_folder()?).join(program);
        if recipes.iter().any(|recipe| recipe.copies(&place)) {
            let built = ensure_for_image(program)?;
            put(&built, &place)?;
        }
    }
    Ok(())
}

/// The selected ones among recipes, in order.
fn selected(recipes: Vec<Recipe>, selection: Selection) -> Vec<Recipe> {
    let Selection::Named(names) = selection else {
        return recipes;
    };
    let mut bases = BTreeSet::new();
    let mut wanted: Vec<_> = recipes
        .into_iter()
        .rev()
        .filter(|recipe| {
            let wanted = names.contains(&recipe.file_name().as_str()) || bases.contains(&recipe.name);
            if wanted {
                bases.extend(recipe.bases.iter().cloned());
            }
            wanted
        })
        .collect();
    wanted.reverse();
    wanted
}

fn find_base(name: &str, wanted: &[Wanted]) -> Result<Built> {
    if let Some(own) = wanted.iter().find(|image| image.recipe.name == name) {
        return Ok(own.built.clone());
    }
    let archive = match name {
        "debian:trixie-slim" => base_images::debian()?,
        "busybox:1" => base_images::busybox()?,
        _ => anyhow::bail!(
            "{name:?} can't be had here: an image starts from debian:trixie-slim, busybox:1, scratch or another image \
             of this repository"
        ),
    };
    let hash = archive
        .path
        .parent()
        .and_then(Path::file_name)
        .map(|folder| folder.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok(Built { archive, hash })
}

/// Writes an image as a Docker archive that contains its name, which every loader understands.
pub fn docker_archive(image: &Built, path: &Path) -> Result<()> {
    let lock = Lock::images()?;
    let store = store::Store::open(&lock)?;
    store.ensure(image)?;
    let _ = std::fs::remove_file(path);
    let target = format!("docker-archive:{}:{}", path.display(), image.archive.name);
    store.push(&image.archive.name, &target)?;
    store.close();
    Ok(())
}

/// Pushes an image to a registry under `name`.
pub fn push(image: &Built, name: &str) -> Result<()> {
    let lock = Lock::images()?;
    let store = store::Store::open(&lock)?;
    store.ensure(image)?;
    let target = format!("docker://{name}");
    store
        .push(&image.archive.name, &target)
        .with_context(|| format!("failed to push {name}: log in with `buildah login` if the registry asks for it"))?;
    store.close();
    say(format!("  ok pushed {name}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Selection, recipes, selected};
    use crate::layout::repository;

    #[test]
    fn a_selected_image_comes_with_those_that_it_starts_from_and_no_others() {
        let all = recipes(repository(), "target/x/dist").unwrap();
        let names = selected(all, Selection::Named(&["mounter", "provisioner-directory"]));
        let names: Vec<_> = names.iter().map(super::Recipe::file_name).collect();
        for (before, after) in [
            ("provisioner-base", "provisioner-sshfs"),
            ("provisioner-sshfs", "provisioner-directory"),
        ] {
            let place = |name: &str| names.iter().position(|one| one == name).unwrap();
            assert!(place(before) < place(after), "{names:?}");
        }
        assert_eq!(names.len(), 4, "{names:?}");
    }
}
