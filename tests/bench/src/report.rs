//! The bench's results, as they are stored in JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::options::Options;
pub use super::summary::Summary;

/// Increased when a field changes its meaning.
pub const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`] when this was written.
    pub format: u32,
    pub machine: Machine,
    pub options: Options,
    /// How long it took.
    pub seconds: f64,
    /// How long things took, one at a time.
    pub times: Vec<Timing>,
    /// Many at once.
    pub bursts: Vec<Burst>,
    /// Requests to the API server.
    pub requests: Vec<Requests>,
    pub processes: Vec<ProcessUse>,
    pub aims: Vec<Aim>,
    /// Failures that did not end the run.
    pub notes: Vec<String>,
}

/// A machine, without its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors.
    pub cores: usize,
    /// Nodes of the cluster, all of them on it.
    pub nodes: u8,
    /// The distribution.
    pub system: String,
    /// Version of the control groups.
    pub cgroups: String,
}

/// How long something took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// What was measured.
    pub what: String,
    /// Whose time it is.
    pub who: String,
    pub seconds: Summary,
    /// Compared with something else in the same rounds.
    pub over: Option<Over>,
    /// Each sample, in the order of the rounds.
    pub samples: Vec<f64>,
}

/// A comparison, round by round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Over {
    /// What it is compared with.
    pub whom: String,
    /// How many times as long.
    pub ratio: Summary,
    /// How many seconds longer.
    pub seconds: Summary,
}

impl Timing {
    /// A timing from samples in seconds; none if there are none.
    pub fn of(what: &str, who: &str, samples: &[f64]) -> Option<Self> {
        Some(Self {
            what: what.to_owned(),
            who: who.to_owned(),
            seconds: Summary::of(samples)?,
            over: None,
            samples: samples.to_vec(),
        })
    }

    /// The same, compared with what was measured beside it.
    #[must_use]
    pub fn over(mut self, whom: &Self) -> Self {
        let pairs = || self.samples.iter().zip(&whom.samples);
        let ratios: Vec<_> = pairs().map(|(ours, theirs)| ours / theirs).collect();
        let more: Vec<_> = pairs().map(|(ours, theirs)| ours - theirs).collect();
        self.over = Summary::of(&ratios)
            .zip(Summary::of(&more))
            .map(|(ratio, seconds)| Over {
                whom: whom.who.clone(),
                ratio,
                seconds,
            });
        self
    }
}

/// Timings of the same thing, compared with the one named `base` if it is among them.
pub(super) fn compared(timings: Vec<Timing>, base: &str) -> Vec<Timing> {
    let Some(base) = timings.iter().find(|timing| timing.who == base).cloned() else {
        return timings;
    };
    timings
        .into_iter()
        .map(|timing| {
            if timing.who == base.who {
                timing
            } else {
                timing.over(&base)
            }
        })
        .collect()
}

/// Many at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// What was done: `claims bound` or `volumes removed`.
    pub what: String,
    /// Which system did it.
    pub who: String,
    /// How many at once.
    pub size: usize,
    /// How many per second, from the first request to the last result.
    pub per_second: Summary,
    /// The ratio to bare Pods, if these were measured.
    pub over_bare: Option<Summary>,
}

/// Requests to the API server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// The phase: `provision` and `delete` are per volume, `idle` is per minute.
    pub phase: String,
    /// The measured system.
    pub who: String,
    /// Number of volumes that this is the mean of.
    pub volumes: usize,
    /// By client and by verb. Periodic requests (Leases, the nodes' status) are left out of `provision` and `delete`;
    /// the bench's own requests are left out everywhere.
    pub by_client: BTreeMap<String, BTreeMap<String, f64>>,
}

/// The verbs that change something.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

impl Requests {
    /// Sums of writes and of all others, of one client or of all.
    pub fn sums(&self, client: Option<&str>) -> (f64, f64) {
        let clients = self
            .by_client
            .iter()
            .filter(|(name, _)| client.is_none_or(|client| client == *name));
        clients
            .flat_map(|(_, verbs)| verbs)
            .fold((0.0, 0.0), |(writes, others), (verb, count)| {
                if WRITES.contains(&verb.as_str()) {
                    (writes + count, others)
                } else {
                    (writes, others + count)
                }
            })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessUse {
    pub process: String,
    pub processes: usize,
    /// Resident memory of the largest in MiB, before the first measurement.
    pub idle_mib: f64,
    /// The same while the largest burst's volumes exist.
    pub loaded_mib: f64,
    /// Resident memory after the last measurement.
    pub after_mib: f64,
    /// Processor time while idle, in milliseconds per minute.
    pub idle_ms_per_minute: f64,
    /// Processor time per volume, created and removed, in milliseconds, by measured system.
    pub ms_per_volume: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aim {
    pub what: String,
    pub aim: f64,
    pub measured: f64,
    pub unit: String,
    pub met: bool,
}

#[cfg(test)]
mod tests {
    use super::{Requests, Timing, compared};

    #[test]
    fn rounds_are_compared_each_with_its_own() {
        let times = vec![
            Timing::of("x", "ours", &[2.0, 6.0, 30.0]).unwrap(),
            Timing::of("x", "floor", &[1.0, 2.0, 10.0]).unwrap(),
        ];
        let times = compared(times, "floor");
        let over = times[0].over.as_ref().unwrap();
        assert_eq!(
            (over.ratio.median, over.ratio.low, over.seconds.median),
            (3.0, 2.0, 4.0)
        );
        assert!(times[1].over.is_none());
    }

    #[test]
    fn reads_and_writes_are_counted_apart() {
        let text = r#"{"phase": "provision", "who": "x", "volumes": 2, "by_client":
            {"a": {"get": 1.5, "create": 2.0}, "b": {"patch": 0.5, "watch": 1.0}}}"#;
        let requests: Requests = serde_json::from_str(text).unwrap();
        assert_eq!(requests.sums(None), (2.5, 2.5));
        assert_eq!(requests.sums(Some("a")), (2.0, 1.5));
    }
}
