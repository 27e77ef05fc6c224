//! How far a run is and what became of it, read from its Pod's status alone.

pub mod last_words;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::named;
use mooring_contract::outcome::Outcome;
use mooring_contract::worker::{Report, RunEnd, take_statement};

use self::last_words::last_words;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The image has not started.
    Waiting {
        /// Why, in the kubelet's or the scheduler's words; empty if they have not said.
        why: String,
        /// Nothing can have run: no node has it yet, or its node says that the container can't start.
        never_ran: bool,
    },
    Running,
    Finished(Finish),
    /// It is being removed, and how it ended is not known.
    Leaving,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Done, to be tried again, or given up.
    pub outcome: Outcome,
    /// For metrics: one of a fixed few.
    pub category: Category,
    /// The container's last words, or the reason why it has none; for people.
    pub why: String,
    /// The container may have run, so it may have made something.
    pub may_have_run: bool,
    /// The container certainly ran.
    pub started: bool,
    /// What the container wrote as its termination message, without what the image states of itself.
    pub message: String,
    /// The image states that its containers can be workers.
    pub can_be_worker: bool,
}

impl Finish {
    /// The end of a run whose container was not seen to end: it is tried again.
    pub(crate) fn unseen(category: Category, why: impl Into<String>, may_have_run: bool) -> Self {
        Self {
            outcome: Outcome::Retry,
            category,
            why: why.into(),
            may_have_run,
            started: false,
            message: String::new(),
            can_be_worker: false,
        }
    }

    /// As it ended, but with something wrong in what it was asked or has answered: the run is repeated.
    pub(crate) fn refused(&self, why: String) -> Self {
        Self {
            outcome: Outcome::Retry,
            category: Category::Refused,
            why,
            ..self.clone()
        }
    }
}

named! {
    /// Why a run ended as it did; a metric's label, so there are few.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Category {
        /// Exit 0.
        Done = "done",
        /// Exit 75.
        Temporary = "temporary",
        /// Exit 78.
        Config = "config",
        /// Any other exit code.
        Failed = "failed",
        OutOfMemory = "out-of-memory",
        /// The limit `timeout` ended it.
        Timeout = "timeout",
        /// The node was lost, drained, or evicted it.
        Node = "node",
        /// It never started.
        NotStarted = "not-started",
        /// It was done, but what it made was refused.
        Refused = "refused",
        /// The API refused what Mooring asked for.
        Api = "api",
    }
}

impl Category {
    /// Whether the image ended by itself. All other ends say nothing of it, or may not.
    pub fn is_own_end(self) -> bool {
        match self {
            Self::Done | Self::Temporary | Self::Config | Self::Failed | Self::Refused => true,
            Self::OutOfMemory | Self::Timeout | Self::Node | Self::NotStarted | Self::Api => false,
        }
    }
}

/// Reasons for which a kubelet turns a Pod away before any container starts (its admission handlers).
const TURNED_AWAY: [&str; 8] = [
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfpods",
    "UnexpectedAdmissionError",
    "NodeShutdown",
];

/// Waiting reasons after which a container has certainly not run (restartPolicy is Never, so there was no earlier one).
const CANNOT_START: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RegistryUnavailable",
];

/// The kubelet's word for a container that it does not find.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// Reads a Pod's status.
pub(super) fn observe(pod: &Pod) -> State {
    let leaving = pod.metadata.deletion_timestamp.is_some();
    let status = pod.status.clone().unwrap_or_default();
    let container = status.container_statuses.as_deref().and_then(<[_]>::first);
    let reason = status.reason.as_deref().unwrap_or_default();
    if let Some((container, terminated)) = container.and_then(|container| Some((container, terminated(container)?))) {
        let outside = from_outside(&status, leaving);
        return State::Finished(from_container(container, terminated, reason, outside.as_deref()));
    }
    match status.phase.as_deref() {
        Some("Failed") => {
            let outside = from_outside(&status, leaving);
            State::Finished(without_container(&status, reason, has_node(pod), outside))
        }
        // A Pod does not succeed without a terminated container; if a kubelet says so, nothing is known: try again.
        Some("Succeeded") => {
            let why = "the Pod ended without a container status";
            State::Finished(Finish::unseen(Category::Node, why, true))
        }
        _ if leaving => State::Leaving,
        _ if container.is_some_and(running) => State::Running,
        _ => waiting(pod, container),
    }
}

/// Reads how far the run of this number is that a worker has, by its Pod and by what it said last.
pub(super) fn observe_on_worker(pod: &Pod, number: u64, report: Option<&Report>) -> State {
    let of_this = report.filter(|report| report.number == number);
    if let Some(end) = of_this.and_then(|report| report.ended.as_ref()) {
        return State::Finished(from_worker(end));
    }
    match observe(pod) {
        // Whatever it ended with is no answer of the run.
        State::Finished(end) => {
            let why = if end.why.is_empty() {
                "exit code 0".to_owned()
            } else {
                end.why
            };
            let why = format!("its worker ended: {why}");
            State::Finished(Finish::unseen(Category::Node, why, true))
        }
        State::Leaving => State::Leaving,
        // Another controller may be about to give it: that nothing ran is never certain.
        State::Running if report.is_some_and(|report| report.number < number) => State::Waiting {
            why: "its worker has not been given it yet".to_owned(),
            never_ran: false,
        },
        State::Running | State::Waiting { .. } => State::Running,
    }
}

/// How a run ended, by its worker's word: as its container would have.
fn from_worker(end: &RunEnd) -> Finish {
    let terminated = ContainerStateTerminated {
        exit_code: end.exit_code,
        message: Some(end.message.clone()),
        started_at: Some(Time(Timestamp::UNIX_EPOCH)),
        ..ContainerStateTerminated::default()
    };
    let reason = if end.timed_out { "DeadlineExceeded" } else { "" };
    from_container(&ContainerStatus::default(), &terminated, reason, None)
}

fn has_node(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .is_some_and(|node| !node.is_empty())
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

fn running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

/// Whether a kubelet says that a Pod ended and its container had never been made. It asks the runtime once more when
/// all that ran has been stopped, and what it doesn't find then gets the reason below; but one that it had found before
/// has an id, an earlier state or a count. A Pod that was evicted or lost proves nothing: others may have cleaned up
/// after it.
fn never_made(container: &ContainerStatus, terminated: &ContainerStateTerminated, pod_reason: &str) -> bool {
    let empty = |id: Option<&str>| id.is_none_or(str::is_empty);
    let before = container.last_state.as_ref();
    terminated.reason.as_deref() == Some(STATUS_UNKNOWN)
        && matches!(pod_reason, "" | "DeadlineExceeded")
        && empty(terminated.container_id.as_deref())
        && empty(container.container_id.as_deref())
        && terminated.started_at.is_none()
        && container.started != Some(true)
        && container.restart_count == 0
        && before.is_none_or(|state| state.running.is_none() && state.terminated.is_none())
}

/// Who ended a Pod that did not end by itself, if that is known.
fn from_outside(status: &PodStatus, leaving: bool) -> Option<String> {
    let disrupted = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True");
    let why = disrupted.map(|condition| said(condition.reason.as_deref(), condition.message.as_deref()));
    match why {
        Some(why) if !why.is_empty() => Some(format!("its Pod was taken away ({why})")),
        Some(_) => Some("its Pod was taken away".to_owned()),
        None => leaving.then(|| "its Pod was deleted".to_owned()),
    }
}

fn from_container(
    container: &ContainerStatus,
    terminated: &ContainerStateTerminated,
    pod_reason: &str,
    outside: Option<&str>,
) -> Finish {
    let (message, can_be_worker) = take_statement(terminated.message.clone().unwrap_or_default());
    let said = last_words(&message);
    let container_reason = terminated.reason.as_deref().unwrap_or_default();
    let outcome = Outcome::from_exit_code(terminated.exit_code);
    let started = terminated.started_at.is_some();
    let never_made = never_made(container, terminated, pod_reason);
    let (category, why) = match (outcome, pod_reason, container_reason) {
        (Outcome::Done, ..) => (Category::Done, String::new()),
        (_, "DeadlineExceeded", _) if never_made => (
            Category::Timeout,
            "the limit \"timeout\" ended it before its container was created (pulling its image may take long)".into(),
        ),
        _ if never_made => (
            Category::NotStarted,
            "the Pod ended before its container was created".into(),
        ),
        (Outcome::GiveUp, ..) => (Category::Config, "exit code 78".into()),
        (_, "DeadlineExceeded", _) => (Category::Timeout, "ended by the limit \"timeout\"".into()),
        (_, _, "OOMKilled") => (Category::OutOfMemory, "out of memory".into()),
        (_, "Evicted" | "NodeLost" | "NodeShutdown" | "Terminated" | "Preempting" | "Preempted", _)
        | (_, _, STATUS_UNKNOWN) => {
            let why = if pod_reason.is_empty() {
                container_reason
            } else {
                pod_reason
            };
            (Category::Node, format!("lost with its node ({why})"))
        }
        (_, _, "ContainerCannotRun" | "StartError") => (Category::NotStarted, "the container could not start".into()),
        _ if terminated.exit_code == mooring_contract::outcome::EX_TEMPFAIL => {
            (Category::Temporary, "exit code 75".into())
        }
        // By a signal: 128 and its number.
        _ if terminated.exit_code > 128 && outside.is_some() => {
            (Category::Node, outside.unwrap_or_default().to_owned())
        }
        _ => (Category::Failed, format!("exit code {}", terminated.exit_code)),
    };
    let words = match (why.is_empty(), said.is_empty()) {
        (true, _) => said,
        // The words are the kubelet's own then.
        (false, _) if never_made => why,
        (false, true) => format!("{why}; it printed nothing"),
        (false, false) => format!("{why}: {said}"),
    };
    Finish {
        outcome,
        category,
        why: words,
        // A container whose fate is unknown may have run.
        may_have_run: started || category != Category::NotStarted && !never_made,
        started,
        message,
        can_be_worker,
    }
}

/// A Pod that failed without a terminated container: evicted, out of time before it started, or turned away.
fn without_container(status: &PodStatus, reason: &str, on_node: bool, outside: Option<String>) -> Finish {
    let message = status.message.as_deref().unwrap_or_default();
    let turned_away = TURNED_AWAY.contains(&reason);
    let category = match reason {
        "DeadlineExceeded" => Category::Timeout,
        _ if turned_away => Category::NotStarted,
        _ => Category::Node,
    };
    let container = status.container_statuses.as_deref().and_then(<[_]>::first);
    let blocked = container.is_some_and(cannot_start);
    let waited = container
        .and_then(|container| container.state.as_ref()?.waiting.as_ref())
        .map(|waiting| said(waiting.reason.as_deref(), waiting.message.as_deref()));
    let words = match (category, waited) {
        _ if reason.is_empty() && outside.is_some() => outside.unwrap_or_default(),
        (Category::Timeout, Some(why)) => format!("not started within the limit \"timeout\": {why}"),
        (Category::Timeout, None) => "ended by the limit \"timeout\"".to_owned(),
        _ => said(
            Some(reason).filter(|reason| !reason.is_empty()).or(Some("failed")),
            Some(message),
        ),
    };
    Finish::unseen(category, words, on_node && !turned_away && !blocked)
}

fn cannot_start(container: &ContainerStatus) -> bool {
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting
        .and_then(|waiting| waiting.reason.as_deref())
        .is_some_and(|reason| CANNOT_START.contains(&reason))
}

/// A reason and its message in one line.
fn said(reason: Option<&str>, message: Option<&str>) -> String {
    match (reason.unwrap_or(""), message.unwrap_or("")) {
        ("", message) => last_words(message),
        (reason, "") => reason.to_owned(),
        (reason, message) => last_words(&format!("{reason}: {message}")),
    }
}

fn waiting(pod: &Pod, container: Option<&ContainerStatus>) -> State {
    if let Some(waiting) = container.and_then(|container| container.state.as_ref()?.waiting.as_ref()) {
        return State::Waiting {
            // Such as ContainerCreating, while a volume can't be mounted.
            why: said(
                waiting.reason.as_deref(),
                waiting.message.as_deref().or(Some("see the Events of the Pod")),
            ),
            never_ran: container.is_some_and(cannot_start),
        };
    }
    let scheduled = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    State::Waiting {
        why: scheduled.map_or_else(String::new, |condition| {
            said(condition.reason.as_deref(), condition.message.as_deref())
        }),
        never_ran: !has_node(pod),
    }
}

#[cfg(test)]
mod tests {
    use super::{Category, State, observe};
    use k8s_openapi::api::core::v1::Pod;
    use mooring_contract::outcome::Outcome;
    use mooring_contract::worker::{Report, RunEnd};
    use serde_json::{Value, json};

    fn pod(node: &str, status: &Value) -> Pod {
        serde_json::from_value(json!({"spec": {"nodeName": node, "containers": []}, "status": status})).unwrap()
    }

    fn terminated(state: &Value) -> Value {
        let mut state = state.clone();
        state["startedAt"] = json!("2026-11-21T00:00:00Z");
        json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": state}}]})
    }

    fn finish(status: &Value) -> super::Finish {
        match observe(&pod("n", status)) {
            State::Finished(finish) => finish,
            other => panic!("not finished: {other:?}"),
        }
    }

    #[test]
    fn exit_codes_and_last_words_are_read() {
        let table = [
            (
                json!({"exitCode": 0, "message": "{}"}),
                Outcome::Done,
                Category::Done,
                "{}",
            ),
            (
                json!({"exitCode": 75, "message": "array busy\n"}),
                Outcome::Retry,
                Category::Temporary,
                "exit code 75: array busy",
            ),
            (
                json!({"exitCode": 78}),
                Outcome::GiveUp,
                Category::Config,
                "exit code 78; it printed nothing",
            ),
            (
                json!({"exitCode": 3, "message": "a\nb"}),
                Outcome::Retry,
                Category::Failed,
                "exit code 3: a\nb",
            ),
            (
                json!({"exitCode": 137, "reason": "OOMKilled"}),
                Outcome::Retry,
                Category::OutOfMemory,
                "out of memory; it printed nothing",
            ),
            (
                json!({"exitCode": 137, "reason": "ContainerStatusUnknown"}),
                Outcome::Retry,
                Category::Node,
                "lost with its node (ContainerStatusUnknown); it printed nothing",
            ),
        ];
        for (state, outcome, category, words) in table {
            let finish = finish(&terminated(&state));
            assert_eq!(
                (finish.outcome, finish.category, finish.why.as_str()),
                (outcome, category, words)
            );
            assert!(finish.may_have_run);
        }
    }

    #[test]
    fn a_run_on_a_worker_is_what_the_worker_says_and_its_pod_s_end_is_no_answer() {
        let running = json!({"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
            "ready": true, "restartCount": 0, "state": {"running": {}}}]});
        let said = |number, end: Option<(i32, bool)>| Report {
            number,
            ended: end.map(|(exit_code, timed_out)| RunEnd {
                exit_code,
                message: "said".to_owned(),
                timed_out,
            }),
        };
        let state =
            |status: &Value, report: Option<Report>| super::observe_on_worker(&pod("n", status), 5, report.as_ref());
        assert_eq!(state(&running, None), State::Running, "nothing is known of it");
        assert_eq!(state(&running, Some(said(5, None))), State::Running);
        let not_given = state(&running, Some(said(4, Some((0, false)))));
        assert!(
            matches!(not_given, State::Waiting { never_ran: false, .. }),
            "{not_given:?}"
        );
        for (end, category, why) in [
            ((0, false), Category::Done, "said"),
            ((75, false), Category::Temporary, "exit code 75: said"),
            ((78, false), Category::Config, "exit code 78: said"),
            ((137, true), Category::Timeout, "ended by the limit \"timeout\": said"),
        ] {
            // Also after its Pod has gone on to end.
            for status in [&running, &terminated(&json!({"exitCode": 137}))] {
                let State::Finished(finish) = state(status, Some(said(5, Some(end)))) else {
                    panic!("{end:?}")
                };
                assert_eq!((finish.category, finish.why.as_str()), (category, why));
                assert!(finish.started && finish.may_have_run);
            }
        }
        for code in [0, 78, 137] {
            let State::Finished(finish) = state(&terminated(&json!({"exitCode": code})), Some(said(5, None))) else {
                panic!("{code}")
            };
            assert_eq!(
                (finish.outcome, finish.category),
                (Outcome::Retry, Category::Node),
                "{code}"
            );
            assert!(
                finish.may_have_run && finish.why.starts_with("its worker ended: "),
                "{}",
                finish.why
            );
        }
    }

    #[test]
    fn a_run_that_beat_its_deadline_is_done() {
        let mut status = terminated(&json!({"exitCode": 0}));
        status["reason"] = json!("DeadlineExceeded");
        assert_eq!(finish(&status).outcome, Outcome::Done);
        let mut status = terminated(&json!({"exitCode": 143}));
        status["reason"] = json!("DeadlineExceeded");
        assert_eq!(finish(&status).category, Category::Timeout);
    }

    #[test]
    fn who_ended_a_pod_from_outside_is_said() {
        let killed = terminated(&json!({"exitCode": 143}));
        assert_eq!(finish(&killed).why, "exit code 143; it printed nothing");
        let mut evicted = killed.clone();
        evicted["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting"}]);
        let evicted = finish(&evicted);
        assert_eq!(
            (evicted.category, evicted.why.as_str()),
            (
                Category::Node,
                "its Pod was taken away (EvictionByEvictionAPI: Eviction API: evicting); it printed nothing"
            )
        );
        assert!(evicted.may_have_run);
        let mut deleted = pod("n", &killed);
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-21T00:00:00Z")).unwrap();
        assert!(matches!(observe(&deleted), State::Finished(end) if end.why.starts_with("its Pod was deleted")));
        // One that ended by itself says why by itself.
        let mut own = pod("n", &terminated(&json!({"exitCode": 75, "message": "busy"})));
        own.metadata
            .deletion_timestamp
            .clone_from(&deleted.metadata.deletion_timestamp);
        assert!(matches!(observe(&own), State::Finished(end) if end.why == "exit code 75: busy"));
    }

    #[test]
    fn a_container_that_was_never_made_made_nothing() {
        // As a kubelet writes it of a Pod that is deleted while its image is being pulled.
        let unknown = json!({"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": null,
            "message": "The container could not be located when the pod was terminated"});
        let status = |change: &Value| {
            let mut container = json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "started": false, "lastState": {}, "state": {"terminated": unknown}});
            for (key, value) in change.as_object().unwrap() {
                container[key] = value.clone();
            }
            json!({"phase": "Failed", "containerStatuses": [container]})
        };
        let never = finish(&status(&json!({})));
        assert_eq!((never.category, never.may_have_run), (Category::NotStarted, false));
        let mut late = status(&json!({}));
        late["reason"] = json!("DeadlineExceeded");
        let late = finish(&late);
        assert_eq!((late.category, late.may_have_run), (Category::Timeout, false));
        assert!(
            late.why.contains("pull") && !late.why.contains("located"),
            "{}",
            late.why
        );
        for traced in [
            json!({"containerID": "containerd://1"}),
            json!({"restartCount": 1}),
            json!({"started": true}),
            json!({"lastState": {"terminated": unknown}}),
        ] {
            assert!(finish(&status(&traced)).may_have_run, "{traced}");
        }
        let mut evicted = status(&json!({}));
        evicted["reason"] = json!("Evicted");
        assert!(finish(&evicted).may_have_run);
    }

    #[test]
    fn what_an_image_states_of_itself_is_no_part_of_its_answer() {
        let table = [
            (
                r#"{"mooring.dev/workers":true,"source":"x"}"#,
                r#"{"source":"x"}"#,
                true,
            ),
            (r#"{"mooring.dev/workers":true}"#, "", true),
            (r#"{"source":"x"}"#, r#"{"source":"x"}"#, false),
        ];
        for (message, answer, can_be_worker) in table {
            let end = RunEnd {
                exit_code: 0,
                message: message.to_owned(),
                timed_out: false,
            };
            for finish in [
                finish(&terminated(&json!({"exitCode": 0, "message": message}))),
                super::from_worker(&end),
            ] {
                assert_eq!(
                    (finish.message.as_str(), finish.why.as_str(), finish.can_be_worker),
                    (answer, answer, can_be_worker)
                );
            }
        }
    }

    #[test]
    fn a_pod_without_a_container_says_its_own_reason() {
        let evicted = finish(&json!({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}));
        assert_eq!((evicted.category, evicted.may_have_run), (Category::Node, true));
        assert_eq!(evicted.why, "Evicted: disk pressure");
        // Its node has left the cluster, and nobody ends the container in its status.
        let collected = finish(&json!({"phase": "Failed",
            "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "no node"}],
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {}}}]}));
        assert_eq!((collected.category, collected.may_have_run), (Category::Node, true));
        assert_eq!(collected.why, "its Pod was taken away (DeletionByPodGC: no node)");
        let away = finish(&json!({"phase": "Failed", "reason": "OutOfcpu", "message": "no"}));
        assert_eq!((away.category, away.may_have_run), (Category::NotStarted, false));
        let late = finish(
            &json!({"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": [
            {"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
        );
        assert_eq!((late.category, late.may_have_run), (Category::Timeout, false));
    }

    #[test]
    fn what_holds_a_pod_up_is_said() {
        let pull = json!({"phase": "Pending", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
            "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]});
        assert_eq!(
            observe(&pod("n", &pull)),
            State::Waiting {
                why: "ImagePullBackOff: no such image".into(),
                never_ran: true
            }
        );
        let creating = json!({"phase": "Pending", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]});
        assert_eq!(
            observe(&pod("n", &creating)),
            State::Waiting {
                why: "ContainerCreating: see the Events of the Pod".into(),
                never_ran: false
            }
        );
        let unscheduled = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
        assert_eq!(
            observe(&pod("", &unscheduled)),
            State::Waiting {
                why: "Unschedulable: 0/2 nodes are available".into(),
                never_ran: true
            }
        );
        assert_eq!(
            observe(&pod("n", &json!({"phase": "Pending"}))),
            State::Waiting {
                why: String::new(),
                never_ran: false
            }
        );
    }

    #[test]
    fn a_leaving_pod_is_neither_running_nor_finished() {
        let mut leaving = pod("n", &json!({"phase": "Running"}));
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-21T00:00:00Z")).unwrap();
        assert_eq!(observe(&leaving), State::Leaving);
    }
}
