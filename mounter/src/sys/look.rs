//! What is mounted on a target, and whether it answers.
//!
//! A raw block volume has no file system to ask, so the first block of its device is read. A loop device may answer
//! that from memory while its server is silent.

use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, fstatfs, open, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

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
    Call {
        path: PathBuf,
        #[source]
        source: Errno,
    },
}

/// Whether something is mounted on a path; no server and no daemon is asked.
pub fn is_mount_point(dir: impl AsFd, path: &Path) -> Result<bool, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(dir, path, flags, StatxFlags::empty()) {
        Ok(stat) => Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(Errno::NOENT) => Ok(false),
        // Only a mount can be as broken as this.
        Err(Errno::NOTCONN | Errno::IO | Errno::CONNABORTED | Errno::STALE) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether something is mounted on a target; no server and no daemon is asked.
pub fn is_mounted(target: &Target) -> Result<bool, LookError> {
    let parent = match target.open_parent() {
        Err(TargetError::Missing(_)) => return Ok(false),
        parent => parent?,
    };
    is_mount_point(&parent, Path::new(target.file_name())).map_err(|source| LookError::Call {
        path: target.path(),
        source,
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
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED))
        | Err(TargetError::Open {
            source: Errno::NOTCONN | Errno::CONNABORTED,
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
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let read = open(path, flags, Mode::empty()).and_then(|device| {
        let mut block = Box::new(Block([0; 4096]));
        rustix::io::read(device, &mut block.0)
    });
    Ok(match read {
        // A loop device whose file is gone has no bytes.
        Ok(0) | Err(Errno::IO | Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM | Errno::NOTCONN) => LookedAt::Dead,
        // Any other error is still an answer.
        _ => LookedAt::Alive,
    })
}

/// A block, aligned for direct reads.
#[repr(align(4096))]
struct Block([u8; 4096]);
