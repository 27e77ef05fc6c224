//! The files of a release for `kubectl apply`, and the list of its images, with the registry's name.

use std::path::Path;

use anyhow::{Context, Result};

use super::replaced;
use crate::binaries::{Release, Releases, ensure_binaries};
use crate::command::{command, find_program, output};
use crate::images::TAG;
use crate::layout::{make_folder, repository, write_file};
use crate::target::with_host;

/// The kustomization for a registry of one's own, and the registry that it has.
const FOLDER: &str = "registry";
pub const EXAMPLE_REGISTRY: &str = "registry.example.com/mooring";

/// The files, and the releases of Kubernetes that they are for.
const FILES: [(&str, Release, &str); 2] = [
    ("mooring.yaml", Release::Newest, "Kubernetes 1.36 and later"),
    ("mooring-before-1.36.yaml", Release::Oldest, "Kubernetes 1.33 to 1.35"),
];

/// The text of `configmaps/registry/kustomization.yaml` with a registry, for Kubernetes of a release.
pub fn kustomization(registry: &str, release: Release) -> Result<String> {
    let path = repository().join("configmaps").join(FOLDER).join("kustomization.yaml");
    let usual = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let own = |registry: &str| format!("      - registry={registry}\n");
    let own = replaced(&usual, &own(EXAMPLE_REGISTRY), &own(registry))
        .context("failed to set the registry of configmaps/registry")?;
    Ok(if release.is_complete() {
        own
    } else {
        replaced(&own, "# components:", "components:").context("failed to name the component before-1.36")?
    })
}

/// Writes them into a folder; `work` is for temporary use.
pub fn write(folder: &Path, work: &Path, registry: &str, revision: &str) -> Result<()> {
    let source = repository().join("configmaps");
    make_folder(work)?;
    output(command("cp", ["-r"]).arg(&source).arg(work))?;
    let copy = work.join("configmaps").join(FOLDER);
    for (name, release, versions) in FILES {
        write_file(&copy.join("kustomization.yaml"), kustomization(registry, release)?)?;
        let mut kustomize = command(kubectl()?, ["kustomize"]);
        let manifest = output(kustomize.arg(&copy)).with_context(|| format!("failed to render {name}"))?;
        let head = format!("# Mooring {TAG} ({revision}) for {versions}: kubectl apply -f {name}\n");
        write_file(&folder.join(name), head + &manifest)?;
    }
    let list = source.join("images.txt");
    let images = std::fs::read_to_string(&list).with_context(|| format!("failed to read {}", list.display()))?;
    let images: Vec<_> = images.lines().filter(|line| !line.starts_with('#')).collect();
    let images = with_host(&images.join("\n"), registry);
    write_file(&folder.join("images.txt"), format!("{}\n", images.trim()))
}

fn kubectl() -> Result<std::path::PathBuf> {
    Ok(match find_program("kubectl") {
        Some(path) => path,
        None => ensure_binaries(Releases::default())?.path("kubectl"),
    })
}
