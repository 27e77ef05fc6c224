//! Keeps what is done with one volume in order, whatever its targets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

use super::protocol::MountCall;

/// A lock for each volume: a client's source.
#[derive(Debug, Default)]
pub(super) struct OneAtATime(Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>);

/// Released when it is dropped.
pub(super) type Alone = OwnedMutexGuard<()>;

impl OneAtATime {
    pub(super) fn of(&self, call: &MountCall) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        let name = format!("{} {}", call.client, call.source);
        if let Some(lock) = locks.get(&name).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        locks.insert(name, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::OneAtATime;
    use crate::agent::protocol::MountCall;

    fn call(target: &str, source: &str) -> MountCall {
        let json = serde_json::json!({"target": target, "client": "block", "source": source, "limit_ms": 1000});
        serde_json::from_value(json).unwrap()
    }

    #[tokio::test]
    async fn one_volume_is_worked_on_by_one_at_a_time_and_another_one_meanwhile() {
        let locks = OneAtATime::default();
        let held = locks.of(&call("/a", "nbd://h/e")).lock_owned().await;
        assert!(locks.of(&call("/b", "nbd://h/e")).try_lock().is_err());
        assert!(locks.of(&call("/c", "nbd://h/f")).try_lock().is_ok());
        drop(held);
        assert!(locks.of(&call("/b", "nbd://h/e")).try_lock().is_ok());
    }
}
