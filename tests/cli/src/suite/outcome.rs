//! What became of the end-to-end tests, and how the lanes spent their time.

use std::collections::BTreeSet;
use std::time::Duration;

use mooring_testbed::rights::Right;

use super::libtest::Results;

#[derive(Debug)]
pub(super) struct Ran {
    /// Its name, with its Kubernetes and its round if there are several.
    pub(super) title: String,
    /// The lane, from 1.
    pub(super) lane: usize,
    pub(super) took: Duration,
    pub(super) results: Results,
}

/// How a lane spent its time.
#[derive(Debug, Default, Clone)]
pub(super) struct Times {
    /// The kind of its nodes, in words.
    pub(super) nodes: String,
    /// Time to start and remove its cluster, and to install Mooring.
    pub(super) set_up: Duration,
    /// Time in which tests ran.
    pub(super) tests: Duration,
    /// Time spent waiting: for other lanes to start, or because nothing was left for it.
    pub(super) waited: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The files, in the order in which they ended.
    pub(super) ran: Vec<Ran>,
    pub(super) lanes: Vec<Times>,
    /// The rights that a request needed.
    pub(super) used_rights: BTreeSet<Right>,
    /// Errors outside of tests.
    pub(super) errors: Vec<anyhow::Error>,
}
