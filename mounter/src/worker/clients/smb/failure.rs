//! Why an SMB mount failed, and what to do about it. The kernel gives little more than a number.

use std::net::SocketAddr;

use nix::errno::Errno;

use super::options::SmbOptions;
use crate::sys::SysError;
use crate::volume::job::MountError;
use crate::worker::clients::remote::{self, source::RemoteSource};

/// The error as the user reads it.
pub(super) fn explain(
    error: SysError,
    source: &RemoteSource,
    options: &SmbOptions,
    address: &SocketAddr,
) -> MountError {
    let server = &source.host;
    let path = &source.path;
    let cure = match error.errno {
        Some(Errno::ENODEV) => return no_smb("has no SMB"),
        Some(Errno::ELIBACC) => {
            return no_smb("has SMB, but not the character set utf8 that file names are written in");
        }
        Some(Errno::EACCES | Errno::EPERM | Errno::EKEYREJECTED) => format!(
            "{server} does not take the user and password of the volume's Secret, or denies this user access to \
             {path}: correct the Secret (keys username, password, domain), or check who may use the share"
        ),
        Some(Errno::EKEYEXPIRED) => format!(
            "{server} says that the user's password has expired: give the user a new one there, and write it into the \
             volume's Secret"
        ),
        Some(Errno::ENOENT) => format!(
            "{server} has no share or no directory {path}: correct the volume's source, or make it there; if it is \
             there, the node's kernel may lack the cryptography of SMB (its log then has \"crypto alloc failed\"): \
             run modprobe -a cmac ccm gcm on the host"
        ),
        Some(Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT) => format!(
            "{server} does not speak SMB {}, or not as the volume's mount options ask: enable it there, or ask for \
             another version by mount option vers=",
            options.version
        ),
        Some(Errno::EREMOTE) => format!(
            "{server} refers to another server for {path} (DFS), which is not followed: name that server in the \
             volume's source"
        ),
        _ => match remote::cure_of_the_way(&error, "SMB", server, address, options.port) {
            Some(cure) => cure,
            None => "see the node's kernel log for lines with CIFS (dmesg)".to_owned(),
        },
    };
    remote::with_cure(error, &cure)
}

fn no_smb(what: &str) -> MountError {
    let message = format!(
        "its kernel {what}: run modprobe -a cifs nls_utf8 on the host; where there are no such modules, install the \
         rest of the kernel's modules (a package such as linux-modules-extra or kernel-modules), or have type smb \
         served by a client image"
    );
    MountError::Node(message.into())
}
