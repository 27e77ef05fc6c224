//! Where the API has refused that a worker is given a run.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use super::lock;
use crate::run::worker::Worker;

/// How long no worker of a namespace is given a run after that.
const HELD: Duration = Duration::from_mins(1);

/// When that was last, by the namespace.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<RwLock<BTreeMap<String, Instant>>>);

impl Refusals {
    /// The API has refused that this worker is given a run: none of its namespace is for a while. Whether that is news.
    pub fn note(&self, worker: &Worker) -> bool {
        lock(&self.0)
            .insert(worker.namespace().to_owned(), Instant::now())
            .is_none()
    }

    /// Whether no worker of this ConfigMap is given a run at present.
    pub(super) fn hold(&self, config: &str) -> bool {
        let last = lock(&self.0).get(namespace(config)).copied();
        last.is_some_and(|last| last.elapsed() < HELD)
    }

    /// A worker of this ConfigMap was given a run.
    pub(super) fn lift(&self, config: &str) {
        lock(&self.0).remove(namespace(config));
    }
}

fn namespace(config: &str) -> &str {
    config.split_once('/').map_or("", |(namespace, _)| namespace)
}
