//! Which runs have found no free worker, and where workers are soon free again.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use super::lock;
use crate::run::worker_set::WorkerSet;

/// How long it matters when a worker was last given a run.
const REMEMBERED: Duration = Duration::from_mins(1);

/// How long a run waits for a worker of a busy set.
#[derive(Debug, Clone, Copy)]
pub struct WorkerPatience {
    /// Until none of the set has been given a run for so long: nobody waits for longer behind runs of which nobody knows
    /// how long they take. A Pod of its own takes a run twice as long to start.
    pub between: Duration,
    /// In all, however fast the runs before it are.
    pub longest: Duration,
}

#[derive(Debug, Clone, Default)]
pub struct Demand {
    /// By the run, as `namespace/name`: the set that it wants a worker of.
    wanted: Arc<RwLock<BTreeMap<String, WorkerSet>>>,
    /// When a worker was last given a run.
    served: Arc<RwLock<BTreeMap<WorkerSet, Instant>>>,
}

impl Demand {
    /// This run has found no free worker of the set. Whether that is news.
    pub fn note(&self, run: &str, set: WorkerSet) -> bool {
        let before = lock(&self.wanted).insert(run.to_owned(), set.clone());
        before != Some(set)
    }

    /// The set that this run wanted a worker of.
    pub(super) fn of(&self, run: &str) -> Option<WorkerSet> {
        lock(&self.wanted).get(run).cloned()
    }

    /// A worker has this run.
    pub(super) fn forget(&self, run: &str) {
        lock(&self.wanted).remove(run);
    }

    /// A worker of the set was taken for a run.
    pub(super) fn served(&self, set: WorkerSet) {
        lock(&self.served).insert(set, Instant::now());
    }

    /// How much longer to wait for a worker of a busy set, for a run that has waited since this time. The limiter's lock
    /// is held meanwhile, so this must not take that of `wanted`.
    pub fn patience(&self, set: &WorkerSet, since: Instant, patience: WorkerPatience) -> Option<Duration> {
        let served = lock(&self.served).get(set).copied();
        let left = patience
            .between
            .saturating_sub(served.unwrap_or(since).max(since).elapsed());
        let left = left.min(patience.longest.saturating_sub(since.elapsed()));
        (!left.is_zero()).then_some(left)
    }

    /// How many runs there are for each set, of those that go on.
    pub(super) fn counts(&self, goes_on: impl Fn(&str) -> bool) -> BTreeMap<WorkerSet, usize> {
        lock(&self.served).retain(|_, last| last.elapsed() < REMEMBERED);
        let mut wanted = lock(&self.wanted);
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
    use std::time::{Duration, Instant};

    use super::{Demand, WorkerPatience};
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

    #[test]
    fn a_run_waits_for_a_worker_as_long_as_one_after_the_other_is_given_a_run() {
        let demand = Demand::default();
        let set = WorkerSet {
            config: "admin/c".to_owned(),
            node: None,
        };
        let now = Instant::now();
        let before = |time| now.checked_sub(time).unwrap();
        let long_ago = before(Duration::from_secs(20));
        let waits = WorkerPatience {
            between: Duration::from_secs(10),
            longest: Duration::from_mins(1),
        };
        let patience = |since| demand.patience(&set, since, waits);
        assert!(patience(now).is_some());
        assert_eq!(patience(long_ago), None);
        demand.served(set.clone());
        assert!(patience(long_ago).is_some(), "it moves on");
        assert_eq!(patience(before(waits.longest)), None, "nobody waits for longer");
        demand.served.write().unwrap().insert(set.clone(), long_ago);
        assert_eq!(patience(long_ago), None, "it does no more");
    }
}
