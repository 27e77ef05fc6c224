//! Where the API has refused that a worker is given a run.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use super::lock;
use crate::run::worker::Worker;

/// How long no worker is given a run after that.
const HELD: Duration = Duration::from_mins(1);

/// When that was last, by the namespace or, as `namespace/name`, the ConfigMap that it holds for.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<RwLock<BTreeMap<String, Instant>>>);

impl Refusals {
    /// The API has refused that this worker is given a run. A right that the controller lacks holds up the whole
    /// namespace; anything else may be this worker's own, and holds up its ConfigMap. Whether that is news.
    pub fn note(&self, worker: &Worker, lacks_right: bool) -> bool {
        let held = if lacks_right {
            worker.namespace()
        } else {
            worker.config()
        };
        lock(&self.0).insert(held.to_owned(), Instant::now()).is_none()
    }

    /// Whether no worker of this ConfigMap is given a run at present.
    pub(super) fn hold(&self, config: &str) -> bool {
        let all = lock(&self.0);
        let mut held = places(config).into_iter().filter_map(|place| all.get(place));
        held.any(|last| last.elapsed() < HELD)
    }

    /// A worker of this ConfigMap was given a run.
    pub(super) fn lift(&self, config: &str) {
        let mut all = lock(&self.0);
        for place in places(config) {
            all.remove(place);
        }
    }
}

/// What holds up a ConfigMap: itself, or its namespace.
fn places(config: &str) -> [&str; 2] {
    [config, config.split_once('/').map_or("", |(namespace, _)| namespace)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Refusals;
    use crate::operation::tests::config;
    use crate::run::worker_pod::tests::worker;

    #[test]
    fn a_missing_right_holds_up_the_namespace_and_a_worker_that_can_t_be_written_its_configmap_alone() {
        let worker = worker(&config(&[("volume-source", "csi")]), "w", &json!({}), &json!({}));
        let (own, beside, elsewhere) = (worker.config(), "admin/beside", "elsewhere/c");
        for (lacks_right, held) in [(false, [true, false, false]), (true, [true, true, false])] {
            let refusals = Refusals::default();
            assert!(refusals.note(&worker, lacks_right));
            assert!(!refusals.note(&worker, lacks_right), "news twice");
            assert_eq!([own, beside, elsewhere].map(|config| refusals.hold(config)), held);
            refusals.lift(own);
            assert!(!refusals.hold(own) && !refusals.hold(beside));
        }
    }
}
