//! The agent's system calls on a target: moving a file system onto it, taking it off.
//!
//! A target lies under the kubelet's root, which this container shares with the host: what happens here happens there
//! and in every Pod that has the volume.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, mknodat, open, statx};
use rustix::io::Errno;

use crate::sys::graft::{Grafts as _, Node};
use crate::sys::look::is_mount_point;
use crate::sys::{Kernel, Sys as _, SysError, Unmount, UnmountError};
use crate::volume::mount_options::MountFlags;
use crate::volume::mount_table::DeviceNumber;
use crate::volume::target::{Target, TargetError};
use crate::worker::graft::{self, Replaced};

/// Why a system call on a target failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The target is not to be had.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The program left nothing at the staging directory.
    #[error(
        "the mount program ended with success, but nothing is mounted: see whether it mounts on the directory that it is given"
    )]
    NothingMounted,
    /// The file system is in use.
    #[error("{0} is in use: a process still has files or its working directory there")]
    InUse(PathBuf),
    /// A mount failed to go where it should.
    #[error(transparent)]
    Mount(#[from] SysError),
    /// It can't be unmounted.
    #[error(transparent)]
    Unmount(#[from] UnmountError),
    /// Another call failed.
    #[error("failed to {attempted} {path}")]
    Call {
        /// What was tried.
        attempted: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
}

/// Makes `/dev/fuse` where it is missing: a container has the devices that the host had when it was made, and the host's
/// module may have been loaded since. To open it has the kernel load the module itself, if it can.
pub fn make_fuse_device() -> Result<(), Errno> {
    const DEVICE: &str = "/dev/fuse";
    // Of all Linux systems (`Documentation/admin-guide/devices.txt`).
    let number = rustix::fs::makedev(10, 229);
    match statx(CWD, DEVICE, AtFlags::empty(), StatxFlags::TYPE) {
        Err(Errno::NOENT) => {}
        other => return other.map(drop),
    }
    match mknodat(
        CWD,
        DEVICE,
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        number,
    ) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Puts the file system mounted on `staging` onto the target, with these flags whatever its program set.
///
/// The staging mount stays: the caller takes it away.
pub fn move_onto(staging: &Path, target: &Target, flags: MountFlags) -> Result<(), KernelError> {
    let mount = staged(staging, flags)?;
    Ok(Kernel.attach(&mount, &target.open()?)?)
}

/// A second mount of the file system mounted on `staging`, not put anywhere yet.
fn staged(staging: &Path, flags: MountFlags) -> Result<OwnedFd, KernelError> {
    let staged = |attempted, source| KernelError::Call {
        attempted,
        path: staging.to_owned(),
        source,
    };
    if !is_mount_point(CWD, staging).map_err(|e| staged("look at", e))? {
        return Err(KernelError::NothingMounted);
    }
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stage = open(staging, how, Mode::empty()).map_err(|e| staged("open", e))?;
    Ok(Kernel.clone_mount(&stage, flags)?)
}

/// The device of what lies uppermost on a target.
pub fn device(target: &Target) -> Result<Option<DeviceNumber>, KernelError> {
    let table = Kernel.mount_table()?;
    Ok(table.top(&target.path()).map(|entry| entry.device))
}

/// Puts the file system mounted on `staging` into the place of the target's dead mount, on `device`; `false` if that is not
/// there any more. The staging mount stays: the caller takes it away.
pub fn replace(staging: &Path, target: &Target, device: DeviceNumber, flags: MountFlags) -> Result<bool, KernelError> {
    let node = Node::default();
    let mount = staged(staging, flags)?;
    // From here on a plain unmount finds it in use.
    let place = target.open()?;
    let id = node.mount_id(&place)?;
    let is_there = || {
        let table = node.table()?;
        let top = table.top(&target.path());
        Ok::<_, SysError>(top.is_some_and(|top| top.id == id && top.device == device))
    };
    if !is_there()? {
        return Ok(false);
    }
    match graft::replace(&node, &place, &mount)? {
        Replaced::Done => Ok(true),
        Replaced::Alive => Ok(false),
        Replaced::Unable if !is_there()? => Ok(false),
        Replaced::Unable => {
            // An old kernel: for a moment nothing is mounted.
            drop(place);
            match Kernel.unmount(target, Unmount::Detach) {
                Ok(()) => Kernel.attach(&mount, &target.open()?)?,
                Err(UnmountError::NotMounted) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            Ok(true)
        }
    }
}

/// Unmounts a target, everywhere. Nothing mounted there is success.
///
/// With `detach`, also what is in use, which disappears from sight at once and altogether with its last user: only for
/// a file system whose daemon is gone.
pub fn unmount_target(target: &Target, detach: bool) -> Result<(), KernelError> {
    let how = if detach { Unmount::Detach } else { Unmount::Plain };
    loop {
        match Kernel.unmount(target, how) {
            // Once more: mounts may lie on one another.
            Ok(()) => {}
            Err(UnmountError::NotMounted) => return Ok(()),
            Err(UnmountError::Busy) => return Err(KernelError::InUse(target.path())),
            Err(error) => return Err(error.into()),
        }
    }
}
