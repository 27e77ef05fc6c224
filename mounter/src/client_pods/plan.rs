//! What to do about the Pods of one client, from what is seen of them.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::status::{PodPhase, Problem, SeenPod};
use crate::agent::store::hex;

/// How long a Pod that the kubelet refused, since the node has no room, answers in place of another: the node would
/// refuse that as well, and each volume that waits asks for one.
const REFUSED_FOR: Duration = Duration::from_secs(15);

/// A volume that has a client Pod to itself. The name alone is not enough: inline volumes may have any name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VolumeId {
    /// Name of the PV, or of the Pod's volume.
    pub name: String,
    pub source: String,
}

/// Which Pod serves a volume: one a client, node, client image and release of the agent, and a volume where that is
/// asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wanted {
    pub client: String,
    pub node: String,
    /// The client image, its name in full.
    pub image: String,
    /// The image that the agent is copied from, its name in full.
    pub mounter_image: String,
    /// Whether the volume names the image. All volumes of an image share its Pod.
    pub by_volume: bool,
    /// The volume that it is for, where it is for one alone.
    pub volume: Option<VolumeId>,
}

impl Wanted {
    /// What the names of its Pods begin with. At most 59 characters, since a client's name has at most 40.
    pub fn base_name(&self) -> String {
        let mut hash = Sha256::new();
        let all = [&self.client, &self.node, &self.image, &self.mounter_image];
        let own = self.volume.iter().flat_map(|volume| [&volume.name, &volume.source]);
        for part in all.into_iter().chain(own) {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        format!("client-{}-{}", self.client, hex(&hash.finalize()[..5]))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodDecision {
    /// Ask this Pod's agent. It may not have started yet.
    Use {
        name: String,
        uid: String,
        /// What keeps it from running.
        problem: Option<Problem>,
    },
    /// Make a Pod of this name, and remove those that have ended.
    Create {
        name: String,
        /// Uids and names of Pods that have ended.
        ended: Vec<(String, String)>,
    },
    /// Report why this Pod has ended: another would end alike.
    Report { name: String, problem: Problem },
}

/// Decides which Pod serves new mounts of `wanted`.
///
/// A Pod that is being deleted still serves the mounts it has, and its name is taken for as long: the next number is
/// used. Two mounters that see the same Pods choose the same name, so their creations collide. `awaited` is the Pod
/// that the same mount has waited for so far.
pub fn plan(wanted: &Wanted, seen: &[SeenPod], awaited: Option<&str>, now: Timestamp) -> PodDecision {
    let base = wanted.base_name();
    let numbered = |n: usize| format!("{base}-{n}");
    let ours = |pod: &&SeenPod| {
        pod.name
            .strip_prefix(&base)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|n| n.parse::<usize>().is_ok())
    };
    let usable = seen
        .iter()
        .filter(ours)
        .filter(|pod| matches!(pod.phase, PodPhase::Starting | PodPhase::Running))
        .min_by_key(|pod| (pod.phase != PodPhase::Running, pod.name.as_str()));
    if let Some(pod) = usable {
        return PodDecision::Use {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            problem: pod.problem.clone(),
        };
    }
    let is_full = |pod: &SeenPod| {
        pod.refused
            .is_some_and(|at| now.duration_since(at).unsigned_abs() < REFUSED_FOR)
    };
    let mut ended = seen.iter().filter(ours).filter(|pod| pod.phase == PodPhase::Ended);
    if let Some(pod) = ended.find(|pod| Some(pod.name.as_str()) == awaited || is_full(pod))
        && let Some(problem) = &pod.problem
    {
        return PodDecision::Report {
            name: pod.name.clone(),
            problem: problem.clone(),
        };
    }
    let name = (0..=seen.len())
        .map(numbered)
        .find(|name| seen.iter().all(|pod| pod.name != *name))
        .unwrap_or_else(|| numbered(0));
    PodDecision::Create {
        name,
        ended: seen
            .iter()
            .filter(ours)
            .filter(|pod| pod.phase == PodPhase::Ended)
            .map(|pod| (pod.uid.clone(), pod.name.clone()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn wanted(image: &str) -> Wanted {
        Wanted {
            client: "sshfs".into(),
            node: "node-1".into(),
            image: image.into(),
            mounter_image: "mooring.dev/mounter:0.1.0".into(),
            by_volume: false,
            volume: None,
        }
    }

    fn seen(wanted: &Wanted, n: usize, phase: PodPhase) -> SeenPod {
        SeenPod {
            name: format!("{}-{n}", wanted.base_name()),
            uid: format!("uid-{n}"),
            phase,
            ran: false,
            problem: None,
            refused: None,
            given_up: Vec::new(),
        }
    }

    fn name(decision: &PodDecision) -> String {
        match decision {
            PodDecision::Use { name, .. } => format!("use {name}"),
            PodDecision::Create { name, .. } => format!("create {name}"),
            PodDecision::Report { name, .. } => format!("report {name}"),
        }
    }

    #[test]
    fn the_pod_that_serves_is_chosen_or_the_next_free_name() {
        use PodPhase::{Ended, Leaving, Running, Starting};
        let wanted = wanted("a:1");
        let base = wanted.base_name();
        for (pods, expected) in [
            (vec![], format!("create {base}-0")),
            (vec![(0, Starting)], format!("use {base}-0")),
            (vec![(0, Running)], format!("use {base}-0")),
            (vec![(0, Starting), (1, Running)], format!("use {base}-1")),
            (vec![(0, Leaving)], format!("create {base}-1")),
            (vec![(0, Leaving), (1, Running)], format!("use {base}-1")),
            (vec![(1, Leaving)], format!("create {base}-0")),
            (
                vec![(0, Leaving), (1, Leaving), (2, Leaving)],
                format!("create {base}-3"),
            ),
            (vec![(0, Ended)], format!("create {base}-1")),
        ] {
            let pods: Vec<_> = pods.into_iter().map(|(n, phase)| seen(&wanted, n, phase)).collect();
            assert_eq!(name(&plan(&wanted, &pods, None, NOW)), expected, "{pods:?}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_is_removed_when_another_takes_its_place() {
        let wanted = wanted("a:1");
        let pods = [seen(&wanted, 0, PodPhase::Ended), seen(&wanted, 1, PodPhase::Leaving)];
        let PodDecision::Create { ended, .. } = plan(&wanted, &pods, None, NOW) else {
            panic!("nothing is created");
        };
        assert_eq!(ended, [("uid-0".to_owned(), pods[0].name.clone())]);
    }

    fn ended(wanted: &Wanted, refused: Option<Timestamp>) -> SeenPod {
        let mut pod = seen(wanted, 0, PodPhase::Ended);
        pod.problem = Some(Problem {
            message: "it ended".to_owned(),
            settled: true,
        });
        pod.refused = refused;
        pod
    }

    #[test]
    fn a_full_node_is_asked_for_room_now_and_then_whichever_mount_needs_it() {
        let wanted = wanted("a:1");
        let pods = [ended(&wanted, Some(NOW))];
        let decided = |awaited: Option<&str>, now: Timestamp| name(&plan(&wanted, &pods, awaited, now));
        let refused = format!("report {}", pods[0].name);
        assert_eq!(decided(None, NOW + Duration::from_secs(14)), refused);
        let next = format!("create {}-1", wanted.base_name());
        assert_eq!(decided(None, NOW + Duration::from_secs(15)), next);
        // The one of another client says nothing of this one's size.
        let other = Wanted {
            client: "s3".into(),
            ..wanted.clone()
        };
        assert_eq!(
            name(&plan(&other, &pods, None, NOW)),
            format!("create {}-0", other.base_name())
        );
    }

    #[test]
    fn a_mount_whose_pod_ended_is_told_and_the_next_one_gets_another() {
        let wanted = wanted("a:1");
        let ended = ended(&wanted, None);
        let awaited = ended.name.clone();
        let decided = |pods: &[SeenPod], awaited: Option<&str>| name(&plan(&wanted, pods, awaited, NOW));
        let pods = [ended, seen(&wanted, 1, PodPhase::Leaving)];
        assert_eq!(decided(&pods, Some(&awaited)), format!("report {awaited}"));
        assert_eq!(decided(&pods, None), format!("create {}-2", wanted.base_name()));
        // It ran, and was evicted; another one serves.
        let running = [pods[0].clone(), seen(&wanted, 1, PodPhase::Running)];
        assert_eq!(
            decided(&running, Some(&awaited)),
            format!("use {}-1", wanted.base_name())
        );
    }

    #[test]
    fn another_image_client_or_node_never_shares_a_pod() {
        let old = wanted("a:1");
        let new = wanted("a:2");
        let pods = [seen(&old, 0, PodPhase::Running)];
        assert_eq!(
            name(&plan(&new, &pods, None, NOW)),
            format!("create {}-0", new.base_name())
        );
        let mut other = wanted("a:1");
        other.node = "node-2".into();
        assert_ne!(other.base_name(), old.base_name());
    }

    #[test]
    fn volumes_share_a_pod_unless_they_are_to_have_one_each() {
        let shared = wanted("a:1");
        let own = |name: &str, source: &str| Wanted {
            volume: Some(VolumeId {
                name: name.into(),
                source: source.into(),
            }),
            ..shared.clone()
        };
        assert_eq!(own("a", "x").base_name(), own("a", "x").base_name());
        let names = [&own("a", "x"), &own("b", "x"), &own("a", "y"), &shared].map(Wanted::base_name);
        for (n, name) in names.iter().enumerate() {
            assert!(!names[..n].contains(name), "{names:?}");
        }
    }

    #[test]
    fn the_longest_client_s_name_still_makes_a_label_value() {
        let mut wanted = wanted("a:1");
        wanted.client = "c".repeat(mooring_contract::volume::ClientName::MAX_LEN);
        assert!(wanted.base_name().len() + "-999".len() <= 63);
    }
}
