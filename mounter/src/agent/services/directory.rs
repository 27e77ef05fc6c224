//! A volume's own directory, `$MOORING_STATE`: for sockets, a daemon's configuration, and file systems that are mounted
//! on the way to the volume. It is removed with the volume. Mounts in it are unmounted, but their content is never
//! removed.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, open, openat2, unlinkat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

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
        match unmount(&mount.mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // Its daemon has unmounted it.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Removes it with its content. If something is mounted there, that is left alone and is an error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match open(path, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => Ok(()),
        opened => {
            empty(&opened?)?;
            Ok(unlinkat(CWD, path, AtFlags::REMOVEDIR)?)
        }
    }
}

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn empty(folder: &OwnedFd) -> Result<(), Errno> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match unlinkat(folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {
                // Never into another file system, even one that was mounted just now: its content may be the volume's
                // data.
                empty(&openat2(folder, name, FOLDER, Mode::empty(), ResolveFlags::NO_XDEV)?)?;
                unlinkat(folder, name, AtFlags::REMOVEDIR)?;
            }
            removed => removed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
        if rustix::mount::mount_bind(&data, &place).is_err() {
            return;
        }
        assert!(remove(&path).is_err());
        assert!(place.join("letter").exists());
        unmount_all(&path).unwrap();
        remove(&path).unwrap();
        assert!(data.join("letter").exists() && !path.exists());
    }
}
