//! What is mounted on a target, and whether it answers.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, fstatfs, statx};
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

/// Why a target can't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The target can't be opened.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The call failed.
    #[error("failed to look at {path}")]
    Call {
        /// The target.
        path: PathBuf,
        /// The kernel's answer.
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
