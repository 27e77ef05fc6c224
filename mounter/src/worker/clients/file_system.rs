//! How a file system is made: the one place, for the image files of the pool and, by `mounter make-file-system`, for
//! the devices of client images.

use std::path::Path;

use mooring_contract::volume::file_system::{FileSystem, TooSmall};

use super::image::ImageContent;
use super::unmounted_growth::{self, Note};
use crate::sys::{Program, Result, Sys};

/// What a file system is made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A file of the pool, which is locked.
    File,
    /// A device, which another node may have too: an ext4 then refuses to be mounted twice.
    Device,
}

/// A file system that fits into its place, and is to be made there.
#[derive(Debug, Clone)]
pub struct NewFileSystem {
    file_system: FileSystem,
    place: Place,
    bytes_per_inode: Option<String>,
    is_over_remains: bool,
    is_written_out: bool,
}

impl NewFileSystem {
    /// One for a file or a device of `size` bytes.
    pub fn of_size(size: u64, file_system: FileSystem, place: Place) -> Result<Self, TooSmall> {
        file_system.check_size(size)?;
        Ok(Self {
            file_system,
            place,
            bytes_per_inode: None,
            is_over_remains: false,
            is_written_out: false,
        })
    }

    /// It replaces what an interrupted try has left on a device. Otherwise mkfs.xfs looks once more whether the device
    /// is blank; mkfs.ext4 asks nobody where there is no terminal.
    #[must_use]
    pub fn over_remains(self) -> Self {
        Self {
            is_over_remains: true,
            ..self
        }
    }

    /// Where it is an ext4, it gets an inode for each so many bytes. An xfs makes inodes as they are needed.
    #[must_use]
    pub fn with_inodes(self, bytes_per_inode: Option<String>) -> Self {
        Self {
            bytes_per_inode: bytes_per_inode.filter(|bytes| self.file_system == FileSystem::Ext4 && !bytes.is_empty()),
            ..self
        }
    }

    /// Whether all of its metadata is written now. The kernel would zero the tables of an ext4's inodes later, which
    /// takes their room from an image file.
    #[must_use]
    pub fn written_out(self, is_written_out: bool) -> Self {
        Self { is_written_out, ..self }
    }

    pub fn make(&self, sys: &impl Sys, path: &Path) -> Result<()> {
        sys.run(&self.program(path))
    }

    /// The blocks suit a disk of any sector size. An ext4 keeps no room for root, and an error makes it read-only:
    /// nothing checks it before it is mounted.
    fn program(&self, path: &Path) -> Program {
        const EXT4: &[&str] = &["-q", "-b", "4096", "-m", "0", "-e", "remount-ro", "-E"];
        const XFS: &[&str] = &["-q", "-K", "-s", "size=4096"];
        let (name, options, more): (_, _, &[&str]) = match (self.file_system, self.place) {
            (FileSystem::Ext4, Place::File) => ("mkfs.ext4", EXT4, &["-F"]),
            (FileSystem::Ext4, Place::Device) => ("mkfs.ext4", EXT4, &["-O", "mmp"]),
            (FileSystem::Xfs, Place::Device) if !self.is_over_remains => ("mkfs.xfs", XFS, &[]),
            (FileSystem::Xfs, Place::File | Place::Device) => ("mkfs.xfs", XFS, &["-f"]),
        };
        let extended = match (self.file_system, self.is_written_out) {
            (FileSystem::Ext4, true) => Some("nodiscard,lazy_itable_init=0"),
            (FileSystem::Ext4, false) => Some("nodiscard"),
            (FileSystem::Xfs, _) => None,
        };
        let inodes = self.bytes_per_inode.iter().flat_map(|bytes| ["-i", bytes.as_str()]);
        let args = options.iter().copied().chain(extended).chain(more.iter().copied());
        let args = args.chain(inodes).chain(["--"]);
        Program {
            name: name.to_owned(),
            args: args.map(Into::into).chain([path.into()]).collect(),
            last_good_exit: 0,
        }
    }
}

/// Has an ext4, which its device or its file of `size` bytes has outgrown, have all of it before it is mounted for
/// writing; and finishes that where it was interrupted.
///
/// Only where it can't grow afterwards: the kernel does that with its journal.
pub fn grow_unmounted(sys: &impl Sys, path: &Path, size: u64) -> Result<()> {
    let start = sys.read_device(path, 0, ImageContent::PROBED)?;
    let outgrown = || ImageContent::outgrown(&start, size) == Some(FileSystem::Ext4) && !sys.may_grow_mounted();
    if Note::read(&start).is_some() || outgrown() {
        unmounted_growth::grow(sys, path, size, &start)?;
    }
    Ok(())
}

/// Has a file system, which its device has outgrown, have all of it while it is mounted. An ext4 that the kernel lets
/// grow only unmounted stays as it is: another Pod has it.
pub fn grow_mounted(sys: &impl Sys, outgrown: Option<FileSystem>, device: &Path, directory: &Path) -> Result<()> {
    match outgrown {
        Some(FileSystem::Xfs) => sys.run(&Program {
            name: "xfs_growfs".to_owned(),
            args: vec!["-d".into(), directory.into()],
            last_good_exit: 0,
        }),
        Some(FileSystem::Ext4) if sys.may_grow_mounted() => sys.run(&Program {
            name: "resize2fs".to_owned(),
            args: vec![device.into()],
            last_good_exit: 0,
        }),
        Some(FileSystem::Ext4) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mooring_contract::volume::file_system::FileSystem;

    use super::{NewFileSystem, Place};
    use crate::sys::fake::Fake;

    #[test]
    fn only_an_ext4_is_told_how_many_inodes_it_gets() {
        for (file_system, want) in [(FileSystem::Ext4, " -F -i 4096 -- /x"), (FileSystem::Xfs, " -f -- /x")] {
            let fake = Fake::default();
            let new = NewFileSystem::of_size(1 << 30, file_system, Place::File).unwrap();
            new.with_inodes(Some("4096".to_owned()))
                .make(&fake, Path::new("/x"))
                .unwrap();
            let program = fake.programs().remove(0);
            assert!(program.ends_with(want), "{program}");
        }
    }

    #[test]
    fn an_ext4_has_all_of_its_blocks_for_the_pod_and_on_a_device_one_node_at_a_time() {
        for (file_system, place, want) in [
            (
                FileSystem::Ext4,
                Place::Device,
                "mkfs.ext4 -q -b 4096 -m 0 -e remount-ro -E nodiscard -O mmp -- /dev/x",
            ),
            (
                FileSystem::Ext4,
                Place::File,
                "mkfs.ext4 -q -b 4096 -m 0 -e remount-ro -E nodiscard -F -- /dev/x",
            ),
            (FileSystem::Xfs, Place::Device, "mkfs.xfs -q -K -s size=4096 -- /dev/x"),
            (FileSystem::Xfs, Place::File, "mkfs.xfs -q -K -s size=4096 -f -- /dev/x"),
        ] {
            let fake = Fake::default();
            let new = NewFileSystem::of_size(1 << 30, file_system, place).unwrap();
            new.make(&fake, Path::new("/dev/x")).unwrap();
            assert_eq!(fake.programs(), [want]);
            assert!(NewFileSystem::of_size(4 << 20, file_system, place).is_err());
        }
    }
}
