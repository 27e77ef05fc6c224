//! The agent's system calls on a target: moving a file system onto it, and unmounting it.
//!
//! A target is below the kubelet's root, which this container shares with the host: what happens here happens there and
//! in every Pod that has the volume. Each public function but [`share`] makes its calls through [`Sys`] and [`Grafts`],
//! so the logic is tested without root. They may block on a server: call them in a thread of their own.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;

use crate::sys::graft::{DeviceNode, Grafts, Likeness};
use crate::sys::{Kernel, Sys, SysError, Unmount, UnmountError};
use crate::volume::mount_options::MountFlags;
use crate::volume::mount_table::DeviceNumber;
use crate::volume::selinux_label::SelinuxLabel;
use crate::volume::target::{Target, TargetError};
use crate::worker::graft::{self, Replaced};

/// Why a system call on a target failed.
#[derive(Debug, thiserror::Error)]
pub enum TargetMountError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(
        "the mount program exited with 0, but nothing is mounted: check that it mounts on the directory that it is \
         given"
    )]
    NothingMounted,
    #[error("{0} was unmounted meanwhile: Mooring tries again")]
    Gone(PathBuf),
    #[error("{0} is in use: a process still has files or its working directory there")]
    InUse(PathBuf),
    #[error(transparent)]
    Mount(#[from] SysError),
    #[error(transparent)]
    Unmount(#[from] UnmountError),
    #[error("failed to {attempted} {path}")]
    Call {
        attempted: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// Creates `/dev/fuse` if it is missing: a container has the devices that the host had when the container was created,
/// and the host may have loaded the module since.
pub fn make_fuse_device() -> Result<(), SysError> {
    Kernel.make_fuse_device()
}

/// Whether the file system mounted on `staging` gives all its files this label.
pub fn bears(staging: &Path, label: &SelinuxLabel) -> Result<bool, SysError> {
    Ok(label.is_borne_at(staging, &Kernel.mount_table()?))
}

/// Puts the file system mounted on `staging` onto the target, with these flags, whatever flags its program set.
///
/// The staging mount stays: the caller removes it.
pub fn move_onto(staging: &Path, target: &Target, flags: MountFlags) -> Result<(), TargetMountError> {
    move_onto_by(&Kernel, staging, target, flags)
}

/// Mounts the file system of a device that is on another target on this one as well, with these flags.
pub fn share(other: &Target, device: DeviceNumber, target: &Target, flags: MountFlags) -> Result<(), TargetMountError> {
    let directory = Kernel.open_target(other)?;
    let found = fstat(&directory).map_err(|errno| TargetMountError::Call {
        attempted: "look at",
        path: other.path(),
        source: errno.into(),
    })?;
    // Without its mount, the directory is one of the node's own disk.
    if DeviceNumber::of(found.st_dev) != device {
        return Err(TargetMountError::Gone(other.path()));
    }
    let mount = Kernel.clone_mount(&directory, flags)?;
    Ok(Kernel.attach(&mount, &Kernel.open_target(target)?)?)
}

/// The device of the uppermost mount on a target.
pub fn device(target: &Target) -> Result<Option<DeviceNumber>, TargetMountError> {
    device_by(&Kernel, target)
}

/// A dead mount of a target.
#[derive(Debug)]
pub struct DeadMount {
    pub device: DeviceNumber,
    /// A detached mount of the same file system: it keeps the device number from being given to another one.
    pub handle: OwnedFd,
}

/// The uppermost mount on a target, which is dead; `None` if it was unmounted meanwhile.
pub fn dead_mount(target: &Target) -> Result<Option<DeadMount>, TargetMountError> {
    dead_mount_by(&DeviceNode::default(), target)
}

/// Replaces the target's dead mount, on `device`, with the file system mounted on `staging`; `false` if the dead mount
/// is gone. The staging mount stays: the caller removes it.
pub fn replace(
    staging: &Path,
    target: &Target,
    device: DeviceNumber,
    flags: MountFlags,
) -> Result<bool, TargetMountError> {
    replace_by(&Kernel, &DeviceNode::default(), staging, target, device, flags)
}

/// Unmounts every mount on a target, for all that see it. Success if nothing is mounted there; one in use stays.
pub fn unmount_target(target: &Target) -> Result<(), TargetMountError> {
    unmount_target_by(&Kernel, target)
}

fn move_onto_by(sys: &impl Sys, staging: &Path, target: &Target, flags: MountFlags) -> Result<(), TargetMountError> {
    let mount = staged(sys, staging, flags)?;
    Ok(sys.attach(&mount, &sys.open_target(target)?)?)
}

/// A second mount of the file system mounted on `staging`, not attached anywhere yet.
fn staged(sys: &impl Sys, staging: &Path, flags: MountFlags) -> Result<OwnedFd, TargetMountError> {
    let stage = sys.open_stage(staging)?.ok_or(TargetMountError::NothingMounted)?;
    Ok(sys.clone_mount(&stage, flags)?)
}

fn device_by(sys: &impl Sys, target: &Target) -> Result<Option<DeviceNumber>, TargetMountError> {
    let table = sys.mount_table()?;
    Ok(table.top(&target.path()).map(|entry| entry.device))
}

fn dead_mount_by(node: &impl Grafts<Mount = OwnedFd>, target: &Target) -> Result<Option<DeadMount>, TargetMountError> {
    let place = node.open_target(target)?;
    let id = node.mount_id(&place)?;
    let table = node.table()?;
    let Some(top) = table.top(&target.path()).filter(|top| top.id == id) else {
        return Ok(None);
    };
    Ok(Some(DeadMount {
        device: top.device,
        handle: node.copy(&place, Likeness::detached())?,
    }))
}

fn replace_by(
    sys: &impl Sys,
    node: &impl Grafts<Mount = OwnedFd>,
    staging: &Path,
    target: &Target,
    device: DeviceNumber,
    flags: MountFlags,
) -> Result<bool, TargetMountError> {
    let mount = staged(sys, staging, flags)?;
    // From here on, a plain unmount finds it in use.
    let place = node.open_target(target)?;
    let id = node.mount_id(&place)?;
    let is_there = || {
        let table = node.table()?;
        let top = table.top(&target.path());
        Ok::<_, SysError>(top.is_some_and(|top| top.id == id && top.device == device))
    };
    if !is_there()? {
        return Ok(false);
    }
    match graft::replace(node, &place, &mount)? {
        Replaced::Done => Ok(true),
        Replaced::Alive => Ok(false),
        Replaced::Unable if !is_there()? => Ok(false),
        // An old kernel. The dead mount below is out of sight, and goes when the target is unmounted.
        Replaced::Unable => {
            node.put_onto(&mount, &place)?;
            Ok(true)
        }
    }
}

fn unmount_target_by(sys: &impl Sys, target: &Target) -> Result<(), TargetMountError> {
    loop {
        match sys.unmount(target, &target.path(), Unmount::Plain) {
            // Again: mounts may be stacked.
            Ok(()) => {}
            Err(UnmountError::NotMounted) => return Ok(()),
            Err(UnmountError::Busy) => return Err(TargetMountError::InUse(target.path())),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::sys::fake::{Fake, target};

    const STAGING: &str = "/run/stage";
    const DEVICE: DeviceNumber = DeviceNumber { major: 0, minor: 0 };

    fn flags() -> MountFlags {
        MountFlags::safe()
    }

    /// A target whose daemon is gone.
    fn dead() -> Fake {
        Fake::default().mounted(&target(), "h:/a", "fuse.sshfs").dead("h:/a")
    }

    fn replaced(fake: &Fake, device: DeviceNumber) -> Result<bool, TargetMountError> {
        replace_by(fake, fake, Path::new(STAGING), &target(), device, flags())
    }

    #[test]
    fn a_mount_without_the_label_does_not_bear_it() {
        let label = SelinuxLabel::read("u:r:t:s0:c1,c2").unwrap();
        assert!(!bears(Path::new("/proc"), &label).unwrap());
        assert!(!bears(Path::new("/nothing/is/mounted/here"), &label).unwrap());
    }

    #[test]
    fn what_the_program_mounted_is_moved_onto_the_target() {
        let fake = Fake::default();
        move_onto_by(&fake, Path::new(STAGING), &target(), flags()).unwrap();
        assert_eq!(fake.sources_on(&target()), ["clone"]);
        assert_eq!(device_by(&fake, &target()).unwrap(), Some(DEVICE));
    }

    #[test]
    fn a_program_that_mounted_nothing_is_an_error_and_the_target_is_left_alone() {
        let fake = Fake::default().empty_stage();
        let error = move_onto_by(&fake, Path::new(STAGING), &target(), flags()).unwrap_err();
        assert!(matches!(error, TargetMountError::NothingMounted), "{error}");
        assert_eq!(fake.calls(), ["open_stage"]);
        assert_eq!(device_by(&fake, &target()).unwrap(), None);
    }

    #[test]
    fn a_dead_mount_is_replaced_with_no_moment_without_a_mount() {
        let fake = dead();
        assert!(replaced(&fake, DEVICE).unwrap());
        assert_eq!(fake.sources_on(&target()), ["clone"]);
        assert!(!fake.calls().contains(&"unmount".to_owned()));
    }

    #[test]
    fn a_dead_mount_is_held_by_a_mount_of_its_own() {
        let fake = dead();
        let held = dead_mount_by(&fake, &target()).unwrap().unwrap();
        assert_eq!(held.device, DEVICE);
        assert!(fake.calls().contains(&"copy".to_owned()), "{:?}", fake.calls());
        assert_eq!(fake.sources_on(&target()), ["h:/a"]);
        assert!(dead_mount_by(&Fake::default(), &target()).unwrap().is_none());
    }

    #[test]
    fn an_old_kernel_has_the_new_mount_on_the_dead_one_and_no_moment_without_a_mount() {
        let fake = dead().old();
        assert!(replaced(&fake, DEVICE).unwrap());
        assert_eq!(fake.sources_on(&target()), ["h:/a", "clone"]);
        assert!(!fake.calls().contains(&"unmount".to_owned()));
        unmount_target_by(&fake, &target()).unwrap();
        assert_eq!(fake.mounts_on(&target()), 0);
    }

    #[test]
    fn a_mount_that_answers_or_is_another_one_stays() {
        let alive = Fake::default().mounted(&target(), "h:/a", "fuse.sshfs");
        assert!(!replaced(&alive, DEVICE).unwrap());
        let other = DeviceNumber { major: 0, minor: 99 };
        let fake = dead();
        assert!(!replaced(&fake, other).unwrap());
        for fake in [alive, fake] {
            assert_eq!(fake.sources_on(&target()), ["h:/a"]);
        }
    }

    #[test]
    fn every_mount_on_the_target_is_unmounted_and_one_in_use_is_an_error() {
        let fake = Fake::default()
            .mounted(&target(), "a", "fuse")
            .mounted(&target(), "b", "fuse");
        unmount_target_by(&fake, &target()).unwrap();
        assert_eq!(fake.mounts_on(&target()), 0);
        unmount_target_by(&fake, &target()).unwrap();

        let busy = Fake::default()
            .mounted(&target(), "a", "fuse")
            .fail("unmount", 0, Errno::EBUSY);
        let error = unmount_target_by(&busy, &target()).unwrap_err();
        assert!(matches!(error, TargetMountError::InUse(_)), "{error}");
        assert_eq!(busy.mounts_on(&target()), 1);
    }
}
