//! A file server that the kernel itself speaks with: what NFS and SMB have in common.
//!
//! The kernel takes a server by its address, so its name becomes one here, and each address is tried. A mount speaks with its
//! server from the network that it was made in, for as long as it lives. The mounter's own is that of a Pod and goes with it, so the
//! worker makes the mount in the host's; and by the host's name, which tells clients apart.

pub(super) mod value;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::checks::already;
use crate::sys::{Sys, SysError};
use crate::volume::cause::Cause;
use crate::volume::job::MountError;
use crate::volume::mount_table::Entry;
use crate::worker::task::MountTask;

/// Longest source that the kernel takes.
pub(super) const LONGEST: usize = 255;

/// A volume of a file server, ready to be mounted.
pub(super) trait Remote {
    /// What its file system is called.
    const FS_TYPE: &'static str;

    /// The server's name or address.
    fn host(&self) -> &str;

    /// The source, as the mount table shows it.
    fn source(&self) -> &str;

    /// Of a server's addresses those that are meant.
    fn meant(&self, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, MountError>;

    /// Whether what is mounted may be this by another name of its server.
    fn may_be(&self, entry: &Entry) -> bool;

    /// What has to be on the node, looked at from its network.
    fn before(&self, _: &impl Sys) -> Result<(), MountError> {
        Ok(())
    }

    /// Makes the mount from one address.
    fn mount_from(&self, sys: &impl Sys, address: &SocketAddr) -> Result<OwnedFd, SysError>;

    /// Why that failed, as the user reads it.
    fn told(&self, error: SysError, address: &SocketAddr) -> MountError;
}

/// Mounts a volume of a file server, from the first of its addresses that works.
pub(super) fn mount<R: Remote>(
    sys: &impl Sys,
    namespace: Option<&Path>,
    task: &MountTask,
    wanted: &R,
) -> Result<(), MountError> {
    let table = sys.mount_table()?;
    let there = table.top(&task.target.path());
    if let Some(entry) = there
        && !wanted.may_be(entry)
    {
        return already(entry, task, R::FS_TYPE, wanted.source());
    }
    // By the resolver of the mounter's Pod, and so before its network is left.
    let found = sys.resolve(wanted.host()).map_err(|error| MountError::Failed {
        attempted: error.attempted,
        message: format!(
            "{}: correct the server's name in the volume's source, or see to the DNS of the mounter's Pod",
            error.words
        ),
    })?;
    let addresses = wanted.meant(each_once(found))?;
    if let Some(entry) = there {
        let is_same = |address: &SocketAddr| entry.option("addr") == Some(&address.ip().to_string());
        if addresses.iter().any(is_same) {
            return Ok(());
        }
        return already(entry, task, R::FS_TYPE, wanted.source());
    }
    sys.enter_host_network(namespace, &task.target)
        .map_err(|error| MountError::Node(Cause::of(error)))?;
    wanted.before(sys)?;
    let mount = first_that_works(sys, wanted, &addresses)?;
    let directory = sys.open_target(&task.target)?;
    Ok(sys.attach(&mount, &directory)?)
}

fn first_that_works<R: Remote>(sys: &impl Sys, wanted: &R, addresses: &[SocketAddr]) -> Result<OwnedFd, MountError> {
    let started = Instant::now();
    let told = |error: SysError, address: &SocketAddr| {
        // Whoever does not answer is left alone for a while.
        if is_silence(&error) {
            return silent(wanted, started.elapsed());
        }
        wanted.told(error, address)
    };
    let mut first = None;
    for address in addresses {
        match wanted.mount_from(sys, address) {
            Ok(mount) => return Ok(mount),
            // Another of its addresses may be reached.
            Err(error) if is_about_the_way(&error) => {
                first.get_or_insert((error, *address));
            }
            Err(error) => return Err(told(error, address)),
        }
    }
    Err(match first {
        Some((error, address)) => told(error, &address),
        None => MountError::Failed {
            attempted: format!("find the address of server {}", wanted.host()),
            message: "it has none: see to the DNS of the mounter's Pod".to_owned(),
        },
    })
}

fn each_once(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Whether another address of the server may be of use.
fn is_about_the_way(error: &SysError) -> bool {
    let no_way = matches!(
        error.errno,
        Some(Errno::CONNREFUSED | Errno::NETUNREACH | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT)
    );
    no_way || is_silence(error)
}

/// Whether the server did not answer. SMB says so by what a connection that is not there yet is called.
fn is_silence(error: &SysError) -> bool {
    matches!(
        error.errno,
        Some(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::INPROGRESS)
    )
}

fn silent(wanted: &impl Remote, took: Duration) -> MountError {
    MountError::Timeout {
        attempted: format!("the mount of {}", wanted.source()),
        seconds: took.as_secs(),
        server: wanted.host().to_owned(),
    }
}

/// What is to be done, with what the kernel said.
pub(super) fn with_cure(error: SysError, cure: &str) -> MountError {
    MountError::Failed {
        attempted: error.attempted,
        message: format!("{cure} ({})", error.words),
    }
}

/// What failed, where there is no more to be said.
pub(super) fn without_cure(error: SysError) -> MountError {
    MountError::Failed {
        attempted: error.attempted,
        message: error.words,
    }
}

/// What to do about a server that is there and listens not, or to which there is no way.
pub(super) fn cure_of_the_way(
    error: &SysError,
    kind: &str,
    host: &str,
    address: &SocketAddr,
    port: u16,
) -> Option<String> {
    let address = text_of(address);
    match error.errno? {
        Errno::CONNREFUSED => Some(format!(
            "no {kind} server listens on port {port} of {host} ({address}): start it there, or name another port by mount option port="
        )),
        Errno::NETUNREACH | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => Some(format!(
            "the node has no way to {host} ({address}): see to its routes and addresses"
        )),
        _ => None,
    }
}

/// An address as the kernel reads it: without a port, with the interface where it needs one.
pub(super) fn text_of(address: &SocketAddr) -> String {
    match address {
        SocketAddr::V6(six) if six.scope_id() != 0 => format!("{}%{}", six.ip(), six.scope_id()),
        other => other.ip().to_string(),
    }
}

/// Whether a text can be a server's name or an IPv4 address.
pub(super) fn is_host_name(host: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    !host.is_empty() && !host.starts_with('-') && host.chars().all(is_name)
}

#[cfg(test)]
mod tests {
    use super::{each_once, text_of};

    #[test]
    fn an_address_keeps_its_interface() {
        for (address, text) in [
            ("10.0.0.4:0", "10.0.0.4"),
            ("[2001:db8::4]:0", "2001:db8::4"),
            ("[fe80::1%3]:0", "fe80::1%3"),
        ] {
            assert_eq!(text_of(&address.parse().unwrap()), text);
        }
    }

    #[test]
    fn each_address_is_tried_once() {
        let found: Vec<_> = ["[2001:db8::4]:0", "10.0.0.4:0", "10.0.0.4:0"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(each_once(found.clone()), found[..2]);
    }
}
