//! What is in an image: Debian's packages, and Mooring's own programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::hash::hex;
use crate::images::{PROGRAMS, program_folder};
use crate::layout::repository;
use crate::oci::digest_file;

/// Where dpkg says what is installed.
const STATUS: &str = "var/lib/dpkg/status";

/// A folder with a file like that for each package, in an image with some files of a few packages and no dpkg: scanners
/// of images read it.
const PARTS: &str = "var/lib/dpkg/status.d/";

const OS_RELEASE: &str = "usr/lib/os-release";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DebianPackage {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) architecture: String,
    /// The source package, with its version if that is another one.
    pub(super) source: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) packages: BTreeSet<DebianPackage>,
    /// The distribution, such as `debian-13`; unknown in an image without an `os-release`.
    pub(super) distribution: Option<String>,
    /// Cargo's packages whose programs it has.
    pub(super) programs: BTreeSet<&'static str>,
}

/// Mooring's own programs as they were compiled, by size and hash.
pub(super) struct Programs(BTreeMap<(u64, String), &'static str>);

impl Programs {
    /// Those that the images were built with. Not every image needs all of them.
    pub(super) fn compiled() -> Result<Self> {
        let folder = repository().join(program_folder()?);
        let mut found = BTreeMap::new();
        for (program, package) in PROGRAMS {
            let path = folder.join(program);
            if path.is_file() {
                let (digest, size) = digest_file(&path)?;
                found.insert((size, digest), package);
            }
        }
        Ok(Self(found))
    }

    fn find(&self, size: u64, content: &mut impl Read) -> Result<Option<&'static str>> {
        if !self.0.keys().any(|(known, _)| *known == size) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        content
            .read_to_end(&mut bytes)
            .context("failed to read a file of an image")?;
        let digest = hex(&Sha256::digest(&bytes));
        Ok(self.0.get(&(size, digest)).copied())
    }
}

impl Contents {
    /// Adds what an image's next layer has, a tar file. What an earlier one has of the same files does not count any
    /// more.
    pub(super) fn add_layer(&mut self, layer: &Path, programs: &Programs) -> Result<()> {
        let file = File::open(layer).with_context(|| format!("failed to open {}", layer.display()))?;
        let mut archive = tar::Archive::new(file);
        let read = || format!("failed to read the layer {}", layer.display());
        for entry in archive.entries().with_context(read)? {
            let mut entry = entry.with_context(read)?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let path = entry.path().with_context(read)?.to_string_lossy().into_owned();
            let path = path.trim_start_matches("./");
            if path == STATUS || path.starts_with(PARTS) || path == OS_RELEASE {
                let mut text = String::new();
                entry.read_to_string(&mut text).with_context(read)?;
                match path {
                    OS_RELEASE => self.distribution = distribution(&text),
                    STATUS => self.packages = packages(&text),
                    _ => self.packages.extend(packages(&text)),
                }
            } else if let Some(package) = programs.find(entry.size(), &mut entry)? {
                self.programs.insert(package);
            }
        }
        Ok(())
    }
}

/// The installed packages of dpkg's own list.
fn packages(status: &str) -> BTreeSet<DebianPackage> {
    let package = |stanza: &str| {
        let field = |name: &str| {
            let lines = stanza.lines().filter_map(|line| line.split_once(": "));
            lines
                .into_iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.trim().to_owned())
        };
        // What was removed is listed too, if it has left its settings.
        let is_installed = field("Status").is_none_or(|status| status.ends_with(" installed"));
        let name = field("Package").filter(|_| is_installed)?;
        Some(DebianPackage {
            version: field("Version")?,
            architecture: field("Architecture")?,
            source: field("Source").unwrap_or_else(|| name.clone()),
            name,
        })
    };
    status.split("\n\n").filter_map(package).collect()
}

fn distribution(os_release: &str) -> Option<String> {
    let value = |name: &str| {
        let mut lines = os_release.lines().filter_map(|line| line.split_once('='));
        lines
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim_matches('"').to_owned())
    };
    Some(format!("{}-{}", value("ID")?, value("VERSION_ID")?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sha2::{Digest, Sha256};

    use super::{Contents, DebianPackage, Programs};
    use crate::hash::hex;

    const STATUS: &str = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nSource: glibc (2.41-1)\n\
                          Version: 2.41-12\nDescription: GNU\n Version: no\n\nPackage: gone\nStatus: deinstall ok \
                          config-files\nArchitecture: amd64\nVersion: 1\n";

    fn layer(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("mooring-contents-{name}-{}", std::process::id()));
        let mut tar = tar::Builder::new(std::fs::File::create(&path).unwrap());
        for (file, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, file, content.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap();
        path
    }

    #[test]
    fn packages_and_programs_are_those_that_the_last_layers_have() {
        let program = "a program";
        let programs = Programs(BTreeMap::from([(
            (program.len() as u64, hex(&Sha256::digest(program))),
            "pv",
        )]));
        let layers = [
            layer(
                "1",
                &[("var/lib/dpkg/status", "Package: old\nArchitecture: all\nVersion: 1\n")],
            ),
            layer(
                "2",
                &[
                    ("var/lib/dpkg/status", STATUS),
                    (
                        "var/lib/dpkg/status.d/e2fsprogs",
                        "Package: e2fsprogs\nArchitecture: amd64\nVersion: 1.47\n",
                    ),
                    ("usr/lib/os-release", "NAME=\"Debian\"\nVERSION_ID=\"13\"\nID=debian\n"),
                    ("provision", program),
                    ("other", "b program"),
                ],
            ),
        ];
        let mut contents = Contents::default();
        for layer in layers {
            contents.add_layer(&layer, &programs).unwrap();
            std::fs::remove_file(layer).unwrap();
        }
        let package = |name: &str, version: &str, source: &str| DebianPackage {
            name: name.into(),
            version: version.into(),
            architecture: "amd64".into(),
            source: source.into(),
        };
        let expected = [
            package("libc6", "2.41-12", "glibc (2.41-1)"),
            package("e2fsprogs", "1.47", "e2fsprogs"),
        ];
        assert_eq!(contents.packages, expected.into());
        assert_eq!(contents.distribution.as_deref(), Some("debian-13"));
        assert_eq!(contents.programs, ["pv"].into());
    }
}
