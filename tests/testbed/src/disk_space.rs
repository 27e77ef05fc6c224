//! Whether the machine's disk has room for a cluster.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::statvfs::statvfs;

const GIB: u64 = 1 << 30;

/// The images, volumes and logs of a cluster's tests.
const CLUSTER: u64 = 4 * GIB;

/// A volume of class `local` is refused if less than this part of the disk would stay free.
const RESERVE_DIVISOR: u64 = 20;

/// Refuses early what volumes would be refused late, each with a wait of minutes.
///
/// # Errors
/// If the disk of this folder, or of the nearest one above it that exists, has too little space.
pub(crate) fn check(folder: &Path) -> Result<()> {
    let there = folder
        .ancestors()
        .find(|folder| folder.exists())
        .unwrap_or(Path::new("/"));
    let disk = statvfs(there).with_context(|| format!("failed to look at the disk of {}", there.display()))?;
    let block = disk.fragment_size();
    let (size, free) = (disk.blocks() * block, disk.blocks_available() * block);
    let needed = needed(size);
    ensure!(
        free >= needed,
        "the disk of {} has {} GiB free, and a cluster needs {}: make room, or keep clusters on another disk with \
         MOORING_TESTBED_STATE",
        there.display(),
        free / GIB,
        needed.div_ceil(GIB)
    );
    Ok(())
}

/// Bytes that have to be free on a disk of this size.
fn needed(size: u64) -> u64 {
    CLUSTER + size / RESERVE_DIVISOR
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{GIB, check, needed};

    #[test]
    fn a_disk_needs_what_its_volumes_must_leave_free_as_well() {
        assert_eq!(needed(200 * GIB), 14 * GIB);
        // Made of nothing: there is no space in it.
        let error = check(Path::new("/proc/no/such/folder")).unwrap_err().to_string();
        assert!(error.contains("/proc has 0 GiB free"), "{error}");
    }
}
