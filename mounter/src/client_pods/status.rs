//! The phase of a client Pod, and what keeps it from running, in words for the user's Event.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::annotations;

/// A container that ran for this many seconds did not fail at its start.
const RAN_WELL: i64 = 5;

/// `status.phase` of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all of it runs yet.
    Starting,
    /// Its client container runs.
    Running,
    /// It is being deleted; it stays for as long as it has mounts.
    Leaving,
    /// It ran, was killed more than once, and the kubelet makes it wait for up to five minutes. Then it mounts again
    /// what it had; new mounts get another Pod.
    BackOff,
    /// It has ended and never starts again: evicted, or refused by the kubelet.
    Ended,
}

/// What keeps a Pod from running.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// What it is, and what to do about it.
    pub message: String,
    /// Whether waiting does not help for now: the kubelet tries again in minutes, not seconds.
    pub settled: bool,
}

/// A client Pod as it is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPod {
    pub name: String,
    pub uid: String,
    pub phase: PodPhase,
    /// Its client container ran well and has ended: whatever it had mounted it mounts again once it is back.
    pub ran: bool,
    /// What keeps it from running.
    pub problem: Option<Problem>,
    /// When the kubelet refused it, if its node had no room for it.
    pub refused: Option<Timestamp>,
    /// Names of the volumes whose clean-up is given up.
    pub given_up: Vec<String>,
}

impl SeenPod {
    /// One that has mounted a volume, as this node remembers it; its name is not known.
    pub fn kept(uid: String) -> Self {
        Self {
            name: format!("with uid {uid}"),
            uid,
            phase: PodPhase::Running,
            ran: true,
            problem: None,
            refused: None,
            given_up: Vec::new(),
        }
    }

    /// Whether its client container has not run yet, so it has nothing.
    pub fn is_new(&self) -> bool {
        self.phase == PodPhase::Starting && !self.ran
    }
}

/// Reads a Pod; none if it has no name or uid.
pub fn seen(pod: &Pod) -> Option<SeenPod> {
    let status = pod.status.as_ref();
    let ended = status
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| phase == "Failed" || phase == "Succeeded");
    let phase = if ended {
        PodPhase::Ended
    } else if pod.metadata.deletion_timestamp.is_some() {
        PodPhase::Leaving
    } else if status.is_some_and(was_killed_again) {
        PodPhase::BackOff
    } else if status.is_some_and(runs) {
        PodPhase::Running
    } else {
        PodPhase::Starting
    };
    Some(SeenPod {
        name: pod.metadata.name.clone()?,
        uid: pod.metadata.uid.clone()?,
        phase,
        ran: status.is_some_and(ran),
        problem: status.and_then(|status| problem(status, pod.spec.as_ref())),
        refused: status.and_then(refused),
        given_up: given_up(pod),
    })
}

fn given_up(pod: &Pod) -> Vec<String> {
    let annotations = pod.metadata.annotations.as_ref();
    let names = annotations.and_then(|annotations| annotations.get(annotations::GIVE_UP_CLEAN_UP));
    let names = names.into_iter().flat_map(|names| names.split(','));
    names.map(|name| name.trim().to_owned()).collect()
}

fn runs(status: &PodStatus) -> bool {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    !containers.is_empty()
        && containers
            .iter()
            .all(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// Whether its container ran well before it ended.
fn ran(status: &PodStatus) -> bool {
    let containers = status.container_statuses.iter().flatten();
    containers.into_iter().any(ran_well)
}

fn ran_well(container: &ContainerStatus) -> bool {
    let states = [&container.state, &container.last_state];
    let mut ended = states
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref());
    ended.any(|last| {
        let times = last.started_at.as_ref().zip(last.finished_at.as_ref());
        times.is_some_and(|(started, finished)| finished.0.duration_since(started.0).as_secs() >= RAN_WELL)
    })
}

/// Whether its container waits for the kubelet to restart it although it ran well: another Pod is ready sooner. A
/// container that ends as soon as it starts would do so in another Pod as well.
fn was_killed_again(status: &PodStatus) -> bool {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    containers.iter().any(|container| {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff")) && ran_well(container)
    })
}

fn problem(status: &PodStatus, spec: Option<&PodSpec>) -> Option<Problem> {
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        let said = said(status);
        let message = match way_to_room(reason, said) {
            Some(cure) => {
                let requests = spec.map(requests).unwrap_or_default();
                format!("this node has no room for it ({reason}: {said}); it requests {requests}. {cure}")
            }
            None => format!("the kubelet ended it: {reason}: {said}"),
        };
        return Some(Problem { message, settled: true });
    }
    [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .find_map(container_problem)
}

fn said(status: &PodStatus) -> &str {
    status.message.as_deref().unwrap_or_default().trim()
}

/// What the client container requests, in words.
fn requests(spec: &PodSpec) -> String {
    let resources = spec
        .containers
        .iter()
        .filter_map(|container| container.resources.as_ref());
    let requests = resources.flat_map(|resources| resources.requests.iter().flatten());
    let requests: Vec<_> = requests
        .map(|(name, quantity)| format!("{name} {}", quantity.0))
        .collect();
    requests.join(" and ")
}

/// When the kubelet refused a Pod, if its node had no room for it. To such a Pod, it gives no other start time.
fn refused(status: &PodStatus) -> Option<Timestamp> {
    way_to_room(status.reason.as_deref()?, said(status))?;
    status.start_time.as_ref().map(|time| time.0)
}

/// What makes room on a node whose kubelet refused a Pod; `None` if it had another reason.
fn way_to_room(reason: &str, said: &str) -> Option<&'static str> {
    const REQUEST_LESS: &str = "Move Pods to other nodes, or have client Pods request less \
                                (MOORING_CLIENT_CPU_REQUEST, MOORING_CLIENT_MEMORY_REQUEST)";
    match reason {
        "OutOfpods" => Some("Move Pods to other nodes, or let the node have more (maxPods of the kubelet)"),
        _ if reason.starts_with("OutOf") => Some(REQUEST_LESS),
        // The kubelet makes room for a Pod of a critical priority class, which an administrator may have set, and found
        // too little to end (`pkg/kubelet/preemption` of Kubernetes).
        "UnexpectedAdmissionError" if said.contains("pods to preempt") => Some(REQUEST_LESS),
        // Not ended: under pressure, the kubelet lets in critical Pods only (`Admit` in `pkg/kubelet/eviction`).
        "Evicted" if said.contains("The node had condition") => Some("Free what the node is short of"),
        _ => None,
    }
}

fn container_problem(container: &ContainerStatus) -> Option<Problem> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let detail = waiting.message.as_deref().unwrap_or_default();
    let image = &container.image;
    let (what, settled) = match reason {
        // Every container has this state for a moment.
        "" | "ContainerCreating" | "PodInitializing" => return None,
        "ErrImagePull" | "ImagePullBackOff" => (
            format!(
                "image {image} can't be pulled: see that its name is right and the node can reach its registry, and \
                 put the credentials of a private one on the client's service account"
            ),
            true,
        ),
        "InvalidImageName" => (format!("{image:?} is not an image's name: correct it"), true),
        "ErrImageNeverPull" => (format!("image {image} is not on this node"), true),
        "CrashLoopBackOff" => {
            let last = container
                .last_state
                .as_ref()
                .and_then(|state| state.terminated.as_ref())
                .map(|ended| {
                    let message = ended.message.as_deref().unwrap_or_default();
                    format!(" (exit {}) {message}", ended.exit_code)
                })
                .unwrap_or_default();
            (
                format!(
                    "container {} ends as soon as it starts{last}: see its log",
                    container.name
                ),
                true,
            )
        }
        "CreateContainerError" | "CreateContainerConfigError" | "RunContainerError" => {
            (format!("container {} can't be made", container.name), true)
        }
        other => (format!("container {} waits: {other}", container.name), false),
    };
    let message = if detail.is_empty() {
        what
    } else {
        format!("{what} ({detail})")
    };
    Some(Problem { message, settled })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(metadata: &serde_json::Value, status: &serde_json::Value) -> Pod {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap();
        pod.metadata.name = Some("p".into());
        pod.metadata.uid = Some("u".into());
        pod
    }

    fn container(state: &serde_json::Value) -> serde_json::Value {
        json!({"name": "client", "image": "custom/x:1", "imageID": "", "ready": false, "restartCount": 0, "state": state})
    }

    #[test]
    fn a_pod_runs_when_its_container_does_and_leaves_when_it_is_being_deleted() {
        let running = json!({"phase": "Running", "containerStatuses": [container(&json!({"running": {}}))]});
        assert_eq!(seen(&pod(&json!({}), &running)).unwrap().phase, PodPhase::Running);
        let deleted = json!({"deletionTimestamp": "2026-11-21T00:00:00Z"});
        assert_eq!(seen(&pod(&deleted, &running)).unwrap().phase, PodPhase::Leaving);
        assert_eq!(seen(&pod(&json!({}), &json!({}))).unwrap().phase, PodPhase::Starting);
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"});
        let evicted = seen(&pod(&json!({}), &evicted)).unwrap();
        assert_eq!(evicted.phase, PodPhase::Ended);
        assert!(evicted.problem.unwrap().message.contains("Evicted"));
    }

    #[test]
    fn a_pod_that_a_full_node_refuses_says_of_what_there_is_too_little() {
        let short = "Node didn't have enough resource: cpu, requested: 10, used: 1995, capacity: 2000";
        let critical = "Unexpected error while attempting to recover from admission failure: preemption: error finding \
                        a set of pods to preempt: no set of running pods found to reclaim resources: \
                        [(res: cpu, q: 5), ]";
        let pods = "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110";
        let pressure = "Pod was rejected: The node had condition: [DiskPressure]. ";
        let evicted = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. ";
        let other = "Allocate failed due to no healthy devices present";
        let less = Some("have client Pods request less");
        for (reason, said, cure) in [
            ("OutOfcpu", short, less),
            ("OutOfpods", pods, Some("maxPods")),
            ("UnexpectedAdmissionError", critical, less),
            ("Evicted", pressure, Some("Free what the node is short of")),
            ("Evicted", evicted, None),
            ("UnexpectedAdmissionError", other, None),
        ] {
            let at = "2026-11-21T00:00:00Z";
            let refused = json!({"phase": "Failed", "reason": reason, "message": said, "startTime": at});
            let mut refused = pod(&json!({}), &refused);
            let resources = json!({"requests": {"cpu": "10m", "memory": "64Mi"}});
            let spec = json!({"containers": [{"name": "client", "resources": resources}]});
            refused.spec = serde_json::from_value(spec).unwrap();
            let refused = seen(&refused).unwrap();
            assert_eq!(refused.phase, PodPhase::Ended);
            assert_eq!(refused.refused, cure.map(|_| at.parse().unwrap()), "{reason}: {said}");
            let message = refused.problem.unwrap().message;
            assert!(message.contains(reason) && message.contains(said.trim()), "{message}");
            let room = "this node has no room for it";
            assert_eq!(message.contains(room), cure.is_some(), "{message}");
            if let Some(cure) = cure {
                assert!(message.contains("it requests cpu 10m and memory 64Mi. "), "{message}");
                assert!(message.contains(cure), "{message}");
            }
        }
    }

    #[test]
    fn one_that_was_killed_again_and_again_rests_and_one_that_never_ran_does_not() {
        let ended = |seconds: u32| {
            let last = json!({"terminated": {
                "exitCode": 137,
                "startedAt": "2026-11-21T00:00:00Z",
                "finishedAt": format!("2026-11-21T00:00:{seconds:02}Z"),
            }});
            let mut container = container(&json!({"waiting": {"reason": "CrashLoopBackOff"}}));
            container["lastState"] = last;
            let status = json!({"phase": "Running", "containerStatuses": [container]});
            seen(&pod(&json!({}), &status)).unwrap().phase
        };
        assert_eq!(ended(1), PodPhase::Starting);
        assert_eq!(ended(9), PodPhase::BackOff);
    }

    #[test]
    fn one_whose_container_is_being_restarted_is_known_to_have_run() {
        let ended = json!({"terminated": {
            "exitCode": 137, "startedAt": "2026-11-21T00:00:00Z", "finishedAt": "2026-11-21T00:01:00Z",
        }});
        let mut restarting = container(&json!({"waiting": {"reason": "ContainerCreating"}}));
        restarting["lastState"] = ended.clone();
        for (container, ran) in [
            (container(&ended), true),
            (restarting, true),
            (container(&json!({"waiting": {"reason": "ContainerCreating"}})), false),
        ] {
            let seen = seen(&pod(
                &json!({}),
                &json!({"phase": "Running", "containerStatuses": [container]}),
            ))
            .unwrap();
            assert_eq!((seen.phase, seen.ran), (PodPhase::Starting, ran));
        }
    }

    #[test]
    fn a_pod_that_does_not_run_has_a_reason_and_a_cure() {
        for (waiting, word, settled) in [
            (
                json!({"reason": "ImagePullBackOff", "message": "no such host"}),
                "custom/x:1 can't be pulled",
                true,
            ),
            (json!({"reason": "InvalidImageName"}), "not an image's name", true),
            (json!({"reason": "CrashLoopBackOff"}), "ends as soon as it starts", true),
            (json!({"reason": "SomethingNew"}), "SomethingNew", false),
        ] {
            let status = json!({"containerStatuses": [container(&json!({"waiting": waiting}))]});
            let problem = seen(&pod(&json!({}), &status)).unwrap().problem.unwrap();
            assert!(problem.message.contains(word), "{}", problem.message);
            assert_eq!(problem.settled, settled);
        }
        let creating =
            json!({"initContainerStatuses": [container(&json!({"waiting": {"reason": "PodInitializing"}}))]});
        assert_eq!(seen(&pod(&json!({}), &creating)).unwrap().problem, None);
    }
}
