//! `mounter grow-file-system …`: has the file system of a client image's volume take all of a larger device, as the
//! mounter has its own.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::sys::{Kernel, Sys as _, SysError, errno_of};
use crate::worker::clients::file_system::{grow_mounted, grow_unmounted};
use crate::worker::clients::image::ImageContent;

/// Flags of `mounter grow-file-system`.
#[derive(Debug, Clone, clap::Args)]
pub struct GrowFileSystemArgs {
    /// Where it is mounted; not given before it is.
    #[arg(long)]
    mounted: Option<PathBuf>,
    device: PathBuf,
}

/// Why a file system does not grow.
#[derive(Debug, thiserror::Error)]
pub enum GrowFileSystemError {
    #[error("failed to read {0}")]
    Device(PathBuf, #[source] io::Error),
    #[error(transparent)]
    Program(#[from] SysError),
}

pub fn run(args: GrowFileSystemArgs) -> Result<(), GrowFileSystemError> {
    let GrowFileSystemArgs { mounted, device } = args;
    let read = |error| GrowFileSystemError::Device(device.clone(), error);
    let size = File::open(&device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    let size = size.map_err(read)?;
    match mounted {
        Some(directory) => {
            let start = Kernel.read_device(&device, 0, ImageContent::PROBED)?;
            grow_mounted(&Kernel, ImageContent::outgrown(&start, size), &device, &directory)?;
        }
        // Another Pod of the node has it: it grows once none has.
        None if is_in_use(&device).map_err(read)? => {}
        None => grow_unmounted(&Kernel, &device, size)?,
    }
    Ok(())
}

/// Whether a device is mounted, in any namespace, or is a part of another one.
fn is_in_use(device: &Path) -> io::Result<bool> {
    let opened = File::options()
        .read(true)
        .custom_flags(OFlag::O_EXCL.bits())
        .open(device);
    match opened {
        Ok(_) => Ok(false),
        Err(error) if errno_of(&error) == Some(Errno::EBUSY) => Ok(true),
        Err(error) => Err(error),
    }
}
