//! Why an NFS mount failed, and what to do about it. The kernel gives little more than a number.

use std::net::SocketAddr;

use nix::errno::Errno;

use super::options::VERSION_3;
use crate::sys::SysError;
use crate::volume::job::MountError;
use crate::worker::clients::remote::{self, source::RemoteSource};

/// What was being done when it failed.
pub(super) struct Circumstances<'a> {
    pub(super) source: &'a RemoteSource,
    /// The versions that were tried.
    pub(super) versions: &'a [&'static str],
    pub(super) port: u16,
    pub(super) address: &'a SocketAddr,
}

/// What the kernel says if it has NFS, but not the version.
const NO_VERSION: &str = "Version unavailable";

fn lacks_version(error: &SysError) -> bool {
    error.cause.to_string().contains(NO_VERSION)
}

/// Whether an older version may work: the server does not speak this one, or (`INVAL`) the kernel does not.
pub(super) fn is_about_the_version(error: &SysError) -> bool {
    matches!(error.errno, Some(Errno::EPROTONOSUPPORT | Errno::EINVAL)) && !lacks_version(error)
}

/// The error as the user reads it.
pub(super) fn explain(error: SysError, about: &Circumstances<'_>) -> MountError {
    let server = &about.source.host;
    let versions = about.versions.join(", ");
    let is_three = about.versions == [VERSION_3];
    let module = if is_three { "nfsv3" } else { "nfsv4" };
    let cure = match error.errno {
        Some(Errno::ENODEV) => return no_nfs("has no NFS", module),
        Some(Errno::EPROTONOSUPPORT) if lacks_version(&error) => {
            return no_nfs("has NFS, but not this version", module);
        }
        Some(Errno::EACCES | Errno::EPERM) => format!(
            "{server} denies this node access: add the node's own address (not a Pod's) to the clients of the export, \
             and check that the export allows sec=sys"
        ),
        Some(Errno::ELOOP) => format!(
            "the path leads through a symbolic link on {server}, and no link is followed: another directory than the \
             one that was allowed could be behind it; write the path without the link"
        ),
        Some(Errno::ENOENT) if is_three => {
            format!("{server} has no such path for this node: see how it is exported there, and to whom")
        }
        Some(Errno::ECONNREFUSED | Errno::EPROTONOSUPPORT) if is_three => format!(
            "{server} does not speak NFS version 3 with this node: run its rpcbind (port 111) and mountd, or name \
             their ports by mount options port= and mountport=, or ask for version 4"
        ),
        Some(Errno::ENOENT) => format!(
            "{server} has no such path for this node: version 4 counts paths from the server's NFSv4 root, and shows \
             a client only what is exported to it; see how it is exported there, and to whom"
        ),
        Some(Errno::EPROTONOSUPPORT) => format!(
            "{server} does not speak NFS {versions}: enable it there, or ask for another version by mount option \
             vers="
        ),
        _ => match remote::cure_of_the_way(&error, "NFS", server, about.address, about.port) {
            Some(cure) => cure,
            None => return remote::without_cure(error),
        },
    };
    remote::with_cure(error, &cure)
}

fn no_nfs(what: &str, module: &str) -> MountError {
    let message = format!(
        "its kernel {what}: run modprobe {module} on the host; where there is no such module, install the rest of the \
         kernel's modules (a package such as linux-modules-extra or kernel-modules), or have type nfs served by a \
         client image"
    );
    MountError::Node(message.into())
}
