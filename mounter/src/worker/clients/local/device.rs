//! An image file of the pool as a raw block volume: the node of its loop device is mounted on the file that the kubelet
//! names for the Pod. Nothing is ever formatted.
//!
//! A mount of a device's node does not use the device. So the loop device is kept without a user, from when the Pod has
//! it until the kubelet takes it from the last Pod; then it goes with its last user. A worker that ends half-way leaves
//! a device that still goes by itself, and at most a node without a file behind it, which the next try removes.
//!
//! All Pods of the node have one device. The kernel refuses writes to it while none of them has it for writing: the
//! node of one that is only to read it is mounted read-only, which says so and has no other effect.

use std::path::Path;

use super::super::checks::{check_raw, shown_as};
use super::expand::image_behind;
use super::pool::{attach_loop, fail_unless_alone, file_name, open};
use crate::grant::Grant;
use crate::sys::{ImageFile, LoopDevice, Sys};
use crate::volume::job::MountError;
use crate::volume::mount_table::{MountEntry, Table};
use crate::volume::target::Target;
use crate::worker::unmount::unmount;

/// Gives a Pod an image file as a device.
pub fn show(sys: &impl Sys, pool: &Path, grant: &Grant) -> Result<(), MountError> {
    let volume = grant.volume();
    let name = file_name(&volume.source)?;
    check_raw(volume, name)?;
    let image = open(sys, pool, name)?;
    let found = sys.find_loop(&image)?;
    let table = sys.mount_table()?;
    if let Some(device) = &found {
        fail_if_mounted(&table, device, name)?;
        fail_unless_alone(grant, name, table.shows(&device.path, &grant.target().devices()))?;
    }
    if let Some(entry) = table.top(&grant.target().path()) {
        match (&found, sys.device_at(grant.target())?) {
            (Some(device), Some(shown)) if device.number == shown => {
                shown_as(entry, grant.target(), grant.is_read_only())?;
                return keep(sys, &table, device, grant);
            }
            // An earlier try ended before it could keep the device.
            (_, Some(shown)) if sys.file_behind(shown)?.is_none() => unmount(sys, grant.target(), false)?,
            _ => return Err(occupied(grant.target(), name)),
        }
    }
    let device = match found {
        Some(device) if sys.is_read_only(&device)? != grant.is_only_read() => return Err(other_access(name)),
        Some(device) => device,
        None => attach_loop(sys, &image, grant.is_only_read())?,
    };
    let node = sys.clone_node(&device, grant.is_read_only())?;
    sys.attach(&node, &sys.open_target(grant.target())?)?;
    keep(sys, &table, &device, grant)
}

/// Keeps a device that a Pod has now. Only after that the kernel may be told to refuse writes: what it is told outlives
/// the file behind the device, and only a device that is kept is taken away by [`release`].
fn keep(sys: &impl Sys, table: &Table, device: &LoopDevice, grant: &Grant) -> Result<(), MountError> {
    sys.keep_loop(device, true)?;
    if !grant.is_only_read() {
        let is_written = !grant.is_read_only() || is_written(table, device, grant.target());
        sys.allow_writes(device, is_written)?;
    }
    Ok(())
}

/// Takes a device from a Pod. Nothing there is success.
pub fn hide(sys: &impl Sys, pool: &Path, target: &Target) -> Result<(), MountError> {
    if sys.mount_table()?.top(&target.path()).is_none() {
        return Ok(());
    }
    // The file stays locked until it is done: no other Pod gets the device meanwhile.
    let _image = release(sys, pool, target)?;
    unmount(sys, target, false)
}

/// Has the device on a target go with its last user, unless another Pod has it too. One that is not of the pool is left
/// alone.
fn release(sys: &impl Sys, pool: &Path, target: &Target) -> Result<Option<ImageFile>, MountError> {
    let Some(number) = sys.device_at(target)? else {
        return Ok(None);
    };
    let Some((image, device)) = image_behind(sys, pool, number)? else {
        return Ok(None);
    };
    let table = sys.mount_table()?;
    if others(&table, &device, target, |_| true) {
        if !is_written(&table, &device, target) {
            sys.allow_writes(&device, false)?;
        }
    } else {
        // Or the next file behind this device could not be written.
        sys.allow_writes(&device, true)?;
        sys.keep_loop(&device, false)?;
    }
    Ok(Some(image))
}

/// Whether another Pod than the target's has a device for writing.
fn is_written(table: &Table, device: &LoopDevice, target: &Target) -> bool {
    others(table, device, target, |entry| {
        !entry.flags.iter().any(|flag| flag == "ro")
    })
}

/// Whether a device is shown to another Pod than the target's, in such a way.
fn others(table: &Table, device: &LoopDevice, target: &Target, way: impl Fn(&MountEntry) -> bool) -> bool {
    let devices = target.devices();
    let mut shown = table.shows(&device.path, &devices);
    shown.any(|entry| entry.mount_point != target.path() && way(entry))
}

/// Two Pods may share a device or a file system, but a device with a mounted file system would be destroyed.
fn fail_if_mounted(table: &Table, device: &LoopDevice, name: &str) -> Result<(), MountError> {
    match table.0.iter().find(|entry| entry.device == device.number) {
        Some(entry) => Err(MountError::failed(
            format!("give the Pod image file {name} as a device"),
            format!(
                "its file system is mounted on {}: delete the Pod there, or use one volumeMode for all its volumes",
                entry.mount_point.display()
            ),
        )),
        None => Ok(()),
    }
}

/// As for a device: a file system is not mounted while a Pod has its device.
pub(super) fn fail_if_shown(table: &Table, device: &LoopDevice, target: &Target) -> Result<(), MountError> {
    match table.shows(&device.path, &target.devices()).next() {
        Some(entry) => Err(MountError::failed(
            format!("mount {}", device.path.display()),
            format!(
                "a Pod uses it as a device ({}): delete that Pod, or use one volumeMode for all the volumes of one \
                 image file",
                entry.mount_point.display()
            ),
        )),
        None => Ok(()),
    }
}

/// One device serves all Pods of the node.
fn other_access(name: &str) -> MountError {
    MountError::failed(
        format!("give the Pod image file {name} as a device"),
        "another Pod on this node has it by a volume of another access mode, and one device can't be read-only \
                and written: delete that Pod, or use one access mode for all the volumes of one image file",
    )
}

fn occupied(target: &Target, name: &str) -> MountError {
    MountError::occupied(target, "another device", format!("image file {name}"))
}

#[cfg(test)]
mod tests;
