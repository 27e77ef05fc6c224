//! The host's namespaces: finding them, entering them, and a place for programs to mount on.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;

use super::look::is_mount_point;
use super::{Result, SysError};
use crate::node::kubelet;
use crate::volume::mount_table::Table;
use crate::volume::target::Target;

/// Root's alone, in memory, and on every host, even if its root file system is read-only.
const STAGES: &str = "/run/mooring/host";

/// Enters the mount namespace at `namespace`, or that of the kubelet whose root is the target's.
pub(super) fn enter(namespace: Option<&Path>, target: &Target) -> Result<()> {
    let path = match namespace {
        Some(path) => path.to_owned(),
        None => kubelet_namespace(target)?,
    };
    let attempted = || format!("enter the host's mount namespace {}", path.display());
    let handle = File::open(&path).map_err(|e| SysError::io(attempted(), e))?;
    setns(handle, CloneFlags::CLONE_NEWNS).map_err(|e| SysError::call(attempted(), e))
}

/// Enters the network and UTS namespaces beside the host's mount namespace `namespace`, or those of the kubelet whose
/// root is the target's.
pub(super) fn enter_network(namespace: Option<&Path>, target: &Target) -> Result<()> {
    // All of them are files of one process's `ns`.
    let mount = match namespace.filter(|path| path.ends_with("ns/mnt")) {
        Some(path) => path.to_owned(),
        None => kubelet_namespace(target)?,
    };
    for (name, kind) in [("net", CloneFlags::CLONE_NEWNET), ("uts", CloneFlags::CLONE_NEWUTS)] {
        let path = mount.with_file_name(name);
        let attempted = || format!("enter the host's namespace {}", path.display());
        let handle = File::open(&path).map_err(|e| SysError::io(attempted(), e))?;
        setns(handle, kind).map_err(|e| SysError::call(attempted(), e))?;
    }
    Ok(())
}

/// The mount namespace of the kubelet whose root the target lies in.
fn kubelet_namespace(target: &Target) -> Result<PathBuf> {
    let attempted = "find the kubelet's mount namespace";
    let ours = Table::read().map_err(|e| SysError::io(attempted, e))?;
    let found = kubelet::beside(Path::new("/proc"), &ours, &target.path()).map_err(|e| SysError::io(attempted, e))?;
    found.map(|process| process.join("ns/mnt")).ok_or_else(|| SysError {
        attempted: attempted.to_owned(),
        errno: Some(Errno::ESRCH),
        cause: "neither a process named kubelet nor process 1 shares the kubelet's root with this Pod: give the \
                mounter's Pod hostPID and mountPropagation Bidirectional, or set --host-mount-namespace"
            .to_owned()
            .into(),
    })
}

pub(super) fn stage(target: &Target) -> PathBuf {
    Path::new(STAGES).join(format!("{}~{}", target.pod_uid(), target.name()))
}

/// Makes the target's stage, after removing what an earlier try has left on it.
pub(super) fn make_stage(target: &Target) -> Result<PathBuf> {
    let stage = stage(target);
    remove_stage(&stage)?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&stage)
        .map_err(|e| SysError::io(format!("make directory {}", stage.display()), e))?;
    Ok(stage)
}

/// Opens what is mounted on a stage.
pub(super) fn open_stage(stage: &Path) -> Result<Option<OwnedFd>> {
    if !is_mounted(stage)? {
        return Ok(None);
    }
    let how = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    open(stage, how, Mode::empty())
        .map(Some)
        .map_err(|e| SysError::call(format!("open {}", stage.display()), e))
}

pub(super) fn remove_stage(stage: &Path) -> Result<()> {
    while is_mounted(stage)? {
        // Its users use it at the target.
        umount2(stage, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|e| SysError::call(format!("unmount {}", stage.display()), e))?;
    }
    match std::fs::remove_dir(stage) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(SysError::io(format!("remove {}", stage.display()), error))
        }
        _ => Ok(()),
    }
}

/// Asks the kernel only, not what is mounted.
fn is_mounted(path: &Path) -> Result<bool> {
    is_mount_point(AT_FDCWD, path).map_err(|e| SysError::call(format!("look at {}", path.display()), e))
}
