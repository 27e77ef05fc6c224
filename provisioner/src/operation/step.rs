//! What a run's state asks for.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;

use super::decision::Decision;
use super::describe::waiting;
use super::observed::Limits;
use super::record::Record;
use crate::process::events::Note;
use crate::run::Run;
use crate::run::outcome::{Category, Finish, State};
use crate::time::elapsed;

/// What a run's state asks for.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// There is no run: it may be begun.
    None,
    /// The run is one of an earlier attempt, and has to go first.
    Leftover(&'a Run),
    Leaving(Option<Note>),
    Waiting {
        after: Duration,
        say: Option<Note>,
    },
    Running(Duration),
    /// It ended, or took too long and has to be ended.
    Ended(Finish),
}

/// Reads what has become of the run of the record's attempt.
pub(crate) fn step<'a>(run: Option<&'a Run>, record: &Record, limits: &Limits, now: Timestamp) -> Step<'a> {
    let Some(run) = run else {
        return Step::None;
    };
    let leaving = run.leaving_since();
    if run.attempt() < record.attempt {
        return match leaving {
            None => Step::Leftover(run),
            Some(_) => Step::Leaving(late_to_go(run, record.operation, limits, now)),
        };
    }
    if run.attempt() > record.attempt {
        // What was watched of the claim is older than what was watched of the run.
        return Step::Leaving(None);
    }
    let left = Some(elapsed(now, run.due(limits.overdue))).filter(|left| !left.is_zero());
    match run.state() {
        State::Finished(finish) => Step::Ended(finish),
        State::Leaving => Step::Leaving(late_to_go(run, record.operation, limits, now)),
        State::Running => match left {
            Some(left) => Step::Running(left),
            None => Step::Ended(overdue(
                "it did not end in time, and Kubernetes did not report that it was stopped: its node may be lost",
                true,
            )),
        },
        State::Waiting { why, never_ran } => {
            // The node says so, and will go on saying so until somebody does something: waiting makes nothing clearer.
            let blocked = never_ran && run.node().is_some();
            let why = if why.is_empty() {
                "no reason given yet".to_owned()
            } else {
                why
            };
            let Some(left) = left else {
                return Step::Ended(overdue(&format!("it did not start in time: {why}"), !never_ran));
            };
            let waited = elapsed(run.made(), now);
            let say = (blocked || waited >= limits.start_grace)
                .then(|| waiting(record.operation, format!("{run} has not started: {why}")));
            let after = if say.is_none() {
                limits.start_grace.saturating_sub(waited).min(left)
            } else {
                left
            };
            Step::Waiting { after, say }
        }
    }
}

fn overdue(words: &str, may_have_run: bool) -> Finish {
    Finish {
        outcome: Outcome::Retry,
        category: Category::Timeout,
        why: words.to_owned(),
        may_have_run,
        started: false,
        message: String::new(),
    }
}

/// Removes a run, and waits until it is gone.
pub(crate) fn removed<Own>(run: &Run, operation: Operation, limits: &Limits, now: Timestamp) -> Decision<Own> {
    if run.leaving_since().is_none() {
        return Decision::Stop(run.to_remove());
    }
    Decision::Wait {
        after: Some(limits.overdue),
        say: late_to_go(run, operation, limits, now),
    }
}

/// What is said about a run that is being removed, once that takes long: its node does not answer.
pub(crate) fn late_to_go(run: &Run, operation: Operation, limits: &Limits, now: Timestamp) -> Option<Note> {
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
