//! An image with Go programs that need nothing beside them.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use mooring_testbed::base_images::Archive;
use mooring_testbed::oci::{Runs, write_archive};

/// Makes an image of this full name with programs in its root, in the programs' folder. The first one is what it runs.
pub(super) fn image(name: &str, programs: &[PathBuf]) -> Result<Archive> {
    let first = programs.first().context("an image without a program")?;
    let archive = Archive {
        name: name.to_owned(),
        path: first.with_extension("image.tar"),
    };
    if archive.path.is_file() {
        return Ok(archive);
    }
    let layer = first.with_extension("layer.tar");
    let pack = || -> std::io::Result<()> {
        let mut tar = tar::Builder::new(File::create(&layer)?);
        tar.mode(tar::HeaderMode::Deterministic);
        for program in programs {
            tar.append_path_with_name(program, Path::new(program.file_name().unwrap_or_default()))?;
        }
        tar.into_inner()?.sync_all()
    };
    pack().with_context(|| format!("failed to pack {name}"))?;
    let runs = Runs {
        entrypoint: &[&format!("/{}", base(first))],
        ..Runs::default()
    };
    write_archive(&archive.path, &layer, &runs)?;
    let _ = std::fs::remove_file(&layer);
    Ok(archive)
}

fn base(program: &Path) -> String {
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
