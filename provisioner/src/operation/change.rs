//! What [`expand`](super::expand) and [`modify`](super::modify) share, the operations that change an existing volume:
//! what they wait for, and how a change ends that can't go on.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::labels::HOSTNAME;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;

use super::decision::{Altered, ClaimDecision, Decision, ForClaim, Start, removable};
use super::describe::{describe, waiting};
use super::drive::{Progress, ran_after_all, removed};
use super::observed::ObservedClaim;
use super::record::Record;
use super::standing::{self, is_bound};
use super::{attempt, request};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::process::events::Note;
use crate::run::Run;
use crate::run::outcome::{Category, Finish, State};
use crate::time::elapsed;
use crate::volume::persistent_volume;

/// How often the controller looks whether a node is back, or a copy is made. It is woken by both, as a rule.
const AWAY_PERIOD: Duration = Duration::from_secs(30);

/// A change of the volume that a claim is bound to.
pub(super) struct Change<'a> {
    pub(super) seen: &'a ObservedClaim<'a>,
    pub(super) volume: &'a PersistentVolume,
    pub(super) progress: Progress<'a>,
}

impl<'a> Change<'a> {
    /// A change of which nothing is open, if the volume can be changed.
    pub(super) fn fresh(seen: &'a ObservedClaim<'a>, operation: Operation, now: Timestamp) -> Option<Self> {
        // One that leaves wakes the plan again.
        let volume = standing::volume(seen).filter(|_| seen.changes.is_empty() && is_bound(seen.claim))?;
        Some(Self::of(seen, volume, operation, None, now))
    }

    /// The change that this record is of; `Err` with what to do where it can't go on.
    pub(super) fn ongoing(
        seen: &'a ObservedClaim<'a>,
        record: &'a Record,
        now: Timestamp,
    ) -> Result<Self, Box<ClaimDecision>> {
        if seen.claim.metadata.deletion_timestamp.is_some() {
            return Err(Box::new(stopped(seen, record, None, now)));
        }
        let operation = record.operation;
        if let Some(volume) = standing::volume(seen) {
            return Ok(Self::of(seen, volume, operation, Some(record), now));
        }
        let text = format!(
            "Mooring can't {} the volume: its PersistentVolume is gone or no longer Mooring's; restore it, or delete \
             the claim",
            operation.as_str()
        );
        Err(Box::new(stopped(seen, record, Some(refusal(operation, text)), now)))
    }

    fn of(
        seen: &'a ObservedClaim<'a>,
        volume: &'a PersistentVolume,
        operation: Operation,
        record: Option<&'a Record>,
        now: Timestamp,
    ) -> Self {
        let progress = seen.progress(operation, record, seen.changes.get(&operation), now);
        Self { seen, volume, progress }
    }

    fn operation(&self) -> Operation {
        self.progress.id.operation
    }

    /// Whether no run can be changing the volume any more, so that what the claim asks for counts.
    pub(super) fn is_free(&self) -> bool {
        self.progress
            .record
            .is_none_or(|record| !record.uncertain && (record.not_before.is_some() || record.gave_up))
    }

    /// The ConfigMap of the change; `Err` with what to do without one.
    pub(super) fn config(&self) -> Result<&'a Arc<ProvisionerConfig>, Box<ClaimDecision>> {
        Err(Box::new(match (self.seen.config, self.progress.record) {
            (Ok(config), _) => return Ok(config),
            // Of another Mooring's namespace, which that one may serve: nothing says since when this waits.
            (Err(NoConfig::NotReadYet), _) | (Err(NoConfig::NotOurs { .. } | NoConfig::Elsewhere { .. }), None) => {
                Decision::Rest
            }
            (Err(error), _) => self.refused(waiting(self.operation(), error.to_string())),
        }))
    }

    /// The change can't be made: a record of it goes, after its run.
    pub(super) fn refused(&self, say: Note) -> ClaimDecision {
        match self.progress.record {
            None => Decision::wait_for(say),
            Some(record) => given_up(self.seen, record, Some(say)),
        }
    }

    /// Writes this status, and takes the record off.
    pub(super) fn taken_back(&self, status: serde_json::Value, say: Option<Note>) -> ClaimDecision {
        let record = self.progress.record;
        Decision::Own(ForClaim::Altered(Box::new(Altered {
            status: Some(status),
            release: record.is_some(),
            without: record.map(|record| (record.run.clone(), self.progress.id.clone())),
            say,
            ..Altered::of(self.operation(), self.volume)
        })))
    }

    /// A run on the volume; `Err` with what to wait for first. `then` is what follows.
    pub(super) fn start(
        &self,
        config: &Arc<ProvisionerConfig>,
        record: Record,
        then: &str,
        asked: impl FnOnce(Request) -> Request,
    ) -> Result<Start, Box<ClaimDecision>> {
        let (seen, volume, operation) = (self.seen, self.volume, self.operation());
        let wait = |text: String| {
            Box::new(Decision::Wait {
                after: Some(AWAY_PERIOD),
                say: Some(waiting(operation, text)),
            })
        };
        if let Some(copy) = seen.copied_by {
            return Err(wait(format!(
                "Mooring is copying the claim's volume for {copy}: it waits for the end of the copy"
            )));
        }
        let host = persistent_volume::host_of(volume).filter(|_| config.is_node_local());
        let node = host.map(|host| (seen.by_host)(host).map(|node| node.name).ok_or(host));
        let node = node.transpose().map_err(|host| {
            wait(format!(
                "node {host} ({HOSTNAME}), on which the volume is, is not in the cluster: {then} when it is back"
            ))
        })?;
        let made_by = request::made_by(volume)
            .map_err(|error| Box::new(Decision::wait_for(waiting(operation, error.to_string()))))?;
        let made_by = request::on_behalf_of(made_by, seen.claim);
        let options = persistent_volume::options(volume);
        let request = request::remembered(operation, made_by, options, seen.surroundings(config));
        Ok(Start {
            node,
            ..self.progress.start(config, record, asked(request))
        })
    }

    /// What there is to write after every run that ended well.
    pub(super) fn made(&self, record: &Record) -> Altered {
        Altered {
            release: true,
            runs: removable([self.progress.run]),
            took: Some(elapsed(record.since, self.progress.now)),
            ..Altered::of(self.operation(), self.volume)
        }
    }

    /// `cancel` says how a change that the image has refused is canceled.
    pub(super) fn fail(&self, record: &Record, finish: &Finish, cancel: &str) -> ClaimDecision {
        let mut failed = self.progress.failed(record, finish);
        failed.record.uncertain = is_uncertain(finish).unwrap_or(record.uncertain);
        if failed.record.gave_up {
            failed.say = refused_unless(&failed.record, cancel);
        }
        Decision::Fail(failed)
    }
}

/// The record, where an earlier attempt was taken for one that never ran, and the storage may have what that attempt
/// was asked: `note` says so, since the claim may have asked for something else meanwhile.
pub(super) fn changed_after_all(run: &Run, record: &Record, note: impl FnOnce(&mut Record, Request)) -> Option<Record> {
    let known = ran_after_all(run, record);
    if record.uncertain || run.attempt() >= record.attempt || !may_have_changed(run) {
        return known;
    }
    let mut known = known.unwrap_or_else(|| record.clone());
    known.uncertain = true;
    if let Ok(asked) = run.request() {
        note(&mut known, asked);
    }
    Some(known)
}

/// What users are told of a change that is given up: why, and how to cancel it.
pub(super) fn refused_unless(record: &Record, cancel: &str) -> Note {
    let mut say = attempt::given_up(record);
    say.text = format!("{}; {cancel}", say.text);
    say
}

/// Why a volume is not changed.
pub(super) fn refusal(operation: Operation, text: String) -> Note {
    let events = describe(operation).events;
    Note::warning(events.failed, events.action, text)
}

/// Whether the storage may have changed, or may still change, after a run that failed; `None` if the run never ran, and
/// so says nothing about it. An image that ended by itself says that it has not.
fn is_uncertain(finish: &Finish) -> Option<bool> {
    let by_itself = match finish.category {
        Category::Done
        | Category::Temporary
        | Category::Config
        | Category::Failed
        | Category::NotStarted
        | Category::Api => true,
        Category::Refused | Category::OutOfMemory | Category::Timeout | Category::Node => false,
    };
    finish.may_have_run.then_some(!by_itself)
}

/// Whether a run has started, and the storage may have changed since.
fn may_have_changed(run: &Run) -> bool {
    match run.state() {
        State::Running => true,
        State::Finished(finish) => {
            finish.started && (finish.outcome == Outcome::Done || is_uncertain(&finish) == Some(true))
        }
        State::Waiting { .. } | State::Leaving => false,
    }
}

/// Ends a change that can't go on: its run first, if there is one, so that nothing else is run on the volume beside it.
fn stopped(seen: &ObservedClaim<'_>, record: &Record, say: Option<Note>, now: Timestamp) -> ClaimDecision {
    match seen.changes.get(&record.operation) {
        None => given_up(seen, record, say),
        // What was watched of the claim is older than what was watched of the run.
        Some(run) if run.attempt() > record.attempt => Decision::wait(seen.limits.overdue),
        Some(run) => removed(run, record.operation, seen.limits, now),
    }
}

/// Takes the record of a change away that the image has refused, so that another can be made. The claim's status still
/// says that the change is asked for and can't be made.
pub(super) fn set_aside(seen: &ObservedClaim<'_>, record: &Record) -> ClaimDecision {
    given_up(seen, record, None)
}

/// Ends a change of which no run is there. What the claim's status says of it stays.
fn given_up(seen: &ObservedClaim<'_>, record: &Record, say: Option<Note>) -> ClaimDecision {
    Decision::Own(ForClaim::Altered(Box::new(Altered {
        operation: record.operation,
        release: true,
        without: Some((record.run.clone(), seen.run(record.operation))),
        say,
        ..Altered::default()
    })))
}
