//! What the core asks of a client, where no worker does it.
//!
//! A client is what makes the mount of one type of volume. The core has done the rest before it asks one: the
//! volume's options are read, the volume is guarded against a second operation, its server is not tripped.

use std::time::Instant;

use async_trait::async_trait;

use crate::volume::job::{MountError, MountJob};
use crate::volume::target::Target;

/// Makes the mounts of one or more types of volume.
#[async_trait]
pub trait Client: Send + Sync {
    /// Mounts the volume on the target.
    ///
    /// Idempotent by the mount table: the same volume mounted there already is success, another one is
    /// [`MountError::Occupied`], and what an earlier try left half done is finished. Returns before `job.deadline`.
    async fn mount(&self, job: &MountJob) -> Result<(), MountError>;

    /// Asked before the target is unmounted: `true` if it is this client's and now unmounted, `false` if it is not, or if
    /// whoever made the mount is gone; then the mounter itself unmounts what the mount table shows there.
    async fn unmount(&self, target: &Target, deadline: Instant) -> Result<bool, MountError> {
        let _ = (target, deadline);
        Ok(false)
    }

    /// Told after an unmount that nothing is mounted on the target any more, also if nothing was.
    async fn unmounted(&self, target: &Target) {
        let _ = target;
    }
}
