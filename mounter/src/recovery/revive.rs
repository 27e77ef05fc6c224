//! Volumes whose FUSE daemon ended: gives them back to their users, and records that in Events.
//!
//! The agent mounts such a volume again ([`crate::agent::revive`]) and remembers the devices of its dead mounts. The
//! daemon sees the new mount in its own mount table. It puts the new mount where containers still have a dead one
//! ([`crate::worker::graft`]), and tells the agent to forget the dead mounts when none is left. All state is in the
//! mount tables and with the agent, so a mounter that is killed in between finishes after its restart. What an agent
//! knew goes with its process. Then a dead mount is known by the volume's id, if it shows that. If not, nothing tells
//! which volume it is of ([`KnownMounts`]), it stays, and an Event says that the Pod has to be deleted.
//!
//! Files: [`scan`] (who has a dead mount), [`watch`] (the mount table).

pub mod scan;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use mooring_program::error::chain;
use tracing::{Instrument as _, info, info_span, warn};

use self::scan::{Namespace, namespaces};
use crate::agent::protocol::{Call, Dead, MountHealth, MountState};
use crate::api::volume_events::{VolumeEvent, VolumeRecorder};
use crate::client_pods::ClientPods;
use crate::client_pods::clean_up::FailedCleanUps;
use crate::client_pods::renew::Renewal;
use crate::client_pods::status::PodPhase;
use crate::core::metrics::MounterMetrics;
use crate::sys::thread;
use crate::volume::job::{MountError, PodRef};
use crate::volume::mount_table::{DeviceNumber, MountEntry, Table};
use crate::volume::target::Target;
use crate::worker::graft::{GraftTask, KnownMounts, dead_mounts};
use crate::worker::{Task, WorkerError, Workers};

/// How often to ask the agents when nothing happens.
const PERIOD: Duration = Duration::from_secs(30);

/// Wait before the next look while something was done or is not finished.
const SOON: Duration = Duration::from_secs(1);

/// Longest wait before a container that did not get the new mount is tried again.
const SELDOM: Duration = Duration::from_mins(1);

/// How many times all dead mounts of a volume are replaced before it counts as done.
const PASSES: u32 = 3;

/// Shortest time between two questions to the API which Secret a volume has.
const ASK_PERIOD: Duration = Duration::from_mins(1);

/// Shortest time between two looks: a burst of mounts is one.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest that a worker may take for one mount namespace: it may have to ask the server.
const GRAFT_LIMIT: Duration = Duration::from_secs(15);

/// Shortest time between two looks for dead mounts that no agent recorded.
const DOUBT_PERIOD: Duration = Duration::from_secs(20);

/// Longest that an agent may take to note something.
const NOTE_LIMIT: Duration = Duration::from_secs(5);

/// Replaces dead mounts by new ones, and tells their users.
pub struct Reviver {
    pods: Arc<ClientPods>,
    workers: Workers,
    metrics: MounterMetrics,
    recorder: VolumeRecorder,
    /// The client Pods that serve the volumes.
    known: BTreeMap<Target, PodRef>,
    /// Volumes that not every container got: the number of failures, and when to try again.
    stuck: BTreeMap<Target, (u32, Instant)>,
    /// Volumes whose dead mounts were all replaced at least once.
    over: BTreeMap<Target, Replaced>,
    /// Volumes that failed to be mounted again with their Secret.
    blamed: BTreeMap<Target, Blamed>,
    /// When dead mounts that no agent recorded were last looked for, and the volumes that they may be of.
    doubts: Option<(Instant, BTreeSet<Target>)>,
    clean_ups: FailedCleanUps,
}

/// A volume whose program failed with a Secret that may be an old one.
#[derive(Debug)]
struct Blamed {
    /// When its Secret in the API was asked for.
    asked: Instant,
    found: Renewal,
    /// How many times it had failed by then.
    failures: u32,
}

/// Dead mounts that were replaced in all containers, and are looked for again in case a container was just starting.
#[derive(Debug)]
struct Replaced {
    devices: Vec<DeviceNumber>,
    /// How long nobody could use the volume.
    outage: Duration,
    /// How many times they were replaced.
    passes: u32,
}

impl Replaced {
    /// Whether nothing is left of these dead mounts. What is found after several passes belongs to another file system,
    /// which has the device number by now. A mount that has died since is not among those that were replaced.
    fn is_all_of(&self, dead: &Dead) -> bool {
        self.passes >= PASSES && dead.devices.iter().all(|device| self.devices.contains(device))
    }

    /// The dead mounts were all replaced once more. If another one has died since, the count begins again.
    fn after_a_pass(before: Option<Self>, dead: &Dead) -> Self {
        let same = before.filter(|before| before.devices == dead.devices);
        let (outage, passes) = same.map_or_else(|| (since(dead.since_ms), 0), |same| (same.outage, same.passes));
        Self {
            devices: dead.devices.clone(),
            outage,
            passes: passes + 1,
        }
    }
}

/// A volume that was mounted again, and whose dead mounts may be in use.
struct Revived {
    target: Target,
    /// The client Pod.
    uid: String,
    client: String,
    dead: Dead,
}

impl Reviver {
    pub fn new(pods: Arc<ClientPods>, workers: Workers, metrics: MounterMetrics, recorder: VolumeRecorder) -> Self {
        Self {
            pods,
            workers,
            metrics,
            recorder,
            known: BTreeMap::new(),
            stuck: BTreeMap::new(),
            over: BTreeMap::new(),
            blamed: BTreeMap::new(),
            doubts: None,
            clean_ups: FailedCleanUps::default(),
        }
    }

    /// Runs for as long as the mounter.
    pub async fn run(mut self) {
        let mut table = watch::mount_table()
            .inspect_err(|error| {
                warn!(
                    error = %chain(&error),
                    "can't listen to the mount table: the mounter looks at volumes every {PERIOD:?}"
                );
            })
            .ok();
        let mut changes = self.pods.changes();
        loop {
            changes.mark_unchanged();
            if let Some(table) = &mut table {
                table.mark_unchanged();
            }
            let wait = self.look().instrument(info_span!("revive")).await;
            tokio::time::sleep(PAUSE).await;
            let mounted = async {
                let heard = match &mut table {
                    Some(table) => table.changed().await.is_ok(),
                    None => false,
                };
                if !heard {
                    pending::<()>().await;
                }
            };
            tokio::select! {
                _ = changes.changed() => {}
                () = mounted => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Does what is due; how long to wait before the next time.
    async fn look(&mut self) -> Duration {
        let mut wait = PERIOD;
        let mut revived = Vec::new();
        let (mut mounted, mut has_heard_all) = (Vec::new(), self.pods.has_list());
        let seen = self.pods.agents();
        let mut may_ask = true;
        for pod in seen.into_iter().filter(|pod| pod.phase != PodPhase::Ended) {
            let Ok(hello) = self.pods.hello(&pod.uid).await else {
                has_heard_all = false;
                continue;
            };
            self.clean_ups.look_after(&self.pods, &pod, &hello.mounts).await;
            for mount in &hello.mounts {
                let Ok(target) = Target::parse(self.pods.kubelet_root(), &mount.target) else {
                    continue;
                };
                self.known.insert(target.clone(), mount.pod.clone());
                if mount.health == MountHealth::Mounted {
                    mounted.push(target.clone());
                } else {
                    wait = wait.min(SOON);
                }
                self.tell_failure(&target, mount, &mut may_ask).await;
                revived.extend(hello.held(mount).map(|dead| Revived {
                    target,
                    uid: pod.uid.clone(),
                    client: mount.client.clone(),
                    dead: dead.clone(),
                }));
            }
        }
        let table = match Table::read() {
            Ok(table) => table,
            Err(error) => {
                warn!(error = %chain(&error), "failed to read the mount table");
                return wait;
            }
        };
        self.keep(&table);
        let recorded = revived.iter().flat_map(|one| one.dead.devices.clone()).collect();
        revived.retain(|one| is_mounted_anew(&table, one));
        if !revived.is_empty() {
            wait = wait.min(self.finish(revived).await);
        }
        self.look_for_unrecorded(mounted, recorded, table, has_heard_all).await;
        wait
    }

    /// Replaces the dead mounts that no agent recorded and whose ids say which volume they are of. If others are there
    /// at two looks, they are reported: nobody repairs them. So is what can't be replaced.
    async fn look_for_unrecorded(
        &mut self,
        mounted: Vec<Target>,
        recorded: BTreeSet<DeviceNumber>,
        node: Table,
        has_heard_all: bool,
    ) {
        let is_due = |(last, _): &(Instant, _)| last.elapsed() >= DOUBT_PERIOD;
        if mounted.is_empty() || !self.doubts.as_ref().is_none_or(is_due) {
            return;
        }
        let scanned = thread::run(move || unrecorded(Path::new("/proc"), &mounted, &recorded, &node)).await;
        let Ok(Ok(tasks)) = scanned else {
            warn!("failed to look for dead mounts that no agent recorded");
            return;
        };
        let before = self.doubts.take().map(|(_, targets)| targets).unwrap_or_default();
        let mut doubtful = BTreeSet::new();
        for task in tasks {
            let target = task.target.clone();
            let show_id = task.show_id;
            let done = self.workers.run(&Task::Graft(task), Instant::now() + GRAFT_LIMIT).await;
            let Err(error) = done else {
                if show_id {
                    info!(target.path = %target, "looked after dead mounts that no agent recorded");
                }
                continue;
            };
            let is_known = show_id && !matches!(error, WorkerError::Failed(MountError::Unattributed { .. }));
            // An agent that does not answer may have recorded the others.
            if !is_known && !has_heard_all {
                continue;
            }
            if before.contains(&target) {
                let pod = self.known.get(&target).cloned();
                let why = chain(&error);
                let event = if is_known {
                    VolumeEvent::Stuck(why)
                } else {
                    VolumeEvent::Unattributed(why)
                };
                self.recorder.record(&target, pod.as_ref(), event);
            }
            doubtful.insert(target);
        }
        self.doubts = Some((Instant::now(), doubtful));
    }

    /// Says why a volume can't be mounted again, unless it is about to be tried with a newer Secret.
    async fn tell_failure(&mut self, target: &Target, mount: &MountState, may_ask: &mut bool) {
        let Some(reviving) = mount.reviving.as_ref().filter(|reviving| reviving.failures > 0) else {
            self.blamed.remove(target);
            return;
        };
        let mut why = reviving.message.clone();
        if let Some(at) = reviving.secrets_at {
            match self.newest_for(target, reviving.failures, may_ask).await {
                None => return,
                Some(Renewal::Unknown) => why = with_age(&why, at),
                Some(Renewal::Newest | Renewal::Changed) => {}
            }
        }
        if self.recorder.record(target, Some(&mount.pod), VolumeEvent::Failed(why)) {
            self.metrics.not_revived(&mount.client);
        }
    }

    /// Whether a volume has failed as often with the newest Secret; none while that is not known. The API is asked for
    /// one volume in each look, so that others need not wait.
    async fn newest_for(&mut self, target: &Target, failures: u32, may_ask: &mut bool) -> Option<Renewal> {
        let before = self.blamed.get(target);
        let is_due = before.is_none_or(|before| before.asked.elapsed() >= ASK_PERIOD && failures > before.failures);
        if is_due && !mem::take(may_ask) {
            return before.map(|before| before.found);
        }
        if is_due {
            let found = self.pods.renew_from_api(target).await;
            let asked = Instant::now();
            self.blamed.insert(target.clone(), Blamed { asked, found, failures });
        }
        let blamed = self.blamed.get(target)?;
        (blamed.found != Renewal::Changed || failures > blamed.failures).then_some(blamed.found)
    }

    /// Forgets volumes that are no longer mounted.
    fn keep(&mut self, table: &Table) {
        let is_there = |target: &Target| table.top(&target.path()).is_some();
        self.recorder.keep(is_there);
        self.known.retain(|target, _| is_there(target));
        self.stuck.retain(|target, _| is_there(target));
        self.over.retain(|target, _| is_there(target));
        self.blamed.retain(|target, _| is_there(target));
    }

    /// Puts new mounts where dead ones are in use.
    async fn finish(&mut self, revived: Vec<Revived>) -> Duration {
        let scanned = thread::run(move || users(Path::new("/proc"), &revived).map(|found| (revived, found))).await;
        let (revived, namespaces) = match scanned {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                warn!(error = %chain(&error), "failed to look for users of dead mounts");
                return SOON;
            }
            Err(_) => return SOON,
        };
        let mut wait = PERIOD;
        for one in &revived {
            let step = self.finish_one(one, &namespaces).await;
            wait = wait.min(step);
        }
        wait
    }

    async fn finish_one(&mut self, one: &Revived, namespaces: &[Namespace]) -> Duration {
        let Revived {
            target, client, dead, ..
        } = one;
        let has_dead = |namespace: &&Namespace| {
            let Namespace { owner, table, .. } = namespace;
            !dead_mounts(owner, table, target, &dead.devices).is_empty()
        };
        let users: Vec<_> = namespaces.iter().filter(has_dead).collect();
        if users.is_empty() || self.over.get(target).is_some_and(|over| over.is_all_of(dead)) {
            self.done(one).await;
            return PERIOD;
        }
        if let Some((_, again)) = self.stuck.get(target) {
            let left = again.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return left;
            }
        }
        let mut failure = None;
        for namespace in users {
            let task = Task::Graft(GraftTask {
                pid: namespace.pid,
                namespace: namespace.id,
                owner: namespace.owner.clone(),
                target: target.clone(),
                dead: dead.devices.clone(),
                unrecorded: BTreeSet::new(),
                show_id: false,
            });
            if let Err(error) = self.workers.run(&task, Instant::now() + GRAFT_LIMIT).await {
                failure = Some(chain(&error));
            }
        }
        let Some(why) = failure else {
            self.stuck.remove(target);
            let before = self.over.remove(target);
            self.over.insert(target.clone(), Replaced::after_a_pass(before, dead));
            // Once more, for a container that was just starting.
            return SOON;
        };
        let failures = self.stuck.get(target).map_or(0, |(failures, _)| *failures) + 1;
        let wait = SOON.saturating_mul(1 << failures.min(8)).min(SELDOM);
        self.stuck.insert(target.clone(), (failures, Instant::now() + wait));
        // The first failure may be due to a process that has just ended.
        if failures > 1 {
            let pod = self.known.get(target).cloned();
            if self.recorder.record(target, pod.as_ref(), VolumeEvent::Stuck(why)) {
                self.metrics.not_revived(client);
            }
        }
        wait
    }

    /// Ends the outage: nothing uses a dead mount of this volume any more.
    async fn done(&mut self, one: &Revived) {
        let Revived {
            target,
            uid,
            client,
            dead,
            ..
        } = one;
        let over = self.over.remove(target);
        let outage = over.map_or_else(|| since(dead.since_ms), |over| over.outage);
        self.stuck.remove(target);
        let call = Call::Revived {
            target: target.to_string(),
            devices: dead.devices.clone(),
        };
        if let Err(error) = self.pods.ask(uid, call, NOTE_LIMIT).await {
            warn!(target.path = %target, error = %chain(&error), "failed to tell an agent that a volume is in use \
                                                                 again");
            return;
        }
        self.metrics.revived(client, outage);
        let pod = self.known.get(target).cloned();
        let event = VolumeEvent::Revived(outage.as_secs_f64());
        self.recorder.record(target, pod.as_ref(), event);
    }
}

/// A failure that may be due to a Secret that has been changed since it was given.
fn with_age(why: &str, secrets_at: u64) -> String {
    let at = i64::try_from(secrets_at)
        .ok()
        .and_then(|at| Timestamp::from_second(at).ok());
    let of = at.map_or_else(|| "of its first mount".to_owned(), |at| format!("of {at}"));
    format!(
        "{why}. It was tried with the Secret {of}: if the Secret has been changed since then, delete the Pod, and its \
         replacement gets the new one"
    )
}

/// The mount namespaces that may have a dead mount of these volumes.
fn users(proc: &Path, revived: &[Revived]) -> io::Result<Vec<Namespace>> {
    let is_dead = |entry: &MountEntry| revived.iter().any(|one| one.dead.devices.contains(&entry.device));
    namespaces(proc, |_, table| table.0.iter().any(is_dead))
}

/// What to do about mounts that are like those of volumes and that no agent recorded. `recorded` are the dead mounts of
/// all volumes, `node` is this process' mount table.
fn unrecorded(
    proc: &Path,
    mounted: &[Target],
    recorded: &BTreeSet<DeviceNumber>,
    node: &Table,
) -> io::Result<Vec<GraftTask>> {
    let known = KnownMounts::new(node, mounted, recorded);
    let namespaces = namespaces(proc, |owner, table| !known.unrecorded(owner, table).is_empty())?;
    let tasks = namespaces.iter().flat_map(|namespace| {
        let found = known.unrecorded(&namespace.owner, &namespace.table).into_iter();
        found.map(|found| GraftTask {
            pid: namespace.pid,
            namespace: namespace.id,
            owner: namespace.owner.clone(),
            target: found.target.clone(),
            dead: Vec::new(),
            unrecorded: found.devices,
            show_id: found.show_id,
        })
    });
    Ok(tasks.collect())
}

/// Whether the target has another mount than those that died.
fn is_mounted_anew(table: &Table, one: &Revived) -> bool {
    let top = table.top(&one.target.path());
    top.is_some_and(|top| !one.dead.devices.contains(&top.device))
}

/// How long ago a time in milliseconds since 1970 is.
fn since(ms: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::{Namespace, PASSES, Replaced, Revived, dead_mounts, is_mounted_anew, unrecorded, users, with_age};
    use crate::agent::protocol::Dead;
    use crate::sys::fake::target;
    use crate::volume::mount_table::{DeviceNumber, Table};
    use crate::volume::target::Target;
    use crate::volume::volume_id::VolumeId;

    /// A `/proc` with a container of a Pod.
    fn container(uid: &str, table: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let process = proc.path().join("7");
        std::fs::create_dir_all(process.join("ns")).unwrap();
        std::fs::create_dir(proc.path().join("self")).unwrap();
        std::os::unix::fs::symlink("mnt:[100]", process.join("ns/mnt")).unwrap();
        std::fs::write(process.join("mountinfo"), table).unwrap();
        std::fs::write(process.join("cgroup"), format!("0::/kubepods/burstable/pod{uid}/c\n")).unwrap();
        std::fs::write(proc.path().join("self/cgroup"), "0::/kubepods/podmounter/c\n").unwrap();
        proc
    }

    #[test]
    fn a_secret_that_may_have_been_changed_is_not_blamed_without_saying_of_when_it_is() {
        let said = with_age("the server does not accept the key", 1_795_980_605);
        assert!(said.starts_with("the server does not accept the key. It was tried with the Secret of 2026-11-29T"));
        assert!(
            said.ends_with("delete the Pod, and its replacement gets the new one"),
            "{said}"
        );
    }

    #[test]
    fn a_volume_has_only_the_dead_mounts_that_were_recorded_for_it() {
        const NODE: &str = "\
10 1 8:1 / /kubelet rw shared:1 - ext4 /dev/root rw
11 10 0:50 / /kubelet/pods/u/volumes/mooring.dev~vcs/a rw - fuse.s3fs s3fs rw
12 10 0:51 / /kubelet/pods/u/volumes/mooring.dev~vcs/b rw - fuse.s3fs s3fs rw
";
        const CONTAINER: &str = "\
21 20 8:1 /kubelet/pods/u/etc-hosts /etc/hosts rw - ext4 /dev/root rw
22 20 0:40 / /a rw - fuse.s3fs s3fs rw
23 20 0:41 / /b rw - fuse.s3fs s3fs rw
";
        let proc = container("u", CONTAINER);
        let revived = [("a", 40), ("b", 41)].map(|(name, minor)| Revived {
            target: Target::parse(
                Path::new("/kubelet"),
                &format!("/kubelet/pods/u/volumes/mooring.dev~vcs/{name}"),
            )
            .unwrap(),
            uid: String::new(),
            client: "s3".into(),
            dead: Dead {
                devices: vec![DeviceNumber { major: 0, minor }],
                since_ms: 0,
            },
        });
        let namespaces = users(proc.path(), &revived).unwrap();
        assert_eq!(namespaces.len(), 1);
        for (one, point) in revived.iter().zip(["/a", "/b"]) {
            let Namespace { owner, table, .. } = &namespaces[0];
            let dead = dead_mounts(owner, table, &one.target, &one.dead.devices);
            let points: Vec<_> = dead.iter().map(|entry| entry.mount_point.as_path()).collect();
            assert_eq!(points, [Path::new(point)]);
        }
        // Nothing is doubtful while agents have recorded both; what no agent recorded may be of either.
        let targets = revived.map(|one| one.target);
        let node = Table::parse(NODE.as_bytes());
        let devices = |minors: &[u32]| minors.iter().map(|&minor| DeviceNumber { major: 0, minor }).collect();
        assert!(
            unrecorded(proc.path(), &targets, &devices(&[40, 41]), &node)
                .unwrap()
                .is_empty()
        );
        let tasks = unrecorded(proc.path(), &targets, &devices(&[40]), &node).unwrap();
        let doubtful: Vec<_> = tasks
            .iter()
            .map(|task| (task.unrecorded.clone(), task.show_id))
            .collect();
        assert_eq!(doubtful, [(devices(&[41]), false), (devices(&[41]), false)]);
    }

    #[test]
    fn a_dead_mount_with_an_id_is_looked_after_though_its_agent_is_gone() {
        let line = |device: &str, place: &str| {
            let id = VolumeId::of(&target());
            format!("11 10 {device} / {place} rw - fuse.sshfs {} rw\n", id.as_str())
        };
        let proc = container("u", &line("0:40", "/data"));
        let node = Table::parse(line("0:50", &target().to_string()).as_bytes());
        let tasks = unrecorded(proc.path(), &[target()], &BTreeSet::new(), &node).unwrap();
        let [task] = &tasks[..] else { panic!("not one") };
        let dead = DeviceNumber { major: 0, minor: 40 };
        assert_eq!((&task.unrecorded, task.show_id), (&[dead].into(), true));
    }

    #[test]
    fn a_container_that_forges_the_paths_of_another_pod_gets_none_of_its_volumes() {
        const FORGED: &str = "\
21 20 0:7 / /tmp/pods/u/x rw - tmpfs tmpfs rw
22 20 0:40 / /data rw - fuse.s3fs s3fs rw
";
        let proc = container("other", FORGED);
        let one = Revived {
            target: target(),
            uid: String::new(),
            client: "s3".into(),
            dead: Dead {
                devices: vec![DeviceNumber { major: 0, minor: 40 }],
                since_ms: 0,
            },
        };
        let namespaces = users(proc.path(), std::slice::from_ref(&one)).unwrap();
        let mut found = namespaces.iter();
        let is_one = found.any(|Namespace { owner, table, .. }| {
            !dead_mounts(owner, table, &one.target, &one.dead.devices).is_empty()
        });
        assert!(!is_one, "a mount of another Pod's container counts as the volume's");
    }

    #[test]
    fn a_mount_that_dies_while_earlier_ones_are_looked_for_is_not_taken_for_replaced() {
        let dead = |minors: &[u32]| Dead {
            devices: minors.iter().map(|&minor| DeviceNumber { major: 0, minor }).collect(),
            since_ms: 0,
        };
        let first = dead(&[5]);
        let mut over = None;
        for _ in 0..PASSES {
            assert!(!over.as_ref().is_some_and(|over: &Replaced| over.is_all_of(&first)));
            over = Some(Replaced::after_a_pass(over, &first));
        }
        let over = over.unwrap();
        assert!(over.is_all_of(&first));
        let both = dead(&[5, 6]);
        assert!(!over.is_all_of(&both));
        let over = Replaced::after_a_pass(Some(over), &both);
        assert_eq!(over.passes, 1);
        assert!(!over.is_all_of(&both) && !over.is_all_of(&first));
    }

    #[test]
    fn a_volume_is_mounted_again_when_its_target_has_another_device_than_the_dead_ones() {
        let table = |devices: &[&str]| {
            let line =
                |device: &&str| format!("9 1 {device} / /kubelet/pods/u/volumes/mooring.dev~vcs/v rw - fuse.x y rw\n");
            Table::parse(devices.iter().map(line).collect::<String>().as_bytes())
        };
        let one = Revived {
            target: target(),
            uid: String::new(),
            client: String::new(),
            dead: Dead {
                devices: vec![DeviceNumber { major: 0, minor: 5 }],
                since_ms: 0,
            },
        };
        assert!(!is_mounted_anew(&table(&["0:5"]), &one));
        assert!(is_mounted_anew(&table(&["0:5", "0:6"]), &one));
        assert!(!is_mounted_anew(&table(&[]), &one));
    }
}
