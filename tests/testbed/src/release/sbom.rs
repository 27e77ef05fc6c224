//! The bill of materials of an image: a document of SPDX 2.3.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::contents::Contents;
use crate::command::{command, output};
use crate::images::{Crate, TAG, crates_of};

pub(super) const MEDIA_TYPE: &str = "application/spdx+json";

/// What an image's document is about.
pub(super) struct About<'a> {
    /// The image's name without registry and tag.
    pub(super) image: &'a str,
    /// The digest of its manifest.
    pub(super) digest: &'a str,
    pub(super) architecture: &'a str,
    /// When it was made.
    pub(super) date: &'a str,
}

/// What the programs were made with and contain: Rust's standard library and the C library.
pub(super) struct Toolchain {
    rust: String,
    libc: String,
}

impl Toolchain {
    pub(super) fn look() -> Result<Self> {
        let last = |said: String| said.split_whitespace().last().map(str::to_owned);
        let rustc = output(&mut command("rustc", ["--version", "--verbose"]))?;
        let release = rustc.lines().find(|line| line.starts_with("release:"));
        let libc = output(&mut command("getconf", ["GNU_LIBC_VERSION"]))?;
        Ok(Self {
            rust: release
                .and_then(|line| last(line.to_owned()))
                .context("rustc says no release")?,
            libc: last(libc).context("getconf says no version of the C library")?,
        })
    }
}

pub(super) fn document(about: &About<'_>, contents: &Contents, toolchain: &Toolchain) -> Result<Value> {
    let programs: Vec<_> = contents.programs.iter().copied().collect();
    let crates = if programs.is_empty() {
        BTreeSet::new()
    } else {
        crates_of(&programs)?
    };
    Ok(written(about, contents, &crates, toolchain))
}

fn written(about: &About<'_>, contents: &Contents, crates: &BTreeSet<Crate>, toolchain: &Toolchain) -> Value {
    let image = "SPDXRef-image";
    let mut packages = vec![package(
        image,
        about.image,
        TAG,
        "Apache-2.0",
        &format!(
            "pkg:oci/{}@{}?arch={}",
            about.image,
            encoded(about.digest),
            about.architecture
        ),
    )];
    packages[0]["primaryPackagePurpose"] = "CONTAINER".into();
    for debian in &contents.packages {
        let distribution = contents.distribution.as_ref().map(|name| format!("&distro={name}"));
        let locator = format!(
            "pkg:deb/debian/{}@{}?arch={}{}",
            encoded(&debian.name),
            encoded(&debian.version),
            debian.architecture,
            distribution.unwrap_or_default()
        );
        let id = id("deb", &[&debian.name, &debian.architecture]);
        // The image has its licences in /usr/share/doc.
        let mut package = package(&id, &debian.name, &debian.version, NO_ASSERTION, &locator);
        package["sourceInfo"] = format!("built from the source package {}", debian.source).into();
        packages.push(package);
    }
    for one in crates {
        let locator = format!("pkg:cargo/{}@{}", encoded(&one.name), encoded(&one.version));
        let id = id("cargo", &[&one.name, &one.version]);
        packages.push(package(&id, &one.name, &one.version, &licence(&one.licence), &locator));
    }
    if !contents.programs.is_empty() {
        let (rust, libc) = (&toolchain.rust, &toolchain.libc);
        for (name, version, terms) in [
            ("rust-std", rust, "MIT OR Apache-2.0"),
            ("glibc", libc, "LGPL-2.1-or-later"),
        ] {
            let locator = format!("pkg:generic/{name}@{}", encoded(version));
            packages.push(package(&id("static", &[name]), name, version, terms, &locator));
        }
    }
    let contains = packages[1..].iter().map(|package| {
        json!({"spdxElementId": image, "relationshipType": "CONTAINS", "relatedSpdxElement": package["SPDXID"]})
    });
    let describes = json!({
        "spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": image,
    });
    let relationships: Vec<_> = std::iter::once(describes).chain(contains).collect();
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{} {TAG} {}", about.image, about.architecture),
        "documentNamespace": format!("https://mooring.dev/sbom/{}/{}", about.image, about.digest),
        "creationInfo": {"created": about.date, "creators": [format!("Tool: cargo-testbed-release-{TAG}")]},
        "packages": packages,
        "relationships": relationships,
    })
}

const NO_ASSERTION: &str = "NOASSERTION";

fn package(id: &str, name: &str, version: &str, licence: &str, locator: &str) -> Value {
    json!({
        "SPDXID": id,
        "name": name,
        "versionInfo": version,
        "downloadLocation": NO_ASSERTION,
        "filesAnalyzed": false,
        "licenseConcluded": NO_ASSERTION,
        "licenseDeclared": licence,
        "copyrightText": NO_ASSERTION,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator},
        ],
    })
}

/// An identifier within a document: letters, digits, dots and hyphens.
fn id(kind: &str, names: &[&str]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    // Names that differ only in the other characters, such as g++ and g--, stay apart.
    let mut text = format!("SPDXRef-{kind}");
    for name in names {
        text.push('-');
        text.extend(name.replace('+', ".plus.").chars().map(plain));
    }
    text
}

/// A part of a package URL.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// An SPDX expression. Cargo's manifests once had a slash for "or".
fn licence(text: &str) -> String {
    if text.is_empty() {
        return NO_ASSERTION.to_owned();
    }
    text.replace(" / ", "/").replace('/', " OR ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{About, Toolchain, written};
    use crate::images::Crate;
    use crate::release::contents::{Contents, DebianPackage};

    #[test]
    fn a_document_has_each_package_once_with_its_url() {
        let about = About {
            image: "provisioner-ceph",
            digest: "sha256:00ff",
            architecture: "amd64",
            date: "2025-11-30T05:39:01Z",
        };
        let debian = DebianPackage {
            name: "libstdc++6".into(),
            version: "1:14.2.0-19+deb13u1".into(),
            architecture: "amd64".into(),
            source: "gcc-14".into(),
        };
        let contents = Contents {
            packages: [debian].into(),
            distribution: Some("debian-13".into()),
            programs: ["pv"].into(),
        };
        let one = Crate {
            name: "ring".into(),
            version: "0.17.14".into(),
            licence: "MIT/Apache-2.0".into(),
            folder: "/x".into(),
        };
        let toolchain = Toolchain {
            rust: "1.95.0".into(),
            libc: "2.36".into(),
        };
        let document = written(&about, &contents, &[one].into(), &toolchain);
        let packages = document["packages"].as_array().unwrap();
        let ids: BTreeSet<_> = packages
            .iter()
            .map(|package| package["SPDXID"].as_str().unwrap())
            .collect();
        assert_eq!(ids.len(), 5);
        for id in &ids {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
            assert!(id.chars().all(is_plain), "{id}");
        }
        let text = document.to_string();
        for url in [
            "pkg:oci/provisioner-ceph@sha256%3A00ff?arch=amd64",
            "pkg:deb/debian/libstdc%2B%2B6@1%3A14.2.0-19%2Bdeb13u1?arch=amd64&distro=debian-13",
            "pkg:cargo/ring@0.17.14",
            "pkg:generic/glibc@2.36",
        ] {
            assert_eq!(text.matches(url).count(), 1, "{url}: {text}");
        }
        assert!(text.contains("\"MIT OR Apache-2.0\""));
        assert_eq!(document["relationships"].as_array().unwrap().len(), 5);
    }
}
