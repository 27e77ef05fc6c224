//! `mounter make-file-system …`: formats the device of a client image's volume, as the mounter formats its own. This is
//! the one place that decides whether a device may be formatted.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use mooring_contract::volume::clients::BYTES_PER_INODE;
use mooring_contract::volume::file_system::{FileSystem, TooSmall};

use crate::sys::{Kernel, Sys, SysError};
use crate::worker::clients::file_system::{NewFileSystem, Place};
use crate::worker::clients::image::ImageContent;

/// How much of each end of a device is read. The signatures of file systems, partition tables, RAID, LVM and encryption
/// are there.
const END: u64 = 1 << 20;

/// Flags of `mounter make-file-system`.
#[derive(Debug, Clone, clap::Args)]
pub struct MakeFileSystemArgs {
    /// The type of the file system: ext4 or xfs.
    #[arg(long = "type", value_name = "TYPE", value_parser = read_type)]
    file_system: FileSystem,
    /// For how many bytes of the device an ext4 gets an inode.
    #[arg(long, value_name = "BYTES", value_parser = read_inodes)]
    bytes_per_inode: Option<String>,
    /// Leave a device as it is that has such a file system. Without this, only a blank device is no error.
    #[arg(long)]
    if_blank: bool,
    device: PathBuf,
}

fn read_type(text: &str) -> Result<FileSystem, String> {
    FileSystem::named(text).ok_or_else(|| "write ext4 or xfs".to_owned())
}

fn read_inodes(text: &str) -> Result<String, String> {
    let known = BYTES_PER_INODE.accepts(text);
    known
        .then(|| text.to_owned())
        .ok_or_else(|| format!("write {}", BYTES_PER_INODE.value.wanted))
}

/// Why a device is not formatted.
#[derive(Debug, thiserror::Error)]
pub enum MakeFileSystemError {
    #[error(
        "failed to read {0}, so it is not formatted: see whether the storage has the volume, and the kernel's log of \
         the node"
    )]
    Read(PathBuf, #[source] io::Error),
    #[error("failed to write to {0}")]
    Write(PathBuf, #[source] io::Error),
    #[error("the device is not formatted: {0}: make the volume larger")]
    TooSmall(#[from] TooSmall),
    #[error(
        "{device} is not formatted as {wanted}: it holds {found}, and a device that is not blank is never formatted: \
         set the volume's fs-type to what the device holds, make a new volume, or, if nobody needs what is on it, fill \
         it with zeros (blkdiscard --zeroout)"
    )]
    NotBlank {
        device: PathBuf,
        wanted: &'static str,
        found: &'static str,
    },
    #[error(transparent)]
    Program(#[from] SysError),
}

pub fn run(args: MakeFileSystemArgs) -> Result<(), MakeFileSystemError> {
    make(&Kernel, args)
}

fn make(sys: &impl Sys, args: MakeFileSystemArgs) -> Result<(), MakeFileSystemError> {
    let MakeFileSystemArgs {
        file_system,
        bytes_per_inode,
        if_blank,
        device,
    } = args;
    let looked = File::open(&device).and_then(|mut file| {
        // The metadata of a device say no size.
        let size = file.seek(SeekFrom::End(0))?;
        Ok((size, DeviceContent::read(&file, size)?))
    });
    let (size, content) = looked.map_err(|error| MakeFileSystemError::Read(device.clone(), error))?;
    let new = || NewFileSystem::of_size(size, file_system, Place::Device);
    let new = match content {
        DeviceContent::Data(ImageContent::FileSystem(found)) if if_blank && found == file_system => return Ok(()),
        DeviceContent::Data(found) => {
            return Err(MakeFileSystemError::NotBlank {
                device,
                wanted: file_system.as_str(),
                found: found.as_str(),
            });
        }
        DeviceContent::Blank => new()?,
        DeviceContent::Unfinished => new()?.over_remains(),
    };
    let new = new.with_inodes(bytes_per_inode);
    if file_system == FileSystem::Xfs {
        return Ok(new.make(sys, &device)?);
    }
    let write = |error| MakeFileSystemError::Write(device.clone(), error);
    let file = File::options().read(true).write(true).open(&device).map_err(write)?;
    Mark::write(&file).map_err(write)?;
    new.make(sys, &device)?;
    Mark::erase(&file).map_err(write)
}

/// What a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceContent {
    Blank,
    /// What a program has left that was ended while it made a file system. It was never mounted.
    Unfinished,
    Data(ImageContent),
}

impl DeviceContent {
    fn read(device: &File, size: u64) -> io::Result<Self> {
        let mut first = vec![0; usize::try_from(size.min(END)).map_err(io::Error::other)?];
        let mut last = first.clone();
        device.read_exact_at(&mut first, 0)?;
        device.read_exact_at(&mut last, size.saturating_sub(END))?;
        Ok(
            if first.starts_with(&Mark::bytes()) || ImageContent::is_unfinished(&first) {
                Self::Unfinished
            } else if is_erased(&first) && is_erased(&last) {
                Self::Blank
            } else {
                Self::Data(ImageContent::of(&first))
            },
        )
    }
}

/// Whether nothing was ever written there: an erased flash disk may have ones instead of zeros.
fn is_erased(bytes: &[u8]) -> bool {
    [0, 0xff].iter().any(|erased| bytes.iter().all(|byte| byte == erased))
}

/// The beginning of a device while it is formatted as ext4, so that it is formatted again if that is interrupted:
/// mkfs.ext4 writes the superblock last, and until then the device holds something that nobody knows.
///
/// mkfs.ext4 clears the first sectors unless they have a BSD disk label (`zap_sector` in `misc/mke2fs.c`), so this looks
/// like such a label. mkfs.xfs needs no mark: it writes its superblock first, with a mark of its own.
struct Mark;

impl Mark {
    const LENGTH: usize = 512;

    fn bytes() -> [u8; Self::LENGTH] {
        const WORDS: &[u8] = b"mooring.dev: this device is being formatted";
        const LABEL: usize = 64;
        let label = 0x8256_4557_u32.to_ne_bytes();
        let mut bytes = [0; Self::LENGTH];
        for (at, part) in [(0, WORDS), (LABEL, &label)] {
            bytes.iter_mut().skip(at).zip(part).for_each(|(to, from)| *to = *from);
        }
        bytes
    }

    fn write(device: &File) -> io::Result<()> {
        device.write_all_at(&Self::bytes(), 0)?;
        device.sync_all()
    }

    /// Ends the formatting, once all of the file system is on the device.
    fn erase(device: &File) -> io::Result<()> {
        let mut found = [0; Self::LENGTH];
        device.sync_all()?;
        device.read_exact_at(&mut found, 0)?;
        if found == Self::bytes() {
            device.write_all_at(&[0; Self::LENGTH], 0)?;
        }
        device.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    use mooring_contract::volume::file_system::FileSystem;

    use super::{MakeFileSystemArgs, MakeFileSystemError, Mark, make};
    use crate::sys::Kernel;
    use crate::sys::fake::Fake;

    const SIZE: u64 = 512 << 20;

    fn device(folder: &tempfile::TempDir, content: &[(u64, &[u8])]) -> File {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(folder.path().join("device"));
        let file = file.unwrap();
        file.set_len(SIZE).unwrap();
        for (at, bytes) in content {
            file.write_all_at(bytes, *at).unwrap();
        }
        file
    }

    fn args(folder: &Path, file_system: FileSystem, if_blank: bool) -> MakeFileSystemArgs {
        MakeFileSystemArgs {
            file_system,
            bytes_per_inode: None,
            if_blank,
            device: folder.join("device"),
        }
    }

    #[test]
    fn a_device_with_anything_at_either_end_is_never_formatted_and_a_blank_device_is() {
        let folder = tempfile::tempdir().unwrap();
        for (content, is_blank) in [
            (vec![], true),
            (
                vec![(0, vec![0xff; 1 << 20]), (SIZE - (1 << 20), vec![0xff; 1 << 20])],
                true,
            ),
            (vec![(0, vec![0x5a; 1 << 20])], false),
            (vec![((1 << 20) - 1, vec![1])], false),
            (vec![(SIZE - 1, vec![1])], false),
            (vec![(SIZE - 4096, vec![0xff; 4096])], false),
            (vec![(0, b"XFSB".to_vec())], false),
            (vec![(1080, vec![0x53, 0xef])], false),
        ] {
            let content: Vec<(u64, &[u8])> = content.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
            for file_system in FileSystem::ALL {
                device(&folder, &content);
                let fake = Fake::default();
                let made = make(&fake, args(folder.path(), file_system, false));
                assert_eq!(fake.programs().len(), usize::from(is_blank), "{made:?}");
                match made {
                    Ok(()) => assert!(is_blank),
                    Err(error) => {
                        let said = error.to_string();
                        assert!(matches!(error, MakeFileSystemError::NotBlank { .. }), "{said}");
                        assert!(said.contains("zeros"), "{said}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_device_that_can_t_be_read_is_not_formatted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("device")).unwrap();
        let fake = Fake::default();
        for file_system in FileSystem::ALL {
            let made = make(&fake, args(folder.path(), file_system, true));
            assert!(matches!(made, Err(MakeFileSystemError::Read(..))), "{made:?}");
        }
        assert!(fake.programs().is_empty());
    }

    #[test]
    fn a_file_system_stays_as_it_is_and_another_than_the_wanted_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for file_system in FileSystem::ALL {
            let file = device(&folder, &[]);
            make(&Kernel, args(folder.path(), file_system, true)).unwrap();
            let mut uuids = [vec![0; 4096], vec![0; 4096]];
            file.read_exact_at(&mut uuids[0], 0).unwrap();
            make(&Kernel, args(folder.path(), file_system, true)).unwrap();
            file.read_exact_at(&mut uuids[1], 0).unwrap();
            assert_eq!(uuids[0], uuids[1]);
            for other in FileSystem::ALL {
                let made = make(&Kernel, args(folder.path(), other, other != file_system));
                let said = made.unwrap_err().to_string();
                assert!(said.contains(&format!("it holds {}", file_system.as_str())), "{said}");
            }
        }
    }

    /// As a killed mkfs.xfs leaves it.
    #[test]
    fn an_xfs_whose_formatting_was_interrupted_is_formatted_again_and_is_whole_then() {
        let folder = tempfile::tempdir().unwrap();
        let file = device(&folder, &[]);
        make(&Kernel, args(folder.path(), FileSystem::Xfs, true)).unwrap();
        for wanted in [FileSystem::Xfs, FileSystem::Ext4] {
            file.write_all_at(&[0xff; 8], 56).unwrap();
            file.write_all_at(&[1], 126).unwrap();
            make(&Kernel, args(folder.path(), wanted, true)).unwrap();
            let mut byte = [7];
            file.read_exact_at(&mut byte, 126).unwrap();
            assert_eq!(byte, [0]);
        }
        // The root directory says that it was whole once.
        make(&Kernel, args(folder.path(), FileSystem::Ext4, true)).unwrap();
        let file = device(&folder, &[(0, b"XFSB"), (126, &[1])]);
        let made = make(&Fake::default(), args(folder.path(), FileSystem::Xfs, false));
        assert!(matches!(made, Err(MakeFileSystemError::NotBlank { .. })), "{made:?}");
        drop(file);
    }

    /// mkfs.ext4 writes the superblock last.
    #[test]
    fn an_ext4_whose_formatting_was_interrupted_is_formatted_again_and_keeps_no_mark() {
        let folder = tempfile::tempdir().unwrap();
        let file = device(&folder, &[]);
        let marked = || {
            let mut bytes = [1; Mark::LENGTH];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == Mark::bytes() || bytes == [0; Mark::LENGTH], "{bytes:?}");
            bytes == Mark::bytes()
        };
        Mark::write(&file).unwrap();
        let args = || args(folder.path(), FileSystem::Ext4, true);
        // The program itself keeps the mark.
        crate::worker::clients::file_system::NewFileSystem::of_size(
            SIZE,
            FileSystem::Ext4,
            crate::worker::clients::file_system::Place::Device,
        )
        .unwrap()
        .make(&Kernel, &folder.path().join("device"))
        .unwrap();
        assert!(marked(), "mkfs.ext4 has erased the mark");
        file.write_all_at(&[0; 1024], 1024).unwrap();
        make(&Kernel, args()).unwrap();
        assert!(!marked());
        let mut magic = [0; 2];
        file.read_exact_at(&mut magic, 1080).unwrap();
        assert_eq!(magic, [0x53, 0xef]);
    }
}
