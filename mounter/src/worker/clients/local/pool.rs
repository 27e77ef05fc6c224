//! The image files of a node's pool.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use super::super::image::ImageContent;
use crate::grant::Grant;
use crate::sys::{ImageFile, LoopDevice, Sys};
use crate::volume::job::MountError;
use crate::volume::mount_table::MountEntry;

/// How often to look whether an image file is still locked, and how many times: another Pod's mount has it for a moment,
/// a backup for as long as it takes, and the kubelet waits for neither.
const LOCK_PERIOD: Duration = Duration::from_millis(100);
const LOCK_TRIES: u32 = 50;

/// Fails if a volume for one Pod is in the directory of another. A Pod's own has more mounts, of parts of the volume.
pub(super) fn fail_unless_alone<'a>(
    grant: &Grant,
    name: &str,
    mut mounts: impl Iterator<Item = &'a MountEntry>,
) -> Result<(), MountError> {
    if !grant.is_sole() {
        return Ok(());
    }
    let own = grant.target().pod_uid();
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
    let image = find(sys, pool, name)?.ok_or_else(|| {
        let message = format!(
            "there is no image file {name} in its pool {}: check on which node the volume was made, and that the PV's \
             node affinity names that node",
            pool.display()
        );
        MountError::Node(message.into())
    })?;
    if image.size == 0 {
        return Err(MountError::failed(
            format!("mount image file {name}"),
            "it is empty, so it has no size: the provisioner has to make it as large as the volume (truncate -s)",
        ));
    }
    Ok(image)
}

/// Opens and locks an image file, if the pool has it.
pub(super) fn find(sys: &impl Sys, pool: &Path, name: &str) -> Result<Option<ImageFile>, MountError> {
    for _ in 0..LOCK_TRIES {
        match sys.open_image(pool, name) {
            Ok(image) => return Ok(Some(image)),
            Err(error) if error.errno == Some(Errno::ENOENT) => return Ok(None),
            Err(error) if error.errno == Some(Errno::EAGAIN) => sys.pause(LOCK_PERIOD),
            Err(error) => return Err(error.into()),
        }
    }
    Err(MountError::ImageBusy { file: name.to_owned() })
}

/// Puts an image file behind a free loop device. If the file is to have all of its room, it gets back what it has lost:
/// whatever zeroes or discards a part of such a device, as mkfs and the kernel do, makes a hole in the file.
pub(super) fn attach_loop(sys: &impl Sys, image: &ImageFile, read_only: bool) -> Result<LoopDevice, MountError> {
    if image.is_preallocated {
        sys.allocate(image)?;
    }
    Ok(sys.attach_loop(image, read_only)?)
}

pub(super) fn content(sys: &impl Sys, image: &ImageFile) -> Result<ImageContent, MountError> {
    Ok(ImageContent::of(&sys.read_image(image, 0, ImageContent::PROBED)?))
}
