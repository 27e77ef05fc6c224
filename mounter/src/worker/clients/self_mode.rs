//! Serving mode `self`: a file system of the kernel's, mounted by system call, with no program at all.

use std::path::Path;

use mooring_contract::volume::check_kind;

use super::checks::{already, check_not_here};
use super::nfs::NfsPlan;
use super::remote;
use super::smb::SmbPlan;
use crate::grant::Grant;
use crate::sys::{NewMount, Sys};
use crate::volume::job::{MountError, Secrets};
use crate::volume::mount_options;

/// Mounts `source` as `fs-type` (or as what the client is called) with the volume's options. `namespace` is the host's
/// mount namespace, if not the kubelet's.
pub fn mount(sys: &impl Sys, namespace: Option<&Path>, grant: &Grant) -> Result<(), MountError> {
    let volume = grant.volume();
    // For these, `mount` has helpers that do more than pass the options on.
    if remote::is_one::<NfsPlan>(volume) {
        return remote::mount::<NfsPlan>(sys, namespace, grant);
    }
    if remote::is_one::<SmbPlan>(volume) {
        return remote::mount::<SmbPlan>(sys, namespace, grant);
    }
    let fs_type = if volume.fs_type.is_empty() {
        volume.client.as_str()
    } else {
        &volume.fs_type
    };
    // A file system without a source, such as tmpfs, shows this in the mount table.
    let source = if volume.source.is_empty() {
        fs_type
    } else {
        &volume.source
    };
    let options = mount_options::sort(&volume.mount_options, grant.is_read_only()).map_err(MountError::bad_options)?;
    let options = options.labelled(grant.label()).safe_for(fs_type);
    check_kind(fs_type, &volume.mount_options).map_err(MountError::bad_options)?;
    check_not_here(sys, source)?;
    if let Some(entry) = sys.mount_table()?.top(&grant.target().path()) {
        return already(entry, grant, fs_type, source, options.flags);
    }
    let mount = sys.new_mount(&NewMount {
        fs_type: fs_type.to_owned(),
        source: source.to_owned(),
        options: options.file_system,
        credentials: Secrets::default(),
        flags: options.flags,
    })?;
    let directory = sys.open_target(grant.target())?;
    Ok(sys.attach(&mount, &directory)?)
}
