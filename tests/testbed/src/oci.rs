//! Writes an OCI archive of an image with one layer: the base images need no builder.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::hash::hex;

/// What an image runs.
#[derive(Debug, Default)]
pub struct Runs<'a> {
    pub entrypoint: &'a [&'a str],
    pub cmd: &'a [&'a str],
    /// `uid:gid`; empty for root.
    pub user: &'a str,
}

/// Writes the OCI archive `archive` of an image with the tar file `layer` as its only layer.
pub fn write_archive(archive: &Path, layer: &Path, runs: &Runs<'_>) -> Result<()> {
    let (layer_digest, layer_size) = digest_file(layer)?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": runs.entrypoint,
            "Cmd": runs.cmd,
            "User": runs.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
        // One entry per layer: buildah counts them when it adds others.
        "history": [{"created_by": "cargo testbed"}],
    });
    let config = Blob::from_json(&config);
    let manifest = Blob::from_json(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": format!("sha256:{layer_digest}"),
            "size": layer_size,
        }],
    }));
    let mut entry = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
    // The archive contains no name: containerd uses the one given at import, and would use neither if there were two.
    entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });

    let partial = archive.with_extension("partial");
    let file = File::create(&partial).with_context(|| format!("failed to make {}", partial.display()))?;
    let mut tar = tar::Builder::new(file);
    let written = (|| -> std::io::Result<()> {
        append(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        append(&mut tar, "index.json", index.to_string().as_bytes())?;
        for blob in [&config, &manifest] {
            append(&mut tar, &format!("blobs/sha256/{}", blob.digest), &blob.content)?;
        }
        let mut header = header(layer_size);
        tar.append_data(&mut header, format!("blobs/sha256/{layer_digest}"), File::open(layer)?)?;
        tar.into_inner()?.sync_all()
    })();
    written.with_context(|| format!("failed to write an image to {}", partial.display()))?;
    std::fs::rename(&partial, archive).with_context(|| format!("failed to put {} in place", archive.display()))
}

/// This machine's architecture, as images name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

struct Blob {
    content: Vec<u8>,
    digest: String,
}

impl Blob {
    fn from_json(value: &Value) -> Self {
        let content = value.to_string().into_bytes();
        let digest = hex(&Sha256::digest(&content));
        Self { content, digest }
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({
            "mediaType": media_type,
            "digest": format!("sha256:{}", self.digest),
            "size": self.content.len(),
        })
    }
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header
}

fn append(tar: &mut tar::Builder<File>, path: &str, content: &[u8]) -> std::io::Result<()> {
    tar.append_data(&mut header(content.len() as u64), path, content)
}

/// The SHA-256 of a file in hexadecimal digits, and its length.
pub(crate) fn digest_file(path: &Path) -> Result<(String, u64)> {
    let read = || -> std::io::Result<(String, u64)> {
        let mut file = File::open(path)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        let mut size = 0;
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                return Ok((hex(&hash.finalize()), size));
            }
            hash.update(&buffer[..count]);
            size += count as u64;
        }
    };
    read().with_context(|| format!("failed to read {}", path.display()))
}
