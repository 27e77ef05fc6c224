//! SMB by system call: version 3, with nothing on the node but the kernel's own client (`cifs`).
//!
//! What `mount.cifs` does for the kernel is done here. The user's name and password are the volume's Secret's, and go to the kernel
//! each under its own key: they are on no command line, and a comma in one makes no option of what follows it. The kernel shows the
//! user's name in the mount table, and the password nowhere.

mod credentials;
mod failure;
mod options;
mod source;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use mooring_contract::volume::Volume;

use super::remote::{self, Remote, text_of};
use crate::sys::{NewMount, Sys, SysError};
use crate::volume::job::{MountError, Secrets};
use crate::volume::mount_table::Entry;
use crate::worker::task::MountTask;
use options::SmbOptions;
use source::SmbSource;

/// What it is called in the kernel, which loads its module by this name.
const FS_TYPE: &str = "cifs";

/// Types of file system that are SMB in the kernel.
const TYPES: [&str; 2] = [FS_TYPE, "smb3"];

/// What volumes call it.
const CLIENT: &str = "smb";

/// What every mount has. File names are UTF-8 in containers. What a server refers to on another one is not followed: it takes a
/// program on the node to find that.
const ALWAYS: [(&str, Option<&str>); 2] = [("iocharset", Some("utf8")), ("nodfs", None)];

/// Whether a volume is one of SMB, by its client's name or by its type.
pub(super) fn is_smb(volume: &Volume) -> bool {
    let is = |name: &str| name == CLIENT || TYPES.contains(&name);
    is(volume.client.as_str()) || is(&volume.fs_type)
}

/// Mounts an SMB volume.
pub(super) fn mount(
    sys: &impl Sys,
    namespace: Option<&Path>,
    task: &MountTask,
    volume: &Volume,
) -> Result<(), MountError> {
    remote::mount(sys, namespace, task, &SmbPlan::of(volume, task)?)
}

/// What is to be mounted, and how.
#[derive(Debug)]
struct SmbPlan {
    source: SmbSource,
    options: SmbOptions,
    credentials: Secrets,
}

impl SmbPlan {
    fn of(volume: &Volume, task: &MountTask) -> Result<Self, MountError> {
        let fs_type = volume.fs_type.as_str();
        if ![CLIENT, FS_TYPE, "smb3", ""].contains(&fs_type) {
            let message = format!("option fs-type={fs_type:?} makes no sense for client=smb: leave it out");
            return Err(MountError::BadOptions(message.into()));
        }
        let source = volume
            .source
            .parse()
            .map_err(|e: source::SmbSourceError| MountError::bad_options(e))?;
        let options = SmbOptions::read(&volume.mount_options, task.read_only, task.fs_group);
        let options = options.map_err(MountError::bad_options)?;
        let credentials = if options.anonymous {
            Secrets::default()
        } else {
            credentials::of(&task.secrets).map_err(MountError::bad_options)?
        };
        Ok(Self {
            source,
            options,
            credentials,
        })
    }
}

impl Remote for SmbPlan {
    const FS_TYPE: &'static str = FS_TYPE;

    fn host(&self) -> &str {
        &self.source.host
    }

    fn source(&self) -> &str {
        &self.source.text
    }

    fn meant(&self, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, MountError> {
        Ok(addresses)
    }

    /// Mounts of one share may bear the name by which the kernel got to know its server first.
    fn may_be(&self, entry: &Entry) -> bool {
        let shown: Result<SmbSource, _> = entry.source.parse();
        TYPES.contains(&entry.fs_type.as_str())
            && shown.is_ok_and(|shown| shown.host != self.source.host && shown.path == self.source.path)
    }

    fn mount_from(&self, sys: &impl Sys, address: &SocketAddr) -> Result<OwnedFd, SysError> {
        let own = [
            ("vers", self.options.version.to_owned()),
            ("ip", text_of(address)),
            ("port", self.options.port.to_string()),
        ];
        let own = own.into_iter().map(|(key, value)| (key.to_owned(), Some(value)));
        let always = ALWAYS.map(|(key, value)| (key.to_owned(), value.map(str::to_owned)));
        sys.new_mount(&NewMount {
            fs_type: FS_TYPE.to_owned(),
            source: self.source.text.clone(),
            options: own.chain(always).chain(self.options.rest.iter().cloned()).collect(),
            credentials: self.credentials.clone(),
            flags: self.options.flags,
        })
    }

    fn told(&self, error: SysError, address: &SocketAddr) -> MountError {
        failure::told(error, &self.source, &self.options, address)
    }
}

#[cfg(test)]
mod tests;
