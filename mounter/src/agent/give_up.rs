//! Ends the connection of a FUSE file system whose program runs but does not answer, since its server does not, and the
//! daemons of a device that a program serves.
//!
//! Every process that waits for an answer waits in the kernel, where no signal reaches it: processes of a Pod that is
//! being deleted, and the kubelet, which looks at the directory before it unmounts it. When the connection ends, all of
//! them get an error at once, as if the program had ended. The mounter decides for which volumes: those of Pods that
//! are gone except for this.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use tracing::warn;

use super::mounts::{AgentError, LOOK_LIMIT, Mounts, in_thread};
use super::store::StoreError;
use super::target_mounts::TargetMountError;
use crate::sys::{Kernel, NewMount, Sys as _};
use crate::volume::job::Secrets;
use crate::volume::mount_options::MountFlags;
use crate::volume::mount_table::DeviceNumber;

/// How long a mount must have been silent before it may be given up.
pub const SILENCE: Duration = Duration::from_secs(30);

// A mount that was asked only once is not silent yet.
const _: () = assert!(LOOK_LIMIT.as_secs() < SILENCE.as_secs());

/// The file system type of FUSE, and the prefix of types that use FUSE.
const FUSE: &str = "fuse";

/// The kernel's own file system with a directory for each FUSE connection.
const CONNECTIONS: &str = "fusectl";

impl Mounts {
    /// Gives up a volume that does not answer: all that wait for it get an error, and it is not mounted again.
    pub async fn give_up(self: &Arc<Self>, path: &str) -> Result<(), AgentError> {
        let target = self.target(path)?;
        let _busy = self.begin(path)?;
        if self.store.recorded(path).is_none() || self.silence(path).is_none_or(|silence| silence < SILENCE) {
            return Err(AgentError::NotSilent(path.to_owned()));
        }
        // Noted before it dies: the agent learns of its end at once.
        self.given_up().insert(path.to_owned());
        if !self.is_given_up_by_all(path)? {
            return Err(AgentError::UsedByOthers(path.to_owned()));
        }
        let ended = in_thread(path, move || {
            let table = Kernel.mount_table()?;
            match table.top(&target.path()) {
                Some(top) if is_fuse(&top.fs_type) => end_connection(top.device).map(|()| true),
                // It was unmounted meanwhile, or the kernel itself serves it and has no connection to end.
                _ => Ok(false),
            }
        });
        let ended = ended.await;
        let not_fuse = || AgentError::NotFuse(path.to_owned());
        // What is on a device has no connection of its own, and its daemon has one.
        let by_daemon = || self.services.give_up(&self.store.volume(path));
        let ended = ended.and_then(|ended| (ended || by_daemon()).then_some(()).ok_or_else(not_fuse));
        match ended {
            Ok(()) => {
                warn!(
                    target.path = path,
                    "it was silent and is no longer in use: what waited for it got an error"
                );
                Ok(())
            }
            Err(error) => {
                self.take_up(path);
                Err(error)
            }
        }
    }

    /// How long a mount has been silent; none if it answered in time.
    pub(super) fn silence(&self, path: &str) -> Option<Duration> {
        let looked = self.looked_at().get(path).map(Instant::elapsed);
        // A file system on a device, or the device, may answer from memory.
        let watched = self.services.silence(&self.store.volume(path));
        looked.max(watched).filter(|silence| *silence >= LOOK_LIMIT)
    }

    pub(super) fn is_given_up(&self, path: &str) -> bool {
        self.given_up().contains(path)
    }

    /// Whether all Pods that share its device have given it up.
    fn is_given_up_by_all(&self, path: &str) -> Result<bool, StoreError> {
        let volume = self.store.volume(path);
        let calls = self.store.all()?.calls.into_iter();
        let mut sharing = calls.filter(|call| self.store.volume(&call.target) == volume);
        Ok(sharing.all(|call| self.is_given_up(&call.target)))
    }

    pub(super) fn take_up(&self, path: &str) {
        self.given_up().remove(path);
    }

    fn given_up(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_fuse(fs_type: &str) -> bool {
    fs_type == FUSE || fs_type.strip_prefix(FUSE).is_some_and(|rest| rest.starts_with('.'))
}

/// Ends the FUSE connection behind a device. One that has ended is success.
fn end_connection(device: DeviceNumber) -> Result<(), TargetMountError> {
    let name = format!("{}/abort", connection_of(device));
    let failed = |source| TargetMountError::Call {
        attempted: "end the FUSE connection",
        path: PathBuf::from(CONNECTIONS).join(&name),
        source,
    };
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let abort = match openat(connections()?, &*name, flags, Mode::empty()) {
        Ok(abort) => abort,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno.into())),
    };
    let written = File::from(abort).write_all(b"1");
    written.map_err(failed)
}

/// The kernel's directory of FUSE connections. It is mounted here, since containers don't have it in `/sys`.
fn connections() -> Result<OwnedFd, TargetMountError> {
    Ok(Kernel.new_mount(&NewMount {
        fs_type: CONNECTIONS.to_owned(),
        source: CONNECTIONS.to_owned(),
        options: Vec::new(),
        credentials: Secrets::default(),
        flags: MountFlags::safe(),
    })?)
}

/// The kernel's number for the connection of a file system: that of its device, encoded as the kernel does.
fn connection_of(device: DeviceNumber) -> u64 {
    u64::from(device.major) << 20 | u64::from(device.minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fuse_file_system_has_a_connection_to_end() {
        assert!(is_fuse("fuse") && is_fuse("fuse.ceph-fuse"));
        assert!(!is_fuse("ceph") && !is_fuse("fusectl") && !is_fuse("nfs4"));
    }

    #[test]
    fn a_connection_has_the_number_of_its_device_in_the_kernel_s_encoding() {
        let of = |major, minor| connection_of(DeviceNumber { major, minor });
        assert_eq!(of(0, 57), 57);
        assert_eq!(of(8, 1), (8 << 20) + 1);
    }
}
