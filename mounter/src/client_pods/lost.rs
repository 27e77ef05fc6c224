//! Tells Pods that a volume of theirs is lost to them: the client container that served it has ended, and every access
//! fails from then on. The kubelet does not look, and the mount table looks as before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use mooring_contract::names::{MOUNTER, reasons};
use tracing::warn;

use super::ClientPods;
use super::status::Phase;
use crate::agent::kernel::{self, Found};
use crate::agent::protocol::{Health, MountState};
use crate::mount_table::Table;
use crate::target::Target;
use crate::thread;

/// How long a mount may take to say that it is there. One that takes longer is served.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Longest that the API may take to accept an Event.
const EVENT_LIMIT: Duration = Duration::from_secs(10);

/// A mount that an agent spoke of.
#[derive(Debug)]
struct Served {
    /// Uid of the agent's Pod.
    by: String,
    mount: MountState,
    /// When it was spoken of last.
    heard: Instant,
    told: bool,
}

#[derive(Debug, Default)]
struct State {
    /// By target.
    served: BTreeMap<String, Served>,
    /// Uids of the Pods whose agents were heard since the last look.
    heard: BTreeSet<String>,
}

/// What agents last said of their mounts. It outlives a client Pod, whose own records go with it.
#[derive(Debug, Default)]
pub(super) struct Lost(Mutex<State>);

impl Lost {
    /// Takes in what the agent of the Pod `uid` says of its mounts.
    pub(super) fn heard(&self, uid: &str, mounts: &[MountState]) {
        let mut state = self.lock();
        state.heard.insert(uid.to_owned());
        state
            .served
            .retain(|target, one| one.by != uid || mounts.iter().any(|mount| mount.target == *target));
        for mount in mounts {
            // A dead one stays told.
            let before = state.served.get(&mount.target);
            let told = mount.health == Health::Dead && before.is_some_and(|before| before.told);
            let served = Served {
                by: uid.to_owned(),
                mount: mount.clone(),
                heard: Instant::now(),
                told,
            };
            state.served.insert(mount.target.clone(), served);
        }
    }

    /// Mounts that may be lost and that nobody was told of: those that are dead and not mounted anew, and those whose agent
    /// was not heard and is not of one of these Pods (`there`), which start it again.
    fn suspects(&self, there: &[String]) -> Vec<MountState> {
        let mut state = self.lock();
        let heard = std::mem::take(&mut state.heard);
        let is_silent = |uid: &String| !heard.contains(uid) && !there.contains(uid);
        let suspects = state
            .served
            .values()
            .filter(|one| !one.told && (one.mount.is_lost() || is_silent(&one.by)));
        suspects.map(|one| one.mount.clone()).collect()
    }

    /// Mounts that did not answer when their agent was last heard, with the uid of its Pod and for how long that is, if they
    /// have not answered since.
    pub(super) fn silent(&self) -> Vec<(String, MountState, Duration)> {
        let state = self.lock();
        let silent = state.served.values().filter_map(|one| {
            let silence = Duration::from_millis(one.mount.silent_ms?) + one.heard.elapsed();
            Some((one.by.clone(), one.mount.clone(), silence))
        });
        silent.collect()
    }

    fn told(&self, target: &str) {
        if let Some(one) = self.lock().served.get_mut(target) {
            one.told = true;
        }
    }

    fn forget(&self, target: &str) {
        self.lock().served.remove(target);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at what may be lost, and tells those whose it is. What could not be told is told at the next look; whether there
/// is anything like that.
pub(super) async fn tell(pods: &ClientPods) -> bool {
    let mut untold = false;
    let there = pods.seen().into_iter().filter(|pod| pod.phase != Phase::Ended);
    let there: Vec<_> = there.map(|pod| pod.uid).collect();
    for mount in pods.lost.suspects(&there) {
        match look(&pods.identity.kubelet_root, &mount.target).await {
            Found::Dead => untold |= !tell_one(pods, &mount).await,
            Found::Nothing => pods.lost.forget(&mount.target),
            // Its agent starts again, or its container is just being ended. One that is the kernel's own needs neither.
            Found::Alive => untold |= is_fuse(&mount.target),
        }
    }
    untold
}

/// Asks the kernel, and a daemon only where one is mounted.
async fn look(kubelet_root: &Path, target: &str) -> Found {
    let Ok(target) = Target::parse(kubelet_root, target) else {
        return Found::Nothing;
    };
    if !kernel::is_mounted(&target).unwrap_or(true) {
        return Found::Nothing;
    }
    let looked = thread::run(move || kernel::look(&target));
    match tokio::time::timeout(LOOK_LIMIT, looked).await {
        Ok(Ok(Ok(found))) => found,
        _ => Found::Alive,
    }
}

fn is_fuse(target: &str) -> bool {
    let table = Table::read().unwrap_or_default();
    let top = table.top(Path::new(target));
    top.is_some_and(|top| top.fs_type.starts_with("fuse"))
}

async fn tell_one(pods: &ClientPods, mount: &MountState) -> bool {
    let MountState {
        target,
        client,
        source,
        pod,
        ..
    } = mount;
    warn!(
        target.path = target,
        pod = format!("{}/{}", pod.namespace, pod.name),
        "the client container for {client} has ended, and the mount of {source} with it"
    );
    if pod.name.is_empty() {
        // An agent of a release that does not know.
        pods.lost.told(target);
        return true;
    }
    let reporter = Reporter {
        controller: MOUNTER.to_owned(),
        instance: Some(pods.identity.node.clone()),
    };
    let volume = Path::new(target).file_name().unwrap_or_default().to_string_lossy();
    let event = Event {
        type_: EventType::Warning,
        reason: reasons::VOLUME_LOST.to_owned(),
        note: Some(format!(
            "the client container that served volume {volume} ({client}, {source}) has ended, and this Pod can't reach it \
             any more (Transport endpoint is not connected): delete the Pod, and the one in its place has the volume again"
        )),
        action: "Serve".to_owned(),
        secondary: None,
    };
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    };
    let recorder = Recorder::new(pods.client.clone(), reporter);
    match tokio::time::timeout(EVENT_LIMIT, recorder.publish(&event, &about)).await {
        Ok(Ok(())) => {
            pods.lost.told(target);
            true
        }
        // Its namespace is being deleted, or the rights were taken away: it does not get better.
        Ok(Err(kube::Error::Api(status))) if [403, 404].contains(&status.code) => {
            warn!(%status, "could not tell Pod {}/{} of its lost volume", pod.namespace, pod.name);
            pods.lost.told(target);
            true
        }
        Ok(Err(error)) => {
            warn!(%error, "could not tell Pod {}/{} of its lost volume; trying again", pod.namespace, pod.name);
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::Reviving;
    use crate::client::PodRef;

    fn mount(target: &str, health: Health) -> MountState {
        MountState {
            target: target.into(),
            client: "sshfs".into(),
            source: "a@b:/c".into(),
            pod: PodRef::default(),
            health,
            dead: None,
            reviving: None,
            silent_ms: None,
        }
    }

    fn suspects(lost: &Lost) -> Vec<String> {
        lost.suspects(&["two".to_owned()])
            .into_iter()
            .map(|mount| mount.target)
            .collect()
    }

    #[test]
    fn what_is_dead_and_what_nobody_speaks_of_any_more_is_looked_at_until_it_is_told() {
        let lost = Lost::default();
        lost.heard("one", &[mount("a", Health::Mounted), mount("b", Health::Mounted)]);
        assert!(suspects(&lost).is_empty());
        // Its Pod is gone, or its agent away.
        assert_eq!(suspects(&lost), ["a", "b"]);
        lost.heard("one", &[mount("a", Health::Mounted), mount("b", Health::Dead)]);
        assert_eq!(suspects(&lost), ["b"]);
        lost.told("b");
        lost.heard("one", &[mount("a", Health::Mounted), mount("b", Health::Dead)]);
        assert!(suspects(&lost).is_empty());
    }

    #[test]
    fn what_was_unmounted_is_forgotten_and_a_new_mount_can_be_lost_anew() {
        let lost = Lost::default();
        lost.heard("one", &[mount("a", Health::Dead)]);
        lost.told("a");
        lost.heard("one", &[]);
        assert!(suspects(&lost).is_empty());
        lost.heard("two", &[mount("a", Health::Mounted)]);
        lost.heard("two", &[mount("a", Health::Dead)]);
        assert_eq!(suspects(&lost), ["a"]);
        lost.forget("a");
        assert!(suspects(&lost).is_empty());
    }

    #[test]
    fn what_is_mounted_anew_or_whose_container_is_started_again_is_not_lost() {
        let lost = Lost::default();
        let mut reviving = mount("a", Health::Dead);
        reviving.reviving = Some(Reviving::default());
        lost.heard("two", &[reviving, mount("b", Health::Mounted)]);
        assert!(suspects(&lost).is_empty());
        // Its agent is away.
        assert!(suspects(&lost).is_empty());
    }
}
