//! Folders of compiled crates that work trees share: other projects' crates are compiled once for all of them.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{cargo, output};
use crate::layout::{make_folder, repository, write_file};

/// The file that says which work tree's crates were compiled last.
const WORK_TREE: &str = "work-tree";

/// Removes what another work tree has compiled of its own crates, by `cargo clean` with these arguments. cargo names the
/// crates of a work tree by their places within it, and compares times: it would take another work tree's crates for
/// this one's where they were compiled after this one's last change.
pub(crate) fn leave_nothing_of_others(compiled: &Path, manifest: &str, arguments: &[&str]) -> Result<()> {
    let (record, this) = (compiled.join(WORK_TREE), repository().to_string_lossy().into_owned());
    if std::fs::read_to_string(&record).is_ok_and(|last| last == this) {
        return Ok(());
    }
    make_folder(compiled)?;
    let mut clean = cargo(["clean", "--manifest-path", manifest, "--target-dir"])?;
    clean.arg(compiled).args(arguments);
    for package in own_packages(manifest)? {
        clean.args(["--package", &package]);
    }
    output(&mut clean)?;
    write_file(&record, this)
}

/// The packages of the repository that those of a manifest are made of.
fn own_packages(manifest: &str) -> Result<Vec<String>> {
    let metadata = output(&mut cargo([
        "metadata",
        "--format-version=1",
        "--manifest-path",
        manifest,
    ])?)?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let own = packages.filter(|package| package["source"].is_null());
    Ok(own
        .filter_map(|package| package["name"].as_str().map(str::to_owned))
        .collect())
}
