//! The objects of one kind, as its watch has brought them.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;

use crate::process::objects::Kind;

/// A kind that is watched.
pub trait Watched: Kind + Send + Sync + 'static {}

impl<K: Kind + Send + Sync + 'static> Watched for K {}

/// What is known of a kind; it is read as the store that it is. A clone is another handle on the same.
#[derive(Clone)]
pub struct Table<K: Watched> {
    store: Store<K>,
    writer: Arc<Mutex<Writer<K>>>,
}

impl<K: Watched> Default for Table<K> {
    fn default() -> Self {
        let writer = Writer::default();
        Self {
            store: writer.as_reader(),
            writer: Arc::new(Mutex::new(writer)),
        }
    }
}

impl<K: Watched> Deref for Table<K> {
    type Target = Store<K>;

    fn deref(&self) -> &Store<K> {
        &self.store
    }
}

impl<K: Watched> Table<K> {
    pub(super) fn take(&self, event: &Event<K>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.apply_watcher_event(event);
    }

    /// Whether an object of this one's name is known.
    pub(super) fn knows(&self, object: &K) -> bool {
        self.store.get(&ObjectRef::from_obj(object)).is_some()
    }

    /// Whether all objects of the kind have been listed: before that, what is not known may be there all the same.
    pub fn is_listed(&self) -> bool {
        let ready = self.store.wait_until_ready().now_or_never();
        ready.is_some_and(|ready| ready.is_ok())
    }

    /// Knows just these, as if they had been listed.
    #[cfg(test)]
    pub(super) fn fill(&self, objects: Vec<K>) {
        self.take(&Event::Init);
        for object in objects {
            self.take(&Event::InitApply(object));
        }
        self.take(&Event::InitDone);
    }
}
