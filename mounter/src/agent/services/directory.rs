//! A volume's own directory, `$MOORING_STATE`: for sockets, a daemon's configuration, and file systems that are mounted
//! on the way to the volume. It is removed with the volume. Mounts in it are unmounted, but their content is never
//! removed.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::volume::mount_table::Table;

/// Creates it unless it exists.
pub(super) fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Unmounts everything below it. Waits until each file system has written what it had in memory.
pub(super) fn unmount_all(path: &Path) -> io::Result<()> {
    let table = Table::read()?;
    let beneath = |place: &Path| place != path && place.starts_with(path);
    // A stacked mount comes after the one below it.
    for mount in table.0.iter().rev().filter(|mount| beneath(&mount.mount_point)) {
        match umount2(&mount.mount_point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // Its daemon has unmounted it.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Removes it with its content. If something is mounted there, that is left alone and is an error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match open(path, FOLDER, Mode::empty()) {
        Err(Errno::ENOENT) => Ok(()),
        opened => {
            empty(&opened?)?;
            Ok(unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir)?)
        }
    }
}

const FOLDER: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn empty(folder: &OwnedFd) -> Result<(), Errno> {
    for entry in Dir::openat(folder, ".", FOLDER, Mode::empty())?.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => {
                // Never into another file system, even one that was mounted just now: its content may be the volume's
                // data.
                let how = OpenHow::new().flags(FOLDER).resolve(ResolveFlag::RESOLVE_NO_XDEV);
                empty(&openat2(folder, name, how)?)?;
                unlinkat(folder, name, UnlinkatFlags::RemoveDir)?;
            }
            removed => removed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::mount::{MsFlags, mount};

    use super::*;

    #[test]
    fn a_directory_is_removed_with_its_content_and_a_second_removal_succeeds() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("volume");
        make(&path).unwrap();
        make(&path).unwrap();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        std::fs::write(path.join("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink(root.path(), path.join("link")).unwrap();
        unmount_all(&path).unwrap();
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(root.path().exists() && !path.exists());
    }

    #[test]
    fn mounts_in_it_are_unmounted_and_never_emptied() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("volume");
        let (data, place) = (root.path().join("data"), path.join("fs"));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("letter"), "hello").unwrap();
        // Only root can mount.
        if mount(Some(&data), &place, None::<&str>, MsFlags::MS_BIND, None::<&str>).is_err() {
            return;
        }
        assert!(remove(&path).is_err());
        assert!(place.join("letter").exists());
        unmount_all(&path).unwrap();
        remove(&path).unwrap();
        assert!(data.join("letter").exists() && !path.exists());
    }
}
