//! SMB by system call: version 3, with nothing on the node but the kernel's own client (`cifs`).
//!
//! This does for the kernel what `mount.cifs` does. The user's name and password are from the volume's Secret. The
//! kernel gets each under its own key: they are on no command line, and a comma in one starts no new option. The kernel
//! shows the user's name in the mount table, and the password nowhere.

mod credentials;
mod failure;
mod options;
mod source;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::remote::source::RemoteSource;
use super::remote::{Remote, text_of};
use crate::grant::Grant;
use crate::sys::{NewMount, Sys, SysError};
use crate::volume::job::{MountError, Secrets};
use crate::volume::selinux_label::SelinuxLabel;
use options::SmbOptions;

/// What it is called in the kernel, which loads its module by this name.
const FS_TYPE: &str = "cifs";

/// What every mount has. File names are UTF-8 in containers. Referrals to other servers (DFS) are not followed: that
/// needs a program on the node.
const ALWAYS: [(&str, Option<&str>); 2] = [("iocharset", Some("utf8")), ("nodfs", None)];

#[derive(Debug)]
pub(super) struct SmbPlan {
    source: RemoteSource,
    options: SmbOptions,
    credentials: Secrets,
}

impl Remote for SmbPlan {
    const FS_TYPE: &'static str = FS_TYPE;
    const NAMES: &'static [&'static str] = &["smb", FS_TYPE, "smb3"];

    fn of(grant: &Grant) -> Result<Self, MountError> {
        let volume = grant.volume();
        let source = source::read(&volume.source).map_err(MountError::bad_options)?;
        let group = grant.fs_group().map(|group| group.gid);
        let options = SmbOptions::read(&volume.mount_options, grant.is_read_only(), group);
        let mut options = options.map_err(MountError::bad_options)?;
        options.rest.extend(grant.label().map(SelinuxLabel::option));
        let credentials = if options.anonymous {
            Secrets::default()
        } else {
            credentials::of(grant.secrets()).map_err(MountError::bad_options)?
        };
        Ok(Self {
            source,
            options,
            credentials,
        })
    }

    fn read_source(text: &str) -> Option<RemoteSource> {
        source::read(text).ok()
    }

    fn source(&self) -> &RemoteSource {
        &self.source
    }

    fn mount_from(&self, sys: &impl Sys, address: &SocketAddr) -> Result<OwnedFd, SysError> {
        // The kernel makes one mount of SMB at a time (`cifs_mount_mutex`): with a silent server it would keep those of
        // all others waiting, and nobody could end that.
        let mut server = *address;
        server.set_port(self.options.port);
        sys.wait_for_smb(server)?;
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

    fn explain(&self, error: SysError, address: &SocketAddr) -> MountError {
        failure::explain(error, &self.source, &self.options, address)
    }
}

#[cfg(test)]
mod tests;
