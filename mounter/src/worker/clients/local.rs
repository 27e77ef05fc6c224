//! Client `local`: an image file of the node's own pool, over a loop device, so that its size is its limit.
//!
//! | option | value |
//! | --- | --- |
//! | `source` | name of the file, directly in the pool |
//! | `fs-type` | `ext4` (if not said) or `xfs` |
//! | `bytes-per-inode` | of the new file system, if it is an ext4 |
//! | `mount-options` | as of that file system |
//!
//! Files: `device` (the same as a raw block volume), `expand` (lets either grow), `pool` (the image files).
//!
//! A blank file is formatted at its first mount; one with anything in it never is. Two Pods of a node that have the
//! same volume get two mounts of one loop device: two devices over one file would destroy each other's work.
//!
//! A file may be larger than its file system: a copy may be made larger than what it was made of. The file system then
//! grows once it is mounted, or before that where the kernel lets it grow only so. Of an xfs there may be a copy with
//! the same UUID on the same node, which the kernel refuses to mount beside it unless told otherwise.

mod device;
mod expand;
mod pool;

use std::path::Path;

use mooring_contract::volume::file_system::FileSystem;
use mooring_contract::volume::keys;

pub use device::{hide, show};
pub use expand::expand;

use self::pool::{content, fail_unless_alone, file_name, open};
use super::checks::has_flags;
use super::file_system::{NewFileSystem, Place, grow_mounted, grow_unmounted};
use super::image::ImageContent;
use crate::grant::Grant;
use crate::sys::{ImageFile, LoopDevice, NewMount, Sys, SysError, Unmount};
use crate::volume::job::{MountError, Secrets};
use crate::volume::mount_options::{self, MountFlags, MountOptions};
use crate::volume::target::Target;
use crate::volume::volume_id::source_in_words;

/// A pool with less space than this is full: a file system's own metadata takes more.
const LEAST_SPACE: u64 = 1 << 20;

/// Mounts an image file. Each step first checks whether it was done before.
pub fn mount(sys: &impl Sys, pool: &Path, grant: &Grant) -> Result<(), MountError> {
    let volume = grant.volume();
    let name = file_name(&volume.source)?;
    let wanted = wanted_file_system(&volume.fs_type)?;
    let options = mount_options::sort(&volume.mount_options, grant.is_read_only()).map_err(MountError::bad_options)?;
    let options = options.labelled(grant.label());
    let image = open(sys, pool, name)?;
    let mounted = mount_image(sys, &image, name, wanted, grant, &options);
    mounted.map_err(|error| explained(sys, pool, &image, error))
}

fn mount_image(
    sys: &impl Sys,
    image: &ImageFile,
    name: &str,
    wanted: Option<FileSystem>,
    grant: &Grant,
    options: &MountOptions,
) -> Result<(), MountError> {
    let found = sys.find_loop(image)?;
    if let Some(device) = &found {
        let table = sys.mount_table()?;
        device::fail_if_shown(&table, device, grant.target())?;
        let mounts = table.0.iter().filter(|entry| entry.device == device.number);
        fail_unless_alone(grant, name, mounts)?;
    }
    if is_mounted(sys, grant, name, found.as_ref(), options.flags)? {
        // An earlier try may have been ended before it grew.
        return match &found {
            Some(device) => grow_if_short(sys, image, device, grant.target(), options),
            None => Ok(()),
        };
    }
    let file_system = match &found {
        // In use: it has a file system, and the kernel's copy of that is newer than the file's.
        Some(_) => content(sys, image)?.file_system(),
        None => Some(format_if_blank(sys, image, wanted.unwrap_or(FileSystem::Ext4), grant)?),
    };
    let file_system = file_system
        .filter(|found| wanted.is_none_or(|wanted| wanted == *found))
        .ok_or_else(|| mismatch(name, wanted, content(sys, image).ok()))?;
    let device = if let Some(device) = found {
        device
    } else {
        if !options.flags.is_read_only() {
            grow_unmounted(sys, &image.by_handle(), image.size)?;
        }
        pool::attach_loop(sys, image, false)?
    };
    attach(sys, image, grant.target(), file_system, &device, options)?;
    grow_if_short(sys, image, &device, grant.target(), options).inspect_err(|_| {
        // The kubelet would take what is mounted there for a volume that is ready.
        let _ = sys.unmount(grant.target(), &grant.target().path(), Unmount::Detach);
    })
}

/// Lets a file system that is smaller than its file grow into it.
fn grow_if_short(
    sys: &impl Sys,
    image: &ImageFile,
    device: &LoopDevice,
    target: &Target,
    options: &MountOptions,
) -> Result<(), MountError> {
    let outgrown = outgrown(sys, image, options)?;
    Ok(grow_mounted(sys, outgrown, &device.path, &target.path())?)
}

/// The file system that is smaller than its file, unless it may only be read.
fn outgrown(sys: &impl Sys, image: &ImageFile, options: &MountOptions) -> Result<Option<FileSystem>, MountError> {
    let bytes = sys.read_image(image, 0, ImageContent::PROBED)?;
    Ok(ImageContent::outgrown(&bytes, image.size).filter(|_| !options.flags.is_read_only()))
}

/// A full pool makes whatever comes first fail: the mark, the program, or a write in the kernel, which gives no reason.
/// This adds the reason.
fn explained(sys: &impl Sys, pool: &Path, image: &ImageFile, error: MountError) -> MountError {
    match error {
        MountError::Failed { attempted, cause } if sys.space_left(image).is_ok_and(|left| left < LEAST_SPACE) => {
            MountError::failed(
                attempted,
                format!(
                    "{cause}: the node's pool {} is full: free space there, and the kubelet tries again",
                    pool.display()
                ),
            )
        }
        error => error,
    }
}

fn wanted_file_system(fs_type: &str) -> Result<Option<FileSystem>, MountError> {
    let named = FileSystem::named(fs_type);
    if named.is_none() && !fs_type.is_empty() {
        let message = format!("option fs-type={fs_type:?} is not possible for a local volume: use ext4 or xfs");
        return Err(MountError::BadOptions(message.into()));
    }
    Ok(named)
}

/// Whether the volume is mounted on the target; an error if something else is, or the volume with other flags.
fn is_mounted(
    sys: &impl Sys,
    grant: &Grant,
    name: &str,
    device: Option<&LoopDevice>,
    flags: MountFlags,
) -> Result<bool, MountError> {
    match sys.mount_table()?.top(&grant.target().path()) {
        None => Ok(false),
        Some(entry) if device.is_some_and(|device| device.number == entry.device) => {
            has_flags(entry, grant.target(), flags).map(|()| true)
        }
        Some(entry) => Err(MountError::occupied(
            grant.target(),
            format!("{} ({})", source_in_words(entry), entry.fs_type),
            format!("image file {name}"),
        )),
    }
}

/// The image's file system. If the image is blank, or an earlier try was ended while it formatted the image, this
/// formats it.
fn format_if_blank(
    sys: &impl Sys,
    image: &ImageFile,
    wanted: FileSystem,
    grant: &Grant,
) -> Result<FileSystem, MountError> {
    let marked = sys.is_marked(image)?;
    if !marked {
        match content(sys, image)? {
            ImageContent::FileSystem(found) => return Ok(found),
            ImageContent::Zeros if sys.is_blank(image)? => {}
            other => return Err(mismatch(&image.path.display().to_string(), Some(wanted), Some(other))),
        }
    }
    let new = NewFileSystem::of_size(image.size, wanted, Place::File).map_err(|error| {
        MountError::failed(
            format!("format image file {}", image.path.display()),
            format!("{error}: make the volume larger"),
        )
    })?;
    if !marked {
        sys.mark(image, true)?;
    }
    // What was looked at, not what has its name: who can write the pool may have put a link there.
    let inodes = grant.volume().rest.get(keys::BYTES_PER_INODE).cloned();
    let new = new.with_inodes(inodes).written_out(image.is_preallocated);
    new.make(sys, &image.by_handle())?;
    sys.mark(image, false)?;
    Ok(wanted)
}

fn mismatch(name: &str, wanted: Option<FileSystem>, found: Option<ImageContent>) -> MountError {
    let wanted = wanted.map_or("ext4 or xfs", FileSystem::as_str);
    let found = found.map_or("something else", ImageContent::as_str);
    MountError::failed(
        format!("mount image file {name} as {wanted}"),
        format!(
            "it holds {found}, and a file that is not blank is never formatted: set the volume's fs-type to what the \
             file holds, or make a new volume"
        ),
    )
}

fn attach(
    sys: &impl Sys,
    image: &ImageFile,
    target: &Target,
    file_system: FileSystem,
    device: &LoopDevice,
    options: &MountOptions,
) -> Result<(), MountError> {
    let mut of_file_system = options.clone().safe_for(file_system.as_str()).file_system;
    if file_system == FileSystem::Xfs {
        // The UUID of a copy is that of what it is a copy of.
        of_file_system.push(("nouuid".to_owned(), None));
    }
    let is_said = of_file_system
        .iter()
        .any(|(key, _)| key == "discard" || key == "nodiscard");
    if !image.is_preallocated && !is_said && !options.flags.is_read_only() {
        // What is deleted is free in the pool again.
        of_file_system.push(("discard".to_owned(), None));
    }
    let mount = sys.new_mount(&NewMount {
        fs_type: file_system.as_str().to_owned(),
        source: device.path.display().to_string(),
        options: of_file_system,
        credentials: Secrets::default(),
        flags: options.flags,
    })?;
    let directory = sys.open_target(target)?;
    Ok(sys.attach(&mount, &directory)?)
}

impl From<SysError> for MountError {
    fn from(error: SysError) -> Self {
        Self::Failed {
            attempted: error.attempted,
            cause: error.cause,
        }
    }
}

#[cfg(test)]
mod tests;
