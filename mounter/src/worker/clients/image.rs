//! What an image file contains, by its first bytes.

use mooring_contract::volume::file_system::FileSystem;

/// The largest block of a file system that can be mounted here: the kernel has no smaller unit.
const LARGEST_BLOCK: u64 = 1 << 16;

/// What the first bytes of an image are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageContent {
    /// A file system that we know.
    FileSystem(FileSystem),
    /// Nothing but zeros so far.
    Zeros,
    Unknown,
}

impl ImageContent {
    /// How many bytes it takes to tell.
    pub(crate) const PROBED: usize = 4096;

    /// Whether they are those of an xfs that was never whole: mkfs.xfs sets `sb_inprogress` first and clears it last, and
    /// there is no root directory (`sb_rootino`) until then.
    pub(crate) fn is_unfinished(bytes: &[u8]) -> bool {
        Self::of(bytes) == Self::FileSystem(FileSystem::Xfs)
            && bytes.get(126).is_some_and(|in_progress| *in_progress != 0)
            && bytes.get(56..64) == Some(&[0xff; 8])
    }

    /// Reads it from an image's first bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        const EXT_MAGIC: (usize, [u8; 2]) = (1024 + 56, [0x53, 0xef]);
        let ext = bytes.get(EXT_MAGIC.0..EXT_MAGIC.0 + 2) == Some(&EXT_MAGIC.1);
        if bytes.starts_with(b"XFSB") {
            Self::FileSystem(FileSystem::Xfs)
        } else if ext {
            Self::FileSystem(FileSystem::Ext4)
        } else if bytes.iter().all(|byte| *byte == 0) {
            Self::Zeros
        } else {
            Self::Unknown
        }
    }

    /// How many bytes the file system takes, as its superblock says; `None` where that can't be read.
    ///
    /// The offsets are those of `struct ext4_super_block` (`fs/ext4/ext4.h`) and `struct xfs_dsb`
    /// (`fs/xfs/libxfs/xfs_format.h`) of the kernel.
    pub(super) fn size(self, bytes: &[u8]) -> Option<u64> {
        fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
            bytes.get(at..at + N)?.try_into().ok()
        }
        let (blocks, block) = match self.file_system()? {
            FileSystem::Xfs => {
                let block = u32::from_be_bytes(part(bytes, 4)?);
                (u64::from_be_bytes(part(bytes, 8)?), u64::from(block))
            }
            FileSystem::Ext4 => {
                const WIDE: u32 = 0x80;
                let word = |at: usize| Some(u32::from_le_bytes(part(bytes, 1024 + at)?));
                let high = if word(0x60)? & WIDE == 0 { 0 } else { word(0x150)? };
                let block = 1024_u64.checked_shl(word(0x18)?)?;
                (u64::from(high) << 32 | u64::from(word(0x4)?), block)
            }
        };
        blocks.checked_mul(block).filter(|size| *size > 0)
    }

    /// The file system that is smaller than its device or its file of `size` bytes, by the first bytes there.
    pub(crate) fn outgrown(bytes: &[u8], size: u64) -> Option<FileSystem> {
        let content = Self::of(bytes);
        let has = content.size(bytes)?;
        content
            .file_system()
            .filter(|_| has < size / LARGEST_BLOCK * LARGEST_BLOCK)
    }

    pub(super) fn file_system(self) -> Option<FileSystem> {
        match self {
            Self::FileSystem(file_system) => Some(file_system),
            Self::Zeros | Self::Unknown => None,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::FileSystem(file_system) => file_system.as_str(),
            Self::Zeros => "data, though no file system at its beginning",
            Self::Unknown => "data that is neither ext4 nor xfs",
        }
    }
}

#[cfg(test)]
mod tests {
    use mooring_contract::volume::file_system::FileSystem;

    use super::ImageContent;

    #[test]
    fn a_file_system_is_known_by_its_magic_number() {
        let mut bytes = vec![0; ImageContent::PROBED];
        assert_eq!(ImageContent::of(&bytes), ImageContent::Zeros);
        assert_eq!(ImageContent::of(&[]), ImageContent::Zeros);
        bytes[1080] = 0x53;
        assert_eq!(ImageContent::of(&bytes), ImageContent::Unknown);
        bytes[1081] = 0xef;
        assert_eq!(ImageContent::of(&bytes), ImageContent::FileSystem(FileSystem::Ext4));
        bytes[..4].copy_from_slice(b"XFSB");
        assert_eq!(ImageContent::of(&bytes), ImageContent::FileSystem(FileSystem::Xfs));
        assert_eq!(ImageContent::of(b"LUKS"), ImageContent::Unknown);
    }

    #[test]
    fn a_superblock_says_how_large_the_file_system_is() {
        let mut bytes = vec![0; ImageContent::PROBED];
        bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
        let ext4 = ImageContent::FileSystem(FileSystem::Ext4);
        assert_eq!(ext4.size(&bytes), None, "no blocks");
        bytes[1028..1032].copy_from_slice(&16384_u32.to_le_bytes());
        bytes[1048] = 2;
        assert_eq!(ext4.size(&bytes), Some(64 << 20));
        bytes[1360] = 1;
        assert_eq!(ext4.size(&bytes), Some(64 << 20), "not wide");
        bytes[1120] = 0x80;
        assert_eq!(ext4.size(&bytes), Some((64 << 20) + (1 << 44)));
        bytes[..16].copy_from_slice(b"XFSB\0\0\x10\0\0\0\0\0\0\0\x40\0");
        let xfs = ImageContent::FileSystem(FileSystem::Xfs);
        assert_eq!(xfs.size(&bytes), Some(64 << 20));
        assert_eq!(xfs.size(b"XFSB"), None);
        assert_eq!(ImageContent::Unknown.size(&bytes), None);
    }
}
