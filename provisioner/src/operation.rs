//! What is done to a volume. Each operation is one file: a pure `plan` from what is observed to a [`Decision`]. What carries
//! a decision out is in [`crate::apply`].

pub mod backoff;
pub mod delete;
pub mod provision;
pub mod record;
pub mod request;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;
use sha2::{Digest, Sha256};

use self::record::Record;
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::operation::backoff::Backoff;
use crate::process::events::{Note, reasons};
use crate::run::outcome::{Category, Finish, PodState, created, observe};
use crate::run::pod;
use crate::volume::topology::Node;

/// Limits of waiting.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Between two attempts.
    pub backoff: Backoff,
    /// A Pod that has not started after this long is spoken of, also if its node has not said why.
    pub start_grace: Duration,
    /// A claim of a class without a ConfigMap may be another Mooring's for this long.
    pub claim_grace: Duration,
    /// So long another Mooring is given for what is its own, before it is spoken of.
    pub elsewhere_grace: Duration,
    /// A Pod younger than this may belong to what has not been seen yet.
    pub orphan_age: Duration,
    /// How much longer than its `timeout` a Pod may take to be seen ended, before its node is taken for lost.
    pub overdue: Duration,
    /// A node that is not in the cluster may be back within this time: its Node object was deleted and is made again, and its disk is as it
    /// was.
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
            overdue: Duration::from_mins(1),
            node_grace: Duration::from_hours(1),
        }
    }
}

/// A Pod to be deleted, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: no other Pod of that name is meant.
    pub uid: String,
    /// Only if it is still as it was seen.
    pub resource_version: Option<String>,
}

impl PodRef {
    /// This very Pod, whatever has become of it since.
    pub fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            resource_version: None,
        }
    }

    /// This very Pod, unless anything has become of it since.
    pub fn exactly(pod: &Pod) -> Self {
        Self {
            resource_version: pod.metadata.resource_version.clone(),
            ..Self::of(pod)
        }
    }
}

/// What was known of a provisioning Pod in the moment when it went. A kubelet says how a Pod ended and lets it go at
/// once, so nobody may have looked in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departed {
    /// The attempt that it was made for.
    pub attempt: u32,
    /// How it ended.
    pub end: Finish,
}

impl Departed {
    /// Reads a Pod as it was last.
    pub fn of(pod: &Pod) -> Self {
        let end = match observe(pod) {
            PodState::Finished(end) => end,
            state => Finish {
                outcome: Outcome::Retry,
                category: Category::Node,
                words: "its Pod was deleted before it had ended".to_owned(),
                may_have_run: true,
                started: state == PodState::Running,
                message: String::new(),
            },
        };
        Self {
            attempt: pod::attempt(pod),
            end,
        }
    }
}

/// Where it is written, before there is a Pod, that a run is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// In the record, which has to be written first: it is new or has changed.
    ToRecord,
    /// In the record, as it stands.
    Recorded,
    /// In the PV itself: it is released and Mooring's finalizer holds it. That is all that a first attempt to delete it needs;
    /// a record begins with the first failure.
    Released,
    /// In the Pod that is the record, see [`crate::controllers::orphan`].
    Pod,
}

/// A run to be begun.
#[derive(Debug, Clone)]
pub struct Start {
    /// What to run.
    pub request: Request,
    /// By which ConfigMap.
    pub config: Arc<ProvisionerConfig>,
    /// The record of it.
    pub record: Record,
    /// Where it is written that this is to be done.
    pub intent: Intent,
    /// The PV whose deletion this is, by name and uid: the Pod belongs to it and goes with it.
    pub owner: Option<(String, String)>,
    /// The only node that it may run on.
    pub node: Option<String>,
    /// The state that it is tried with: see [`Record::tried`].
    pub state: String,
}

/// An attempt that failed.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The record to write.
    pub record: Record,
    /// What to tell the user.
    pub say: Note,
    /// The Pod to remove.
    pub pod: Option<PodRef>,
    /// For metrics.
    pub category: Category,
    /// When to come back.
    pub after: Option<Duration>,
}

/// What to do. Everything here is done at once or not at all; the next step comes with the next change.
#[derive(Debug, Clone)]
pub enum Decision {
    /// Nothing, until something changes.
    Rest,
    /// Wait for what a watch or the clock will tell.
    Wait {
        /// When to come back, if nothing has changed.
        after: Option<Duration>,
        /// What to tell meanwhile, once.
        say: Option<Note>,
    },
    /// Begin a run: the record, then the Pod, then its Secret.
    Start(Box<Start>),
    /// A Pod is there but has not started: it may still lack its Secret.
    Supply {
        /// What it is to run.
        start: Box<Start>,
        /// When to come back.
        after: Option<Duration>,
        /// What to tell meanwhile, once.
        say: Option<Note>,
    },
    /// Write the record: something has been learnt that must not be forgotten.
    Note(Box<Record>),
    /// Write down that an attempt failed, tell it, remove the Pod.
    Fail(Box<Failed>),
    /// Remove a Pod.
    Stop(PodRef),
    /// Remove the Pods that a finished or undone operation left.
    Tidy(Vec<PodRef>),
    /// Read the claim's PV from the API, not from what was watched.
    LookUp,
    /// Make the PV that the image described.
    MakeVolume(Box<PersistentVolume>),
    /// The volume is what was asked for.
    Accept(Box<provision::Accept>),
    /// The volume is not what was asked for: write that down, remove its PVs, tell it.
    Refuse(Box<provision::Refuse>),
    /// Let the scheduler choose another node.
    Reschedule(Box<provision::Reschedule>),
    /// The volume is gone: remove its PVs, and let the claim go or try again.
    Undone(Box<delete::Undone>),
    /// A PV whose volume is gone, or is not ours to delete: let it go.
    LetGo(Box<delete::LetGo>),
}

impl Decision {
    pub(crate) fn wait_for(say: Note) -> Self {
        Self::Wait {
            after: None,
            say: Some(say),
        }
    }

    pub(crate) fn wait(after: Duration) -> Self {
        Self::Wait {
            after: Some(after),
            say: None,
        }
    }
}

/// What is known of a claim and all that belongs to it.
pub struct ObservedClaim<'a> {
    /// The claim.
    pub claim: &'a PersistentVolumeClaim,
    /// Its record.
    pub record: Option<&'a Record>,
    /// Its class.
    pub class: Option<&'a StorageClass>,
    /// The ConfigMap in force for it.
    pub config: &'a Result<Arc<ProvisionerConfig>, NoConfig>,
    /// Since when it is known to want a volume and to have no ConfigMap to go by; now, if it is not so.
    pub unserved_since: Timestamp,
    /// The Pod named for its provisioning.
    pub provision_pod: Option<&'a Pod>,
    /// The Pod named for its deletion.
    pub delete_pod: Option<&'a Pod>,
    /// How the last Pod of its provisioning was when it went, if that was seen.
    pub departed: Option<&'a Departed>,
    /// The PVs that bear its name or its uid.
    pub volumes: &'a [Arc<PersistentVolume>],
    /// `volumes` was read from the API just now.
    pub looked_up: bool,
    /// The nodes of the cluster.
    pub nodes: &'a dyn Fn(&str) -> Option<Node>,
    /// Address of the Kubernetes API, for the image.
    pub kube_api: &'a str,
    /// Limits of waiting.
    pub limits: &'a Limits,
}

impl ObservedClaim<'_> {
    /// The claim's uid; without one (which no API server leaves out) nothing can be named.
    pub(crate) fn uid(&self) -> &str {
        self.claim.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The node that was selected for it.
    pub(crate) fn selected(&self) -> Option<&str> {
        self.annotation(annotations::SELECTED_NODE)
            .filter(|node| !node.is_empty())
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it waits for a Pod to be scheduled.
    pub(crate) fn waits_for_consumer(&self) -> bool {
        let mode = self.class.and_then(|class| class.volume_binding_mode.as_deref());
        mode == Some("WaitForFirstConsumer")
    }
}

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

/// Time from one moment to a later one; zero if it isn't later.
pub(crate) fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

/// A moment after another; to the whole second above, as the API keeps time.
pub(crate) fn later(from: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// How long a record still has to wait, if it does; [`Duration::MAX`] for good. Not at all once what it was tried with has
/// changed.
pub(crate) fn held_back(record: &Record, state: &str, now: Timestamp) -> Option<Duration> {
    match (record.tried.is_empty() || record.tried == state, record.gave_up) {
        (false, _) => None,
        (true, true) => Some(Duration::MAX),
        (true, false) => backing_off(record, now),
    }
}

/// The record of an attempt that begins: for as long as there is a `not-before`, it has not, and has made nothing.
pub(crate) fn begun(record: &Record) -> Record {
    Record {
        gave_up: false,
        not_before: None,
        ..record.clone()
    }
}

/// The wait of a record, whatever has changed since.
pub(crate) fn backing_off(record: &Record, now: Timestamp) -> Option<Duration> {
    let left = elapsed(now, record.not_before?);
    Some(left).filter(|left| !left.is_zero())
}

/// The record, the words and the wait after an attempt that failed. `state` is what has to change after exit 78.
pub(crate) fn failed(
    record: &Record,
    finish: &Finish,
    uid: &str,
    state: String,
    limits: &Limits,
    now: Timestamp,
    pod: Option<PodRef>,
) -> Failed {
    let delay = limits.backoff.delay(record.attempt, uid);
    let mut next = record.failed(&finish.words, whole_seconds(later(now, delay)), finish.may_have_run);
    next.tried = state;
    let give_up = finish.outcome == Outcome::GiveUp;
    let (what, mut reason) = match record.operation {
        Operation::Delete => ("deleting", reasons::DELETE_FAILED),
        _ => ("provisioning", reasons::FAILED),
    };
    let then = if give_up {
        next.gave_up = true;
        next.not_before = None;
        reason = reasons::GIVEN_UP;
        "not tried again until the ConfigMap or the claim changes"
    } else {
        "it will be tried again"
    };
    if finish.category == Category::Timeout {
        reason = reasons::TIMED_OUT;
    }
    Failed {
        record: next,
        say: Note::warning(
            reason,
            action(record.operation),
            // The same words for the same failure make one Event with a count; the attempt stands in the record.
            format!("{what} failed: {}; {then}", finish.words),
        ),
        pod,
        category: finish.category,
        after: (!give_up).then_some(delay),
    }
}

/// An Event's `action`.
pub(crate) fn action(operation: Operation) -> &'static str {
    match operation {
        Operation::Delete => "Delete",
        _ => "Provision",
    }
}

/// Tells what an operation waits for.
pub(crate) fn waiting(operation: Operation, text: impl Into<String>) -> Note {
    Note::warning(reasons::WAITING, action(operation), text)
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A hash of all that decides a run: a change of it ends a giving-up.
pub(crate) fn state_of(
    config: &ProvisionerConfig,
    claim: Option<&PersistentVolumeClaim>,
    class: Option<&StorageClass>,
) -> String {
    let mut hash = Sha256::new().chain_update(&config.fingerprint);
    if let Some(claim) = claim {
        hash.update(serde_json::json!(claim.spec).to_string());
        for (key, value) in claim.metadata.annotations.iter().flatten() {
            // Mooring's own record changes with every attempt, and Kubernetes' notes by themselves.
            let own = key == annotations::OPERATION || key.contains("kubernetes.io/");
            if !own || key == annotations::SELECTED_NODE {
                hash.update(format!("{key}={value}\n"));
            }
        }
    }
    if let Some(class) = class {
        hash.update(serde_json::json!([class.parameters, class.mount_options]).to_string());
    }
    hash.finalize()
        .iter()
        .take(8)
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
pub(crate) mod tests;
