//! What the controller and a worker say to each other. A worker is a Pod of a provisioning image that stays: it is given
//! one run after another over a connection (`pv serve`), so that no Pod has to start for a run.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Value of variable `OPERATION` in a worker, where no run has one: the image is to run `pv serve`.
pub const SERVE: &str = "serve";

/// The port on which a worker listens.
pub const PORT: u16 = 9811;

/// The variable with the port, if it is another one.
pub const PORT_VARIABLE: &str = "MOORING_WORKER_PORT";

/// The variable with the key of the worker's connections.
pub const KEY_VARIABLE: &str = "MOORING_WORKER_KEY";

/// Longest message that a run may leave, in bytes: as long as Kubernetes keeps a termination message
/// (`MaxContainerTerminationMessageLength` in `pkg/kubelet/container/runtime.go`).
pub const MAX_MESSAGE: usize = 4096;

/// Most bytes of what a run printed that are kept, where it left no message (`MaxContainerTerminationMessageLogLength` in
/// the same file).
pub const MAX_LOG: usize = 2048;

/// What the controller asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Begin a run, if it has not been begun.
    Begin(Order),
    /// Say how things are as soon as that is not so any more, or after some seconds.
    Watch(Report),
}

/// A run to be begun.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Order {
    /// Its number among the worker's runs, as its Pod has it: a worker begins none with a number that is not above all
    /// that it has seen.
    pub number: u64,
    /// Seconds that it may take.
    pub timeout: u64,
    pub properties: BTreeMap<String, String>,
    /// The content of `request.json`.
    pub request: String,
}

/// Without the properties, some of which are secret.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// How things are with a worker. It has one run at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Number of the last run; 0 before the first.
    pub number: u64,
    /// How that ended, if it did: nothing of it runs any more.
    pub ended: Option<RunEnd>,
}

impl Report {
    /// Whether it can be given a run.
    pub fn is_idle(&self) -> bool {
        self.number == 0 || self.ended.is_some()
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunEnd {
    /// 128 and its number for a signal.
    pub exit_code: i32,
    /// What it left as its message, or else, if it failed, what it printed last.
    pub message: String,
    /// Its limit of time ended it.
    pub timed_out: bool,
}
