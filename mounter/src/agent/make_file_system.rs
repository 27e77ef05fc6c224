//! `mounter make-file-system …`: formats the device of a client image's volume, as the mounter formats its own.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::path::PathBuf;

use mooring_contract::volume::file_system::{FileSystem, TooSmall};

use crate::sys::{Kernel, SysError};
use crate::worker::clients::file_system::{NewFileSystem, Place};

/// Flags of `mounter make-file-system`.
#[derive(Debug, Clone, clap::Args)]
pub struct MakeFileSystemArgs {
    /// The type of the file system: ext4 or xfs.
    #[arg(long = "type", value_name = "TYPE", value_parser = read_type)]
    file_system: FileSystem,
    /// The device, with nothing on it.
    device: PathBuf,
}

fn read_type(text: &str) -> Result<FileSystem, String> {
    FileSystem::named(text).ok_or_else(|| "write ext4 or xfs".to_owned())
}

/// Why a device is not formatted.
#[derive(Debug, thiserror::Error)]
pub enum MakeFileSystemError {
    #[error("failed to read the size of {0}")]
    Size(PathBuf, #[source] io::Error),
    #[error("the device is not formatted: {0}: make the volume larger")]
    TooSmall(#[from] TooSmall),
    #[error(transparent)]
    Program(#[from] SysError),
}

pub fn run(args: MakeFileSystemArgs) -> Result<(), MakeFileSystemError> {
    // The metadata of a device say no size.
    let size = File::open(&args.device).and_then(|mut device| device.seek(SeekFrom::End(0)));
    let size = size.map_err(|error| MakeFileSystemError::Size(args.device.clone(), error))?;
    let new = NewFileSystem::of_size(size, args.file_system, Place::Device)?;
    Ok(new.make(&Kernel, &args.device)?)
}
