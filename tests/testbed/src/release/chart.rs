//! The Helm chart as an archive and as an OCI artifact, in the form that `helm package` and `helm push` give it.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::image::gzip;
use super::layout::{Layout, Parts};
use super::{Item, Kind, replaced};
use crate::images::{HOST, TAG};
use crate::layout::repository;

const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const CONTENT: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

/// Where a registry gets it.
pub(super) const REPOSITORY: &str = "charts/mooring";

/// The chart's name, and its folder in the work tree.
const NAME: &str = "mooring";
const FOLDER: &str = "configmaps/install";

/// Writes `mooring-VERSION.tgz` into a folder, and puts it into the layout.
pub(super) fn pack(layout: &Layout, folder: &Path, registry: &str, time: u64, date: &str) -> Result<Item> {
    let source = repository().join(FOLDER);
    let about = text(&source.join("Chart.yaml"))?;
    let about = mooring_yaml::document(&about).context("failed to read Chart.yaml")?;
    let archive = folder.join(format!("{NAME}-{TAG}.tar"));
    write(&archive, &source, registry, time)?;
    let (compressed, packed) = (gzip(&archive)?, archive.with_extension("tgz"));
    std::fs::rename(&compressed, &packed)
        .with_context(|| format!("failed to rename {} to {}", compressed.display(), packed.display()))?;
    let content = std::fs::read(&packed).with_context(|| format!("failed to read {}", packed.display()))?;
    let annotation = |name: &str, value: &str| (format!("org.opencontainers.image.{name}"), value.to_owned());
    let annotations = [
        annotation("title", NAME),
        annotation("version", TAG),
        annotation("created", date),
        annotation("description", about["description"].as_str().unwrap_or_default()),
    ];
    let stored = layout.put_manifest(Parts {
        config: Some(layout.put(CONFIG, about.to_string().as_bytes())?),
        layers: vec![layout.put(CONTENT, &content)?],
        annotations: annotations.clone().into(),
        ..Parts::default()
    })?;
    Ok(Item {
        repository: REPOSITORY.to_owned(),
        tag: TAG.to_owned(),
        kind: Kind::Artifact,
        annotations: annotations.into(),
        stored,
        referrers: Vec::new(),
    })
}

fn write(archive: &Path, source: &Path, registry: &str, time: u64) -> Result<()> {
    let ignored = text(&source.join(".helmignore"))?;
    let ignored: Vec<_> = ignored.lines().filter(|line| !line.starts_with('#')).collect();
    let mut files = Vec::new();
    collect(source, source, &ignored, &mut files)?;
    let file = File::create(archive).with_context(|| format!("failed to make {}", archive.display()))?;
    let mut tar = tar::Builder::new(file);
    for path in files {
        let mut content = text(&source.join(&path))?;
        if path == Path::new("values.yaml") {
            let own = |registry: &str| format!("\nregistry: {registry}\n");
            content = replaced(&content, &own(HOST), &own(registry)).context("failed to set the chart's registry")?;
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(time);
        tar.append_data(&mut header, Path::new(NAME).join(&path), content.as_bytes())
            .with_context(|| format!("failed to pack {}", path.display()))?;
    }
    tar.into_inner()
        .map(drop)
        .with_context(|| format!("failed to write {}", archive.display()))
}

/// The chart's files, relative to its folder, in order.
fn collect(root: &Path, folder: &Path, ignored: &[&str], files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let relative = path.strip_prefix(root).unwrap_or(&path).to_owned();
        let name = relative.to_string_lossy();
        let is_folder = path.is_dir();
        if ignored
            .iter()
            .any(|line| *line == name || (is_folder && line.strip_suffix('/') == Some(&name)))
        {
            continue;
        }
        if is_folder {
            collect(root, &path, ignored, files)?;
        } else {
            files.push(relative);
        }
    }
    Ok(())
}

fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::write;
    use crate::layout::repository;

    #[test]
    fn a_chart_s_archive_has_its_files_in_order_and_the_registry() {
        let path = std::env::temp_dir().join(format!("mooring-chart-{}.tar", std::process::id()));
        write(&path, &repository().join(super::FOLDER), "r.example.com/m", 7).unwrap();
        let mut names = Vec::new();
        let mut values = String::new();
        for entry in tar::Archive::new(std::fs::File::open(&path).unwrap())
            .entries()
            .unwrap()
        {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().mtime().unwrap(), 7);
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            if name.ends_with("/values.yaml") {
                entry.read_to_string(&mut values).unwrap();
            }
            names.push(name);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(values.contains("\nregistry: r.example.com/m\n"), "{values}");
        for name in [
            "mooring/Chart.yaml",
            "mooring/values.schema.json",
            "mooring/mounter.yaml",
        ] {
            assert!(names.iter().any(|there| there == name), "{name}: {names:?}");
        }
        for name in ["kustomization.yaml", "namespace.yaml", "namespace/"] {
            assert!(
                !names.iter().any(|there| there.starts_with(&format!("mooring/{name}"))),
                "{name}"
            );
        }
        assert!(names.is_sorted());
    }
}
