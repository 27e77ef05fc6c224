//! Whose turn it is to ask what is mounted on which target: a worker that gets no answer may hang in the kernel, and the
//! next one would hang as well.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::volume::target::Target;

/// A turn, which ends when it is dropped.
pub(super) type Turn = OwnedMutexGuard<()>;

/// One turn at a time for each target. A clone has the same turns.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns(Arc<Mutex<BTreeMap<Target, Arc<AsyncMutex<()>>>>>);

impl Turns {
    /// A turn; nothing if another's lasts longer than `patience`.
    pub(super) async fn take(&self, target: &Target, patience: Duration) -> Option<Turn> {
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

    use super::Turns;
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
        assert!(turns.clone().take(&target, SHORT).await.is_none());
        assert!(turns.take(&other, Duration::ZERO).await.is_some());

        let (second, ()) = tokio::join!(turns.take(&target, SHORT * 100), async { drop(first) });
        assert!(second.is_some(), "it waited for its turn");
        drop(second);
        assert!(turns.take(&other, Duration::ZERO).await.is_some());
        assert_eq!(turns.0.lock().unwrap().len(), 1, "no target stays without end");
    }
}
