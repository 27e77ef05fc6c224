//! NFS by system call: with nothing on the node but the kernel's own client.
//!
//! This does for the kernel what `mount.nfs` does: it resolves the server's name and finds the newest version that both
//! sides speak. Version 4 needs no daemon. Version 3 has to be asked for; its locks need `rpc.statd` on the node
//! (`configmaps/nfs-locks`), and without that such a volume is refused.
//!
//! With version 4, the kernel walks the path of a mount from the server's root, and follows symbolic links on its way:
//! someone who may mount a directory could reach others by a link in it. So the kernel gets the root alone, and the
//! worker walks the same way without following links. With version 3, the server itself resolves the path.

mod failure;
mod options;
mod source;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::remote::source::RemoteSource;
use super::remote::{Remote, text_of};
use crate::grant::Grant;
use crate::sys::{NewMount, Sys, SysError};
use crate::volume::job::{MountError, Secrets};
use crate::volume::selinux_label::SelinuxLabel;
use failure::Circumstances;
use options::{NfsOptions, VERSION_3};

/// What version 3 and what version 4 are called in the kernel; it loads its modules by these names.
const TYPES: [&str; 2] = ["nfs", "nfs4"];

/// The number of `rpc.statd` and its version (`rpcb_prot` calls it "status"; the Open Group's XNFS, chapter 11).
const STATD: (u32, u32) = (100_024, 1);

#[derive(Debug)]
pub(super) struct NfsPlan {
    source: RemoteSource,
    options: NfsOptions,
}

impl NfsPlan {
    /// One version of the mount, from one address: of the volume's directory, or with version 4 of the server's root.
    fn new_mount(&self, address: &SocketAddr, version: &str) -> NewMount {
        let own = [("vers", version.to_owned()), ("addr", text_of(address))];
        let own = own.into_iter().map(|(key, value)| (key.to_owned(), Some(value)));
        let source = match version {
            VERSION_3 => &self.source.text,
            _ => self.source.root(),
        };
        NewMount {
            fs_type: TYPES[usize::from(version != VERSION_3)].to_owned(),
            source: source.to_owned(),
            options: own.chain(self.options.rest.iter().cloned()).collect(),
            credentials: Secrets::default(),
            flags: self.options.flags,
        }
    }

    /// Mounts one version from one address.
    fn mount_version(&self, sys: &impl Sys, address: &SocketAddr, version: &str) -> Result<OwnedFd, SysError> {
        let mount = sys.new_mount(&self.new_mount(address, version))?;
        if version == VERSION_3 || self.source.path.is_empty() {
            return Ok(mount);
        }
        let attempted = || format!("mount {} as {}", self.source.text, TYPES[1]);
        sys.directory_of(mount, &self.source.path, self.options.flags)
            .map_err(|error| SysError {
                attempted: attempted(),
                ..error
            })
    }
}

impl Remote for NfsPlan {
    const FS_TYPE: &'static str = TYPES[0];
    const NAMES: &'static [&'static str] = &TYPES;

    fn of(grant: &Grant) -> Result<Self, MountError> {
        let volume = grant.volume();
        let options = NfsOptions::read(&volume.mount_options, grant.is_read_only());
        let mut options = options.map_err(MountError::bad_options)?;
        options.rest.extend(grant.label().map(SelinuxLabel::option));
        Ok(Self {
            source: source::read(&volume.source).map_err(MountError::bad_options)?,
            options,
        })
    }

    fn read_source(text: &str) -> Option<RemoteSource> {
        source::read(text).ok()
    }

    fn source(&self) -> &RemoteSource {
        &self.source
    }

    fn meant(&self, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, MountError> {
        let meant = self.options.family.of(addresses);
        if meant.is_empty() {
            let message = format!(
                "server {} has no address for mount option {}: leave the option out",
                self.source.host, self.options.family
            );
            return Err(MountError::BadOptions(message.into()));
        }
        Ok(meant)
    }

    /// Refuses a volume whose locks would fail later.
    fn before(&self, sys: &impl Sys) -> Result<(), MountError> {
        let (program, version) = STATD;
        if !self.options.locks_by_daemon() || sys.has_rpc_program(program, version)? {
            return Ok(());
        }
        Err(MountError::Node(
            "it has no rpc.statd, which keeps the locks of NFS version 3: apply configmaps/nfs-locks, which runs one \
             on each node, or ask for version 4, or add mount option nolock, by which a lock holds on this node only"
                .to_owned()
                .into(),
        ))
    }

    /// Tries the versions from the newest on, as `mount.nfs` does.
    fn mount_from(&self, sys: &impl Sys, address: &SocketAddr) -> Result<OwnedFd, SysError> {
        let mut last = SysError::call("mount", Errno::EPROTONOSUPPORT);
        for version in &self.options.versions {
            match self.mount_version(sys, address, version) {
                Ok(mount) => return Ok(mount),
                Err(error) if failure::is_about_the_version(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn explain(&self, error: SysError, address: &SocketAddr) -> MountError {
        failure::explain(
            error,
            &Circumstances {
                source: &self.source,
                versions: &self.options.versions,
                port: self.options.port,
                address,
            },
        )
    }
}

#[cfg(test)]
mod tests;
