//! What the core asks of a client, where no worker does it.
//!
//! A client makes the mounts of one type of volume. Before the core asks one, it has read the volume's options, guarded
//! the volume against a second operation, and checked that its server is not tripped.

use std::time::Instant;

use async_trait::async_trait;

use crate::volume::job::{MountError, MountJob};
use crate::volume::target::Target;

/// What is wrong with a mounted volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// What serves it runs, and does not answer.
    #[error(
        "{source_name} has not answered for {seconds} s: see whether its server is up and can be reached from this node"
    )]
    Silent { source_name: String, seconds: u64 },
    #[error("the program that served {source_name} has ended: {next}")]
    Ended {
        source_name: String,
        /// What happens next.
        next: String,
    },
}

/// Makes the mounts of one or more types of volume.
#[async_trait]
pub trait Client: Send + Sync {
    /// Mounts the volume on the target.
    ///
    /// Idempotent by the mount table: the same volume mounted there already is success, another one is
    /// [`MountError::Occupied`], and what an earlier try left half done is finished. Returns before `job.deadline`.
    async fn mount(&self, job: &MountJob) -> Result<(), MountError>;

    /// Called before the target is unmounted. `true`: the mount was this client's and is unmounted now. `false`: it is
    /// not, or its program is gone; then the mounter itself unmounts what the mount table shows there.
    async fn unmount(&self, target: &Target, deadline: Instant) -> Result<bool, MountError> {
        let _ = (target, deadline);
        Ok(false)
    }

    /// Called when a mounted volume's storage was enlarged. `true`: the mount is this client's, and the volume has
    /// `size` bytes at least. `false`: it is not, or its program is too old to be asked.
    async fn expand(&self, target: &Target, size: u64, deadline: Instant) -> Result<bool, MountError> {
        let _ = (target, size, deadline);
        Ok(false)
    }

    /// What is wrong with a mounted volume, as far as the client has heard already: it asks nobody.
    fn trouble(&self, target: &Target) -> Option<Trouble> {
        let _ = target;
        None
    }

    /// Called after an unmount, when nothing is mounted on the target any more, even if nothing was before.
    async fn unmounted(&self, target: &Target) {
        let _ = target;
    }
}
