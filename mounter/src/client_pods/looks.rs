//! Looks at what is mounted on a volume's directory. A worker does it: the daemon itself touches no volume's directory.

use std::time::Duration;

use crate::sys::look::LookedAt;
use crate::volume::target::Target;
use crate::worker::{WorkerError, Workers};

/// How long what is mounted on a target may take to answer. What takes longer has a slow server, not a dead daemon.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// What is mounted on a target. What does not answer in time is alive. So is what an earlier worker still asks after
/// `patience`.
pub(super) async fn look(workers: &Workers, target: &Target, patience: Duration) -> Result<LookedAt, WorkerError> {
    match workers.look(target, patience, LOOK_LIMIT).await {
        Err(WorkerError::Late { .. }) => Ok(LookedAt::Alive),
        looked => looked,
    }
}
