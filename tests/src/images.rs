//! Mooring's images: built from their Containerfiles where something they are made of changed, and brought to where the
//! cluster finds them.

mod containerfile;
mod recipes;
mod store;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

pub use recipes::{Recipe, recipes};

use crate::base_images::{self, Archive};
use crate::binaries::{ensure_for_image, host_target, names_for_images};
use crate::command::{cargo, watched};
use crate::layout::{cache, make_folder, repository};
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
    /// Hash of all that it is made of.
    pub hash: String,
}

/// The folder of programs that Containerfiles copy, relative to the repository.
pub(crate) fn program_folder() -> Result<String> {
    Ok(format!("target/{}/dist", host_target()?))
}

/// Builds the static programs that go into the images.
pub fn build_programs() -> Result<()> {
    let mut step = Step::begin("build the programs for the images");
    let target = host_target()?;
    // At a fixed address: nothing has to be relocated at each start, of which every mount has one, and no memory is taken by it.
    let flags = format!("target.{target}.rustflags=[\"-Ctarget-feature=+crt-static\",\"-Crelocation-model=static\"]");
    let mut build = cargo([
        "build",
        "--profile",
        "dist",
        "--target",
        target,
        "--config",
        &flags,
        "--bins",
    ])?;
    for package in ["flex-provisioner", "mooring-mounter", "mooring-shim", "pv"] {
        build.args(["--package", package]);
    }
    watched(&mut build, |line| step.update(line.trim()))?;
    step.done("");
    Ok(())
}

/// Which images are wanted.
#[derive(Debug, Clone, Copy)]
pub enum Selection {
    /// All that the repository has.
    All,
    /// Those with these last parts of their names, and what they are made from.
    Named(&'static [&'static str]),
}

/// Builds the images that are wanted and not there as they should be; gives all that are wanted, each after those that it is made from.
pub fn build(selection: Selection) -> Result<Vec<Built>> {
    let _lock = Lock::images()?;
    build_programs()?;
    let folder = cache()?.join("images");
    make_folder(&folder)?;
    let mut built: Vec<Built> = Vec::new();
    let recipes = selected(recipes(repository(), &program_folder()?)?, selection);
    put_programs_of_others(&recipes)?;
    for recipe in recipes {
        let bases = recipe
            .bases
            .iter()
            .map(|base| find_base(base, &built))
            .collect::<Result<Vec<_>>>()
            .with_context(|| format!("failed to find what {} is made from", recipe.name))?;
        let hash = recipe.hash(&bases)?;
        let archive = Archive {
            name: recipe.name.clone(),
            path: folder.join(format!("{}-{hash}.tar", recipe.file_name())),
        };
        if !archive.path.is_file() {
            build_one(&recipe, &bases, &archive.path)?;
            remove_older(&folder, &recipe.file_name(), &archive.path);
        }
        built.push(Built { archive, hash });
    }
    Ok(built)
}

/// Puts programs of others that these images copy beside Mooring's own.
fn put_programs_of_others(recipes: &[Recipe]) -> Result<()> {
    for program in names_for_images() {
        let place = repository().join(program_folder()?).join(program);
        if recipes.iter().any(|recipe| recipe.copies(&place)) {
            let built = ensure_for_image(program)?;
            std::fs::copy(&built, &place)
                .with_context(|| format!("failed to copy {} to {}", built.display(), place.display()))?;
        }
    }
    Ok(())
}

/// Of recipes in order, those that are wanted.
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

fn find_base(name: &str, built: &[Built]) -> Result<Built> {
    if let Some(own) = built.iter().find(|image| image.archive.name == name) {
        return Ok(own.clone());
    }
    let archive = match name {
        "debian:trixie-slim" => base_images::debian()?,
        "busybox:1" => base_images::busybox()?,
        _ => anyhow::bail!(
            "{name:?} can't be had here: an image starts from debian:trixie-slim, busybox:1, scratch or another image of \
             this repository"
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

fn build_one(recipe: &Recipe, bases: &[Built], archive: &Path) -> Result<()> {
    let mut step = Step::begin(format!("build the image {}", recipe.name));
    let store = store::Store::open()?;
    for base in bases {
        store.ensure(base)?;
    }
    let mut build = store.buildah([
        "bud",
        "--pull=never",
        "--layers=false",
        "--squash",
        "--tag",
        &recipe.name,
    ]);
    build
        .arg(format!("--build-arg=BIN_DIR={}", program_folder()?))
        .arg("--file")
        .arg(&recipe.containerfile)
        .arg(repository());
    watched(&mut build, |line| step.update(line))?;
    let partial = archive.with_extension("partial");
    let _ = std::fs::remove_file(&partial);
    // No ":name" behind the file: containerd would find the image under its digest only.
    let target = format!("oci-archive:{}", partial.display());
    crate::command::output(&mut store.buildah(["push", &recipe.name, &target]))?;
    store.forget(&recipe.name);
    std::fs::rename(&partial, archive).with_context(|| format!("failed to put {} in place", archive.display()))?;
    step.done("");
    Ok(())
}

/// Archives younger than this stay: they may be another work tree's.
const KEPT: Duration = Duration::from_hours(1);

/// Removes the archives of an image's earlier builds.
fn remove_older(folder: &Path, file_name: &str, keep: &Path) {
    let prefix = format!("{file_name}-");
    let older = |path: &PathBuf| {
        path != keep
            && path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix(&prefix))
                // What is left is the hash: "provisioner-base" is no earlier build of "provisioner".
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

/// Writes an image as a Docker archive with its name inside, which every loader understands.
pub fn docker_archive(image: &Built, path: &Path) -> Result<()> {
    let store = store::Store::open()?;
    store.ensure(image)?;
    let _ = std::fs::remove_file(path);
    let target = format!("docker-archive:{}:{}", path.display(), image.archive.name);
    crate::command::output(&mut store.buildah(["push", &image.archive.name, &target]))?;
    Ok(())
}

/// Pushes an image to a registry under `name`.
pub fn push(image: &Built, name: &str) -> Result<()> {
    let store = store::Store::open()?;
    store.ensure(image)?;
    let target = format!("docker://{name}");
    crate::command::output(&mut store.buildah(["push", &image.archive.name, &target]))
        .with_context(|| format!("failed to push {name}: log in with `buildah login` if the registry asks for it"))?;
    say(format!("  ok pushed {name}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Selection, recipes, selected};
    use crate::layout::repository;

    #[test]
    fn a_wanted_image_comes_with_those_that_it_is_made_from_and_no_other() {
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
