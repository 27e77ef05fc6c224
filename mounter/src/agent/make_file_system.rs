//! `mounter make-file-system …`: formats the device of a client image's volume, as the mounter formats its own.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::path::PathBuf;

use mooring_contract::volume::clients::BYTES_PER_INODE;
use mooring_contract::volume::file_system::{FileSystem, TooSmall};

use crate::sys::{Kernel, SysError};
use crate::worker::clients::file_system::{NewFileSystem, Place};

/// Flags of `mounter make-file-system`.
#[derive(Debug, Clone, clap::Args)]
pub struct MakeFileSystemArgs {
    /// The type of the file system: ext4 or xfs.
    #[arg(long = "type", value_name = "TYPE", value_parser = read_type)]
    file_system: FileSystem,
    /// For how many bytes of the device an ext4 gets an inode.
    #[arg(long, value_name = "BYTES", value_parser = read_inodes)]
    bytes_per_inode: Option<String>,
    /// The device, with nothing on it.
    device: PathBuf,
}

fn read_type(text: &str) -> Result<FileSystem, String> {
    FileSystem::named(text).ok_or_else(|| "write ext4 or xfs".to_owned())
}

fn read_inodes(text: &str) -> Result<String, String> {
    let known = BYTES_PER_INODE.accepts(text);
    known
        .then(|| text.to_owned())
        .ok_or_else(|| format!("write {}", BYTES_PER_INODE.value.wanted))
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
    let new = NewFileSystem::of_size(size, args.file_system, Place::Device)?.with_inodes(args.bytes_per_inode);
    Ok(new.make(&Kernel, &args.device)?)
}
