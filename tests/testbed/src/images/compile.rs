//! The programs that Containerfiles copy: Mooring's own, and a few of other projects for tests' images.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::notices::{self, PACKAGES, notices};
use super::recipes::Recipe;
use crate::binaries::{ensure_for_image, host_target, names_for_images};
use crate::command::{cargo, output, watched};
use crate::layout::{cache, make_folder, repository, write_file};
use crate::progress::Step;

/// Mooring's own programs.
pub(super) const PROGRAMS: [&str; 5] = ["flex-provisioner", "mounter", "provisioner-openstack", "pv", "vcs"];

/// The folder of programs that Containerfiles copy, relative to the repository.
pub fn program_folder() -> Result<String> {
    Ok(format!("target/{}/dist", host_target()?))
}

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
    for program in PROGRAMS {
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

/// Puts other projects' programs that these images copy beside Mooring's own.
pub(super) fn put_programs_of_others(recipes: &[Recipe]) -> Result<()> {
    for program in names_for_images() {
        let place = repository().join(program_folder()?).join(program);
        if recipes.iter().any(|recipe| recipe.copies(&place)) {
            let built = ensure_for_image(program)?;
            put(&built, &place)?;
        }
    }
    Ok(())
}
