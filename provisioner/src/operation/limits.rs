//! The limits of waiting.

use std::time::Duration;

use super::backoff::Backoff;
use crate::run::workers::WorkerPatience;

/// Limits of waiting.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Between two attempts.
    pub backoff: Backoff,
    /// When a run has not started for this long, users are told, even if its node has not said why.
    pub start_grace: Duration,
    /// For this long a claim of a class without a ConfigMap may be another Mooring's.
    pub claim_grace: Duration,
    /// For this long another Mooring is given time for what is its own, before users are told.
    pub elsewhere_grace: Duration,
    /// A run younger than this may belong to an object that has not been seen yet.
    pub orphan_age: Duration,
    /// When a run has waited for a place for this long, users are told.
    pub place_grace: Duration,
    pub worker_patience: WorkerPatience,
    /// For this long kube-controller-manager is given time to bind a claim, before users are told. Where many claims
    /// are made at once, the last ones wait for some minutes.
    pub bind_grace: Duration,
    /// A run that is not seen to end within its `timeout` and this time has lost its node.
    pub overdue: Duration,
    /// A node that is not in the cluster may be back within this time: somebody deleted its Node object, the node
    /// registers again, and its disk is as it was.
    pub node_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            backoff: Backoff::default(),
            start_grace: Duration::from_secs(30),
            claim_grace: Duration::from_secs(5),
            elsewhere_grace: Duration::from_mins(5),
            orphan_age: Duration::from_mins(1),
            place_grace: Duration::from_mins(1),
            worker_patience: WorkerPatience {
                between: Duration::from_millis(500),
                longest: Duration::from_secs(15),
            },
            bind_grace: Duration::from_mins(5),
            overdue: Duration::from_mins(1),
            node_grace: Duration::from_hours(1),
        }
    }
}
