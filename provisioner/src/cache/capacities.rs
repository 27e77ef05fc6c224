//! The `CSIStorageCapacity` objects that are there.

use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::runtime::watcher::Event;
use tokio::sync::Notify;

use super::mirror::Mirror;
use crate::volume::storage_capacity::SeenCapacity;

/// A clone is another handle on the same.
#[derive(Debug, Clone, Default)]
pub struct Capacities {
    known: Arc<RwLock<Mirror<SeenCapacity>>>,
    changed: Arc<Notify>,
}

impl Capacities {
    /// All of them, as soon as they have been listed: before that, what is not known may be there all the same.
    pub fn all(&self) -> Option<Vec<SeenCapacity>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.is_synced().then(|| known.values().cloned().collect())
    }

    pub(super) fn take(&self, event: Event<CSIStorageCapacity>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.take(event, |object| Some(SeenCapacity::of(object)));
    }

    /// Something has changed that they depend on, or one of them.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Returns when something has changed since the last time.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Knows just these, as if they had been listed.
    #[cfg(test)]
    pub(crate) fn know(&self, objects: Vec<CSIStorageCapacity>) {
        self.take(Event::Init);
        for object in objects {
            self.take(Event::InitApply(object));
        }
        self.take(Event::InitDone);
    }
}
