//! A directory in which no relative name leads anywhere.
//!
//! The kernel and `mount` take a source such as `a/b` for a path of the caller's working directory. Who controls any
//! directory of the node could put a device there between a check and the mount. In an empty file system that is
//! mounted nowhere, there is nothing to find: not even `..` leads out.

use std::os::fd::OwnedFd;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::fchdir;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::{Result, SysError, raw};

/// Opens the root of a new empty file system that nothing can be written to.
pub fn open() -> Result<OwnedFd> {
    let failed = |errno| SysError::call("make an empty directory to mount from", raw::errno(errno));
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
    fsconfig_create(&context).map_err(failed)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed)
}

/// Does something there, in a thread with a working directory of its own.
pub(super) fn act<T: Send>(act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let nowhere = open()?;
    let there = || {
        unshare(CloneFlags::CLONE_FS)
            .and_then(|()| fchdir(&nowhere))
            .map_err(|errno| SysError::call("enter an empty directory to mount from", errno))?;
        act()
    };
    let ended = || SysError {
        attempted: "mount in a thread of its own".to_owned(),
        errno: None,
        cause: "the thread ended without a result".into(),
    };
    thread::scope(|scope| scope.spawn(there).join().map_err(|_| ended())?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::act;

    const INSIDE: &str = "sys::nowhere::tests::in_a_user_namespace";

    /// Mounting takes rights that a user has in a namespace of their own.
    #[test]
    fn relative_names_lead_nowhere_and_absolute_ones_where_they_did() {
        let program = std::env::current_exe().unwrap();
        let mut inside = Command::new("unshare");
        inside.args(["--user", "--map-root-user", "--mount", "--"]).arg(program);
        let ended = inside.args([INSIDE, "--exact", "--ignored"]).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{ended:?}");
    }

    #[test]
    #[ignore = "the test above runs it"]
    fn in_a_user_namespace() {
        let found = || ["Cargo.toml", "../Cargo.toml", "/proc/self/stat"].map(|name| Path::new(name).exists());
        assert_eq!(found(), [true, true, true]);
        assert_eq!(act(|| Ok(found())).unwrap(), [false, false, true]);
        assert_eq!(found(), [true, true, true], "others have another directory");
    }
}
