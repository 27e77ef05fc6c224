//! Volumes whose client Pod is gone: every access to them fails, the kubelet does not notice, and the mount table has
//! not changed.
//!
//! The mount table and the agents of the running Pods show them. That a Pod was seen to go shows nothing: it may go
//! while no mounter runs. Another Pod's agent mounts them again ([`Call::Adopt`]) with the kept call ([`super::kept`]),
//! and the rest is as after a crash ([`crate::recovery::revive`]). Without a kept call, an Event tells the user to
//! delete the Pod.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use mooring_contract::volume::ClientName;
use mooring_program::error::chain;
use mooring_program::reasons;
use tracing::{info, warn};

use super::kept::KeptRecord;
use super::link::LinkError;
use super::old::Origin;
use super::status::PodPhase;
use super::{ClientPods, PodError, PodNeed};
use crate::agent::protocol::{AgentAnswer, Call, FailureCategory, MountHealth, MountState, Reviving, now};
use crate::api::recorder::Event;
use crate::api::volume_events::{VolumeEvent, about_volume};
use crate::core::client::Trouble;
use crate::node::node_pods::NodePodsError;
use crate::sys::look::LookedAt;
use crate::volume::job::PodRef;
use crate::volume::mount_table::{MountEntry, Table};
use crate::volume::registry::Serving;
use crate::volume::target::Target;
use crate::volume::volume_id::source_in_words;

/// Longest that a Pod may take to start, and its agent to take over a volume.
const ADOPT_LIMIT: Duration = Duration::from_mins(2);

/// Longest that an agent may take to answer a short question.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Longest until an agent that has taken over a volume reports it.
const HEARD_LIMIT: Duration = Duration::from_secs(10);

/// Wait after a first failure; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// A mount that an agent reported.
#[derive(Debug)]
struct Served {
    /// Uid of the agent's Pod.
    by: String,
    mount: MountState,
    /// When it was last reported.
    heard: Instant,
}

/// The attempt to mount a lost volume again.
#[derive(Debug, Default)]
struct Attempt {
    running: bool,
    failures: u32,
    /// When it may be tried again.
    again: Option<Instant>,
    /// An Event told its user what to do; Mooring can do nothing else.
    reported: bool,
    /// Why it failed last.
    message: String,
}

impl Attempt {
    fn is_due(&self) -> bool {
        !self.running && !self.reported && self.again.is_none_or(|again| again <= Instant::now())
    }
}

#[derive(Debug, Default)]
struct State {
    served: BTreeMap<String, Served>,
    attempts: BTreeMap<String, Attempt>,
    /// Uids of Pods whose agents are of an earlier release, which can't repeat the calls of their mounts.
    mute: BTreeSet<String>,
}

/// What agents last reported of their mounts, and the attempts for those that no agent has.
#[derive(Debug, Default)]
pub(super) struct Lost(Mutex<State>);

impl Lost {
    /// Notes what the agent of the Pod `uid` reports of its mounts.
    pub(super) fn heard(&self, uid: &str, mounts: &[MountState]) {
        let mut state = self.lock();
        state
            .served
            .retain(|target, one| one.by != uid || mounts.iter().any(|mount| mount.target == *target));
        for mount in mounts {
            let served = Served {
                by: uid.to_owned(),
                mount: mount.clone(),
                heard: Instant::now(),
            };
            state.served.insert(mount.target.clone(), served);
            if !mount.is_lost() {
                state.attempts.remove(&mount.target);
            }
        }
    }

    /// Mounts that did not answer when their agent last reported: the uid of its Pod, the mount, and how long it has
    /// been silent.
    pub(super) fn silent(&self) -> Vec<(String, MountState, Duration)> {
        let state = self.lock();
        let silent = state.served.values().filter_map(|one| {
            let silence = Duration::from_millis(one.mount.silent_ms?) + one.heard.elapsed();
            Some((one.by.clone(), one.mount.clone(), silence))
        });
        silent.collect()
    }

    /// What is wrong with the mount on a target, as its agent last reported.
    pub(super) fn trouble(&self, target: &str) -> Option<Trouble> {
        let state = self.lock();
        let one = state.served.get(target)?;
        let source_name = one.mount.source.clone();
        if one.mount.health == MountHealth::Dead {
            let next = match &one.mount.reviving {
                None => "it is mounted again when its Pod is replaced".to_owned(),
                Some(Reviving { failures: 0, .. }) => "it is being mounted again".to_owned(),
                Some(Reviving { failures, message, .. }) => {
                    format!("it is being mounted again, and that has failed {failures} times: {message}")
                }
            };
            return Some(Trouble::Ended { source_name, next });
        }
        let silence = Duration::from_millis(one.mount.silent_ms?) + one.heard.elapsed();
        Some(Trouble::Silent {
            source_name,
            seconds: silence.as_secs(),
        })
    }

    pub(super) fn served(&self, target: &str) -> Option<(String, MountState)> {
        let state = self.lock();
        state.served.get(target).map(|one| (one.by.clone(), one.mount.clone()))
    }

    /// Forgets mounts that are gone.
    fn retain(&self, mounted: &BTreeSet<String>, there: &There) {
        let mut state = self.lock();
        state.attempts.retain(|target, _| mounted.contains(target));
        // One that an agent is mounting is not in the table yet.
        let is_there = |one: &Served| there.pods.contains(&one.by);
        state
            .served
            .retain(|target, one| mounted.contains(target) || is_there(one));
        state.mute.retain(|uid| there.pods.contains(uid));
    }

    /// Begins an attempt for a target; `false` if one is running or not due yet.
    fn begin(&self, target: &str) -> bool {
        let mut state = self.lock();
        let attempt = state.attempts.entry(target.to_owned()).or_default();
        let is_due = attempt.is_due();
        attempt.running |= is_due;
        is_due
    }

    /// Notes a failed attempt; how many failed before.
    fn failed(&self, target: &str, message: String) -> u32 {
        let mut state = self.lock();
        let Some(attempt) = state.attempts.get_mut(target) else {
            return 0;
        };
        let before = attempt.failures;
        let wait = FIRST_WAIT.saturating_mul(1 << before.min(8)).min(LONGEST_WAIT);
        attempt.running = false;
        attempt.failures += 1;
        attempt.message = message;
        attempt.again = Some(Instant::now() + wait);
        before
    }

    fn done(&self, target: &str, reported: bool) {
        if let Some(attempt) = self.lock().attempts.get_mut(target) {
            attempt.running = false;
            attempt.reported = reported;
            // Its agent will have reported by then.
            attempt.again = Some(Instant::now() + HEARD_LIMIT);
        }
    }

    /// Forgets the attempt: the volume is unmounted, or mounted.
    pub(super) fn forget(&self, target: &str) {
        self.lock().attempts.remove(target);
    }

    fn why(&self, target: &str) -> String {
        let state = self.lock();
        let attempt = state.attempts.get(target);
        attempt.map(|attempt| attempt.message.clone()).unwrap_or_default()
    }

    fn is_reported(&self, target: &str) -> bool {
        self.lock().attempts.get(target).is_some_and(|attempt| attempt.reported)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Pods that exist.
#[derive(Debug, Default)]
struct There {
    /// Uids of all that have not ended.
    pods: BTreeSet<String>,
    /// Uids of those whose agents did not answer.
    silent: BTreeSet<String>,
}

/// Who owns a FUSE mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// An agent has it, or will have it again when its container has restarted.
    Served,
    /// No agent, as far as is known.
    Nobodys,
}

/// `claimed` is the Pod whose agent last reported it, `kept` the one that mounted it according to [`super::kept`].
fn whose(claimed: Option<&str>, kept: Option<&str>, there: &There) -> Whose {
    let has_owner = match (claimed, kept) {
        (Some(uid), _) => there.pods.contains(uid),
        // An agent that answers and does not report it does not have it.
        (None, Some(uid)) => there.silent.contains(uid),
        // An agent that can't be asked yet may have it.
        (None, None) => !there.silent.is_empty(),
    };
    if has_owner { Whose::Served } else { Whose::Nobodys }
}

/// Looks for volumes whose Pod is gone, and starts an attempt for each; whether to look again soon.
pub(super) async fn look_after(pods: &Arc<ClientPods>) -> bool {
    // Until then, it is not known which Pods exist.
    if !pods.has_list() {
        return true;
    }
    // Before the table is read: whatever is kept from then on may be of a mount that the table does not have yet.
    let until = pods.kept.until_now();
    // Read before the agents are asked: a mount is in its agent's records before it is in the table.
    let Ok(table) = Table::read().inspect_err(|error| warn!(error = %chain(&error), "failed to read the mount table"))
    else {
        return true;
    };
    let mounted = volumes(&table, pods.kubelet_root());
    let there = ask_all(pods).await;
    let targets: BTreeSet<_> = mounted.keys().map(Target::to_string).collect();
    pods.lost.retain(&targets, &there);
    pods.kept.retain(until, |target| targets.contains(target));
    let mut soon = false;
    for (target, entry) in &mounted {
        let path = target.to_string();
        let served = pods.lost.served(&path);
        let claimed = served.as_ref().map(|(by, _)| by.as_str());
        let kept = pods.kept.by(&path);
        let is_lost = served.as_ref().is_some_and(|(_, mount)| mount.is_lost());
        if whose(claimed, kept.as_deref(), &there) == Whose::Served && !is_lost {
            let is_new =
                |(by, mount): &(String, MountState)| kept.as_ref() != Some(by) && mount.health == MountHealth::Mounted;
            if let Some((by, _)) = served.filter(is_new) {
                recall(pods, &by, &path).await;
            }
            continue;
        }
        // The kernel goes on serving its own mounts.
        if !entry.fs_type.starts_with("fuse") || pods.lost.is_reported(&path) {
            continue;
        }
        match look(pods, target).await {
            LookedAt::Dead => {
                soon = true;
                if revive(pods, target).is_none() {
                    report_lost(pods, target, entry, served.map(|(_, mount)| mount));
                }
            }
            // Its container is just ending, or a program on the host serves it.
            LookedAt::Alive => soon |= kept.is_some(),
            LookedAt::Nothing => {}
        }
    }
    soon
}

/// What lies uppermost on each volume's directory.
fn volumes(table: &Table, kubelet_root: &Path) -> BTreeMap<Target, MountEntry> {
    let entries = table.known_volumes(kubelet_root).filter_map(|entry| {
        let target = Target::parse(kubelet_root, entry.mount_point.to_str()?).ok()?;
        Some((target, entry.clone()))
    });
    entries.collect()
}

/// Asks all agents what they have mounted.
async fn ask_all(pods: &Arc<ClientPods>) -> There {
    let seen = pods.seen();
    let asked = seen.iter().filter(|pod| pod.phase != PodPhase::Ended).map(async |pod| {
        let answered = pods.hello(&pod.uid).await.is_ok();
        (pod.uid.clone(), answered)
    });
    let mut there = There::default();
    for (uid, answered) in join_all(asked).await {
        if !answered {
            there.silent.insert(uid.clone());
        }
        there.pods.insert(uid);
    }
    there
}

/// Asks an agent for the call by which it mounted a volume, and keeps that.
async fn recall(pods: &Arc<ClientPods>, by: &str, target: &str) {
    if pods.lost.lock().mute.contains(by) {
        return;
    }
    if let Some((_, _, origin)) = pods.origins().into_iter().find(|(_, uid, _)| uid == by) {
        recall_from(pods, by, &origin, target).await;
    }
}

async fn recall_from(pods: &ClientPods, by: &str, origin: &Origin, target: &str) {
    let call = Call::Recall {
        target: target.to_owned(),
    };
    match pods.ask(by, call, ASK_LIMIT).await {
        Ok(AgentAnswer::Recalled(call)) => pods.kept.put(KeptRecord {
            by: by.to_owned(),
            image: origin.image().to_owned(),
            by_volume: origin.is_by_volume(),
            call: *call,
        }),
        Ok(AgentAnswer::Failed(failure)) if failure.category == FailureCategory::Protocol => {
            pods.lost.lock().mute.insert(by.to_owned());
        }
        // It may just have been unmounted.
        Ok(answer) => info!(
            target.path = target,
            ?answer,
            "its agent does not say how it was mounted"
        ),
        Err(error) => info!(
            target.path = target,
            error = %chain(&error),
            "failed to learn how it was mounted"
        ),
    }
}

/// What is mounted on a target; alive where a worker can't find out. This does not wait for a worker that already hangs
/// there.
async fn look(pods: &ClientPods, target: &Target) -> LookedAt {
    let looked = super::looks::look(&pods.workers, target, Duration::ZERO).await;
    looked.unwrap_or(LookedAt::Alive)
}

/// Starts to mount a volume again with its kept call, unless that is under way. Gives the reason why it has failed so
/// far, or `None` if no call was kept.
pub(super) fn revive(pods: &Arc<ClientPods>, target: &Target) -> Option<String> {
    let path = target.to_string();
    let record = pods.kept.get(&path)?;
    let failed = pods.lost.why(&path);
    if !pods.lost.begin(&path) {
        return Some(failed);
    }
    warn!(
        target.path = path,
        "the client Pod that served it is gone: another mounts it again"
    );
    let (pods, target) = (Arc::clone(pods), target.clone());
    tokio::spawn(async move {
        let pod = record.call.pod.clone();
        match adopt(&pods, &target, record).await {
            Ok(name) => {
                info!(
                    target.path = path,
                    pod.name = name,
                    "mounted again by another client Pod"
                );
                pods.lost.done(&path, false);
            }
            Err(error) => {
                warn!(target.path = path, "failed to mount it again: {}", chain(&error));
                if pods.lost.failed(&path, chain(&error)) == 0 {
                    tell_failure(&pods, &target, &pod, chain(&error));
                }
            }
        }
        pods.changed();
    });
    Some(failed)
}

/// Why no other Pod mounts a volume again.
#[derive(Debug, thiserror::Error)]
enum AdoptError {
    #[error("{0:?} is not a client's name")]
    Client(String),
    #[error(transparent)]
    Pod(#[from] PodError),
    #[error("client Pod {name}: {source}")]
    Link { name: String, source: LinkError },
    #[error("client Pod {name}: {message}")]
    Refused { name: String, message: String },
}

/// Has a client Pod take over a volume; the Pod's name.
async fn adopt(pods: &Arc<ClientPods>, target: &Target, record: KeptRecord) -> Result<String, AdoptError> {
    let call = &record.call;
    let client: ClientName = call
        .client
        .parse()
        .map_err(|_| AdoptError::Client(call.client.clone()))?;
    // With the image that serves the client now, as for a new mount.
    let image = match pods.registry.servings().remove(&call.client) {
        Some(Serving::Container(image)) if !record.by_volume => image,
        _ => record.image.clone(),
    };
    let need = PodNeed {
        client: &client,
        image: &image,
        by_volume: record.by_volume,
        target,
        source: &call.source,
    };
    let lease = pods.lease(need, Instant::now() + ADOPT_LIMIT).await?;
    let name = lease.name.clone();
    let call = match pods.newest_secrets(target, &record.call).await {
        Some(secrets) => record.call.renewed(secrets, Some(now())),
        None => record.call.clone(),
    };
    // Kept first: the next look has to know which Pod to ask.
    pods.kept.put(KeptRecord {
        by: lease.uid.clone(),
        image,
        call: call.clone(),
        ..record
    });
    let message = match pods.ask(&lease.uid, Call::Adopt(Box::new(call)), ASK_LIMIT).await {
        Ok(AgentAnswer::Noted) => return Ok(name),
        Ok(AgentAnswer::Failed(failure)) => failure.message,
        Ok(_) => "its agent gave an answer that does not fit the request".to_owned(),
        Err(source) => return Err(AdoptError::Link { name, source }),
    };
    Err(AdoptError::Refused { name, message })
}

fn tell_failure(pods: &ClientPods, target: &Target, pod: &PodRef, why: String) {
    if pod.name.is_empty() {
        return;
    }
    let event = VolumeEvent::Failed(why);
    // If there is no room for the Event, the log has it.
    let (note, about) = (event.note(target.name()), about_volume(pod, target));
    let _ = (pods.events).record(Event::warning(event.reason(), "Mount", note, about));
}

/// Starts to tell a volume's user that it is lost for good.
fn report_lost(pods: &Arc<ClientPods>, target: &Target, entry: &MountEntry, mount: Option<MountState>) {
    let path = target.to_string();
    if !pods.lost.begin(&path) {
        return;
    }
    let (client, source, pod) = match mount {
        Some(MountState {
            client, source, pod, ..
        }) => (client, source, Some(pod)),
        None => (entry.fs_type.clone(), source_in_words(entry).to_owned(), None),
    };
    warn!(
        target.path = path,
        "the program that served the mount of {source} ({client}) has ended, and Mooring has no record by which it \
         could be mounted again"
    );
    let (pods, target) = (Arc::clone(pods), target.clone());
    tokio::spawn(async move {
        let pod = match pod.filter(|pod| !pod.name.is_empty()) {
            Some(pod) => Ok(Some(pod)),
            None => user_of(&pods, target.pod_uid()).await,
        };
        let reported = match pod {
            Ok(Some(pod)) => pods.events.record(lost(&pod, &target, &client, &source)),
            // The Pod is gone, or the mounter may not list Pods.
            Ok(None) => true,
            Err(error) => {
                warn!(target.path = path, "failed to tell its Pod: {}", chain(&error));
                false
            }
        };
        if reported {
            pods.lost.done(&path, true);
        } else {
            pods.lost.failed(&path, String::new());
        }
    });
}

fn lost(pod: &PodRef, target: &Target, client: &str, source: &str) -> Event {
    let note = format!(
        "the program that served volume {} ({client}, {source}) has ended, and this Pod can't reach it any more \
         (Transport endpoint is not connected): delete the Pod, and its replacement gets the volume again",
        target.name()
    );
    Event::warning(reasons::VOLUME_LOST, "Serve", note, about_volume(pod, target))
}

/// The Pod of this node with a uid, if it is there.
async fn user_of(pods: &ClientPods, uid: &str) -> Result<Option<PodRef>, NodePodsError> {
    let Some(node_pods) = &pods.node_pods else {
        return Ok(None);
    };
    let all = node_pods.list().await?.into_iter();
    Ok(all.map(|seen| seen.pod).find(|pod| pod.uid == uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::AgentFailure;
    use crate::api::tests::silent_server_within;
    use crate::client_pods::kept::tests::record;
    use crate::client_pods::tests::{agent_socket, client_pods_within, serve};

    #[test]
    fn what_is_wrong_with_a_mount_is_what_its_agent_reported_last() {
        let lost = Lost::default();
        let after = |mount: MountState| {
            lost.heard("a", &[mount]);
            lost.trouble("t").map(|trouble| trouble.to_string())
        };
        assert_eq!(lost.trouble("t"), None);
        assert_eq!(after(mount("t", MountHealth::Mounted)), None);
        let silent = MountState {
            silent_ms: Some(7000),
            on_device: false,
            clean_up_failure: None,
            by_owner: None,
            ..mount("t", MountHealth::Mounted)
        };
        let said = after(silent).unwrap();
        assert!(said.contains("a@b:/c has not answered for 7 s"), "{said}");
        let dead = |reviving| MountState {
            reviving,
            ..mount("t", MountHealth::Dead)
        };
        let failed = Reviving {
            failures: 2,
            message: "no route".to_owned(),
            secrets_at: None,
        };
        for (reviving, words) in [
            (None, "when its Pod is replaced"),
            (Some(Reviving::default()), "is being mounted again"),
            (Some(failed), "failed 2 times: no route"),
        ] {
            let said = after(dead(reviving)).unwrap();
            assert!(said.contains("a@b:/c has ended") && said.contains(words), "{said}");
        }
        assert_eq!(after(mount("t", MountHealth::Mounted)), None);
    }

    fn mount(target: &str, health: MountHealth) -> MountState {
        MountState {
            target: target.into(),
            client: "sshfs".into(),
            source: "a@b:/c".into(),
            pod: PodRef::default(),
            health,
            dead: None,
            reviving: None,
            silent_ms: None,
            on_device: false,
            clean_up_failure: None,
            by_owner: None,
        }
    }

    fn there(pods: &[&str], silent: &[&str]) -> There {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        There {
            pods: set(pods),
            silent: set(silent),
        }
    }

    /// Until its Pod is gone, an agent that counts as one of an earlier release is not asked again.
    #[tokio::test]
    async fn an_agent_that_has_just_unmounted_a_volume_is_asked_for_the_next() {
        let root = tempfile::tempdir().unwrap();
        let events = silent_server_within("", Duration::from_hours(1)).await;
        let pods = client_pods_within(events, root.path().to_owned()).await;
        let failed = |category| AgentFailure {
            category,
            message: String::new(),
            limit_ms: None,
        };
        let listener = agent_socket(root.path(), "u");
        tokio::spawn(serve(listener, move |call| match call {
            Call::Recall { target } if target == "unmounted" => AgentAnswer::Failed(failed(FailureCategory::System)),
            Call::Recall { target } if target == "mounted" => {
                AgentAnswer::Recalled(Box::new(record(&target, "u").call))
            }
            _ => AgentAnswer::Failed(failed(FailureCategory::Protocol)),
        }));
        let pod = serde_json::json!({
            "metadata": {"labels": {"mooring.dev/client": "sshfs"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "a", "image": "a"}]},
        });
        let origin = Origin::of(&serde_json::from_value(pod).unwrap()).unwrap();
        for (target, is_kept, is_mute) in [
            ("unmounted", false, false),
            ("mounted", true, false),
            ("of an earlier release", false, true),
        ] {
            recall_from(&pods, "u", &origin, target).await;
            assert_eq!(pods.kept.by(target).is_some(), is_kept, "{target}");
            assert_eq!(pods.lost.lock().mute.contains("u"), is_mute, "{target}");
        }
    }

    #[test]
    fn a_volume_is_lost_when_its_pod_is_gone_even_if_no_mounter_saw_it_go() {
        use Whose::{Nobodys, Served};
        for (claimed, kept, pods, silent, expected) in [
            (Some("a"), Some("a"), &["a"][..], &[][..], Served),
            // Its container is being started again.
            (Some("a"), None, &["a"], &["a"], Served),
            (None, Some("a"), &["a"], &["a"], Served),
            // It should have taken it over, and did not.
            (None, Some("a"), &["a"], &[], Nobodys),
            // A mounter that has just started, and the Pod is gone.
            (None, Some("a"), &["b"], &[], Nobodys),
            (None, Some("a"), &["b"], &["b"], Nobodys),
            (None, None, &[], &[], Nobodys),
            (None, None, &["b"], &[], Nobodys),
            // It may be this one's.
            (None, None, &["b"], &["b"], Served),
            // One that was seen to go.
            (Some("a"), Some("a"), &["b"], &[], Nobodys),
            // Taken over since.
            (Some("b"), Some("a"), &["b"], &[], Served),
        ] {
            assert_eq!(
                whose(claimed, kept, &there(pods, silent)),
                expected,
                "{claimed:?} {kept:?} {pods:?} {silent:?}"
            );
        }
    }

    #[test]
    fn attempts_for_a_volume_run_one_at_a_time_and_ever_less_often_until_an_agent_has_it() {
        let lost = Lost::default();
        assert!(lost.begin("t"));
        assert!(!lost.begin("t"));
        assert_eq!(lost.failed("t", "no".into()), 0);
        assert!(!lost.begin("t"), "it waits");
        assert_eq!(lost.failed("t", "no image".into()), 1);
        assert_eq!(lost.why("t"), "no image");
        lost.heard("one", &[mount("t", MountHealth::Dead)]);
        assert!(!lost.begin("t"), "nothing has changed");
        let mut reviving = mount("t", MountHealth::Dead);
        reviving.reviving = Some(Reviving::default());
        lost.heard("one", &[reviving]);
        assert!(lost.begin("t"));
        lost.done("t", true);
        assert!(lost.is_reported("t") && !lost.begin("t"));
        lost.heard("one", &[mount("t", MountHealth::Mounted)]);
        assert!(lost.begin("t"));
        lost.forget("t");
        assert!(lost.begin("t"));
    }

    #[test]
    fn the_volumes_are_those_of_the_mount_table_and_of_two_on_one_directory_the_uppermost() {
        let line = |id: u32, name: &str, kind: &str| {
            format!("{id} 1 0:{id} / /k/pods/u/volumes/mooring.dev~vcs/{name} rw - {kind} src rw\n")
        };
        let text = [
            line(1, "a", "ext4"),
            line(2, "a", "fuse.sshfs"),
            line(3, "b/deeper", "ext4"),
            "4 1 0:4 / /k/pods/u/volumes/kubernetes.io~secret/s rw - tmpfs tmpfs rw\n".to_owned(),
        ];
        let table = Table::parse(text.concat().as_bytes());
        let found = volumes(&table, Path::new("/k"));
        let found: Vec<_> = found.iter().map(|(target, entry)| (target.name(), entry.id)).collect();
        assert_eq!(found, [("a", 2)]);
    }
}
