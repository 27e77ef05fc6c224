//! What an image file contains, by its first bytes.

/// A file system that an image can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// ext4; also ext2 and ext3, which the kernel's ext4 mounts.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Its name, as in `/proc/filesystems`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// What the first bytes of an image are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A file system that we know.
    FileSystem(FileSystem),
    /// Nothing but zeros so far.
    Zeros,
    /// Anything else.
    Unknown,
}

impl Content {
    /// How many bytes it takes to tell.
    pub(super) const PROBED: usize = 4096;

    /// Reads it from an image's first bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
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

    /// The file system, if it is one.
    pub(super) fn file_system(self) -> Option<FileSystem> {
        match self {
            Self::FileSystem(file_system) => Some(file_system),
            Self::Zeros | Self::Unknown => None,
        }
    }

    /// In words.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::FileSystem(file_system) => file_system.as_str(),
            Self::Zeros => "data, though no file system at its beginning",
            Self::Unknown => "data that is neither ext4 nor xfs",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Content, FileSystem};

    #[test]
    fn a_file_system_is_known_by_its_magic_number() {
        let mut bytes = vec![0; Content::PROBED];
        assert_eq!(Content::of(&bytes), Content::Zeros);
        assert_eq!(Content::of(&[]), Content::Zeros);
        bytes[1080] = 0x53;
        assert_eq!(Content::of(&bytes), Content::Unknown);
        bytes[1081] = 0xef;
        assert_eq!(Content::of(&bytes), Content::FileSystem(FileSystem::Ext4));
        bytes[..4].copy_from_slice(b"XFSB");
        assert_eq!(Content::of(&bytes), Content::FileSystem(FileSystem::Xfs));
        assert_eq!(Content::of(b"LUKS"), Content::Unknown);
    }
}
