//! From a ConfigMap that promises to discover to the list of what its storage can serve.
//!
//! No record is kept. The run itself says when it ended and by which version of the ConfigMap it was made, so it stays
//! until the next one is due, and a restart of the controller finds all that there is to know. What is printed is read
//! again at every look at it. A worker does not wait with it: when the next run is due, the controller remembers then,
//! and one that starts anew asks again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::discovered::{Discovered, DiscoveredError};
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::property::keys;
use mooring_contract::request::Request;
use mooring_contract::volume::{NodeAccess, check_options};
use mooring_program::error::chain;
use sha2::{Digest, Sha256};

use super::decision::{Intent, RunDecision, Start};
use super::drive::{Operate, Progress, begin, drive, removed};
use super::limits::Limits;
use super::observed::Surroundings;
use super::record::Record;
use super::request;
use crate::config::problem::{ConfigProblem, join};
use crate::config::{ProvisionerConfig, discovered, properties};
use crate::run::input_state::InputState;
use crate::run::outcome::{Category, Finish, State};
use crate::run::{Run, RunId};
use crate::time::{elapsed, later};

/// A run that failed is repeated after this part of the interval.
const RETRY_PART: u32 = 10;

/// Shortest wait after a failed discovery, however short the ConfigMap's period is.
const RETRY_LEAST: Duration = Duration::from_secs(10);

/// Part of a wait that is left to chance, so that ConfigMaps that were read together are not asked together for good.
const JITTER_PERCENT: u32 = 20;

pub struct ObservedDiscovery<'a> {
    /// The ConfigMap in force.
    pub config: &'a Arc<ProvisionerConfig>,
    pub run: Option<&'a Run>,
    /// When the next run is due, if a worker carried out the last one for this version of the ConfigMap.
    pub due: Option<Due>,
    /// Address of the Kubernetes API, for the image.
    pub kube_api: &'a str,
    pub limits: &'a Limits,
}

/// When the next run of a ConfigMap is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    At(Timestamp),
    /// Not until the ConfigMap changes.
    Never,
}

/// When the run after this one is due, which ended so at this time.
pub fn due_after(
    config: &ProvisionerConfig,
    run: &Run,
    result: &Result<Discovered, DiscoverFailure>,
    ended: Timestamp,
) -> Due {
    let after = match result {
        Ok(_) => config.discover_interval,
        Err(failure) if failure.outcome == Outcome::GiveUp => return Due::Never,
        Err(_) => (config.discover_interval / RETRY_PART).max(RETRY_LEAST),
    };
    Due::At(later(ended, jittered(after, &run.uid())))
}

/// Which run it is.
pub fn run_of(config: &ProvisionerConfig) -> RunId {
    RunId::new(Operation::Discover, &config.uid)
}

/// Decides what to do about the runs of one ConfigMap.
pub fn plan(seen: &ObservedDiscovery<'_>, now: Timestamp) -> RunDecision {
    let config = seen.config;
    let Some(run) = seen.run else {
        return match seen.due {
            _ if !config.offers(Operation::Discover) => RunDecision::Rest,
            None => begin(&Discovery::of(seen, None, now)),
            Some(due) => wait_or(due, now, || begin(&Discovery::of(seen, None, now))),
        };
    };
    let outdated = !config.offers(Operation::Discover) || run.fingerprint() != Some(config.fingerprint.as_str());
    if outdated && run.leaving_since().is_none() {
        return RunDecision::Tidy(vec![run.to_remove()]);
    }
    let record = Record {
        attempt: run.attempt(),
        ..Record::first(Operation::Discover, run.place(), run.made(), config)
    };
    drive(&Discovery::of(seen, Some(&record), now), &record)
}

struct Discovery<'a> {
    seen: &'a ObservedDiscovery<'a>,
    progress: Progress<'a>,
}

impl<'a> Discovery<'a> {
    fn of(seen: &'a ObservedDiscovery<'a>, record: Option<&'a Record>, now: Timestamp) -> Self {
        let progress = Progress {
            id: run_of(seen.config),
            record,
            recorded: Intent::Configured,
            run: seen.run,
            config: Some(seen.config),
            state: InputState::Unknown,
            limits: seen.limits,
            now,
        };
        Self { seen, progress }
    }
}

impl Operate for Discovery<'_> {
    type Own = Infallible;

    fn progress(&self) -> &Progress<'_> {
        &self.progress
    }

    fn request(&self) -> Result<Start, Box<RunDecision>> {
        let config = self.seen.config;
        let request = request(config, self.seen.kube_api);
        Ok(Start {
            intent: Intent::Configured,
            owner: Some((config.reference.name.clone(), config.uid.clone())),
            ..self.progress.start(config, self.progress.next(config), request)
        })
    }

    /// It stays until the next one is due.
    fn apply(&self, run: &Run, _record: &Record, finish: &Finish) -> Result<RunDecision, Finish> {
        let Progress { limits, now, .. } = self.progress;
        if run.leaving_since().is_some() {
            return Ok(removed(run, Operation::Discover, limits, now));
        }
        let make_room = || RunDecision::Tidy(vec![run.to_remove()]);
        if !run.is_over() || run.is_on_worker() {
            // It did not end in time, or nobody needs it any more.
            return Ok(make_room());
        }
        // A node's clock may be ahead.
        let ended = run.ended().min(now);
        let due = due_after(self.seen.config, run, &result_of(finish), ended);
        Ok(wait_or(due, now, make_room))
    }

    fn fail(&self, record: &Record, finish: &Finish) -> RunDecision {
        let applied = self.progress.run.map(|run| self.apply(run, record, finish));
        applied.and_then(Result::ok).unwrap_or(RunDecision::Rest)
    }
}

/// Waits until it is time for the next run, and then does this.
fn wait_or(due: Due, now: Timestamp, then: impl FnOnce() -> RunDecision) -> RunDecision {
    match due {
        Due::Never => RunDecision::Rest,
        Due::At(due) => match elapsed(now, due) {
            Duration::ZERO => then(),
            left => RunDecision::wait(left),
        },
    }
}

fn jittered(full: Duration, uid: &str) -> Duration {
    let percent = u32::from(Sha256::digest(uid)[0]) * JITTER_PERCENT / u32::from(u8::MAX);
    full * (100 - percent) / 100
}

/// What the image is asked: nothing of a volume.
pub fn request(config: &ProvisionerConfig, kube_api: &str) -> Request {
    let around = Surroundings::new(None, config, kube_api);
    Request {
        storage_class: discovered::prefix(config).to_owned(),
        mount_options: config.class.mount_options.clone(),
        reclaim_policy: config.class.reclaim_policy.as_str().to_owned(),
        ..request::unremembered(Operation::Discover, around)
    }
}

/// A discovery that failed: nothing changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoverFailure {
    /// Whether it is tried again.
    pub outcome: Outcome,
    /// For metrics.
    pub category: Category,
    /// What the ConfigMap's Event says about it.
    pub why: String,
}

/// What a run has come to; `None` if it has not ended.
pub fn result(run: &Run) -> Option<Result<Discovered, DiscoverFailure>> {
    match run.state() {
        State::Finished(finish) => Some(result_of(&finish)),
        State::Waiting { .. } | State::Running | State::Leaving => None,
    }
}

/// What a run that has ended has come to.
pub fn result_of(finish: &Finish) -> Result<Discovered, DiscoverFailure> {
    match finish.outcome {
        Outcome::Done => read(&finish.message).map_err(|error| DiscoverFailure {
            outcome: Outcome::Retry,
            category: Category::Refused,
            why: chain(&error),
        }),
        outcome @ (Outcome::Retry | Outcome::GiveUp) => Err(DiscoverFailure {
            outcome,
            category: finish.category,
            why: finish.why.clone(),
        }),
    }
}

/// Why no classes can be made of what an image has printed.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error(transparent)]
    Unreadable(#[from] DiscoveredError),
    #[error("class {class:?} can't have its parameters: {}", join(problems))]
    Parameters {
        class: String,
        problems: Vec<ConfigProblem>,
    },
    #[error("class {class:?} can't have its mount options")]
    MountOptions { class: String, source: NodeAccess },
}

/// Reads what an image has printed, and whether classes can be made of it.
pub fn read(message: &str) -> Result<Discovered, AnswerError> {
    let found = Discovered::parse(message)?;
    for class in &found.classes {
        // The file system is asked for by the class, as if an administrator had written it.
        let names = class.parameters.keys().map(String::as_str);
        let mut problems = properties::check(names.filter(|name| *name != keys::FS_TYPE));
        let values = class.parameters.iter();
        problems.extend(values.filter_map(|(key, value)| properties::check_value(key, value)));
        if !problems.is_empty() {
            let class = class.name.clone();
            return Err(AnswerError::Parameters { class, problems });
        }
        if let Some(options) = &class.mount_options
            && let Err(source) = check_options(options, &[])
        {
            let class = class.name.clone();
            return Err(AnswerError::MountOptions { class, source });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
