//! NFS by system call: version 4, with nothing on the node but the kernel's own client.
//!
//! What `mount.nfs` does for the kernel is done here: the server's name becomes an address, and the newest version that
//! both sides speak is found. Version 4 needs no daemon beside that; version 3 would need `rpc.statd` for its locks, in a
//! place that outlives every container, and is refused.
//!
//! A mount speaks with its server from the network that it was made in, for as long as it lives. The mounter's own is that
//! of a Pod and goes with it, so the worker makes the mount in the host's; and by the host's name, which tells clients apart.

mod failure;
mod options;
mod source;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use mooring_contract::volume::Volume;
use rustix::io::Errno;

use super::kernel::already;
use crate::client::MountError;
use crate::mount_table::Entry;
use crate::sys::{NewMount, Sys, SysError};
use crate::worker::task::MountTask;
use failure::Circumstances;
use options::Options;
use source::Source;

/// What version 4 is called in the kernel; it loads its modules by this name.
const FS_TYPE: &str = "nfs4";

/// Types of file system that are NFS.
const TYPES: [&str; 2] = ["nfs", FS_TYPE];

/// Whether a volume is one of NFS, by its client's name or by its type.
pub(super) fn is_nfs(volume: &Volume) -> bool {
    TYPES.contains(&volume.client.as_str()) || TYPES.contains(&volume.fs_type.as_str())
}

/// Mounts an NFS volume.
pub(super) fn mount(
    sys: &impl Sys,
    namespace: Option<&Path>,
    task: &MountTask,
    volume: &Volume,
) -> Result<(), MountError> {
    let plan = Plan::of(volume, task.read_only)?;
    let table = sys.mount_table()?;
    let there = table.top(&task.target.path());
    if let Some(entry) = there
        && !plan.may_be(entry)
    {
        return already(entry, task, TYPES[0], &plan.source.text);
    }
    // By the resolver of the mounter's Pod, and so before its network is left.
    let found = sys.resolve(&plan.source.host).map_err(|error| MountError::Failed {
        attempted: error.attempted,
        message: format!(
            "{}: correct the server's name in the volume's source, or see to the DNS of the mounter's Pod",
            error.words
        ),
    })?;
    let addresses = plan.options.family.of(found);
    if addresses.is_empty() {
        return Err(MountError::BadOptions(format!(
            "server {} has no address for mount option {}: leave the option out",
            plan.source.host, plan.options.family
        )));
    }
    if let Some(entry) = there {
        let is_same = |address: &SocketAddr| entry.option("addr") == Some(&address.ip().to_string());
        if addresses.iter().any(is_same) {
            return Ok(());
        }
        return already(entry, task, TYPES[0], &plan.source.text);
    }
    sys.enter_host_network(namespace, &task.target)
        .map_err(|error| MountError::Node(error.to_string()))?;
    let mount = first_that_works(sys, &plan, &addresses)?;
    let directory = sys.open_target(&task.target)?;
    Ok(sys.attach(&mount, &directory)?)
}

/// What is to be mounted, and how.
#[derive(Debug)]
struct Plan {
    source: Source,
    options: Options,
}

impl Plan {
    fn of(volume: &Volume, read_only: bool) -> Result<Self, MountError> {
        let bad = |message: String| MountError::BadOptions(message);
        if !volume.fs_type.is_empty() && !TYPES.contains(&volume.fs_type.as_str()) {
            return Err(bad(format!(
                "option fs-type={:?} makes no sense for client=nfs: leave it out",
                volume.fs_type
            )));
        }
        Ok(Self {
            source: volume
                .source
                .parse()
                .map_err(|e: source::BadSource| bad(e.to_string()))?,
            options: Options::read(&volume.mount_options, read_only).map_err(|e| bad(e.to_string()))?,
        })
    }

    /// Whether what is mounted may be this by another name. All mounts of one server bear the name by which the kernel got to
    /// know it first, whatever each of them was mounted from.
    fn may_be(&self, entry: &Entry) -> bool {
        let shown: Result<Source, _> = entry.source.parse();
        TYPES.contains(&entry.fs_type.as_str())
            && shown.is_ok_and(|shown| shown.host != self.source.host && shown.path == self.source.path)
    }

    /// One version of the mount, from one address.
    fn new_mount(&self, address: &SocketAddr, version: &str) -> NewMount {
        let own = [("vers", version.to_owned()), ("addr", source::text_of(address))];
        let own = own.into_iter().map(|(key, value)| (key.to_owned(), Some(value)));
        NewMount {
            fs_type: FS_TYPE.to_owned(),
            source: self.source.text.clone(),
            options: own.chain(self.options.rest.iter().cloned()).collect(),
            flags: self.options.flags,
        }
    }
}

/// Tries each address, and at each the versions from the newest on, as `mount.nfs` does.
fn first_that_works(sys: &impl Sys, plan: &Plan, addresses: &[SocketAddr]) -> Result<OwnedFd, MountError> {
    let started = Instant::now();
    let told = |error: SysError, address: &SocketAddr| {
        failure::told(
            error,
            &Circumstances {
                source: &plan.source,
                versions: &plan.options.versions,
                port: plan.options.port,
                address,
                took: started.elapsed(),
            },
        )
    };
    let mut first = None;
    for address in addresses {
        match newest_that_works(sys, plan, address) {
            Ok(mount) => return Ok(mount),
            // Another of its addresses may be reached.
            Err(error) if failure::is_about_the_way(&error) => {
                first.get_or_insert((error, address));
            }
            Err(error) => return Err(told(error, address)),
        }
    }
    let (error, address) = first.unwrap_or_else(|| (SysError::call("mount", Errno::DESTADDRREQ), &addresses[0]));
    Err(told(error, address))
}

fn newest_that_works(sys: &impl Sys, plan: &Plan, address: &SocketAddr) -> Result<OwnedFd, SysError> {
    let mut last = SysError::call("mount", Errno::PROTONOSUPPORT);
    for version in &plan.options.versions {
        match sys.new_mount(&plan.new_mount(address, version)) {
            Ok(mount) => return Ok(mount),
            Err(error) if failure::is_about_the_version(&error) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
