//! What several clients check before they mount: whether a source is what it seems, and whether it is mounted already.

use std::path::Path;

use mooring_contract::volume::Volume;

use crate::grant::Grant;
use crate::sys::Sys;
use crate::volume::job::MountError;
use crate::volume::mount_options::MountFlags;
use crate::volume::mount_table::MountEntry;
use crate::volume::target::Target;
use crate::volume::volume_id::source_in_words;

/// Refuses a relative name of a file or device that exists, with the cure. Such a name leads nowhere in any case
/// ([`crate::sys::nowhere`]): only a source with a slash at its beginning counts as a path when a volume is judged.
pub(super) fn check_not_here(sys: &impl Sys, source: &str) -> Result<(), MountError> {
    if !source.starts_with('/') && sys.is_here(Path::new(source)) {
        let message = format!(
            "option source={source:?} is the name of a file of the node: write its whole path if you mean that file"
        );
        return Err(MountError::BadOptions(message.into()));
    }
    Ok(())
}

/// A device has no file system, and no options of one.
pub fn check_raw(volume: &Volume, name: &str) -> Result<(), MountError> {
    if volume.fs_type.is_empty() && volume.mount_options.is_empty() {
        return Ok(());
    }
    let message = format!(
        "raw block volume {name} has fs-type or mount-options, which are for a file system: leave out both, or leave out \
         volumeMode (the default is Filesystem)"
    );
    Err(MountError::BadOptions(message.into()))
}

/// What is mounted already is right if it is the same source as the same type, with the flags that the volume is to
/// have.
pub(super) fn already(
    entry: &MountEntry,
    grant: &Grant,
    fs_type: &str,
    source: &str,
    flags: MountFlags,
) -> Result<(), MountError> {
    // `mount -t nfs` shows nfs4, `mount -t sshfs` fuse.sshfs: the kernel's name has the asked one in it.
    if entry.source == source && entry.fs_type.contains(fs_type) {
        return has_flags(entry, grant.target(), flags);
    }
    Err(MountError::occupied(
        grant.target(),
        format!("{} ({})", source_in_words(entry), entry.fs_type),
        format!("{source} ({fs_type})"),
    ))
}

/// Fails if what is mounted does not have exactly the flags that it is to have.
pub(super) fn has_flags(entry: &MountEntry, target: &Target, wanted: MountFlags) -> Result<(), MountError> {
    let found = MountFlags::of(entry);
    if found == wanted.shown() {
        return Ok(());
    }
    Err(otherwise(source_in_words(entry), target, found, wanted))
}

/// Fails if a device is shown to a Pod for reading that is to write it, or the other way round.
pub fn shown_as(entry: &MountEntry, target: &Target, read_only: bool) -> Result<(), MountError> {
    let found = MountFlags::of(entry);
    if found.is_read_only() == read_only {
        return Ok(());
    }
    let way = |read_only| if read_only { "for reading" } else { "for writing" };
    Err(MountError::occupied(
        target,
        format!("the device {}", way(!read_only)),
        way(read_only),
    ))
}

/// The same volume is mounted, with other flags.
pub fn otherwise(source: &str, target: &Target, found: MountFlags, wanted: MountFlags) -> MountError {
    MountError::occupied(
        target,
        format!("{source} with {found}"),
        format!("with {}", wanted.shown()),
    )
}

#[cfg(test)]
mod tests {
    use super::already;
    use crate::volume::mount_options::sort;
    use crate::volume::mount_table::Table;
    use crate::worker::task::tests::task;

    #[test]
    fn the_same_source_counts_only_with_the_flags_that_are_wanted() {
        let task = task("client=nfs,source=h:/x");
        let path = task.target().path();
        let already = |flags: &str, wanted: &[&str]| {
            let line = format!("9 1 0:5 / {} {flags} - nfs4 h:/x rw\n", path.display());
            let options: Vec<_> = wanted.iter().map(|&option| option.to_owned()).collect();
            let flags = sort(&options, false).unwrap().flags;
            already(&Table::parse(line.as_bytes()).0[0], &task, "nfs", "h:/x", flags)
        };
        already("rw,nosuid,nodev,relatime", &[]).unwrap();
        already("ro,nosuid,nodev,noatime", &["ro", "noatime"]).unwrap();
        for (flags, wanted) in [
            ("rw,nosuid,nodev", "ro"),
            ("ro,nosuid,nodev", "rw"),
            ("rw,nosuid,nodev", "suid"),
        ] {
            let error = already(flags, &[wanted]).unwrap_err();
            assert_eq!(error.category(), "occupied");
            assert!(error.to_string().contains(flags), "{error}");
        }
    }
}
