//! Enlarges an ext4 that nobody has mounted, so that a later mount can finish it at whatever moment that ends: by a
//! deadline, with its container, or with the node's power.
//!
//! resize2fs writes in place. Interrupted, it leaves an ext4 that `e2fsck -p` refuses; and both programs write the
//! superblock in parts, between which its checksum is false, so that nobody can open it. As long as the new group
//! descriptors fit into the blocks that are reserved for them, resize2fs moves nothing that is there, and `e2fsck -y`
//! heals whatever it left, once the superblock is that of before. Where they don't fit it moves tables of inodes, and
//! then `e2fsck -y` loses files.
//!
//! So a note in the boot block, which ext4 leaves alone, says what was begun and has that superblock. e2fsck -y runs
//! only by such a note: nothing but resize2fs has written there since `e2fsck -p` found all well.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::sys::{Program, Result, Sys, SysError};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Long after any call has ended, with the programs that it ran.
const ABANDONED_SECONDS: u64 = 600;
const BLOCK: usize = 1024;
/// Multi-mount protection: nobody has it.
const MMP_CLEAN: u32 = 0xff4d_4d50;
/// A program has it, or had when it was killed. The kernel and the programs refuse it from then on.
const MMP_PROGRAM: u32 = 0xe24d_4d50;

/// What was begun on an ext4, and did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    boot_id: Vec<u8>,
    began: u64,
    /// Whether e2fsck has found all well, and resize2fs may have begun.
    is_growing: bool,
    /// That of before.
    superblock: Superblock,
}

impl Note {
    const WORDS: &[u8] = b"mooring.dev: this ext4 is being enlarged";
    const BEGAN: usize = 48;
    const IS_GROWING: usize = 56;
    const CHECKSUM: usize = 60;
    const BOOT_ID: (usize, usize) = (64, 36);
    const SUPERBLOCK: usize = 256;

    fn now(superblock: Superblock) -> Result<Self> {
        let boot_id = std::fs::read(BOOT_ID).map_err(|error| SysError::io(format!("read {BOOT_ID}"), error))?;
        let began = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        Ok(Self {
            boot_id: boot_id.into_iter().take(Self::BOOT_ID.1).collect(),
            began,
            is_growing: false,
            superblock,
        })
    }

    /// By the first bytes of a device or a file.
    pub(super) fn read(start: &[u8]) -> Option<Self> {
        let block = start.get(..BLOCK).filter(|block| block.starts_with(Self::WORDS))?;
        let mut superblock = block.get(Self::SUPERBLOCK..)?.to_vec();
        superblock.resize(Superblock::CHECKSUM, 0);
        superblock.extend(block.get(Self::CHECKSUM..Self::CHECKSUM + 4)?);
        Some(Self {
            boot_id: block.get(Self::BOOT_ID.0..Self::BOOT_ID.0 + Self::BOOT_ID.1)?.to_vec(),
            began: u64::from_le_bytes(block.get(Self::BEGAN..Self::BEGAN + 8)?.try_into().ok()?),
            is_growing: *block.get(Self::IS_GROWING)? == 1,
            superblock: Superblock(superblock),
        })
    }

    fn bytes(&self, is_growing: bool) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        let mut put = |at: usize, part: &[u8]| block.iter_mut().skip(at).zip(part).for_each(|(to, from)| *to = *from);
        let Superblock(superblock) = &self.superblock;
        put(0, Self::WORDS);
        put(Self::BEGAN, &self.began.to_le_bytes());
        put(Self::IS_GROWING, &[is_growing.into()]);
        put(
            Self::CHECKSUM,
            superblock.get(Superblock::CHECKSUM..).unwrap_or_default(),
        );
        put(Self::BOOT_ID.0, &self.boot_id);
        put(Self::SUPERBLOCK, superblock);
        block
    }

    fn write(&self, sys: &impl Sys, path: &Path) -> Result<()> {
        // A loss of power may tear a write between sectors: that resize2fs may begin is written last.
        sys.write_device(path, 0, &self.bytes(false))?;
        sys.write_device(path, 0, &self.bytes(self.is_growing))
    }

    fn erase(sys: &impl Sys, path: &Path) -> Result<()> {
        sys.write_device(path, 0, &[0; BLOCK])
    }

    /// Another node may still be at it. On this node the kernel and the lock of an image file keep two apart.
    fn fail_if_elsewhere(&self, now: &Self) -> Result<()> {
        if self.boot_id == now.boot_id || self.began.abs_diff(now.began) >= ABANDONED_SECONDS {
            return Ok(());
        }
        Err(not_grown(
            "another node began to, within the last 10 minutes, and may still be at it, or died: the kubelet tries \
             again, and once the 10 minutes are over the volume's next mount finishes it",
        ))
    }
}

/// `struct ext4_super_block` (`fs/ext4/ext4.h` of the kernel).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Superblock(Vec<u8>);

impl Superblock {
    const CHECKSUM: usize = 0x3fc;

    fn read(start: &[u8]) -> Self {
        Self(start.iter().copied().skip(BLOCK).take(BLOCK).collect())
    }

    fn number(&self, at: usize, length: usize) -> u64 {
        let bytes = self.0.iter().skip(at).take(length).rev();
        bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Whether nobody has mounted it for writing since it was `before`: by `s_mtime` and `s_mnt_count`, which e2fsck
    /// sets to zero.
    fn is_mounted_since(&self, before: &Self) -> bool {
        const TIME: (usize, usize) = (0x2c, 4);
        const COUNT: (usize, usize) = (0x34, 2);
        let number = |of: &Self, (at, length)| of.number(at, length);
        number(self, TIME) != number(before, TIME) || number(self, COUNT) > number(before, COUNT)
    }

    /// Whether only a part of it was written.
    fn is_torn(&self) -> bool {
        const HAS_CHECKSUM: u64 = 0x400;
        let crc = self.0.iter().take(Self::CHECKSUM).fold(!0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78))
        });
        self.number(0x64, 4) & HAS_CHECKSUM != 0 && self.number(Self::CHECKSUM, 4) != u64::from(crc)
    }

    /// Whether all of it that is in use fits into a note.
    fn fits_into_note(&self) -> bool {
        let unused = self.0.iter().take(Self::CHECKSUM).skip(BLOCK - Note::SUPERBLOCK);
        unused.copied().all(|byte| byte == 0)
    }

    /// The largest size in bytes to which resize2fs enlarges it and moves nothing.
    fn largest(&self) -> u64 {
        const RESIZE_INODE: u64 = 0x10;
        const WIDE: u64 = 0x80;
        let is_wide = self.number(0x60, 4) & WIDE != 0;
        let block = 1024 << self.number(0x18, 4).min(6);
        let descriptor = if is_wide { self.number(0xfe, 2) } else { 32 };
        let per_group = self.number(0x20, 4);
        let first = self.number(0x14, 4);
        let high = if is_wide { self.number(0x150, 4) << 32 } else { 0 };
        let blocks = high | self.number(0x4, 4);
        let reserved = match self.number(0x5c, 4) & RESIZE_INODE {
            0 => 0,
            _ => self.number(0xce, 2),
        };
        let largest = || {
            let groups = blocks.checked_sub(first)?.checked_next_multiple_of(per_group)? / per_group;
            let per_block = u64::checked_div(block, descriptor)?;
            let descriptors = groups.checked_next_multiple_of(per_block)? + reserved * per_block;
            descriptors
                .checked_mul(per_group)?
                .checked_add(first)?
                .checked_mul(block)
        };
        largest().unwrap_or(0)
    }

    /// Whom multi-mount protection names; `None` without that.
    fn mmp(&self, sys: &impl Sys, path: &Path) -> Result<Option<u32>> {
        const MMP: u64 = 0x100;
        if self.number(0x60, 4) & MMP == 0 {
            return Ok(None);
        }
        let block = 1024 << self.number(0x18, 4).min(6);
        let offset = self.number(0x168, 8).saturating_mul(block).saturating_add(4);
        let bytes = sys.read_device(path, offset, 4)?;
        Ok(Some(bytes.try_into().map_or(0, u32::from_le_bytes)))
    }
}

/// Enlarges it to `size`, or finishes what was begun, by the first bytes there.
pub(super) fn grow(sys: &impl Sys, path: &Path, size: u64, start: &[u8]) -> Result<()> {
    let begun = Note::read(start);
    let found = Superblock::read(start);
    let mut note = Note::now(found.clone())?;
    match &begun {
        Some(begun) => begun.fail_if_elsewhere(&note)?,
        // A flash disk may have ones where nothing was ever written.
        None if start.iter().take(BLOCK).any(|byte| ![0, 0xff].contains(byte)) => {
            return Err(only_mounted(
                "its first 1024 bytes, which ext4 leaves alone, are in use",
            ));
        }
        None if !found.fits_into_note() => {
            return Err(only_mounted("its superblock has parts that Mooring does not know"));
        }
        None => {}
    }
    let mmp = found.mmp(sys, path)?;
    let was_killed = begun.is_some() && mmp == Some(MMP_PROGRAM);
    // Otherwise another node may have it mounted: e2fsck waits, and looks whether that is so.
    if was_killed || mmp.is_none_or(|mmp| mmp == MMP_CLEAN) {
        let is_needed =
            |begun: &Note| (begun.is_growing || found.is_torn()) && !found.is_mounted_since(&begun.superblock);
        if let Some(begun) = begun.filter(is_needed) {
            note.is_growing = begun.is_growing;
            note.superblock = begun.superblock;
        }
        note.write(sys, path)?;
        if note.superblock != found {
            sys.write_device(path, BLOCK as u64, &note.superblock.0)?;
        }
    }
    if was_killed {
        run(sys, "tune2fs", &["-f", "-E", "clear_mmp"], path, 0)?;
    }
    let answer = if note.is_growing { "-y" } else { "-p" };
    // 1: it has repaired something. resize2fs wants it to be checked, and the journal to be replayed.
    run(sys, "e2fsck", &["-f", answer, "--"], path, 1)?;

    note.superblock = Superblock::read(&sys.read_device(path, 0, 2 * BLOCK)?);
    note.is_growing = true;
    let largest = note.superblock.largest();
    if size > largest {
        Note::erase(sys, path)?;
        return Err(only_mounted(&format!(
            "it can have {largest} bytes at most then, and the volume has {size}"
        )));
    }
    note.write(sys, path)?;
    run(sys, "resize2fs", &[], path, 0)?;
    Note::erase(sys, path)
}

fn run(sys: &impl Sys, name: &str, options: &[&str], path: &Path, last_good_exit: i32) -> Result<()> {
    sys.run(&Program {
        name: name.to_owned(),
        args: options.iter().map(Into::into).chain([path.into()]).collect(),
        last_good_exit,
    })
}

fn only_mounted(why: &str) -> SysError {
    not_grown(&format!(
        "{why}: where CAP_SYS_RESOURCE is given to the mounter, or to the client's container, the kernel enlarges it \
         once it is mounted; or make a new volume of this size and copy the files"
    ))
}

fn not_grown(why: &str) -> SysError {
    SysError {
        attempted: "enlarge an ext4 before it is mounted".to_owned(),
        errno: None,
        cause: why.to_owned().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;
    use std::process::Command;

    use super::{BLOCK, MMP_CLEAN, MMP_PROGRAM, Note, Superblock, grow};
    use crate::sys::fake::{Fake, Image};
    use crate::sys::{Kernel, Sys as _};
    use crate::worker::clients::file_system::grow_unmounted;
    use crate::worker::clients::image::ImageContent;

    const SMALL: u64 = 32 << 20;
    const LARGE: u64 = 700 << 20;

    /// Runs a program, which may end with one of these exit codes.
    fn run(name: &str, args: &[&str], path: &Path, good: &[i32]) {
        let output = Command::new(name).args(args).arg(path).output().unwrap();
        let code = output.status.code().unwrap();
        assert!(good.contains(&code), "{name} {args:?}: {output:?}");
    }

    /// Makes an ext4 with files in it, checked.
    fn make(folder: &Path, image: &Path) {
        let files = folder.join("files");
        for number in 0..30_usize {
            let directory = files.join(format!("d{}", number % 4));
            std::fs::create_dir_all(&directory).unwrap();
            let content = format!("{number} ").repeat(1 + number * 1000);
            std::fs::write(directory.join(number.to_string()), content).unwrap();
        }
        File::create(image).unwrap().set_len(SMALL).unwrap();
        let options = ["-q", "-b", "4096", "-m", "0", "-F", "-d", files.to_str().unwrap()];
        run("mkfs.ext4", &options, image, &[0]);
        run("e2fsck", &["-f", "-p"], image, &[0, 1]);
    }

    /// Asserts that an image is whole, has all files, and no note.
    fn assert_whole(folder: &Path, image: &Path) {
        run("e2fsck", &["-f", "-n"], image, &[0]);
        let found = folder.join("found");
        std::fs::create_dir(&found).unwrap();
        run("debugfs", &["-R", &format!("rdump / {}", found.display())], image, &[0]);
        std::fs::remove_dir_all(found.join("lost+found")).unwrap();
        run("diff", &["-r", folder.join("files").to_str().unwrap()], &found, &[0]);
        std::fs::remove_dir_all(found).unwrap();
        assert!(start(image)[..BLOCK].iter().all(|byte| *byte == 0), "the note is left");
    }

    fn start(image: &Path) -> Vec<u8> {
        Kernel.read_device(image, 0, ImageContent::PROBED).unwrap()
    }

    fn size(image: &Path) -> u64 {
        ImageContent::of(&start(image)).size(&start(image)).unwrap()
    }

    /// The blocks that differ, with what `b` has there.
    fn changes(a: &Path, b: &Path) -> Vec<(u64, Vec<u8>)> {
        let (a, b) = (File::open(a).unwrap(), File::open(b).unwrap());
        let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
        let mut found = Vec::new();
        for offset in (0..LARGE).step_by(1 << 20) {
            a.read_exact_at(&mut buffers[0], offset).unwrap();
            b.read_exact_at(&mut buffers[1], offset).unwrap();
            if buffers[0] == buffers[1] {
                continue;
            }
            let blocks = buffers[0].chunks(4096).zip(buffers[1].chunks(4096));
            let changed = (offset..).step_by(4096).zip(blocks).filter(|(_, (a, b))| a != b);
            found.extend(changed.map(|(at, (_, b))| (at, b.to_vec())));
        }
        found
    }

    /// A process that is killed leaves the first writes, a node without power any of them, and a superblock of which
    /// only a part was written.
    #[test]
    fn an_ext4_whose_enlargement_was_interrupted_anywhere_is_enlarged_by_the_next_mount_with_all_files() {
        // In memory: the programs sync often.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let [before, after, image] = ["before", "after", "image"].map(|name| folder.path().join(name));
        make(folder.path(), &before);
        File::options()
            .write(true)
            .open(&before)
            .unwrap()
            .set_len(LARGE)
            .unwrap();
        let copy = |from: &Path, to: &Path| run("cp", &["--sparse=always", from.to_str().unwrap()], to, &[0]);
        copy(&before, &after);
        grow(&Kernel, &after, LARGE, &start(&after)).unwrap();
        assert_eq!(size(&after), LARGE);
        assert_whole(folder.path(), &after);

        run("tune2fs", &["-C", "3"], &before, &[0]);
        let mut note = Note::now(Superblock::read(&start(&before))).unwrap();
        note.write(&Kernel, &before).unwrap();
        assert!(!note.superblock.is_torn());
        copy(&before, &image);
        // e2fsck, too, was ended while it wrote the superblock: the number of mounts, and not yet the checksum.
        Kernel.write_device(&image, BLOCK as u64 + 0x34, &[0]).unwrap();
        assert!(Superblock::read(&start(&image)).is_torn());
        grow_unmounted(&Kernel, &image, LARGE).unwrap();
        assert_eq!(size(&image), LARGE);
        assert_whole(folder.path(), &image);

        note.is_growing = true;
        note.write(&Kernel, &before).unwrap();
        let changes = changes(&before, &after);
        let count = changes.len();
        assert!(count > 10, "{count}");
        let first = (0..=count).step_by(2).map(|end| (0..end).collect::<Vec<_>>());
        let any = (0..12).map(|trial| (0..count).filter(|index| (index * 7 + trial * 5) % 12 < 5).collect());
        for written in first.chain(any) {
            copy(&before, &image);
            let file = File::options().read(true).write(true).open(&image).unwrap();
            for index in &written {
                let (at, bytes) = &changes[*index];
                match at {
                    // A part of the superblock, whose checksum is then false; the note is the one of before.
                    0 => file.write_all_at(&bytes[BLOCK..BLOCK + 512], BLOCK as u64).unwrap(),
                    at => file.write_all_at(bytes, *at).unwrap(),
                }
            }
            grow_unmounted(&Kernel, &image, LARGE).unwrap_or_else(|error| panic!("{written:?}: {error}"));
            assert_eq!(size(&image), LARGE, "{written:?}");
            assert_whole(folder.path(), &image);
        }
    }

    #[test]
    fn an_ext4_is_not_enlarged_further_than_resize2fs_does_without_moving_anything() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        make(folder.path(), &image);
        let largest = Superblock::read(&start(&image)).largest();
        assert!((16 << 30..=64 << 30).contains(&largest), "{largest}");
        File::options()
            .write(true)
            .open(&image)
            .unwrap()
            .set_len(largest + 4096)
            .unwrap();
        let error = grow(&Kernel, &image, largest + 4096, &start(&image))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("CAP_SYS_RESOURCE") && error.contains("new volume"),
            "{error}"
        );
        assert_eq!(size(&image), SMALL);
        assert_whole(folder.path(), &image);
    }

    const MMP_BLOCK: usize = 8192;

    /// An ext4 of 64 MiB with multi-mount protection in a file of 1 GiB.
    fn protected(note: Option<&Note>, sequence: u32, mounts: u16) -> Vec<u8> {
        let mut content = note.map_or_else(|| vec![0; BLOCK], |note| note.bytes(note.is_growing));
        content.resize(3 * 4096, 0);
        let fields: [(usize, &[u8]); 8] = [
            (0x4, &16384_u32.to_le_bytes()),
            (0x18, &[2]),
            (0x20, &32768_u32.to_le_bytes()),
            (0x34, &mounts.to_le_bytes()),
            (0x38, &[0x53, 0xef]),
            (0x60, &0x100_u32.to_le_bytes()),
            (0x168, &[2]),
            (MMP_BLOCK - BLOCK + 4, &sequence.to_le_bytes()),
        ];
        for (at, bytes) in fields {
            content[BLOCK + at..][..bytes.len()].copy_from_slice(bytes);
        }
        content
    }

    /// What is run for it at its next mount, and whether the note is there while e2fsck runs.
    fn next_mount(content: &[u8]) -> Result<(Vec<String>, bool), String> {
        let of = |fake: Fake| {
            let image = Image {
                size: 1 << 30,
                content: content.to_vec(),
                ..Image::default()
            };
            let fake = fake.image("/pool/a", image);
            let image = fake.open_image(Path::new("/pool"), "a").unwrap();
            let grown = grow_unmounted(&fake, &image.by_handle(), 1 << 30);
            (grown, fake.read_image(&image, 0, 0).unwrap(), fake.programs())
        };
        let (stopped, left, _) = of(Fake::default().grows_unmounted_only().fail_program("e2fsck", "killed"));
        stopped.unwrap_err();
        let (grown, whole, programs) = of(Fake::default().grows_unmounted_only());
        grown.map_err(|error| error.to_string())?;
        assert!(Note::read(&whole).is_none(), "the note is left");
        let programs = programs.iter().map(|run| run.replace(" handle:/pool/a", ""));
        Ok((programs.collect(), Note::read(&left).is_some()))
    }

    #[test]
    fn multi_mount_protection_is_lifted_only_from_a_program_that_this_or_a_dead_node_ran() {
        let here = Note::now(Superblock::read(&protected(None, 0, 0))).unwrap();
        let mut elsewhere = Note {
            boot_id: vec![b'x'; 36],
            ..here.clone()
        };
        let check = ["e2fsck -f -p --", "resize2fs"];
        for (note, sequence, lifts, notes) in [
            (None, MMP_CLEAN, false, true),
            (None, MMP_PROGRAM, false, false),
            (None, 7, false, false),
            (Some(&here), MMP_CLEAN, false, true),
            (Some(&here), MMP_PROGRAM, true, true),
            (Some(&here), 7, false, true),
        ] {
            let (programs, is_noted) = next_mount(&protected(note, sequence, 0)).unwrap();
            let lift = lifts.then_some("tune2fs -f -E clear_mmp");
            assert_eq!(
                programs,
                lift.into_iter().chain(check).collect::<Vec<_>>(),
                "{note:?} {sequence}"
            );
            assert_eq!(is_noted, notes, "{note:?} {sequence}");
        }
        let refused = next_mount(&protected(Some(&elsewhere), MMP_PROGRAM, 0)).unwrap_err();
        assert!(refused.contains("another node"), "{refused}");
        elsewhere.began -= 600;
        let (programs, _) = next_mount(&protected(Some(&elsewhere), MMP_PROGRAM, 0)).unwrap();
        assert_eq!(programs.len(), 3, "{programs:?}");
    }

    #[test]
    fn e2fsck_answers_yes_only_where_nobody_has_mounted_what_resize2fs_left() {
        let before = Superblock::read(&protected(None, MMP_CLEAN, 3));
        let note = Note {
            is_growing: true,
            ..Note::now(before).unwrap()
        };
        for (mounts, mode) in [(3, "-y"), (4, "-p")] {
            let (programs, _) = next_mount(&protected(Some(&note), MMP_CLEAN, mounts)).unwrap();
            assert_eq!(programs, [format!("e2fsck -f {mode} --"), "resize2fs".to_owned()]);
        }
        // It is finished also where the kernel could enlarge it by now.
        let image = Image {
            size: 1 << 30,
            content: protected(Some(&note), MMP_CLEAN, 3),
            ..Image::default()
        };
        let fake = Fake::default().image("/pool/a", image);
        let image = fake.open_image(Path::new("/pool"), "a").unwrap();
        grow_unmounted(&fake, &image.by_handle(), 1 << 30).unwrap();
        assert_eq!(fake.programs().len(), 2);
    }

    #[test]
    fn an_ext4_with_anything_in_its_boot_block_is_left_as_it_is() {
        let mut content = protected(None, MMP_CLEAN, 0);
        content[3] = 0xff;
        next_mount(&content).unwrap();
        content[510] = 0x55;
        let error = next_mount(&content).unwrap_err();
        assert!(error.contains("1024 bytes"), "{error}");
    }
}
