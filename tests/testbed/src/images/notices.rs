//! What the crates' licences require: their notices, in one file beside the programs that images copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::binaries::host_target;
use crate::command::{cargo, output};
use crate::layout::repository;

/// The packages whose programs go into the images.
pub(super) const PACKAGES: [&str; 6] = [
    "flex-provisioner",
    "mooring",
    "mooring-mounter",
    "mooring-shim",
    "provisioner-openstack",
    "pv",
];

/// The file's name, beside the programs.
pub(super) const FILE: &str = "NOTICE";

/// Prefixes of the names of files with a licence or a notice.
const BEGINNINGS: [&str; 5] = ["copying", "copyright", "licence", "license", "notice"];

const HEADER: &str = "The programs of Mooring, under the Apache License 2.0, hold the crates listed here, Rust's standard library (MIT or
Apache-2.0), and parts of the GNU C library (LGPL-2.1-or-later), whose source is in Debian's source package glibc.
";

/// A crate with its licence's name and its texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Notices {
    /// Name, version and licence.
    title: String,
    texts: Vec<String>,
}

/// The notices of all crates in Mooring's programs.
pub fn notices() -> Result<String> {
    let arguments = ["metadata", "--format-version=1", "--filter-platform", host_target()?];
    let metadata = output(&mut cargo(arguments)?)?;
    let metadata = serde_json::from_str(&metadata).context("cargo metadata printed no JSON")?;
    let path = repository().join("LICENSE");
    let own = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    Ok(written(&own, &crates(&metadata, PACKAGES.as_slice(), texts_in)?))
}

/// The crates of other projects that these packages depend on, by name; `texts` reads the texts in a crate's folder.
fn crates(metadata: &Value, of: &[&str], texts: impl Fn(&Path) -> Result<Vec<String>>) -> Result<BTreeSet<Notices>> {
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
        let folder = Path::new(&manifest).parent().unwrap_or(Path::new("/"));
        let [name, version, licence] = ["name", "version", "license"].map(|key| text(&package[key]));
        found.insert(Notices {
            title: format!("{name} {version}: {licence}"),
            texts: texts(folder)?,
        });
    }
    Ok(found)
}

/// The texts of licences and notices in a folder.
fn texts_in(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        path.is_file() && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
    });
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let bytes = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    paths.iter().map(read).collect()
}

/// One text. A licence text that several crates share appears once.
fn written(own: &str, crates: &BTreeSet<Notices>) -> String {
    let mut all = format!("{HEADER}\n");
    let mut texts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Notices { title, texts: its } in crates {
        let _ = writeln!(all, "{title}");
        for text in its {
            let name = title.split(':').next().unwrap_or_default();
            texts.entry(text).or_default().push(name);
        }
    }
    let _ = write!(all, "\n==== Mooring\n\n{}\n", own.trim());
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|(_, a), (_, b)| a.cmp(b));
    for (text, of) in texts {
        let _ = write!(all, "\n==== {}\n\n{text}\n", of.join(", "));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use anyhow::Result;
    use serde_json::{Value, json};

    use super::{crates, texts_in, written};
    use crate::layout::repository;

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

    #[expect(clippy::unnecessary_wraps, reason = "it stands for one that reads files")]
    fn texts(folder: &Path) -> Result<Vec<String>> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        Ok(vec!["the same".to_owned(), format!("Copyright of {name}")])
    }

    #[test]
    fn each_crate_in_a_program_is_named_with_its_licence_and_each_text_appears_once() {
        let found = crates(&metadata(), &["ours"], texts).unwrap();
        let all = written("Apache License\n", &found);
        for line in [
            "a 1.0.0: MIT",
            "b 1.0.0: MIT",
            "Copyright of b",
            "==== a 1.0.0, b 1.0.0",
            "Apache License",
        ] {
            assert_eq!(all.lines().filter(|there| *there == line).count(), 1, "{line}: {all}");
        }
        assert_eq!(all.matches("the same").count(), 1);
        assert!(
            !all.contains("for-") && !all.contains("of-others") && !all.contains("shared"),
            "{all}"
        );
        assert!(crates(&metadata(), &["ours", "none"], texts).is_err());
    }

    #[test]
    fn licences_are_found_by_their_names() {
        let texts = texts_in(repository()).unwrap();
        assert_eq!(texts.len(), 1);
        assert!(texts[0].contains("Apache License"));
    }
}
