//! What the crates' licences require: their notices, in one file beside the programs that images copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::compile::packages;
use super::crates::{Crate, crates_of};
use crate::layout::repository;

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

impl Notices {
    fn of(one: &Crate) -> Result<Self> {
        Ok(Self {
            title: format!("{} {}: {}", one.name, one.version, one.licence),
            texts: texts_in(&one.folder)?,
        })
    }
}

/// The notices of all crates in Mooring's programs.
pub fn notices() -> Result<String> {
    let path = repository().join("LICENSE");
    let own = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let crates = crates_of(&packages())?;
    let notices = crates.iter().map(Notices::of).collect::<Result<_>>()?;
    Ok(written(&own, &notices))
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
    use super::{Notices, texts_in, written};
    use crate::layout::repository;

    #[test]
    fn each_crate_is_named_with_its_licence_and_each_text_appears_once() {
        let notices = |name: &str| Notices {
            title: format!("{name} 1.0.0: MIT"),
            texts: vec!["the same".to_owned(), format!("Copyright of {name}")],
        };
        let all = written("Apache License\n", &["a", "b"].map(notices).into());
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
    }

    #[test]
    fn licences_are_found_by_their_names() {
        let texts = texts_in(repository()).unwrap();
        assert_eq!(texts.len(), 1);
        assert!(texts[0].contains("Apache License"));
    }
}
