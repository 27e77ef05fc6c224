//! How full a volume is, or how large a raw block volume. Its server or its daemon is asked, which may take as long as
//! that pleases.

use std::io;

use nix::errno::Errno;
use nix::sys::statvfs::fstatvfs;
use serde::{Deserialize, Serialize};

use crate::volume::cause::Cause;
use crate::volume::job::MountError;
use crate::volume::mount_table::DeviceNumber;
use crate::volume::target::{Target, TargetError};

/// What the kernel counts a device's size in, whatever its own sectors are.
const SECTOR: u64 = 512;

/// How full a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Its size in bytes.
    pub bytes: u64,
    pub bytes_free: u64,
    /// What is free for others than root.
    pub bytes_available: u64,
    /// How many files it can hold; 0 where its file system does not count them.
    pub inodes: u64,
    /// How many more.
    pub inodes_free: u64,
}

/// Asks what is mounted on a target.
pub fn usage(target: &Target) -> Result<Usage, MountError> {
    let failed = |cause: Cause| MountError::failed(format!("ask how full {target} is"), cause);
    if target.is_device() {
        let device = target.device()?;
        let device = device.ok_or_else(|| failed("there is no device".into()))?;
        return size(device).map_err(|error| failed(Cause::of(error)));
    }
    let directory = target.open().map_err(|error| match error {
        TargetError::Open { source, .. } => failed(text_of(source).into()),
        error => error.into(),
    })?;
    let found = fstatvfs(&directory).map_err(|errno| failed(text_of(errno).into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Ok(Usage {
        bytes: bytes(found.blocks()),
        bytes_free: bytes(found.blocks_free()),
        bytes_available: bytes(found.blocks_available()),
        inodes: found.files(),
        inodes_free: found.files_free(),
    })
}

/// The size of a device; what uses it does not say how much of that.
fn size(device: DeviceNumber) -> io::Result<Usage> {
    let sectors = std::fs::read_to_string(format!("/sys/dev/block/{}:{}/size", device.major, device.minor))?;
    let sectors: u64 = sectors.trim().parse().map_err(io::Error::other)?;
    let bytes = sectors.saturating_mul(SECTOR);
    Ok(Usage {
        bytes,
        bytes_free: bytes,
        bytes_available: 0,
        inodes: 0,
        inodes_free: 0,
    })
}

fn text_of(errno: Errno) -> String {
    match errno {
        Errno::ENOTCONN | Errno::ECONNABORTED => "the program that served it has ended".to_owned(),
        errno => io::Error::from(errno).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::usage;
    use crate::volume::target::Target;

    #[test]
    fn a_directory_says_how_full_its_file_system_is_and_a_missing_one_that_it_is_not_there() {
        let root = tempfile::tempdir().unwrap();
        let volumes = root.path().join("pods/u/volumes/mooring.dev~vcs");
        std::fs::create_dir_all(volumes.join("v")).unwrap();
        let of = |name: &str| usage(&Target::parse(root.path(), volumes.join(name).to_str().unwrap()).unwrap());
        let found = of("v").unwrap();
        assert!(found.bytes >= found.bytes_free && found.bytes_free >= found.bytes_available);
        assert!(found.bytes > 0);
        assert!(of("gone").unwrap_err().to_string().contains("does not exist"));
    }
}
