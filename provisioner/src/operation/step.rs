//! How far a run is: what its Pod's state asks for.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::outcome::Outcome;

use super::observed::Limits;
use super::record::Record;
use super::time::{elapsed, later};
use super::words::waiting;
use crate::process::events::Note;
use crate::run::outcome::{Category, Finish, PodState, created, observe};
use crate::run::pod;

/// What a Pod's state asks for.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// There is none: it may be made.
    None,
    /// One of an earlier attempt: it has to go first.
    Leftover(&'a Pod),
    /// It is going.
    Leaving(Option<Note>),
    /// It has not started.
    Waiting { after: Duration, say: Option<Note> },
    /// It runs.
    Running(Duration),
    /// It ended, or took too long and has to be ended.
    Ended(Finish),
}

/// Reads what has become of the Pod of the record's attempt.
pub(crate) fn step<'a>(pod: Option<&'a Pod>, record: &Record, limits: &Limits, now: Timestamp) -> Step<'a> {
    let Some(pod) = pod else {
        return Step::None;
    };
    let state = observe(pod);
    let leaving = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    if pod::attempt(pod) < record.attempt {
        return match leaving {
            None => Step::Leftover(pod),
            Some(since) => Step::Leaving(stuck(pod, record, since, limits, now)),
        };
    }
    if pod::attempt(pod) > record.attempt {
        // What was watched of the claim is older than what was watched of the Pod.
        return Step::Leaving(None);
    }
    let clock = Clock::of(pod, limits);
    match state {
        PodState::Finished(finish) => Step::Ended(finish),
        PodState::Leaving => Step::Leaving(leaving.and_then(|since| stuck(pod, record, since, limits, now))),
        PodState::Running => match clock.left(now) {
            Some(left) => Step::Running(left),
            None => Step::Ended(overdue(
                "it did not end in time and was not seen to be stopped: its node may be lost",
                true,
            )),
        },
        PodState::Waiting { why, never_ran } => {
            // The node's own word, which is final until somebody does something: nothing gets clearer by waiting.
            let blocked = never_ran && pod::node(pod).is_some();
            let why = if why.is_empty() {
                "no reason given yet".to_owned()
            } else {
                why
            };
            let Some(left) = clock.left(now) else {
                return Step::Ended(overdue(&format!("it did not start in time: {why}"), !never_ran));
            };
            let waited = elapsed(created(pod), now);
            let say = (blocked || waited >= limits.start_grace).then(|| {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                waiting(
                    record.operation,
                    format!("Pod {namespace}/{name} has not started: {why}"),
                )
            });
            let after = if say.is_none() {
                limits.start_grace.saturating_sub(waited).min(left)
            } else {
                left
            };
            Step::Waiting { after, say }
        }
    }
}

/// When a Pod has to be over.
struct Clock {
    end: Timestamp,
}

impl Clock {
    fn of(pod: &Pod, limits: &Limits) -> Self {
        let active = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.active_deadline_seconds)
            .unwrap_or(0);
        let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        // The kubelet's own clock begins when it takes the Pod; one that no kubelet has taken is ours alone to end.
        let (start, slack) = started.map_or((created(pod), Duration::ZERO), |time| (time.0, limits.overdue));
        Self {
            end: later(start, Duration::from_secs(active.unsigned_abs()) + slack),
        }
    }

    fn left(&self, now: Timestamp) -> Option<Duration> {
        Some(elapsed(now, self.end)).filter(|left| !left.is_zero())
    }
}

fn overdue(words: &str, may_have_run: bool) -> Finish {
    Finish {
        outcome: Outcome::Retry,
        category: Category::Timeout,
        words: words.to_owned(),
        may_have_run,
        started: false,
        message: String::new(),
    }
}

/// A Pod that takes long to go: its node does not answer.
fn stuck(pod: &Pod, record: &Record, since: Timestamp, limits: &Limits, now: Timestamp) -> Option<Note> {
    if elapsed(since, now) < limits.overdue {
        return None;
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let node = pod::node(pod).unwrap_or("?");
    Some(waiting(
        record.operation,
        format!(
            "waits for Pod {namespace}/{name} to end: node {node} does not answer; if it is gone for good, delete the Node"
        ),
    ))
}
