//! Which runs have found no free worker.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use super::lock;
use crate::run::worker_set::WorkerSet;

/// By the run, as `namespace/name`: the set that it wants a worker of.
#[derive(Debug, Clone, Default)]
pub struct Demand(Arc<RwLock<BTreeMap<String, WorkerSet>>>);

impl Demand {
    /// This run has found no free worker of the set.
    pub fn note(&self, run: &str, set: WorkerSet) {
        lock(&self.0).insert(run.to_owned(), set);
    }

    /// The set that this run wanted a worker of.
    pub(super) fn of(&self, run: &str) -> Option<WorkerSet> {
        lock(&self.0).get(run).cloned()
    }

    pub(super) fn forget(&self, run: &str) {
        lock(&self.0).remove(run);
    }

    /// How many runs there are for each set, of those that go on.
    pub(super) fn counts(&self, goes_on: impl Fn(&str) -> bool) -> BTreeMap<WorkerSet, usize> {
        let mut wanted = lock(&self.0);
        wanted.retain(|run, _| goes_on(run));
        let mut counts = BTreeMap::new();
        for set in wanted.values() {
            *counts.entry(set.clone()).or_default() += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::Demand;
    use crate::run::worker_set::WorkerSet;

    #[test]
    fn a_run_wants_one_worker_from_when_it_found_none_to_its_end_or_until_one_has_it() {
        let demand = Demand::default();
        let on = |node: &str| WorkerSet {
            config: "admin/c".to_owned(),
            node: Some(node.to_owned()),
        };
        // The scheduler has chosen another node for the first one.
        for (run, node) in [("1", "a"), ("2", "b"), ("3", "b"), ("1", "b")] {
            demand.note(run, on(node));
        }
        assert_eq!(demand.counts(|_| true), [(on("b"), 3)].into());
        demand.forget("2");
        assert_eq!(demand.counts(|run| run == "3"), [(on("b"), 1)].into());
        assert_eq!(demand.of("1"), None, "it has ended");
    }
}
