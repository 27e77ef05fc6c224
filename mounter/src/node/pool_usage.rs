//! How much of the node's pool is promised to volumes, and how much of its disk they hold.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use mooring_contract::pool::PoolRoom;
use nix::sys::statvfs::statvfs;
use serde::Serialize;

/// Unit of `st_blocks`, whatever the file system: stat(2).
const BLOCK: u64 = 512;

/// The pool at one time, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolUsage {
    /// The size of the pool's disk.
    pub disk: u64,
    pub free: u64,
    pub volumes: u64,
    /// The sum of their sizes.
    pub promised: u64,
    /// What they hold of the disk.
    pub written: u64,
    /// What of their sizes they do not hold yet, as image `local` reckons it: one volume that holds more than its size
    /// makes up for no other.
    pub unwritten: u64,
}

impl PoolUsage {
    /// Looks at the pool. Before its first volume it may be missing: then the disk is that of the directory that it
    /// will be in.
    pub fn of(pool: &Path) -> io::Result<Self> {
        let files = match fs::read_dir(pool) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Self::of_disk(pool.parent().unwrap_or(pool));
            }
            files => files?,
        };
        let mut usage = Self::of_disk(pool)?;
        for file in files {
            let file = file?;
            // A volume may be deleted meanwhile. A leading dot is a mark beside a volume's file.
            let (Ok(found), false) = (file.metadata(), file.file_name().as_encoded_bytes().starts_with(b".")) else {
                continue;
            };
            if found.is_file() {
                usage.volumes += 1;
                usage.promised = usage.promised.saturating_add(found.len());
                let written = found.blocks().saturating_mul(BLOCK);
                usage.written = usage.written.saturating_add(written);
                usage.unwritten = usage.unwritten.saturating_add(found.len().saturating_sub(written));
            }
        }
        Ok(usage)
    }

    /// What is left for new volumes.
    pub fn left(&self) -> PoolRoom {
        PoolRoom::new(self.disk, self.free, self.unwritten)
    }

    fn of_disk(directory: &Path) -> io::Result<Self> {
        let disk = statvfs(directory)?;
        Ok(Self {
            disk: disk.blocks().saturating_mul(disk.fragment_size()),
            free: disk.blocks_available().saturating_mul(disk.fragment_size()),
            ..Self::default()
        })
    }
}

/// As mebibytes, the unit of the message.
impl std::fmt::Display for PoolUsage {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mebibytes = |bytes: u64| bytes >> 20;
        write!(
            to,
            "{} volumes of {} MiB in all use {} MiB of a disk of {} MiB that has {} MiB free",
            self.volumes,
            mebibytes(self.promised),
            mebibytes(self.written),
            mebibytes(self.disk),
            mebibytes(self.free),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;

    use super::PoolUsage;

    #[test]
    fn sizes_are_promised_and_blocks_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        let empty = PoolUsage::of(&pool).unwrap();
        assert!(empty.disk > 0 && empty.free <= empty.disk, "{empty:?}");
        assert_eq!((empty.volumes, empty.promised, empty.written), (0, 0, 0));

        fs::create_dir_all(pool.join("lost+found")).unwrap();
        fs::write(pool.join(".pvc-1.img.formatting"), "a mark").unwrap();
        for name in ["pvc-1.img", "pvc-2.img"] {
            let mut file = File::create(pool.join(name)).unwrap();
            file.write_all(&[7; 8192]).unwrap();
            file.set_len(1 << 30).unwrap();
            file.sync_all().unwrap();
        }
        let usage = PoolUsage::of(&pool).unwrap();
        assert_eq!((usage.volumes, usage.promised), (2, 2 << 30));
        assert!((16384..1 << 20).contains(&usage.written), "{usage:?}");
        assert_eq!(usage.unwritten, usage.promised - usage.written);
        // A file that has more blocks than its size needs.
        fs::write(pool.join("pvc-3.img"), [7; 3]).unwrap();
        assert_eq!(PoolUsage::of(&pool).unwrap().unwritten, usage.unwritten);
        assert!(usage.to_string().starts_with("2 volumes of 2048 MiB"), "{usage}");
    }

    #[test]
    fn a_pool_that_can_t_be_looked_at_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        PoolUsage::of(&file).unwrap_err();
    }
}
