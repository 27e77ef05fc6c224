//! One directory of a mount, reached through no symbolic link.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, openat2};
use nix::mount::{MsFlags, mount as change};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MoveMountFlags, move_mount};

use super::{Kernel, Result, Sys as _, SysError, raw};
use crate::volume::mount_options::MountFlags;
use crate::volume::target::CONFINED;

/// A mount of directory `path` of `mount`. Neither is attached anywhere.
///
/// Before version 6.15, the kernel copies a mount only if it is in the caller's mount namespace. So a thread walks in a
/// mount namespace of its own, which ends with it.
pub(super) fn directory_of(mount: OwnedFd, path: &str, flags: MountFlags) -> Result<OwnedFd> {
    let attempted = || format!("walk to directory {path} of the server");
    std::thread::scope(|scope| {
        let walk = move || {
            let directory = open_directory(&mount, path).map_err(|e| SysError::call(attempted(), e))?;
            Kernel.clone_mount(&directory, flags)
        };
        let walker = std::thread::Builder::new()
            .name("walk".to_owned())
            .spawn_scoped(scope, walk)
            .map_err(|e| SysError::io(attempted(), e))?;
        let ended = |_| SysError::io(attempted(), std::io::Error::other("the thread ended without a result"));
        walker.join().map_err(ended)?
    })
}

/// Leaves the process's mount namespace, and walks from the root of `mount`. File systems of the server that lie in one
/// another are crossed: the kernel mounts each when the walk reaches it.
fn open_directory(mount: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // What is unmounted elsewhere goes from here, too: a server that is silent keeps no other volume in use.
    change(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_SLAVE | MsFlags::MS_REC,
        None::<&str>,
    )?;
    move_mount(mount, c"", AT_FDCWD, c"/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(raw::errno)?;
    let directory = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat2(mount, path, OpenHow::new().flags(directory).resolve(CONFINED))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use nix::errno::Errno;
    use nix::fcntl::{AtFlags, OFlag, openat};
    use nix::sys::stat::{Mode, fstatat, mkdirat};
    use nix::sys::statfs::{FsType, fstatfs};
    use nix::sys::statvfs::{FsFlags, fstatvfs};
    use nix::unistd::symlinkat;

    use crate::sys::{Kernel, NewMount, Sys as _};
    use crate::volume::job::Secrets;
    use crate::volume::mount_options::MountFlags;
    use crate::volume::mount_table::Table;

    /// A file system that is attached nowhere. Only root can have one.
    fn mounted(fs_type: &str) -> Option<OwnedFd> {
        let mount = NewMount {
            fs_type: fs_type.to_owned(),
            source: "walked".to_owned(),
            options: Vec::new(),
            credentials: Secrets::default(),
            flags: MountFlags::safe(),
        };
        Kernel.new_mount(&mount).ok()
    }

    fn assert_safe(directory: &OwnedFd) {
        let flags = fstatvfs(directory).unwrap().flags();
        assert!(flags.contains(FsFlags::ST_NOSUID | FsFlags::ST_NODEV));
    }

    /// One with directories and links.
    fn tree() -> Option<OwnedFd> {
        let root = mounted("tmpfs")?;
        for directory in ["a", "a/b", "c"] {
            mkdirat(&root, directory, Mode::S_IRWXU).unwrap();
        }
        for (target, link) in [("b", "a/link"), ("../c", "a/up"), ("/c", "a/whole"), ("a/b", "top")] {
            symlinkat(target, &root, link).unwrap();
        }
        for file in ["a/b/file", "c/secret"] {
            openat(&root, file, OFlag::O_CREAT | OFlag::O_CLOEXEC, Mode::S_IRWXU).unwrap();
        }
        Some(root)
    }

    #[test]
    fn a_directory_is_reached_through_no_link_and_is_mounted_nowhere() {
        for (path, file) in [("a/b", "file"), ("a", "b"), ("c", "secret")] {
            let Some(root) = tree() else { return };
            let directory = Kernel.directory_of(root, path, MountFlags::safe()).unwrap();
            fstatat(&directory, file, AtFlags::empty()).unwrap();
            assert_safe(&directory);
            let table = Table::read().unwrap();
            assert!(table.0.iter().all(|entry| entry.source != "walked"), "{table:?}");
        }
        for (path, errno) in [
            ("a/link", Errno::ELOOP),
            ("a/link/file", Errno::ELOOP),
            ("a/up", Errno::ELOOP),
            ("a/whole", Errno::ELOOP),
            ("top", Errno::ELOOP),
            ("a/../../c", Errno::EXDEV),
            ("a/b/file", Errno::ENOTDIR),
            ("nowhere", Errno::ENOENT),
        ] {
            let Some(root) = tree() else { return };
            let error = Kernel.directory_of(root, path, MountFlags::safe()).unwrap_err();
            assert_eq!(error.errno, Some(errno), "{path}: {error}");
        }
    }

    #[test]
    fn what_the_kernel_mounts_on_the_way_is_crossed() {
        const TRACEFS: FsType = FsType(0x7472_6163);
        // The kernel mounts this directory when it is reached, as it does with those of an NFS server.
        let Some(root) = mounted("debugfs") else { return };
        match Kernel.directory_of(root, "tracing", MountFlags::safe()) {
            // A kernel without it.
            Err(error) => assert_eq!(error.errno, Some(Errno::ENOENT), "{error}"),
            Ok(directory) => {
                assert_eq!(fstatfs(&directory).unwrap().filesystem_type(), TRACEFS);
                assert_safe(&directory);
            }
        }
    }
}
