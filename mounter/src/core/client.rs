//! What the core asks of a client, where no worker does it.
//!
//! A client makes the mounts of one type of volume. Before the core asks one, the mount has been granted, the core has
//! guarded the volume against a second operation, and checked that its server is not tripped.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::BoxFuture;

use crate::grant::Grant;
use crate::volume::job::MountError;
use crate::volume::target::Target;

/// A mount that was granted, and is now to be made.
#[derive(Debug, Clone)]
pub struct MountJob {
    pub grant: Grant,
    /// The client image that serves the volume, where a client container does.
    pub image: Option<String>,
    /// When the kubelet must have its answer.
    pub deadline: Instant,
}

impl MountJob {
    /// How long is left.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

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

/// A clean-up that goes on by itself. It ends when the client has nothing of the volume any more.
pub type Rest = BoxFuture<'static, ()>;

/// What a client did about a volume that is to grow.
#[derive(Debug)]
pub enum Expansion {
    /// The mount is the client's, and the volume has the size that was asked for at least.
    Done,
    /// The mount is not the client's, or its program is too old to be asked.
    NotMine,
    /// It is not known whose the mount is: a program that may have it does not answer. The kubelet has to try again.
    Unknown(MountError),
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

    /// Called when a mounted volume's storage was enlarged.
    async fn expand(&self, target: &Target, size: u64, deadline: Instant) -> Result<Expansion, MountError> {
        let _ = (target, size, deadline);
        Ok(Expansion::NotMine)
    }

    /// Whether each file of a mounted volume has a group that can be changed, if its client image says so.
    async fn is_by_owner(&self, target: &Target) -> Option<bool> {
        let _ = target;
        None
    }

    /// What is wrong with a mounted volume, as far as the client has heard already: it asks nobody.
    fn trouble(&self, target: &Target) -> Option<Trouble> {
        let _ = target;
        None
    }

    /// The source of a mounted volume, as far as the client remembers it.
    fn source_of(&self, target: &Target) -> Option<String> {
        let _ = target;
        None
    }

    /// Called after an unmount, when nothing is mounted on the target any more, even if nothing was before. Returns what
    /// is still to be cleaned up, if that takes longer than a call can wait.
    async fn unmounted(&self, target: &Target) -> Option<Rest> {
        let _ = target;
        None
    }
}
