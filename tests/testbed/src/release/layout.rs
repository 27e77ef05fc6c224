//! A folder in the form of an OCI image layout: all that a registry gets, by digest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::hash::hex;
use crate::layout::{make_folder, write_file};
use crate::oci::digest_file;

pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// What a manifest says about a blob or another manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub(super) media_type: String,
    /// `sha256:…`.
    pub(super) digest: String,
    pub(super) size: u64,
}

impl Descriptor {
    pub(super) fn json(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.size})
    }
}

/// A manifest that is in the layout, with its blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) manifest: Descriptor,
    pub(super) content: Vec<u8>,
    pub(super) blobs: Vec<Descriptor>,
}

/// The parts of a manifest.
#[derive(Debug, Default)]
pub(super) struct Parts<'a> {
    /// Without one, it is an artifact whose only configuration is its type.
    pub(super) config: Option<Descriptor>,
    pub(super) layers: Vec<Descriptor>,
    pub(super) artifact_type: Option<&'a str>,
    /// The manifest that it is about.
    pub(super) subject: Option<&'a Descriptor>,
    pub(super) annotations: BTreeMap<String, String>,
}

pub(super) struct Layout {
    folder: PathBuf,
    /// The entries of the index.
    named: Vec<Value>,
}

pub(super) fn digest_of(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}

impl Layout {
    pub(super) fn create(folder: &Path) -> Result<Self> {
        make_folder(&folder.join("blobs/sha256"))?;
        write_file(&folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        Ok(Self {
            folder: folder.to_owned(),
            named: Vec::new(),
        })
    }

    pub(super) fn path(&self, blob: &Descriptor) -> PathBuf {
        self.folder.join("blobs").join(blob.digest.replace(':', "/"))
    }

    pub(super) fn put(&self, media_type: &str, content: &[u8]) -> Result<Descriptor> {
        let blob = Descriptor {
            media_type: media_type.to_owned(),
            digest: digest_of(content),
            size: content.len() as u64,
        };
        write_file(&self.path(&blob), content)?;
        Ok(blob)
    }

    /// Moves a file of the same file system into the layout.
    pub(super) fn take(&self, media_type: &str, file: &Path) -> Result<Descriptor> {
        let (digest, size) = digest_file(file)?;
        let blob = Descriptor {
            media_type: media_type.to_owned(),
            digest: format!("sha256:{digest}"),
            size,
        };
        std::fs::rename(file, self.path(&blob))
            .with_context(|| format!("failed to move {} into {}", file.display(), self.folder.display()))?;
        Ok(blob)
    }

    pub(super) fn put_manifest(&self, parts: Parts<'_>) -> Result<Stored> {
        let config = match parts.config {
            Some(config) => config,
            None => self.put(EMPTY, b"{}")?,
        };
        let mut manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.json(),
            "layers": parts.layers.iter().map(Descriptor::json).collect::<Vec<_>>(),
            "annotations": parts.annotations,
        });
        if let Some(artifact_type) = parts.artifact_type {
            manifest["artifactType"] = artifact_type.into();
        }
        if let Some(subject) = parts.subject {
            manifest["subject"] = subject.json();
        }
        let content = manifest.to_string().into_bytes();
        let manifest = self.put(MANIFEST, &content)?;
        let blobs = std::iter::once(config).chain(parts.layers).collect();
        Ok(Stored {
            manifest,
            content,
            blobs,
        })
    }

    /// Lists an entry under a name.
    pub(super) fn name(&mut self, name: &str, mut entry: Value) {
        entry["annotations"]["org.opencontainers.image.ref.name"] = name.into();
        self.named.push(entry);
    }

    pub(super) fn save(&self) -> Result<()> {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.named});
        write_file(&self.folder.join("index.json"), index.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, Parts};

    #[test]
    fn the_same_parts_make_the_same_digest_and_every_blob_is_there() {
        let folder = std::env::temp_dir().join(format!("mooring-layout-{}", std::process::id()));
        let layout = Layout::create(&folder).unwrap();
        let make = || {
            let file = folder.join("file");
            std::fs::write(&file, "layer").unwrap();
            let layer = layout.take("text/plain", &file).unwrap();
            let parts = Parts {
                layers: vec![layer],
                artifact_type: Some("text/plain"),
                ..Parts::default()
            };
            layout.put_manifest(parts).unwrap()
        };
        let stored = make();
        assert_eq!(stored, make());
        assert_eq!(stored.blobs.len(), 2);
        for blob in stored.blobs.iter().chain([&stored.manifest]) {
            assert_eq!(std::fs::metadata(layout.path(blob)).unwrap().len(), blob.size);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
