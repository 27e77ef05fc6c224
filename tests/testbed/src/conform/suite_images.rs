//! The images of the suite's Pods, under the very names that it asks for: Kubernetes' own registry need not be reached.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::base_images::{self, Archive};
use crate::binaries::ensure_agnhost;
use crate::command::{command, output};
use crate::layout::make_folder;
use crate::oci::{Runs, write_archive};
use crate::progress::step;
use crate::target::Target;

/// Parts of names of images that a busybox with all its applets does for.
const LIKE_BUSYBOX: [&str; 2] = ["/busybox:", "/nginx:"];

/// Part of the name of the image that Debian does for.
const LIKE_DEBIAN: &str = "/glibc-dns-testing:";

/// Brings the images to the nodes; returns their names.
pub(super) fn load(target: &Target, program: &Path) -> Result<BTreeSet<String>> {
    let cluster = target.own_cluster().context("not the testbed's own cluster")?;
    let names = names(&output(&mut command(program, ["--list-images"]))?);
    let busybox = base_images::busybox()?.path;
    let debian = base_images::debian()?.path;
    let agnhost = agnhost()?;
    step(&format!("load {} images of the suite", names.len()), |_| {
        for name in &names {
            let path = match name {
                name if name.contains("/agnhost:") => &agnhost,
                name if name.contains(LIKE_DEBIAN) => &debian,
                _ => &busybox,
            };
            for index in 1..=cluster.description.nodes {
                let image = Archive {
                    name: name.clone(),
                    path: path.clone(),
                };
                cluster.import(index, &image)?;
            }
        }
        Ok(())
    })?;
    Ok(names)
}

/// The images of the list that storage's specs use.
fn names(list: &str) -> BTreeSet<String> {
    let parts = ["/agnhost:", LIKE_DEBIAN].into_iter().chain(LIKE_BUSYBOX);
    let wanted = |name: &str| parts.clone().any(|part| name.contains(part));
    list.lines()
        .map(str::trim)
        .filter(|name| name.starts_with("registry.k8s.io/") && wanted(name))
        .map(str::to_owned)
        .collect()
}

/// busybox, and the program `agnhost` as what it runs.
fn agnhost() -> Result<PathBuf> {
    let program = ensure_agnhost()?;
    let folder = program.parent().context("agnhost is in no folder")?;
    let archive = folder.join("agnhost.tar");
    if archive.is_file() {
        return Ok(archive);
    }
    let root = folder.join(format!("root-{}", std::process::id()));
    make_folder(&root)?;
    let made = write(&program, &root, &archive);
    let _ = std::fs::remove_dir_all(&root);
    made.context("failed to make the image agnhost")?;
    Ok(archive)
}

fn write(program: &Path, root: &Path, archive: &Path) -> Result<()> {
    let busybox = base_images::busybox_layer()?;
    tar::Archive::new(File::open(&busybox)?).unpack(root)?;
    std::fs::copy(program, root.join("agnhost"))?;
    let layer = root.with_extension("layer");
    let mut tar = tar::Builder::new(File::create(&layer)?);
    tar.mode(tar::HeaderMode::Deterministic);
    tar.follow_symlinks(false);
    tar.append_dir_all("", root)?;
    tar.into_inner()?;
    let runs = Runs {
        entrypoint: &["/agnhost"],
        cmd: &["pause"],
        ..Runs::default()
    };
    let written = write_archive(archive, &layer, &runs);
    let _ = std::fs::remove_file(&layer);
    written?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn the_images_of_storage_s_specs_are_chosen_by_name() {
        let list = "registry.k8s.io/e2e-test-images/agnhost:2.66.1\nregistry.k8s.io/etcd:3.6\n\
                    gcr.io/k8s-authenticated-test/agnhost:2.6\nregistry.k8s.io/e2e-test-images/busybox:1.37.0-2\n";
        let names = names(list);
        assert_eq!(names.len(), 2);
        assert!(
            names
                .iter()
                .all(|name| name.starts_with("registry.k8s.io/e2e-test-images/"))
        );
    }
}
