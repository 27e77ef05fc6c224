//! Lets a volume that is in use grow to the size of its image file: its device, and the file system on that if it has
//! one. It is known by its target alone: the kernel says which device is there and which file is behind that, and
//! nobody else needs to remember.

use std::ffi::OsStr;
use std::path::Path;

use mooring_contract::volume::file_system::FileSystem;

use super::super::file_system::grow_mounted;
use super::super::image::ImageContent;
use super::pool::find;
use crate::sys::{ImageFile, LoopDevice, Sys};
use crate::volume::job::MountError;
use crate::volume::mount_table::{DeviceNumber, MountEntry};
use crate::volume::target::Target;
use crate::volume::volume_id::source_in_words;

/// Lets the volume on a target grow to the size of its file, which must be `size` by now.
pub fn expand(sys: &impl Sys, pool: &Path, target: &Target, size: u64) -> Result<(), MountError> {
    let table = sys.mount_table()?;
    let entry = table.top(&target.path()).ok_or_else(|| not_mounted(target))?;
    let number = if target.is_device() {
        sys.device_at(target)?.ok_or_else(|| not_mounted(target))?
    } else {
        entry.device
    };
    let (image, device) = image_behind(sys, pool, number)?.ok_or_else(|| {
        let why = "it is on a device of the node that Mooring can't enlarge while it is mounted: enlarge its file \
                   system on the node, or delete the Pod if the volume's client enlarges it at its mount";
        not_expanded(target, entry, why)
    })?;
    if image.size < size {
        return Err(MountError::failed(
            format!("expand the volume on {target}"),
            format!(
                "its image file {} has {} bytes, not the {size} asked for: the provisioner's expand has to enlarge the \
                 file first",
                image.path.display(),
                image.size
            ),
        ));
    }
    if target.is_device() {
        return Ok(sys.refresh_loop(&device)?);
    }
    let is_read_only = |options: &[String]| options.iter().any(|option| option == "ro");
    if is_read_only(&entry.flags) || is_read_only(&entry.options) {
        let why = "it is mounted read-only: it grows when a Pod mounts it for writing";
        return Err(not_expanded(target, entry, why));
    }
    sys.refresh_loop(&device)?;
    let bytes = sys.read_image(&image, 0, ImageContent::PROBED)?;
    let outgrown = ImageContent::outgrown(&bytes, image.size);
    if outgrown == Some(FileSystem::Ext4) && !sys.may_grow_mounted() {
        let why = "the kernel lets an ext4 grow while it is mounted only for a process with CAP_SYS_RESOURCE, which the \
                   mounter does not have here. It grows before the next mount: delete the Pods that use it on this \
                   node, and the next one has it larger";
        return Err(not_expanded(target, entry, why));
    }
    Ok(grow_mounted(sys, outgrown, &device.path, &target.path())?)
}

/// The image file of the pool that is behind a device, with its loop device.
pub(super) fn image_behind(
    sys: &impl Sys,
    pool: &Path,
    number: DeviceNumber,
) -> Result<Option<(ImageFile, LoopDevice)>, MountError> {
    let name = sys.file_behind(number)?;
    let Some(name) = name.as_deref().and_then(OsStr::to_str) else {
        return Ok(None);
    };
    let Some(image) = find(sys, pool, name)? else {
        return Ok(None);
    };
    // The file of another directory may have the same name.
    let device = sys.find_loop(&image)?.filter(|device| device.number == number);
    Ok(device.map(|device| (image, device)))
}

fn not_mounted(target: &Target) -> MountError {
    MountError::failed(
        format!("expand the volume on {target}"),
        "nothing is mounted there: the kubelet tries again when the volume is mounted",
    )
}

fn not_expanded(target: &Target, entry: &MountEntry, why: &str) -> MountError {
    MountError::NotExpanded {
        target: target.to_string(),
        found: format!("{} ({})", source_in_words(entry), entry.fs_type),
        why: why.to_owned(),
    }
}
