//! What is mounted on a target, and whether it answers.
//!
//! A raw block volume has no file system to ask, so the first block of its device is read. A loop device may answer
//! that from memory while its server is silent.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statfs::fstatfs;
use nix::unistd::read;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use super::raw;
use crate::volume::target::{Target, TargetError};

/// What is mounted on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LookedAt {
    /// No mount lies on the target.
    Nothing,
    /// A file system that answers.
    Alive,
    /// A file system whose daemon is gone.
    Dead,
}

#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("failed to look at {path}")]
    Call { path: PathBuf, source: io::Error },
}

/// Whether something is mounted on a path; no server and no daemon is asked.
pub fn is_mount_point(dir: impl AsFd, path: &Path) -> Result<bool, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(dir, path, flags, StatxFlags::empty()).map_err(raw::errno) {
        Ok(stat) => Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(Errno::ENOENT) => Ok(false),
        // Only a mount can be as broken as this.
        Err(Errno::ENOTCONN | Errno::EIO | Errno::ECONNABORTED | Errno::ESTALE) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether something is mounted on a target; no server and no daemon is asked.
pub fn is_mounted(target: &Target) -> Result<bool, LookError> {
    let parent = match target.open_parent() {
        Err(TargetError::Missing(_)) => return Ok(false),
        parent => parent?,
    };
    is_mount_point(&parent, Path::new(target.file_name())).map_err(|errno| LookError::Call {
        path: target.path(),
        source: errno.into(),
    })
}

/// Looks at a target. This asks the file system that is mounted there, so it may block on a server, and an unmount at
/// the same time finds the mount busy.
pub fn look(target: &Target) -> Result<LookedAt, LookError> {
    if !is_mounted(target)? {
        return Ok(LookedAt::Nothing);
    }
    if target.is_device() {
        return look_at_device(target);
    }
    // The kernel always passes this question on to a FUSE daemon.
    let answer = target.open().map(|dir| fstatfs(&dir));
    match answer {
        Ok(Err(Errno::ENOTCONN | Errno::ECONNABORTED))
        | Err(TargetError::Open {
            source: Errno::ENOTCONN | Errno::ECONNABORTED,
            ..
        }) => Ok(LookedAt::Dead),
        // Any other error is still an answer.
        _ => Ok(LookedAt::Alive),
    }
}

/// Reads the first block of the device that is shown at a target, by no cache.
fn look_at_device(target: &Target) -> Result<LookedAt, LookError> {
    if target.device()?.is_none() {
        return Ok(LookedAt::Nothing);
    }
    let node = target.open()?;
    // What was opened as a place only (`O_PATH`) is opened for reading by its handle, so no path is followed again.
    let path = format!("/proc/self/fd/{}", node.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECT | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let first = open(path.as_str(), flags, Mode::empty()).and_then(|device| {
        let mut block = Box::new(Block([0; 4096]));
        read(device, &mut block.0)
    });
    Ok(match first {
        // A loop device whose file is gone has no bytes.
        Ok(0) | Err(Errno::EIO | Errno::ENXIO | Errno::ENODEV | Errno::ENOMEDIUM | Errno::ENOTCONN) => LookedAt::Dead,
        // Any other error is still an answer.
        _ => LookedAt::Alive,
    })
}

/// A block, aligned for direct reads.
#[repr(align(4096))]
struct Block([u8; 4096]);
