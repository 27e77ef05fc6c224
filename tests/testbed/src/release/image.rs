//! A built image in the layout, with its bill of materials.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::contents::{Contents, Programs};
use super::layout::{Descriptor, Layout, Parts, Stored};
use super::sbom::{self, About, Toolchain};
use super::{Item, Kind};
use crate::command::{command, output};
use crate::images::{Built, TAG};
use crate::layout::{make_folder, write_file};
use crate::oci::architecture;

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Puts images into a layout. Layers that images share are compressed once.
pub(super) struct Packer<'a> {
    layout: &'a Layout,
    /// Where archives are unpacked, on the layout's file system.
    work: PathBuf,
    /// Where bills of materials are written, too.
    boms: &'a Path,
    date: &'a str,
    programs: Programs,
    toolchain: Toolchain,
    /// Compressed layers, by the digests of what they are made from.
    layers: BTreeMap<String, Descriptor>,
}

impl<'a> Packer<'a> {
    pub(super) fn new(layout: &'a Layout, work: PathBuf, boms: &'a Path, date: &'a str) -> Result<Self> {
        Ok(Self {
            layout,
            work,
            boms,
            date,
            programs: Programs::compiled()?,
            toolchain: Toolchain::look()?,
            layers: BTreeMap::new(),
        })
    }

    pub(super) fn pack(&mut self, name: &str, image: &Built) -> Result<Item> {
        make_folder(&self.work)?;
        let packed = self
            .unpack(&image.archive.path)
            .and_then(|manifest| self.pack_unpacked(name, &manifest));
        let _ = std::fs::remove_dir_all(&self.work);
        packed.with_context(|| format!("failed to pack {}", image.archive.path.display()))
    }

    /// Returns the image's manifest.
    fn unpack(&self, archive: &Path) -> Result<Value> {
        let file = File::open(archive).with_context(|| format!("failed to open {}", archive.display()))?;
        tar::Archive::new(file)
            .unpack(&self.work)
            .with_context(|| format!("failed to unpack {}", archive.display()))?;
        let index = read_json(&self.work.join("index.json"))?;
        read_json(&self.unpacked(&index["manifests"][0])?)
    }

    fn unpacked(&self, descriptor: &Value) -> Result<PathBuf> {
        let digest = descriptor["digest"]
            .as_str()
            .context("the image has a blob without digest")?;
        Ok(self.work.join("blobs").join(digest.replace(':', "/")))
    }

    fn pack_unpacked(&mut self, name: &str, manifest: &Value) -> Result<Item> {
        let config = read_json(&self.unpacked(&manifest["config"])?)?;
        let labels = config["config"]["Labels"].as_object().cloned().unwrap_or_default();
        let mut contents = Contents::default();
        let mut layers = Vec::new();
        for layer in manifest["layers"].as_array().into_iter().flatten() {
            let file = self.unpacked(layer)?;
            contents.add_layer(&file, &self.programs)?;
            layers.push(self.layer(layer, &file)?);
        }
        ensure!(!layers.is_empty(), "the image has no layer");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let annotations: BTreeMap<_, _> = labels.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        let image = self.layout.put_manifest(Parts {
            config: Some(self.layout.put(CONFIG, config.to_string().as_bytes())?),
            layers,
            annotations: annotations.clone(),
            ..Parts::default()
        })?;
        let bom = self.bom(name, &image, &contents)?;
        Ok(Item {
            repository: name.to_owned(),
            tag: TAG.to_owned(),
            kind: Kind::Image,
            annotations,
            stored: image,
            referrers: vec![bom],
        })
    }

    /// The compressed form of a layer.
    fn layer(&mut self, layer: &Value, file: &Path) -> Result<Descriptor> {
        let digest = layer["digest"].as_str().unwrap_or_default().to_owned();
        if let Some(known) = self.layers.get(&digest) {
            return Ok(known.clone());
        }
        let compressed = self.layout.take(LAYER, &gzip(file)?)?;
        self.layers.insert(digest, compressed.clone());
        Ok(compressed)
    }

    fn bom(&self, name: &str, image: &Stored, contents: &Contents) -> Result<Stored> {
        let about = About {
            image: name,
            digest: &image.manifest.digest,
            architecture: architecture(),
            date: self.date,
        };
        let document = format!("{:#}\n", sbom::document(&about, contents, &self.toolchain)?);
        write_file(
            &self.boms.join(format!("{name}-{}.spdx.json", architecture())),
            &document,
        )?;
        self.layout.put_manifest(Parts {
            layers: vec![self.layout.put(sbom::MEDIA_TYPE, document.as_bytes())?],
            artifact_type: Some(sbom::MEDIA_TYPE),
            subject: Some(&image.manifest),
            annotations: [("org.opencontainers.image.created".to_owned(), self.date.to_owned())].into(),
            ..Parts::default()
        })
    }
}

/// Compresses a file in its place, without its name and time.
pub(super) fn gzip(file: &Path) -> Result<PathBuf> {
    output(command("gzip", ["--no-name", "--force"]).arg(file))?;
    let mut compressed = file.as_os_str().to_owned();
    compressed.push(".gz");
    Ok(compressed.into())
}

fn read_json(path: &Path) -> Result<Value> {
    crate::spec::read_json(path)
}

/// This image as an entry of an index of platforms.
pub(super) fn entry(image: &Stored) -> Value {
    let mut entry = image.manifest.json();
    entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
    entry
}
