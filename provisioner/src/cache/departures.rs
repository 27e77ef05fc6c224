//! The way of the watched objects into the stores. It is the same for all kinds, so that an object that is gone is gone
//! for everybody who remembers anything of it, whether a watch has brought the deletion or only a list without it.

use std::collections::HashSet;
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::expectations::Expectations;
use super::limiter::Limiter;
use super::table::{Table, Watched};

/// Who remembers something of objects, by their uids.
#[derive(Debug, Clone)]
pub(super) struct Departures {
    pub(super) limiter: Arc<Limiter>,
    pub(super) expectations: Arc<Expectations>,
}

impl Departures {
    /// Has a store know what a watch has brought, then everybody forget what is gone.
    pub(super) fn reflect<K: Watched>(&self, table: &Table<K>, event: &Event<K>) {
        let gone = match event {
            Event::Delete(object) => object.uid().into_iter().collect(),
            Event::InitDone => uids(table),
            Event::Apply(_) | Event::Init | Event::InitApply(_) => HashSet::new(),
        };
        table.take(event);
        if gone.is_empty() {
            return;
        }
        let there = match event {
            Event::InitDone => uids(table),
            _ => HashSet::new(),
        };
        for uid in gone.difference(&there) {
            self.gone(uid);
        }
    }

    /// Has a store know of nothing, as if nothing had been listed.
    pub(super) fn empty<K: Watched>(&self, table: &Table<K>) {
        self.reflect(table, &Event::Init);
        self.reflect(table, &Event::InitDone);
    }

    /// The object of this uid is gone.
    pub(super) fn gone(&self, uid: &str) {
        self.expectations.gone(uid);
        self.limiter.gone(uid);
    }
}

fn uids<K: Watched>(table: &Table<K>) -> HashSet<String> {
    table.state().iter().filter_map(|object| object.uid()).collect()
}
