//! Client `pool`: the directory of the node's own pool itself, for a provisioning Pod (`backend-volume: client=pool`).
//!
//! It contains every local volume of the node, so the admission policy allows it only to Pods of Mooring's own
//! controller. It takes no options that could make it anything else.

use std::path::Path;

use super::checks::otherwise;
use crate::grant::Grant;
use crate::sys::Sys;
use crate::volume::job::MountError;
use crate::volume::mount_options::MountFlags;
use crate::volume::volume_id::source_in_words;

/// Only root may read the pool: each file in it is someone's volume.
const MODE: u32 = 0o700;

/// Mounts the pool's directory, which is made if it is missing.
pub fn mount(sys: &impl Sys, pool: &Path, grant: &Grant) -> Result<(), MountError> {
    let volume = grant.volume();
    if !volume.source.is_empty() || !volume.mount_options.is_empty() || !volume.rest.is_empty() {
        return Err(MountError::BadOptions(
            "client=pool takes no other option: it is the whole pool of the node".into(),
        ));
    }
    let flags = MountFlags::safe().read_only(grant.is_read_only());
    let directory = sys.open_or_make_directory(pool, MODE)?;
    if let Some(entry) = sys.mount_table()?.top(&grant.target().path()) {
        let mounted = sys.open_target(grant.target())?;
        if sys.same_file(&directory, &mounted)? {
            let found = MountFlags::of(entry);
            // The file system of the pool may be mounted with more.
            let is_alike = flags.are_all_in(found) && flags.is_read_only() == found.is_read_only();
            return if is_alike {
                Ok(())
            } else {
                Err(otherwise("the node's pool", grant.target(), found, flags))
            };
        }
        return Err(MountError::occupied(
            grant.target(),
            format!("{} ({})", source_in_words(entry), entry.fs_type),
            "the node's pool",
        ));
    }
    let mount = sys.clone_mount(&directory, flags)?;
    let target = sys.open_target(grant.target())?;
    Ok(sys.attach(&mount, &target)?)
}
