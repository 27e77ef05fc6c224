//! What several clients check before they mount: whether a source is what it seems, and whether it is mounted already.

use std::path::Path;

use crate::sys::Sys;
use crate::volume::job::MountError;
use crate::volume::mount_table::MountEntry;
use crate::worker::task::MountTask;

/// Refuses a relative name of a file or device that exists: only a source with a slash at its beginning counts as a
/// path when a volume is judged.
pub(super) fn check_not_here(sys: &impl Sys, source: &str) -> Result<(), MountError> {
    if !source.starts_with('/') && sys.is_here(Path::new(source)) {
        let message = format!(
            "option source={source:?} is the name of a file of the node: write its whole path if you mean that file"
        );
        return Err(MountError::BadOptions(message.into()));
    }
    Ok(())
}

/// What is mounted already is right if it is the same source as the same type.
pub(super) fn already(entry: &MountEntry, task: &MountTask, fs_type: &str, source: &str) -> Result<(), MountError> {
    // `mount -t nfs` shows nfs4, `mount -t sshfs` fuse.sshfs: the kernel's name has the asked one in it.
    if entry.source == source && entry.fs_type.contains(fs_type) {
        return Ok(());
    }
    Err(MountError::Occupied {
        target: task.target.to_string(),
        found: format!("{} ({})", entry.source, entry.fs_type),
        wanted: format!("{source} ({fs_type})"),
    })
}
