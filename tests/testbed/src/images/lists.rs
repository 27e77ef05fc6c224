//! The package lists that images share: fetched once, and laid below each build's own files, which are discarded.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::built::Built;
use super::store::{Build, Store};
use crate::layout::{cache, make_folder, write_file};
use crate::progress::Step;

/// Older lists are fetched again, so that not every build has to fetch the changes since.
const FRESH: Duration = Duration::from_hours(12);

/// What apt stores, and its place in an image.
const PLACES: [(&str, &str); 2] = [("lists", "/var/lib/apt/lists"), ("cache", "/var/cache/apt")];

const CONTAINERFILE: &str = "FROM debian:trixie-slim\nRUN apt-get update && apt-cache stats\n";

/// Fetches the lists if they are missing or old; returns the arguments that make buildah show them to a build. What the
/// build writes beside them leaves no trace, in the image or here.
pub(super) fn shared(store: &Store, debian: &Built) -> Result<Vec<String>> {
    if !store.has_overlays() {
        return Ok(Vec::new());
    }
    let folder = cache()?.join("package-lists");
    let of = folder.join("of");
    let fresh = std::fs::read_to_string(&of).is_ok_and(|hash| hash == debian.hash)
        && of
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|made| {
                // One from the future counts as old.
                made.elapsed().is_ok_and(|age| age < FRESH)
            });
    if !fresh {
        fetch(store, debian, &folder)?;
        write_file(&of, &debian.hash)?;
    }
    Ok(volumes(&folder, ":O"))
}

fn fetch(store: &Store, debian: &Built, folder: &Path) -> Result<()> {
    let mut step = Step::begin("fetch the package lists for the images");
    let _ = std::fs::remove_dir_all(folder);
    for (name, _) in PLACES {
        make_folder(&folder.join(name))?;
    }
    make_folder(&folder.join("cache/archives/partial"))?;
    let containerfile = folder.join("Containerfile");
    write_file(&containerfile, CONTAINERFILE)?;
    store.ensure(debian)?;
    let arguments = volumes(folder, "");
    let archive = folder.join("archive");
    let build = Build {
        containerfile: &containerfile,
        context: &folder.join("cache"),
        arguments: &arguments,
        archive: &archive,
    };
    store.build(&build, |line| step.update(line))?;
    let _ = std::fs::remove_file(&archive);
    step.done("");
    Ok(())
}

fn volumes(folder: &Path, how: &str) -> Vec<String> {
    PLACES
        .iter()
        .map(|(name, target)| format!("--volume={}:{target}{how}", folder.join(name).display()))
        .collect()
}
