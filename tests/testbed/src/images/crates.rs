//! The crates of other projects that are in Mooring's programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::binaries::host_target;
use crate::command::{cargo, output};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As its manifest has it; empty if that has none.
    pub(crate) licence: String,
    /// Its source.
    pub(crate) folder: PathBuf,
}

/// The crates of other projects in the programs of these packages.
pub(crate) fn crates_of(packages: &[&str]) -> Result<BTreeSet<Crate>> {
    let arguments = ["metadata", "--format-version=1", "--filter-platform", host_target()?];
    let metadata = output(&mut cargo(arguments)?)?;
    crates(
        &serde_json::from_str(&metadata).context("cargo metadata printed no JSON")?,
        packages,
    )
}

fn crates(metadata: &Value, of: &[&str]) -> Result<BTreeSet<Crate>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let by_id = |items: Vec<Value>| -> BTreeMap<String, Value> {
        items.into_iter().map(|item| (text(&item["id"]), item)).collect()
    };
    let packages = by_id(list(&metadata["packages"]));
    let nodes = by_id(list(&metadata["resolve"]["nodes"]));
    let mut waiting: Vec<String> = packages
        .iter()
        .filter(|(_, package)| package["source"].is_null() && of.contains(&text(&package["name"]).as_str()))
        .map(|(id, _)| id.clone())
        .collect();
    ensure!(
        waiting.len() == of.len(),
        "not all of {} are packages here",
        of.join(", ")
    );
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = waiting.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        // A crate that is only needed to build or to test is in no program.
        let is_in = |dependency: &&Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let node = nodes
            .get(&id)
            .with_context(|| format!("cargo metadata does not resolve {id}"))?;
        waiting.extend(
            list(&node["deps"])
                .iter()
                .filter(is_in)
                .map(|dependency| text(&dependency["pkg"])),
        );
        let package = packages
            .get(&id)
            .with_context(|| format!("cargo metadata has no package {id}"))?;
        if package["source"].is_null() {
            continue;
        }
        let manifest = text(&package["manifest_path"]);
        let [name, version, licence] = ["name", "version", "license"].map(|key| text(&package[key]));
        found.insert(Crate {
            name,
            version,
            licence,
            folder: Path::new(&manifest).parent().unwrap_or(Path::new("/")).to_owned(),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::crates;

    fn metadata() -> Value {
        let package = |name: &str, source: Value| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source,
                   "manifest_path": format!("/crates/{name}/Cargo.toml")})
        };
        let theirs = |name: &str| package(name, json!("registry"));
        let on = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [package("ours", json!(null)), package("shared", json!(null)), theirs("a"), theirs("b"),
                         theirs("for-tests"), theirs("for-builds"), theirs("of-others")],
            "resolve": {"nodes": [
                {"id": "ours", "deps": [on("shared", json!(null)), on("a", json!(null)), on("for-tests", json!("dev"))]},
                {"id": "shared", "deps": [on("b", json!(null))]},
                {"id": "a", "deps": [on("b", json!(null)), on("for-builds", json!("build"))]},
                {"id": "b", "deps": []},
            ]},
        })
    }

    #[test]
    fn the_crates_in_a_program_are_found_and_no_others() {
        let found = crates(&metadata(), &["ours"]).unwrap();
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let first = found.first().unwrap();
        assert_eq!((first.version.as_str(), first.licence.as_str()), ("1.0.0", "MIT"));
        assert_eq!(first.folder.to_str(), Some("/crates/a"));
        assert!(crates(&metadata(), &["ours", "none"]).is_err());
    }
}
