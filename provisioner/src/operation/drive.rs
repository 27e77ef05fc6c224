//! How an operation goes on, whichever it is: from its record and its run to the next decision. What differs from one
//! operation to the next, [`Operate`] asks for; `docs/decisions/run.md` has the table.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;

use super::attempt::{begun, failed, given_up, held_back};
use super::decision::{Decision, Failed, Intent, NotStarted, Start};
use super::describe::{Effect, describe, waiting};
use super::limits::Limits;
use super::record::Record;
use crate::config::ProvisionerConfig;
use crate::process::events::Note;
use crate::run::input_state::InputState;
use crate::run::outcome::{Category, Finish, State};
use crate::run::{Run, RunId, RunRef};
use crate::time::elapsed;

/// How far one operation on one object is.
pub(super) struct Progress<'a> {
    pub(super) id: RunId,
    /// `None` before the first attempt.
    pub(super) record: Option<&'a Record>,
    /// Where the intent is recorded that the record has.
    pub(super) recorded: Intent,
    pub(super) run: Option<&'a Run>,
    /// The ConfigMap in force.
    pub(super) config: Option<&'a Arc<ProvisionerConfig>>,
    /// See [`Record::tried`].
    pub(super) state: InputState,
    pub(super) limits: &'a Limits,
    pub(super) now: Timestamp,
}

impl Progress<'_> {
    /// The record of the next attempt, by this ConfigMap.
    pub(super) fn next(&self, config: &ProvisionerConfig) -> Record {
        let place = self.id.in_namespace(&config.reference.namespace);
        let effect = describe(self.id.operation).effect;
        let makes = matches!(effect, Effect::MakesVolume | Effect::TakesSnapshot);
        match self.record {
            None => Record::first(self.id.operation, place, self.now, config),
            // One of this attempt was begun, or may have been, and is gone: that the next never runs says nothing of it.
            Some(record) => Record {
                may_exist: record.may_exist || self.recorded == Intent::Recorded && makes && record.has_begun(),
                config: config.reference.to_string(),
                config_uid: config.uid.clone(),
                run: place,
                ..begun(record)
            },
        }
    }

    /// The run of this record's attempt, on any node.
    pub(super) fn start(&self, config: &Arc<ProvisionerConfig>, record: Record, request: Request) -> Start {
        Start {
            run: self.id.clone(),
            request,
            config: config.clone(),
            intent: if self.record == Some(&record) {
                self.recorded
            } else {
                Intent::ToRecord
            },
            record,
            owner: None,
            node: None,
            allowed: Vec::new(),
            state: self.state.clone(),
        }
    }

    /// What an attempt that failed leaves. It failed with what its run began with, whatever has changed meanwhile.
    pub(super) fn failed(&self, record: &Record, finish: &Finish) -> Box<Failed> {
        let run = self.run.map(|run| to_remove(run, finish));
        let state = self.state.clone().when_begun(self.run.and_then(Run::input_state));
        let uid = &self.id.uid;
        Box::new(failed(record, finish, uid, state, self.limits, self.now, run))
    }
}

/// Names a run for its removal after an attempt that ended so. One that is taken for one that never ran is removed only
/// as it was seen: it may begin in this moment.
pub(super) fn to_remove(run: &Run, finish: &Finish) -> RunRef {
    if finish.may_have_run || run.is_over() {
        run.to_remove()
    } else {
        run.to_remove_as_it_is()
    }
}

/// One operation on one object: what differs from other operations.
pub(super) trait Operate {
    /// The steps that only its object has.
    type Own;

    fn progress(&self) -> &Progress<'_>;

    /// What is done in place of another attempt, even before its time has come.
    fn instead(&self, _record: &Record) -> Option<Decision<Self::Own>> {
        None
    }

    /// The next attempt; `Err` with what to do where there can be none now.
    fn request(&self) -> Result<Start, Box<Decision<Self::Own>>>;

    /// What follows from a run that ended well; `Err` where its answer is refused.
    fn apply(&self, run: &Run, record: &Record, finish: &Finish) -> Result<Decision<Self::Own>, Finish>;

    /// The record, where an earlier attempt was taken for one that never ran, and its node says only now that it did.
    fn ran_after_all(&self, run: &Run, record: &Record) -> Option<Record> {
        ran_after_all(run, record)
    }

    /// What is done while the run is there and has not ended.
    fn meanwhile(&self, _record: &Record) -> Option<Decision<Self::Own>> {
        None
    }

    /// What a run that waits for its properties is given.
    fn supplied(&self, record: &Record) -> Option<Box<Start>> {
        let progress = self.progress();
        let request = progress.run?.request().ok()?;
        Some(Box::new(Start {
            intent: progress.recorded,
            ..progress.start(progress.config?, record.clone(), request)
        }))
    }

    fn fail(&self, record: &Record, finish: &Finish) -> Decision<Self::Own> {
        Decision::Fail(self.progress().failed(record, finish))
    }

    /// What users are told for as long as it is given up, in the words of [`Self::fail`].
    fn given_up(&self, record: &Record) -> Note {
        given_up(record)
    }
}

/// What to do about an operation that has a record.
pub(super) fn drive<O: Operate>(operation: &O, record: &Record) -> Decision<O::Own> {
    let Progress { run, limits, now, .. } = *operation.progress();
    let Some(run) = run else {
        return again(operation, record);
    };
    let leaving = |say: Option<Note>| Decision::Wait {
        after: Some(limits.overdue),
        say,
    };
    match run.attempt().cmp(&record.attempt) {
        Ordering::Less => {
            return match operation.ran_after_all(run, record) {
                Some(record) => Decision::Record(Box::new(record)),
                None => removed(run, record.operation, limits, now),
            };
        }
        // What was watched of the object is older than what was watched of the run.
        Ordering::Greater => return leaving(None),
        Ordering::Equal => {}
    }
    let left = Some(elapsed(now, run.due(limits.overdue))).filter(|left| !left.is_zero());
    match (run.state(), left) {
        (State::Finished(finish), _) => ended(operation, run, record, &finish),
        (State::Leaving, _) => leaving(late_to_go(run, record.operation, limits, now)),
        (State::Running, Some(left)) => operation.meanwhile(record).unwrap_or(Decision::wait(left)),
        (State::Running, None) => {
            let text =
                "it did not end in time, and Kubernetes did not report that it was stopped: its node may be lost";
            operation.fail(record, &Finish::unseen(Category::Timeout, text, true))
        }
        (State::Waiting { why, never_ran }, left) => {
            // The node says so, and will go on saying so until somebody does something: waiting makes nothing clearer.
            let blocked = never_ran && run.node().is_some();
            let why = if why.is_empty() { "no reason given yet" } else { &why };
            let Some(left) = left else {
                let why = format!("it did not start in time: {why}");
                return operation.fail(record, &Finish::unseen(Category::Timeout, why, !never_ran));
            };
            let has_changed = run.input_state().is_some_and(|began| {
                // Nothing that could change decides a discovery, or what is undone of an orphan.
                began != InputState::Unknown && !began.is_still(&operation.progress().state)
            });
            if blocked && has_changed {
                // Such as an image that nobody can pull, and whose name was corrected since.
                let why = format!("it could not start, and what it was asked has changed since: {why}");
                return operation.fail(record, &Finish::unseen(Category::NotStarted, why, false));
            }
            if let Some(decision) = operation.meanwhile(record) {
                return decision;
            }
            let waited = elapsed(run.made(), now);
            let say = (blocked || waited >= limits.start_grace)
                .then(|| waiting(record.operation, format!("{run} has not started: {why}")));
            let after = Some(if say.is_none() {
                limits.start_grace.saturating_sub(waited).min(left)
            } else {
                left
            });
            match operation.supplied(record) {
                Some(start) => Decision::Supply {
                    start,
                    after,
                    say: say.map(|note| NotStarted {
                        note,
                        is_blocked: blocked,
                    }),
                },
                None => Decision::Wait { after, say },
            }
        }
    }
}

fn ended<O: Operate>(operation: &O, run: &Run, record: &Record, finish: &Finish) -> Decision<O::Own> {
    match finish.outcome {
        Outcome::Done => operation
            .apply(run, record, finish)
            .unwrap_or_else(|refused| operation.fail(record, &refused)),
        Outcome::Retry | Outcome::GiveUp => operation.fail(record, finish),
    }
}

/// What to do without a run: begin the next attempt, if it is time.
fn again<O: Operate>(operation: &O, record: &Record) -> Decision<O::Own> {
    if let Some(instead) = operation.instead(record) {
        return instead;
    }
    let progress = operation.progress();
    match held_back(record, &progress.state, progress.now) {
        Some(Duration::MAX) => Decision::wait_for(operation.given_up(record)),
        Some(left) => Decision::wait(left),
        None => begin(operation),
    }
}

/// Begins the next attempt.
pub(super) fn begin<O: Operate>(operation: &O) -> Decision<O::Own> {
    match operation.request() {
        Ok(start) => Decision::Start(Box::new(start)),
        Err(instead) => *instead,
    }
}

/// The record, where an earlier attempt was taken for one that never ran, and its node says only now that it did.
pub(super) fn ran_after_all(run: &Run, record: &Record) -> Option<Record> {
    ran_late(run.attempt(), run.has_started(), record)
}

/// The same of a run of this attempt, which may be gone.
pub(super) fn ran_late(attempt: u32, has_started: bool, record: &Record) -> Option<Record> {
    let is_news = attempt < record.attempt && !record.may_exist && has_started;
    is_news.then(|| Record {
        may_exist: true,
        cancelled: false,
        ..record.clone()
    })
}

/// Takes back the run of an attempt that nobody wants any more.
pub(super) fn taken_back<Own>(run: &Run, record: &Record, limits: &Limits, now: Timestamp) -> Decision<Own> {
    if let Some(record) = ran_after_all(run, record) {
        return Decision::Record(Box::new(record));
    }
    if record.cancelled && run.has_started() {
        // It ran after all.
        return Decision::Record(Box::new(Record {
            cancelled: false,
            ..record.clone()
        }));
    }
    let unmade = match run.state() {
        State::Finished(finish) => !finish.may_have_run,
        State::Waiting { never_ran, .. } => never_ran,
        State::Running | State::Leaving => false,
    };
    let is_leaving = run.leaving_since().is_some();
    if unmade && run.attempt() == record.attempt && !record.may_exist && !record.cancelled {
        // A run whose container was never made has made nothing: its image, which perhaps nobody can pull, is not
        // needed to delete that. One of an earlier attempt says nothing of this one: another controller may have begun
        // this one, and a watch that lags still shows the other.
        let record = Box::new(Record {
            cancelled: true,
            ..record.clone()
        });
        return match run.to_remove_as_it_is() {
            _ if is_leaving => Decision::Record(record),
            run => Decision::Cancel { record, run },
        };
    }
    if is_leaving {
        return removed(run, record.operation, limits, now);
    }
    let earlier = run.attempt() < record.attempt;
    Decision::Stop(vec![if record.cancelled || earlier && !record.may_exist {
        run.to_remove_as_it_is()
    } else {
        run.to_remove()
    }])
}

/// Removes a run, and waits until it is gone.
pub(super) fn removed<Own>(run: &Run, operation: Operation, limits: &Limits, now: Timestamp) -> Decision<Own> {
    if run.leaving_since().is_none() {
        return Decision::Stop(vec![run.to_remove()]);
    }
    Decision::Wait {
        after: Some(limits.overdue),
        say: late_to_go(run, operation, limits, now),
    }
}

/// What is said about a run that is being removed, once that takes long: its node does not answer.
fn late_to_go(run: &Run, operation: Operation, limits: &Limits, now: Timestamp) -> Option<Note> {
    if elapsed(run.leaving_since()?, now) < limits.overdue {
        return None;
    }
    let node = run.node().unwrap_or("?");
    let text = if run.is_over() {
        format!(
            "waits for {run}, which has ended, to be removed: node {node} does not answer, or a finalizer holds the \
             Pod; if the node is gone for good, delete the Node"
        )
    } else {
        format!("waits for {run} to end: node {node} does not answer; if it is gone for good, delete the Node")
    };
    Some(waiting(operation, text))
}

#[cfg(test)]
mod tests;
