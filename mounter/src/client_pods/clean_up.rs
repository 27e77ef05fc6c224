//! What is left to do after an unmount: agents remove secrets, log out of storage, and whatever else the image's
//! program set up. A volume may be taken from this node only after that.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::join_all;
use mooring_contract::names::annotations;
use mooring_program::error::chain;
use tracing::{info, warn};

use super::link::LinkError;
use super::status::{PodPhase, SeenPod};
use super::{ClientPods, HELLO_LIMIT, MounterIdentity};
use crate::agent::mounts::CLEAR_UP_WAIT as CLEANUP_WAIT;
use crate::agent::protocol::{AgentAnswer, Call, FailureCategory, MountState};
use crate::api::recorder::clean_up_failed;
use crate::core::client::Rest;
use crate::deadlines::{self, LARGEST_MARGIN};
use crate::node::attachments::CleanUps;
use crate::volume::target::Target;

/// How long an agent may take to clear up after an unmount.
const CLEAR_UP_LIMIT: Duration = Duration::from_secs(30);

const _: () = assert!(deadlines::contains(CLEAR_UP_LIMIT, CLEANUP_WAIT));

/// How soon to ask an agent again that was busy with the mount.
const CLEAR_UP_AGAIN: Duration = Duration::from_millis(200);

/// How long the kubelet's call waits for that.
const CLEAR_UP_WAIT: Duration = Duration::from_secs(2);

// It begins when the rest of the call is for the answer, and a clean-up by the host's program follows.
const _: () = assert!(2 * CLEAR_UP_WAIT.as_secs() < LARGEST_MARGIN.as_secs());

/// Wait before an agent is asked again whether it has cleaned up, and the longest.
const REST_PERIOD: Duration = Duration::from_secs(1);
const LONGEST_REST_PERIOD: Duration = Duration::from_secs(30);

/// Uids of the Pods that may have something of a volume; `None` if it is not known which Pods there are.
type Left = Option<Vec<String>>;

/// Tells agents of an unmount, and waits a moment for them. `owner` is the uid of the Pod that had the volume last, if
/// that is known. Returns the wait for what is left; agents clean up also if nobody waits.
pub(super) async fn after_unmount(pods: &Arc<ClientPods>, target: String, owner: Option<String>) -> Option<Rest> {
    let pods = Arc::clone(pods);
    let mut telling = tokio::spawn(tell(Arc::clone(&pods), target.clone(), owner));
    let told = tokio::time::timeout(CLEAR_UP_WAIT, &mut telling).await;
    if matches!(&told, Ok(Ok(Some(left))) if left.is_empty()) {
        return None;
    }
    Some(Box::pin(async move {
        let told = match told {
            Ok(told) => told,
            Err(_) => telling.await,
        };
        until_none_has_it(&pods, &target, told.unwrap_or_default()).await;
    }))
}

/// Tells agents of an unmount. Of the Pods that may still have something, only the owner counts if it is known.
async fn tell(pods: Arc<ClientPods>, target: String, owner: Option<String>) -> Left {
    let is_known = pods.has_list();
    let seen = pods.agents();
    let calls = seen.iter().filter(|pod| pod.phase != PodPhase::Ended).map(|pod| {
        let (pods, target) = (&pods, &target);
        async move { (pod, cleared(pods, &pod.uid, target).await) }
    });
    let mut left = Vec::new();
    for (pod, answer) in join_all(calls).await {
        let is_left = may_have_more(pod, &answer) && owner.as_ref().is_none_or(|owner| *owner == pod.uid);
        left.extend(is_left.then(|| pod.uid.clone()));
        let name = &pod.name;
        match answer {
            Ok(AgentAnswer::Failed(failure)) => {
                warn!(
                    pod.name = name,
                    target.path = target,
                    "an agent failed to clean up: {}",
                    failure.message
                );
            }
            // A Pod that has not started yet has nothing to clear up.
            Ok(_) | Err(LinkError::NotThere) => {}
            Err(error) => warn!(
                pod.name = name,
                error = %chain(&error),
                "failed to tell an agent of an unmount"
            ),
        }
    }
    pods.changed();
    if is_known {
        Some(left)
    } else {
        owner.map(|owner| vec![owner])
    }
}

/// An agent's answer to an unmount. An agent that is just looking at the mount is asked again: it would find out by
/// itself only when it looks next, and its Pod would stay until then.
async fn cleared(pods: &ClientPods, uid: &str, target: &str) -> Result<AgentAnswer, LinkError> {
    let until = Instant::now() + CLEAR_UP_LIMIT;
    loop {
        let call = Call::Unmount {
            target: target.to_owned(),
        };
        match pods.ask(uid, call, CLEAR_UP_LIMIT).await {
            Ok(AgentAnswer::Failed(failure))
                if failure.category == FailureCategory::InProgress && Instant::now() < until =>
            {
                tokio::time::sleep(CLEAR_UP_AGAIN).await;
            }
            answer => return answer,
        }
    }
}

/// Waits until none of these Pods has anything of a volume any more, or is gone. Their agents clean up by themselves,
/// and must not be told of an unmount again: the volume may be mounted again meanwhile.
async fn until_none_has_it(pods: &ClientPods, target: &str, left: Left) {
    // It fails only if nobody watches Pods any more.
    let _ = pods.store.wait_until_ready().await;
    let all = || pods.seen().into_iter().map(|pod| pod.uid).collect();
    let mut left = left.unwrap_or_else(all);
    let mut wait = REST_PERIOD;
    while !left.is_empty() {
        tokio::time::sleep(wait).await;
        wait = LONGEST_REST_PERIOD.min(wait * 2);
        let there = pods.seen();
        let there = there.iter().filter(|pod| left.contains(&pod.uid));
        left = pods_with(pods, there, |mount| mount.target == target).await;
    }
}

/// The uids of those Pods that have such a mount, or may have.
async fn pods_with(
    pods: &ClientPods,
    there: impl Iterator<Item = &SeenPod>,
    is_it: impl Fn(&MountState) -> bool,
) -> Vec<String> {
    let is_it = &is_it;
    let asked = there.filter(|pod| pod.phase != PodPhase::Ended).map(|pod| async move {
        let has = match pods.hello(&pod.uid).await {
            Ok(hello) => hello.mounts.iter().any(is_it),
            Err(LinkError::NotThere) => !pod.is_new(),
            Err(_) => true,
        };
        has.then(|| pod.uid.clone())
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// Whether an agent may have something of a volume after it was told of the unmount.
fn may_have_more(pod: &SeenPod, answer: &Result<AgentAnswer, LinkError>) -> bool {
    match answer {
        Ok(AgentAnswer::Failed(_)) => true,
        Ok(_) => false,
        Err(LinkError::NotThere) => !pod.is_new(),
        Err(_) => true,
    }
}

/// Clean-ups that fail, by client Pod and target. Each is told of once.
#[derive(Debug, Default)]
pub struct FailedCleanUps(BTreeSet<(String, String)>);

impl FailedCleanUps {
    /// Tells of those of a client Pod that fail, and gives up those that an administrator has given up.
    pub async fn look_after(&mut self, pods: &ClientPods, pod: &SeenPod, mounts: &[MountState]) {
        let fails = |target: &str| {
            let is_it = |mount: &MountState| mount.target == target && mount.clean_up_failure.is_some();
            mounts.iter().any(is_it)
        };
        self.0.retain(|(uid, target)| *uid != pod.uid || fails(target));
        for mount in mounts {
            let Some(why) = &mount.clean_up_failure else { continue };
            let volume = Target::parse_any(pods.kubelet_root(), &mount.target);
            let volume = volume.map_or_else(|_| mount.target.clone(), |target| target.name().to_owned());
            if pod.given_up.contains(&volume) {
                give_up(pods, pod, mount).await;
                continue;
            }
            let told = (pod.uid.clone(), mount.target.clone());
            if self.0.contains(&told) {
                continue;
            }
            let MounterIdentity { node, namespace, .. } = &pods.identity;
            let note = note(&volume, mount, (namespace, &pod.name), why);
            warn!(target.path = mount.target, "{note}");
            if pods.events.record(clean_up_failed(node, note)) {
                self.0.insert(told);
            }
        }
    }
}

/// What a node's administrator is to know. An Event is cut at its end, so the reason comes last.
fn note(volume: &str, mount: &MountState, (namespace, pod): (&str, &str), why: &str) -> String {
    let MountState {
        client,
        source,
        pod: user,
        ..
    } = mount;
    format!(
        "volume {volume} ({client}, {source}) of Pod {}/{} is unmounted, but what its client set up for it stays on this \
         node, and counts as in use: client Pod {pod} fails to clean up. Mooring tries again. If that never succeeds, \
         remove by hand what the client's message names, and have Mooring forget the volume (kubectl annotate pod -n \
         {namespace} {pod} {}={volume}). The message: {why}",
        user.namespace,
        user.name,
        annotations::GIVE_UP_CLEAN_UP,
    )
}

async fn give_up(pods: &ClientPods, pod: &SeenPod, mount: &MountState) {
    let target = mount.target.clone();
    let why = match pods.ask(&pod.uid, Call::GiveUpCleanUp { target }, HELLO_LIMIT).await {
        Ok(AgentAnswer::Noted) => {
            info!(
                pod.name,
                target.path = mount.target,
                "gave up the clean-up after a volume"
            );
            return pods.changed();
        }
        Ok(AgentAnswer::Failed(failure)) => failure.message,
        Ok(_) => "its answer does not fit the request".to_owned(),
        Err(error) => chain(&error),
    };
    warn!(
        pod.name,
        target.path = mount.target,
        "an agent failed to give up a clean-up: {why}"
    );
}

#[async_trait]
impl CleanUps for ClientPods {
    async fn may_have(&self, volume: &str) -> bool {
        let ready = tokio::time::timeout(HELLO_LIMIT, self.store.wait_until_ready()).await;
        if !matches!(ready, Ok(Ok(()))) {
            return true;
        }
        let is_it = |mount: &MountState| {
            let target = Target::parse_any(self.kubelet_root(), &mount.target);
            target.is_ok_and(|target| target.name() == volume)
        };
        !pods_with(self, self.seen().iter(), is_it).await.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{FailedCleanUps, may_have_more};
    use crate::agent::protocol::{AgentAnswer, AgentFailure, FailureCategory, MountHealth, MountState};
    use crate::api::recorder::tests::{api, recorded};
    use crate::client_pods::link::LinkError;
    use crate::client_pods::status::{PodPhase, SeenPod};
    use crate::client_pods::tests::client_pods;
    use crate::volume::job::PodRef;

    fn pod(phase: PodPhase) -> SeenPod {
        SeenPod {
            name: "a".to_owned(),
            uid: "a".to_owned(),
            phase,
            ran: true,
            problem: None,
            refused: None,
            given_up: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_clean_up_that_fails_is_told_of_once_on_the_node_with_how_to_give_it_up() {
        let (client, heard) = api(0);
        let pods = client_pods(client).await;
        let mount = |name: &str, failure: Option<&str>| MountState {
            target: format!("/nonexistent/pods/u/volumes/mooring.dev~vcs/{name}"),
            client: "iscsi".to_owned(),
            source: "h/iqn".to_owned(),
            pod: PodRef {
                name: "web-0".to_owned(),
                namespace: "shop".to_owned(),
                uid: "u".to_owned(),
            },
            health: MountHealth::Busy,
            dead: None,
            reviving: None,
            silent_ms: None,
            on_device: false,
            clean_up_failure: failure.map(str::to_owned),
            by_owner: None,
        };
        let mut failed = FailedCleanUps::default();
        let seen = SeenPod {
            given_up: vec!["given-up".to_owned()],
            ..pod(PodPhase::Running)
        };
        let mounts = [
            mount("v", Some("logout failed")),
            mount("fine", None),
            mount("given-up", Some("x")),
        ];
        for _ in 0..3 {
            failed.look_after(&pods, &seen, &mounts).await;
        }
        // It succeeded meanwhile, and another one fails later.
        failed.look_after(&pods, &seen, &[]).await;
        failed.look_after(&pods, &seen, &[mount("v", Some("again"))]).await;
        let events = recorded(&heard, 2).await;
        assert_eq!(events.len(), 2, "{events:?}");
        let event = &events[0].1;
        assert_eq!(event["reason"], "CleanUpFailed");
        assert_eq!(
            (&event["regarding"]["kind"], &event["regarding"]["name"]),
            (&"Node".into(), &"node-1".into())
        );
        let note = event["note"].as_str().unwrap();
        for part in [
            "volume v ",
            "Pod shop/web-0",
            "logout failed",
            "kubectl annotate pod -n mooring a mooring.dev/give-up-clean-up=v)",
        ] {
            assert!(note.contains(part), "{note}");
        }
    }

    #[test]
    fn an_agent_may_have_more_of_a_volume_until_it_says_that_it_has_not() {
        let failed = |category| {
            let message = String::new();
            Ok(AgentAnswer::Failed(AgentFailure {
                category,
                message,
                limit_ms: None,
            }))
        };
        let mut fresh = pod(PodPhase::Starting);
        fresh.ran = false;
        for (pod, answer, expected) in [
            (pod(PodPhase::Running), Ok(AgentAnswer::Unmounted), false),
            (pod(PodPhase::Running), failed(FailureCategory::InProgress), true),
            (pod(PodPhase::Running), failed(FailureCategory::Refused), true),
            (pod(PodPhase::Running), Err(LinkError::NotThere), true),
            (pod(PodPhase::Starting), Err(LinkError::NotThere), true),
            (fresh, Err(LinkError::NotThere), false),
            (pod(PodPhase::Leaving), Err(LinkError::Timeout(Duration::ZERO)), true),
        ] {
            assert_eq!(may_have_more(&pod, &answer), expected, "{pod:?} {answer:?}");
        }
    }
}
