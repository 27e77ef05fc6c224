//! The way of the watched objects into the stores. It is the same for all kinds, so that an object that is gone is gone
//! for everybody who remembers anything of it, whether a watch has brought the deletion or only a list without it.

use std::collections::HashSet;
use std::sync::Arc;

use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use super::expectations::Expectations;
use super::limiter::Limiter;

/// Who remembers something of objects, by their uids.
#[derive(Debug, Clone)]
pub(super) struct Departures {
    pub(super) limiter: Arc<Limiter>,
    pub(super) expectations: Arc<Expectations>,
}

impl Departures {
    /// Has a store know what a watch has brought, then everybody forget what is gone.
    pub(super) fn reflect<K>(&self, writer: &mut Writer<K>, event: &Event<K>)
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
    {
        let gone = match event {
            Event::Delete(object) => object.uid().into_iter().collect(),
            Event::InitDone => uids(&writer.as_reader()),
            Event::Apply(_) | Event::Init | Event::InitApply(_) => HashSet::new(),
        };
        writer.apply_watcher_event(event);
        if gone.is_empty() {
            return;
        }
        let there = match event {
            Event::InitDone => uids(&writer.as_reader()),
            _ => HashSet::new(),
        };
        for uid in gone.difference(&there) {
            self.gone(uid);
        }
    }

    /// Has a store know of nothing, as if nothing had been listed.
    pub(super) fn empty<K>(&self, writer: &mut Writer<K>)
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
    {
        self.reflect(writer, &Event::Init);
        self.reflect(writer, &Event::InitDone);
    }

    /// The object of this uid is gone.
    pub(super) fn gone(&self, uid: &str) {
        self.expectations.gone(uid);
        self.limiter.gone(uid);
    }
}

fn uids<K>(store: &Store<K>) -> HashSet<String>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.state().iter().filter_map(|object| object.uid()).collect()
}
