//! A file server that the kernel itself talks to: what NFS and SMB have in common.
//!
//! The kernel takes only a server's address, so the worker resolves its name and tries each address. A mount talks to
//! its server from the network namespace that it was made in, as long as it exists. The mounter's own ends with its
//! Pod, so the worker makes the mount in the host's, with the host's name, by which servers tell clients apart.

pub(super) mod options;
pub(super) mod source;
#[cfg(test)]
pub(super) mod tests;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use mooring_contract::volume::Volume;
use nix::errno::Errno;

use self::source::RemoteSource;
use super::checks::{already, has_flags};
use crate::grant::Grant;
use crate::sys::{Sys, SysError};
use crate::volume::cause::Cause;
use crate::volume::job::MountError;
use crate::volume::mount_options;
use crate::volume::mount_table::MountEntry;

/// A volume of a file server, ready to be mounted.
pub(super) trait Remote: Sized {
    /// What its file system is called in the kernel.
    const FS_TYPE: &'static str;

    /// What volumes and the kernel call it; the first is the client's name.
    const NAMES: &'static [&'static str];

    /// Reads a volume that is one of these by name.
    fn of(grant: &Grant) -> Result<Self, MountError>;

    /// Reads a source; nothing if it is not one of these.
    fn read_source(text: &str) -> Option<RemoteSource>;

    fn source(&self) -> &RemoteSource;

    /// Those of a server's addresses that the options allow.
    fn meant(&self, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, MountError> {
        Ok(addresses)
    }

    /// Checks what the node needs, from its network namespace.
    fn before(&self, _: &impl Sys) -> Result<(), MountError> {
        Ok(())
    }

    /// Makes the mount from one address.
    fn mount_from(&self, sys: &impl Sys, address: &SocketAddr) -> Result<OwnedFd, SysError>;

    /// Why that failed, as the user reads it.
    fn explain(&self, error: SysError, address: &SocketAddr) -> MountError;
}

/// Whether a volume is one of these, by its client's name or by its type.
pub(super) fn is_one<R: Remote>(volume: &Volume) -> bool {
    R::NAMES.contains(&volume.client.as_str()) || R::NAMES.contains(&volume.fs_type.as_str())
}

/// Mounts a volume of a file server, from the first of its addresses that works.
pub(super) fn mount<R: Remote>(sys: &impl Sys, namespace: Option<&Path>, grant: &Grant) -> Result<(), MountError> {
    let volume = grant.volume();
    check_type::<R>(volume)?;
    let wanted = R::of(grant)?;
    let flags = mount_options::sort(&volume.mount_options, grant.is_read_only()).map_err(MountError::bad_options)?;
    let flags = flags.flags;
    let source = wanted.source();
    let table = sys.mount_table()?;
    let there = table.top(&grant.target().path());
    if let Some(entry) = there
        && !may_be(&wanted, entry)
    {
        return already(entry, grant, R::FS_TYPE, &source.text, flags);
    }
    // With the resolver of the mounter's Pod, so before the worker leaves its network namespace.
    let found = sys
        .resolve(&source.host)
        .map_err(|error| MountError::failed(error.attempted, Cause::of(Unresolved(error.cause))))?;
    let addresses = wanted.meant(each_once(found))?;
    if let Some(entry) = there {
        let is_same = |address: &SocketAddr| entry.option("addr") == Some(&address.ip().to_string());
        if addresses.iter().any(is_same) {
            return has_flags(entry, grant.target(), flags);
        }
        return already(entry, grant, R::FS_TYPE, &source.text, flags);
    }
    sys.enter_host_network(namespace, grant.target())
        .map_err(|error| MountError::Node(Cause::of(error)))?;
    wanted.before(sys)?;
    let mount = first_that_works(sys, &wanted, &addresses)?;
    let directory = sys.open_target(grant.target())?;
    Ok(sys.attach(&mount, &directory)?)
}

fn check_type<R: Remote>(volume: &Volume) -> Result<(), MountError> {
    let fs_type = volume.fs_type.as_str();
    if fs_type.is_empty() || R::NAMES.contains(&fs_type) {
        return Ok(());
    }
    let message = format!(
        "option fs-type={fs_type:?} does not apply to client={}: leave it out",
        R::NAMES[0]
    );
    Err(MountError::BadOptions(message.into()))
}

/// Whether what is mounted may be this volume under another name of its server: all mounts of one server show the name
/// of the first, whatever each of them was mounted from.
fn may_be<R: Remote>(wanted: &R, entry: &MountEntry) -> bool {
    let source = wanted.source();
    R::NAMES.contains(&entry.fs_type.as_str())
        && R::read_source(&entry.source).is_some_and(|shown| shown.host != source.host && shown.path == source.path)
}

fn first_that_works<R: Remote>(sys: &impl Sys, wanted: &R, addresses: &[SocketAddr]) -> Result<OwnedFd, MountError> {
    let started = Instant::now();
    let explain = |error: SysError, address: &SocketAddr| {
        // The circuit breaker leaves a server alone that does not answer.
        if is_silence(&error) {
            return silent(wanted, started.elapsed());
        }
        wanted.explain(error, address)
    };
    let mut first = None;
    for address in addresses {
        match wanted.mount_from(sys, address) {
            Ok(mount) => return Ok(mount),
            // Another address of the server may work.
            Err(error) if is_about_the_way(&error) => {
                first.get_or_insert((error, *address));
            }
            Err(error) => return Err(explain(error, address)),
        }
    }
    Err(match first {
        Some((error, address)) => explain(error, &address),
        None => MountError::failed(
            format!("find the address of server {}", wanted.source().host),
            "the name has no address: check the DNS of the mounter's Pod",
        ),
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

/// Whether another address of the server may work.
fn is_about_the_way(error: &SysError) -> bool {
    let no_way = matches!(
        error.errno,
        Some(Errno::ECONNREFUSED | Errno::ENETUNREACH | Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT)
    );
    no_way || is_silence(error)
}

/// Whether the server did not answer. SMB then gives the error of a connection that is still being made.
fn is_silence(error: &SysError) -> bool {
    matches!(
        error.errno,
        Some(Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::EHOSTDOWN | Errno::EINPROGRESS)
    )
}

fn silent(wanted: &impl Remote, took: Duration) -> MountError {
    MountError::Timeout {
        attempted: format!("the mount of {}", wanted.source().text),
        seconds: took.as_secs(),
        server: wanted.source().host.clone(),
    }
}

/// The cure, with what the kernel said.
pub(super) fn with_cure(error: SysError, cure: &str) -> MountError {
    MountError::failed(
        error.attempted,
        Cause::of(Cured {
            cure: cure.to_owned(),
            source: error.cause,
        }),
    )
}

/// The resolver does not know the server.
#[derive(Debug, thiserror::Error)]
#[error("{0}: correct the server's name in the volume's source, or check the DNS of the mounter's Pod")]
struct Unresolved(#[source] Cause);

/// What to do about what the kernel said.
#[derive(Debug, thiserror::Error)]
#[error("{cure} ({source})")]
struct Cured {
    cure: String,
    source: Cause,
}

/// What failed, without a cure.
pub(super) fn without_cure(error: SysError) -> MountError {
    MountError::failed(error.attempted, error.cause)
}

/// The cure for a server that does not listen, or that has no route.
pub(super) fn cure_of_the_way(
    error: &SysError,
    kind: &str,
    host: &str,
    address: &SocketAddr,
    port: u16,
) -> Option<String> {
    let address = text_of(address);
    match error.errno? {
        Errno::ECONNREFUSED => Some(format!(
            "no {kind} server listens on port {port} of {host} ({address}): start it there, or name another port by \
             mount option port="
        )),
        Errno::ENETUNREACH | Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT => Some(format!(
            "the node has no route to {host} ({address}): check its routes and addresses"
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
