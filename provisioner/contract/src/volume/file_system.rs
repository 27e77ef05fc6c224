//! The file systems that Mooring makes on devices, and how large a device has to be: the one place that says so, for
//! the controller and for the mounter.

use super::clients::{Growth, record};

/// A file system that a client of Mooring's makes on a blank device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4; also ext2 and ext3, which the kernel's ext4 mounts.
    Ext4,
    Xfs,
}

impl FileSystem {
    pub const ALL: [Self; 2] = [Self::Ext4, Self::Xfs];

    /// Its name, as in `/proc/filesystems`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|file_system| file_system.as_str() == name)
    }

    /// The file system of a client's volumes; none where a volume is a directory of a server, or a bare device.
    pub fn of(client: &str, fs_type: &str) -> Option<Self> {
        if !fs_type.is_empty() {
            return Self::named(fs_type);
        }
        record(client, "")
            .filter(|record| record.grows == Growth::AtNode)
            .map(|_| Self::Ext4)
    }

    /// The least size of a device in MiB. A smaller ext4 with blocks of 4 KiB would have no journal
    /// (`ext2fs_default_journal_size` of e2fsprogs); mkfs.xfs makes no smaller xfs.
    pub const fn least_mebibytes(self) -> u64 {
        match self {
            Self::Ext4 => 8,
            Self::Xfs => 300,
        }
    }

    /// Refuses a device that is too small.
    pub fn check_size(self, size: u64) -> Result<(), TooSmall> {
        if size >= self.least_mebibytes() << 20 {
            Ok(())
        } else {
            Err(TooSmall {
                file_system: self,
                size,
            })
        }
    }
}

/// A device is too small for its file system. The message ends with the least size, as a claim asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{size} bytes are too few for file system {}, which needs {}Mi at least",
    file_system.as_str(),
    file_system.least_mebibytes()
)]
pub struct TooSmall {
    pub file_system: FileSystem,
    pub size: u64,
}

#[cfg(test)]
mod tests {
    use super::FileSystem;
    use crate::volume::clients::{Growth, RECORDS};

    #[test]
    fn each_client_with_devices_makes_ext4_unless_its_volume_says_otherwise() {
        for record in RECORDS {
            for name in record.names {
                let has_device = record.grows == Growth::AtNode;
                assert_eq!(
                    FileSystem::of(name, ""),
                    has_device.then_some(FileSystem::Ext4),
                    "{name}"
                );
            }
            let of_types = record.fs_types.iter().filter_map(|fs_type| FileSystem::named(fs_type));
            assert!(
                of_types.count() == 0 || record.grows == Growth::AtNode,
                "{}",
                record.names[0]
            );
        }
        for (client, fs_type, file_system) in [
            ("local", "xfs", Some(FileSystem::Xfs)),
            ("block", "raw", None),
            ("vendor", "", None),
            ("vendor", "ext4", Some(FileSystem::Ext4)),
            ("nfs", "nfs4", None),
        ] {
            assert_eq!(FileSystem::of(client, fs_type), file_system, "{client} {fs_type}");
        }
    }

    #[test]
    fn the_least_size_is_enough_and_a_byte_less_is_not() {
        for (file_system, least) in [(FileSystem::Ext4, "8Mi"), (FileSystem::Xfs, "300Mi")] {
            let size = file_system.least_mebibytes() << 20;
            assert_eq!(file_system.check_size(size), Ok(()));
            let error = file_system.check_size(size - 1).unwrap_err().to_string();
            assert!(error.contains(file_system.as_str()) && error.contains(least), "{error}");
        }
    }
}
