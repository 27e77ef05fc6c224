//! Brings a release to a registry: first all blobs and manifests by their digests, and the tag last.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::image::entry;
use super::layout::{Descriptor, INDEX, Layout, MANIFEST, Stored, digest_of};
use super::registry::Registry;
use super::{Item, Kind};
use crate::progress::Step;

/// What to do about a tag.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// It has this release's content.
    There,
    /// It gets this content of this media type.
    Put(&'static str, Vec<u8>),
    /// It has other content, with this digest.
    Taken(String),
}

/// Decides what to do about an item's tag, which has the manifest `there`, if any. An image's tag is an index, to which
/// each platform adds its own.
fn decide(item: &Item, there: Option<&[u8]>, force: bool) -> Result<Decision> {
    let taken = |bytes: &[u8]| Decision::Taken(digest_of(bytes));
    match item.kind {
        Kind::Artifact => Ok(match there {
            Some(bytes) if bytes == item.stored.content => Decision::There,
            Some(bytes) if !force => taken(bytes),
            _ => Decision::Put(MANIFEST, item.stored.content.clone()),
        }),
        Kind::Image => {
            let own = entry(&item.stored);
            let found: Option<Value> = there
                .map(serde_json::from_slice)
                .transpose()
                .context("what the registry has there is no manifest")?;
            let listed = found.as_ref().and_then(|found| found["manifests"].as_array());
            let same_platform = |one: &&Value| one["platform"] == own["platform"];
            match (there, listed) {
                (_, Some(listed)) if listed.iter().any(|one| one["digest"] == own["digest"]) => {
                    return Ok(Decision::There);
                }
                (Some(bytes), Some(listed)) if !force && listed.iter().any(|one| same_platform(&one)) => {
                    return Ok(taken(bytes));
                }
                (Some(bytes), None) if !force => return Ok(taken(bytes)),
                _ => {}
            }
            let others = listed.into_iter().flatten().filter(|one| !same_platform(one)).cloned();
            let mut manifests: Vec<_> = others.chain([own.clone()]).collect();
            manifests.sort_by_key(|one| one["platform"]["architecture"].to_string());
            let index = json!({
                "schemaVersion": 2,
                "mediaType": INDEX,
                "manifests": manifests,
                "annotations": item.annotations,
            });
            Ok(Decision::Put(INDEX, index.to_string().into_bytes()))
        }
    }
}

/// Pushes all items; returns the digest under the tag of each, by the name of its repository. Changes nothing if a tag is
/// taken.
pub(super) fn push(
    registry: &Registry,
    layout: &Layout,
    items: &[Item],
    force: bool,
    step: &mut Step,
) -> Result<BTreeMap<String, String>> {
    let mut decided = Vec::new();
    let mut taken = Vec::new();
    let mut digests = BTreeMap::new();
    for item in items {
        step.update(&format!("looking for {}", item.name()));
        let there = registry.manifest(&item.repository, &item.tag)?;
        let digest = match decide(item, there.as_deref(), force)? {
            Decision::There => digest_of(&there.unwrap_or_default()),
            Decision::Put(media_type, content) => {
                let digest = digest_of(&content);
                decided.push((item, media_type, content));
                digest
            }
            Decision::Taken(digest) => {
                taken.push(format!("{} is {digest} there", item.name()));
                continue;
            }
        };
        digests.insert(item.repository.clone(), digest);
    }
    ensure!(
        taken.is_empty(),
        "these tags have other content in the registry, and somebody may rely on that:\n  {}\nNothing was pushed. Raise \
         the version in Cargo.toml, or give --force to replace them",
        taken.join("\n  ")
    );
    let mut pushed = Pushed {
        registry,
        layout,
        places: BTreeMap::new(),
    };
    let count = decided.len();
    for (index, (item, media_type, content)) in decided.into_iter().enumerate() {
        step.update(&format!("{} ({} of {count})", item.name(), index + 1));
        let repository = item.repository.as_str();
        pushed.put(repository, &item.stored)?;
        for referrer in &item.referrers {
            pushed.put_referrer(repository, &item.stored.manifest, referrer)?;
        }
        registry.put_manifest(repository, &item.tag, media_type, &content)?;
    }
    Ok(digests)
}

/// What is in the registry already.
struct Pushed<'a> {
    registry: &'a Registry,
    layout: &'a Layout,
    /// A repository with each blob.
    places: BTreeMap<String, String>,
}

impl Pushed<'_> {
    /// Puts a manifest and its blobs, by its digest; returns whether the registry lists it with its subject.
    fn put(&mut self, repository: &str, stored: &Stored) -> Result<bool> {
        let mut seen = BTreeSet::new();
        for blob in stored.blobs.iter().filter(|blob| seen.insert(blob.digest.clone())) {
            let other = self.places.get(&blob.digest).map(String::as_str);
            let file = self.layout.path(blob);
            self.registry.put_blob(repository, blob, &file, other)?;
            self.places.insert(blob.digest.clone(), repository.to_owned());
        }
        let Descriptor { media_type, digest, .. } = &stored.manifest;
        self.registry
            .put_manifest(repository, digest, media_type, &stored.content)
    }

    /// Puts an artifact about a manifest. A registry without a list of such artifacts gets one under a tag, as the
    /// specification has it.
    fn put_referrer(&mut self, repository: &str, subject: &Descriptor, referrer: &Stored) -> Result<()> {
        if self.put(repository, referrer)? {
            return Ok(());
        }
        let tag = subject.digest.replace(':', "-");
        let there = self.registry.manifest(repository, &tag)?;
        if let Some(index) = with_referrer(there.as_deref(), referrer)? {
            self.registry
                .put_manifest(repository, &tag, INDEX, index.to_string().as_bytes())?;
        }
        Ok(())
    }
}

/// The list of a manifest's artifacts with one more; none if it has that.
fn with_referrer(there: Option<&[u8]>, referrer: &Stored) -> Result<Option<Value>> {
    let mut index = match there {
        Some(bytes) => serde_json::from_slice(bytes).context("the list of artifacts is no JSON")?,
        None => json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}),
    };
    let manifest: Value = serde_json::from_slice(&referrer.content).context("a manifest is no JSON")?;
    let Some(listed) = index["manifests"].as_array_mut() else {
        bail!("the list of artifacts is no index");
    };
    if listed
        .iter()
        .any(|one| one["digest"] == referrer.manifest.digest.as_str())
    {
        return Ok(None);
    }
    let mut own = referrer.manifest.json();
    own["artifactType"] = manifest["artifactType"].clone();
    own["annotations"] = manifest["annotations"].clone();
    listed.push(own);
    Ok(Some(index))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::{Decision, decide, with_referrer};
    use crate::oci::architecture;
    use crate::release::layout::{Descriptor, INDEX, MANIFEST, Stored, digest_of};
    use crate::release::{Item, Kind};

    fn item(kind: Kind) -> Item {
        let content = json!({"artifactType": "x", "annotations": {"a": "b"}})
            .to_string()
            .into_bytes();
        Item {
            repository: "mounter".into(),
            tag: "0.1.0".into(),
            kind,
            annotations: BTreeMap::new(),
            stored: Stored {
                manifest: Descriptor {
                    media_type: MANIFEST.into(),
                    digest: digest_of(&content),
                    size: 7,
                },
                content,
                blobs: Vec::new(),
            },
            referrers: Vec::new(),
        }
    }

    fn listed(decision: &Decision) -> Vec<Value> {
        let Decision::Put(INDEX, content) = decision else {
            panic!("{decision:?}");
        };
        let index: Value = serde_json::from_slice(content).unwrap();
        index["manifests"].as_array().unwrap().clone()
    }

    fn index(entries: &[(&str, &str)]) -> Vec<u8> {
        let entry = |(architecture, digest): &(&str, &str)| json!({"digest": digest, "platform": {"architecture": architecture, "os": "linux"}});
        json!({"manifests": entries.iter().map(entry).collect::<Vec<_>>()})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn a_platform_is_added_to_an_image_and_its_own_content_stays() {
        let image = item(Kind::Image);
        let own = image.stored.manifest.digest.clone();
        let [here, other] = if architecture() == "amd64" {
            ["amd64", "arm64"]
        } else {
            ["arm64", "amd64"]
        };
        assert_eq!(listed(&decide(&image, None, false).unwrap()).len(), 1);
        let there = index(&[(other, "sha256:1")]);
        let both = listed(&decide(&image, Some(&there), false).unwrap());
        let names: Vec<_> = both.iter().map(|one| one["platform"]["architecture"].clone()).collect();
        assert_eq!(names, ["amd64", "arm64"]);

        let same = index(&[(other, "sha256:1"), (here, &own)]);
        assert_eq!(decide(&image, Some(&same), false).unwrap(), Decision::There);

        let changed = index(&[(here, "sha256:2"), (other, "sha256:1")]);
        let taken = Decision::Taken(digest_of(&changed));
        assert_eq!(decide(&image, Some(&changed), false).unwrap(), taken);
        assert_eq!(listed(&decide(&image, Some(&changed), true).unwrap()).len(), 2);

        // Not an index: pushed by something else.
        let alone = json!({"layers": []}).to_string().into_bytes();
        assert_eq!(
            decide(&image, Some(&alone), false).unwrap(),
            Decision::Taken(digest_of(&alone))
        );
        assert_eq!(listed(&decide(&image, Some(&alone), true).unwrap()).len(), 1);
        assert!(decide(&image, Some(b"<html>"), false).is_err());
    }

    #[test]
    fn a_chart_s_tag_is_not_replaced_by_other_content() {
        let chart = item(Kind::Artifact);
        let content = chart.stored.content.clone();
        let put = Decision::Put(MANIFEST, content.clone());
        assert_eq!(decide(&chart, None, false).unwrap(), put);
        assert_eq!(decide(&chart, Some(&content), false).unwrap(), Decision::There);
        assert_eq!(
            decide(&chart, Some(b"{}"), false).unwrap(),
            Decision::Taken(digest_of(b"{}"))
        );
        assert_eq!(decide(&chart, Some(b"{}"), true).unwrap(), put);
    }

    #[test]
    fn an_artifact_is_listed_once_beside_those_of_others() {
        let bom = item(Kind::Artifact).stored;
        let there = json!({"manifests": [{"digest": "sha256:1"}]}).to_string();
        let index = with_referrer(Some(there.as_bytes()), &bom).unwrap().unwrap();
        assert_eq!(index["manifests"][1]["artifactType"], "x");
        assert_eq!(index["manifests"][1]["annotations"]["a"], "b");
        let again = with_referrer(Some(index.to_string().as_bytes()), &bom).unwrap();
        assert_eq!(again, None);
    }
}
