//! The image files of a node's pool.

use std::path::Path;

use rustix::io::Errno;

use super::super::image::ImageContent;
use crate::sys::{ImageFile, Sys};
use crate::volume::job::MountError;
use crate::volume::mount_table::MountEntry;
use crate::worker::task::MountTask;

/// Fails if a volume for one Pod is in the directory of another. A Pod's own has more mounts, of parts of the volume.
pub(super) fn fail_unless_alone<'a>(
    task: &MountTask,
    name: &str,
    mut mounts: impl Iterator<Item = &'a MountEntry>,
) -> Result<(), MountError> {
    if !task.sole {
        return Ok(());
    }
    let own = task.target.pod_uid();
    match mounts.find(|entry| !entry.mount_point.iter().any(|part| part == own)) {
        Some(entry) => Err(MountError::NotAlone {
            volume: format!("image file {name}"),
            other: entry.mount_point.display().to_string(),
        }),
        None => Ok(()),
    }
}

/// The file's name. It is also the only part of a path that a volume can choose.
pub(super) fn file_name(source: &str) -> Result<&str, MountError> {
    let plain = !source.is_empty() && !source.starts_with(['.', '-']) && !source.contains('/');
    if plain {
        Ok(source)
    } else {
        let message = format!(
            "option source={source:?} of a local volume is not a file name: name an image file of the node's pool, \
             without a directory and a leading dot or dash"
        );
        Err(MountError::BadOptions(message.into()))
    }
}

pub(super) fn open(sys: &impl Sys, pool: &Path, name: &str) -> Result<ImageFile, MountError> {
    let image = sys.open_image(pool, name).map_err(|error| match error.errno {
        Some(Errno::NOENT) => {
            let message = format!(
                "there is no image file {name} in its pool {}: check on which node the volume was made, and that the \
                 PV's node affinity names that node",
                pool.display()
            );
            MountError::Node(message.into())
        }
        _ => error.into(),
    })?;
    if image.size == 0 {
        return Err(MountError::Failed {
            attempted: format!("mount image file {name}"),
            cause:
                "it is empty, so it has no size: the provisioner has to make it as large as the volume (truncate -s)"
                    .to_owned()
                    .into(),
        });
    }
    Ok(image)
}

pub(super) fn content(sys: &impl Sys, image: &ImageFile) -> Result<ImageContent, MountError> {
    Ok(ImageContent::of(&sys.read_image(image, 0, ImageContent::PROBED)?))
}
