//! An image that was built, and the names of all images.

use std::path::Path;

use crate::base_images::Archive;

/// The tag of every image: the version of the workspace.
pub const TAG: &str = env!("CARGO_PKG_VERSION");

/// The first part of every image's name.
pub const HOST: &str = "mooring.dev";

#[derive(Debug, Clone)]
pub struct Built {
    /// Its full name and its OCI archive.
    pub archive: Archive,
    /// Hash of all its ingredients.
    pub hash: String,
}

impl Built {
    /// A base image. Its archive is in a folder that is named after what it is made from.
    pub(super) fn of_base(archive: Archive) -> Self {
        let folder = archive.path.parent().and_then(Path::file_name);
        let hash = folder.unwrap_or_default().to_string_lossy().into_owned();
        Self { archive, hash }
    }
}
