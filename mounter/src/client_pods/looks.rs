//! Looks at what is mounted on a volume's directory. A worker does it: the daemon itself touches no volume's directory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::sys::look::LookedAt;
use crate::volume::target::Target;
use crate::worker::{WorkerError, Workers};

/// How long what is mounted on a target may take to answer. What takes longer has a slow server, not a dead daemon.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Has workers look, one at a time at each target: a worker that gets no answer may hang in the kernel.
#[derive(Debug)]
pub(super) struct Looks {
    workers: Workers,
    turns: Turns,
}

impl Looks {
    pub(super) fn new(workers: Workers) -> Self {
        Self {
            workers,
            turns: Turns::default(),
        }
    }

    /// What is mounted on a target. What does not answer in time is alive. So is what an earlier worker still looks at
    /// after `patience`.
    pub(super) async fn look(&self, target: &Target, patience: Duration) -> Result<LookedAt, WorkerError> {
        let Some(turn) = self.turns.take(target, patience).await else {
            return Ok(LookedAt::Alive);
        };
        match self.workers.look(target, LOOK_LIMIT, turn).await {
            Err(WorkerError::Late { .. }) => Ok(LookedAt::Alive),
            looked => looked,
        }
    }
}

/// Whose turn it is to look at which target.
#[derive(Debug, Default)]
struct Turns(Mutex<BTreeMap<Target, Arc<AsyncMutex<()>>>>);

impl Turns {
    /// A turn, which ends when the guard is dropped; nothing if another's lasts longer than `patience`.
    async fn take(&self, target: &Target, patience: Duration) -> Option<OwnedMutexGuard<()>> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // A task that has a turn, or waits for one, holds the lock as well.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(target.clone()).or_default())
        };
        tokio::time::timeout(patience, lock.lock_owned()).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::{LOOK_LIMIT, Turns};
    use crate::sys::fake::target;
    use crate::volume::target::Target;

    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn only_one_worker_at_a_time_looks_at_a_target() {
        let (turns, target) = (Turns::default(), target());
        let other = Target::parse(Path::new("/kubelet"), "/kubelet/pods/u/volumes/mooring.dev~vcs/w").unwrap();
        let first = turns.take(&target, Duration::ZERO).await;
        assert!(first.is_some());
        assert!(turns.take(&target, Duration::ZERO).await.is_none());
        assert!(turns.take(&target, SHORT).await.is_none());
        assert!(turns.take(&other, Duration::ZERO).await.is_some());

        let (second, ()) = tokio::join!(turns.take(&target, LOOK_LIMIT), async { drop(first) });
        assert!(second.is_some(), "it waited for its turn");
        drop(second);
        assert!(turns.take(&other, Duration::ZERO).await.is_some());
        assert_eq!(turns.0.lock().unwrap().len(), 1, "no target stays without end");
    }
}
