//! What an agent does with its mounts: it makes them, sees whether they answer ([`looks`]), and cleans up after them
//! ([`clean_up`]).

mod clean_up;
mod error;
mod looks;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mooring_program::error::chain;
use tokio::sync::Notify;
use tracing::warn;

pub use self::clean_up::CLEAR_UP_WAIT;
pub use self::error::AgentError;
use self::error::in_ms;
pub use self::looks::SETTLED;
pub(super) use self::looks::{LOOK_LIMIT, ask};
pub use self::secrets::MOST_MEMORY;
use self::secrets::{check_keys, check_size};
use super::claims::Claims;
use super::dead_mounts::DeadMounts;
use super::one_at_a_time::{Alone, OneAtATime};
use super::program::{self, Brings, InvalidVolume, Invocation};
use super::protocol::{AgentFailure, Hello, MountCall, MountHealth, MountState, SecretBytes, VERSION};
use super::record;
use super::revivals::Revivals;
use super::run::{self, OUTPUT_GRACE, REAP};
use super::services::{ServiceRun, Services};
use super::store::{self, Store, StoreError};
use super::target_mounts::{self, TargetMountError};
use crate::deadlines::{AgentDeadlines, SMALLEST_MARGIN};
use crate::sys::look::LookedAt;
use crate::sys::thread;
use crate::volume::mount_options::{self, MountFlags};
use crate::volume::mount_table::DeviceNumber;
use crate::volume::target::{Target, TargetError};
use crate::volume::volume_id::VolumeId;

// Between the end of a program that took too long and the answer, the program is killed and its output read.
const _: () = assert!(REAP.as_millis() + OUTPUT_GRACE.as_millis() < SMALLEST_MARGIN.as_millis());

/// Environment variable of a program that mounts: the source that the volume's FUSE mounts are to show.
const VOLUME_ID: &str = "MOORING_VOLUME_ID";

#[derive(Debug)]
pub struct Mounts {
    kubelet_root: PathBuf,
    pub(super) store: Store,
    /// Which volumes have the node's devices.
    claims: Claims,
    pub(super) reviving: Revivals,
    pub(super) dead: DeadMounts,
    /// The services that programs of the image have asked for.
    pub(super) services: Arc<Services>,
    busy: Mutex<BTreeSet<String>>,
    /// When each target last answered.
    alive: Mutex<BTreeMap<String, Instant>>,
    /// Since when each target has been without its mount.
    gone: Mutex<BTreeMap<String, Instant>>,
    /// How many times the clean-up after each target has failed, and why it did last.
    unclean: Mutex<BTreeMap<String, (u32, String)>>,
    /// Targets that have been asked for an answer and have not given one, and since when.
    looking: Mutex<BTreeMap<String, Instant>>,
    /// Targets that must not be mounted again.
    pub(super) given_up: Mutex<BTreeSet<String>>,
    /// Wakes what waits to mount a volume again.
    pub(super) renewed: Notify,
    /// Held while a volume with one device is mounted or cleaned up.
    pub(super) one_at_a_time: OneAtATime,
    draining: AtomicBool,
}

impl Mounts {
    /// Resumes the work of an earlier agent of this Pod: removes the staging mounts of unfinished mounts.
    pub fn new(kubelet_root: PathBuf, store: Store) -> Result<Self, StoreError> {
        let records = store.all()?;
        for call in &records.calls {
            store.unstage(&call.target)?;
        }
        let claims = Claims::new(&kubelet_root, store.dir());
        if records.unreadable.is_empty() {
            let recorded = records.calls.iter().map(|call| call.target.as_str());
            if let Err(error) = claims.withdraw_all_but(recorded) {
                warn!(error = %chain(&error), "failed to withdraw claims to devices of volumes that are gone");
            }
        }
        for error in records.unreadable {
            warn!(
                error = %chain(&error),
                "a volume is neither watched nor mounted again if its program ends, and this client container stays \
                 until it is unmounted. Delete the Pods that use the volume"
            );
        }
        let services = Arc::new(Services::new(store.dir().to_owned(), store.services()));
        services.resume();
        Ok(Self {
            claims,
            kubelet_root,
            store,
            services,
            reviving: Revivals::default(),
            dead: DeadMounts::default(),
            busy: Mutex::default(),
            alive: Mutex::default(),
            gone: Mutex::default(),
            unclean: Mutex::default(),
            looking: Mutex::default(),
            given_up: Mutex::default(),
            renewed: Notify::new(),
            one_at_a_time: OneAtATime::default(),
            draining: AtomicBool::new(false),
        })
    }

    /// From now on, refuses new mounts.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether the agent may end: it has no live mount, also none whose record can't be read, and no operation runs.
    pub async fn is_idle(self: &Arc<Self>) -> bool {
        let lost = self
            .hello()
            .await
            .is_ok_and(|hello| hello.mounts.iter().all(MountState::is_lost));
        lost && self.store.all().is_ok_and(|records| records.unreadable.is_empty())
    }

    /// The agent's identity and mounts. Cleans up after mounts that were unmounted without the agent.
    pub async fn hello(self: &Arc<Self>) -> Result<Hello, AgentError> {
        let mut mounts = Vec::new();
        // For all clean-ups together: who asks waits a few seconds. They go on beyond that.
        let cleaned_up = Instant::now() + LOOK_LIMIT;
        for call in self.store.all()?.calls {
            let Some(health) = self.health(&call, cleaned_up).await else {
                continue;
            };
            mounts.push(MountState {
                dead: self.dead.of(&call.target),
                reviving: self.reviving.of(&call.target),
                silent_ms: self.silence(&call.target).map(in_ms),
                on_device: self.has_device_to_share(&call),
                clean_up_failure: self.clean_up_failure(&call.target),
                by_owner: record::is_by_owner(&call),
                pod: call.pod.clone(),
                target: call.target.clone(),
                client: call.client.clone(),
                source: call.source.clone(),
                health,
            });
        }
        Ok(Hello {
            version: VERSION,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            draining: self.draining.load(Ordering::SeqCst),
            revives: true,
            holds_dead: true,
            mounts,
        })
    }

    /// How a recorded target is; none if it was unmounted, and is cleaned up and forgotten now.
    async fn health(self: &Arc<Self>, call: &MountCall, cleaned_up: Instant) -> Option<MountHealth> {
        let Ok(busy) = self.begin(&call.target) else {
            return Some(MountHealth::Busy);
        };
        let looked = self.look_seldom(&call.target).await;
        if looked.is_ok() {
            self.free_ended_device(call);
        }
        Some(match looked {
            // A mount that can't be checked must not hide the others.
            Err(error) => {
                warn_of(&call.target, "failed to look at it", &error);
                MountHealth::Busy
            }
            Ok(LookedAt::Alive) => MountHealth::Mounted,
            Ok(LookedAt::Dead) if self.is_given_up(&call.target) => MountHealth::Busy,
            Ok(LookedAt::Dead) => {
                self.revive(call.clone());
                MountHealth::Dead
            }
            Ok(LookedAt::Nothing) if !self.is_gone_for_good(&call.target) => MountHealth::Busy,
            Ok(LookedAt::Nothing) => {
                let left = cleaned_up.saturating_duration_since(Instant::now());
                match self.clear_up(call, busy, left).await {
                    Ok(()) => return None,
                    Err(AgentError::InProgress(_)) => {}
                    // It still has something of the volume, which so must not be detached.
                    Err(error) => warn_of(&call.target, "failed to clean up", &error),
                }
                MountHealth::Busy
            }
        })
    }

    /// Mounts a volume. If the same one is mounted already, that is success; if its daemon is dead, it is being mounted
    /// again. Of a raw block volume the device is returned, for the mounter to show it.
    pub async fn mount(self: &Arc<Self>, call: MountCall) -> Result<Option<DeviceNumber>, AgentError> {
        let deadlines = AgentDeadlines::of(Duration::from_millis(call.limit_ms));
        let target = self.target(&call.target)?;
        check_keys(&call)?;
        let busy = self.begin(&call.target)?;
        match self.look(&call.target).await? {
            // What is mounted already stays: an earlier release may have mounted it.
            LookedAt::Nothing => check_size(&call)?,
            LookedAt::Alive if self.recorded_as(&call) && target.is_device() => return Ok(target.device()?),
            LookedAt::Alive if self.recorded_as(&call) => return Ok(None),
            LookedAt::Dead if target.is_device() => return Err(AgentError::DeadDevice(call.target.clone())),
            LookedAt::Alive => return Err(AgentError::Occupied(call.target.clone())),
            LookedAt::Dead => {
                let recorded = self.store.recorded(&call.target);
                self.revive(recorded.ok_or_else(|| AgentError::Occupied(call.target.clone()))?);
                return Err(AgentError::Dead(call.target.clone()));
            }
        }
        let begun = self.claim_and_record(&call, deadlines).await;
        if begun.is_err() && self.store.recorded(&call.target).is_none() {
            self.claims.withdraw(&call.target)?;
        }
        let (other, alone) = begun?;
        let mounted = if let Some(other) = &other {
            self.share(&call, other).await
        } else if target.is_device() {
            self.have_device(&call, deadlines).await.map(Some)
        } else {
            self.mount_first(&call, &target, deadlines).await.map(|()| None)
        };
        drop(alone);
        if mounted.is_ok() {
            self.note_clean_up(&call.target, &Ok(()));
        } else {
            // The caller gets the first failure, in time.
            let wait = CLEAR_UP_WAIT.min(deadlines.until_answer());
            if let Err(error) = self.clear_up(&call, busy, wait).await {
                warn_of(&call.target, "failed to clean up", &error);
            }
        }
        mounted
    }

    /// Makes sure that a call may have its device, and records the call: everything that follows can be cleaned up then.
    /// Returns what [`Self::shared`] does.
    async fn claim_and_record(
        &self,
        call: &MountCall,
        deadlines: AgentDeadlines,
    ) -> Result<(Option<MountCall>, Option<Alone>), AgentError> {
        self.claim(call)?;
        let (other, alone) = self.shared(call, deadlines).await?;
        if other.is_none() {
            for_program(&call.target, deadlines)?;
        }
        if other.is_none() && self.draining.load(Ordering::SeqCst) {
            return Err(AgentError::Draining);
        }
        let of = other.as_ref().unwrap_or(call);
        self.store.record(call, &self.store.volume(&of.target))?;
        Ok((other, alone))
    }

    /// If what served a recorded target's device has ended, lets the volume have another one: the mounter sends its next
    /// Pod to whichever agent it likes then. The target has to be busy.
    fn free_ended_device(&self, call: &MountCall) {
        if self.device_has_ended(call)
            && let Err(error) = self.claims.device_ended(&call.target)
        {
            warn!(target.path = call.target, error = %chain(&error), "failed to let its volume have another device");
        }
    }

    /// Claims the device of a call, if its client has devices.
    pub(super) fn claim(&self, call: &MountCall) -> Result<(), AgentError> {
        if record::has_devices(call)? {
            self.claims.claim_source(call)?;
        }
        Ok(())
    }

    pub(super) fn record_of(&self, target: &str) -> Result<MountCall, AgentError> {
        let recorded = self.store.recorded(target);
        recorded.ok_or_else(|| AgentError::Unknown(target.to_owned()))
    }

    /// How a volume was mounted, with its secrets.
    pub fn recall(&self, target: &str) -> Result<MountCall, AgentError> {
        Ok(self.record_of(target)?.with_secrets(self.store.read_secrets(target)?))
    }

    /// Keeps the Secret that a volume has by now, for the next time that it is mounted. Whether its client reads
    /// another one in it than before.
    pub fn renew(
        self: &Arc<Self>,
        target: &str,
        secrets: BTreeMap<String, SecretBytes>,
        secrets_at: Option<u64>,
    ) -> Result<bool, AgentError> {
        let _busy = self.begin(target)?;
        let call = self.record_of(target)?.renewed(secrets, secrets_at);
        check_keys(&call)?;
        check_size(&call)?;
        let changed = self.store.renew(&call, record::secret_keys(&call).as_deref())?;
        if changed {
            self.renewed.notify_waiters();
        }
        Ok(changed)
    }

    /// Takes over a volume whose mount died with the Pod that had made it, and starts to mount it again.
    pub async fn adopt(self: &Arc<Self>, call: MountCall) -> Result<(), AgentError> {
        self.target(&call.target)?;
        check_keys(&call)?;
        let busy = self.begin(&call.target)?;
        if self.look(&call.target).await? != LookedAt::Dead {
            return Err(AgentError::NotDead(call.target.clone()));
        }
        if self.draining.load(Ordering::SeqCst) {
            return Err(AgentError::Draining);
        }
        make_fuse_device();
        // The secrets come before the record: once that exists, the volume is mounted again whatever happens next.
        self.store.prepare(&call.target, &call.secrets)?;
        self.store.record(&call, &store::id(&call.target))?;
        drop(busy);
        self.revive(call.without_secrets());
        Ok(())
    }

    /// Cleans up after a volume of this agent, and unmounts it if it is still mounted. Leaves others' volumes alone.
    pub async fn unmount(self: &Arc<Self>, path: &str) -> Result<(), AgentError> {
        let target = self.target(path)?;
        let busy = self.begin(path)?;
        let Some(call) = self.store.recorded(path) else {
            return Ok(());
        };
        in_thread(path, move || target_mounts::unmount_target(&target)).await?;
        self.clear_up(&call, busy, CLEAR_UP_WAIT).await
    }

    /// Runs a program that has a volume as a device of the node. The mounter shows it to the Pod before the agent takes
    /// the target for one that was unmounted ([`SETTLED`]).
    async fn have_device(
        self: &Arc<Self>,
        call: &MountCall,
        deadlines: AgentDeadlines,
    ) -> Result<DeviceNumber, AgentError> {
        make_fuse_device();
        let staging = self.store.staging(&call.target);
        let secrets = self.store.secrets(&call.target);
        let invocation = program::device(call, Brings::of(call), &staging, &secrets)?;
        let volume = call.without_secrets();
        in_thread(&call.target, move || record::check_device(&volume)).await?;
        self.store.prepare(&call.target, &call.secrets)?;
        self.run_mount(call, invocation, || for_program(&call.target, deadlines))
            .await?;
        self.store.unstage(&call.target)?;
        self.services
            .given(&self.store.volume(&call.target))
            .ok_or(AgentError::NothingGiven)
    }

    async fn mount_first(
        self: &Arc<Self>,
        call: &MountCall,
        target: &Target,
        deadlines: AgentDeadlines,
    ) -> Result<(), AgentError> {
        make_fuse_device();
        let brings = Brings::of(call);
        let staging = self.store.staging(&call.target);
        let secrets = self.store.secrets(&call.target);
        let invocation = program::mount(call, brings, &staging, &secrets)?;
        let volume = call.without_secrets();
        in_thread(&call.target, move || record::check(&volume)).await?;
        self.store.prepare(&call.target, &call.secrets)?;
        self.run_mount(call, invocation, || for_program(&call.target, deadlines))
            .await?;
        if brings != Brings::Program {
            self.store.remove_secrets(&call.target)?;
        }
        let flags = flags(call)?;
        let target = target.clone();
        in_thread(&call.target, move || target_mounts::move_onto(&staging, &target, flags)).await?;
        self.seen_alive(&call.target);
        Ok(self.store.unstage(&call.target)?)
    }

    /// Runs a program that mounts, within the `limit` that there is when it starts. Meanwhile, it may ask for services.
    pub(super) async fn run_mount(
        &self,
        call: &MountCall,
        mut invocation: Invocation,
        limit: impl FnOnce() -> Result<Duration, AgentError>,
    ) -> Result<(), AgentError> {
        let volume = self.store.volume(&call.target);
        // Left by an agent that ended during the mount.
        self.services.release(&volume).await?;
        let limit = limit()?;
        let volume_id = VolumeId::of(&self.target(&call.target)?);
        let running = ServiceRun {
            volume_id: volume_id.clone(),
            label: call.label.clone(),
            directory: self.store.staging(&call.target),
            source: call.source.clone(),
            until: Instant::now() + limit,
        };
        let _running = self.services.begin(&volume, running)?;
        invocation.env.extend(self.services.environment(&volume));
        invocation.env.insert(VOLUME_ID.to_owned(), volume_id.as_str().into());
        run::run(&invocation, limit).await?;
        self.check_label(call).await
    }

    /// Fails if what a program has just mounted does not give the volume's label to all files.
    async fn check_label(&self, call: &MountCall) -> Result<(), AgentError> {
        let Some(label) = call.label.clone() else { return Ok(()) };
        let staging = self.store.staging(&call.target);
        let bears = move || target_mounts::bears(&staging, &label).map_err(TargetMountError::from);
        if in_thread(&call.target, bears).await? {
            Ok(())
        } else {
            Err(AgentError::NoLabel(call.client.clone()))
        }
    }

    pub(super) fn target(&self, path: &str) -> Result<Target, TargetError> {
        Target::parse_any(&self.kubelet_root, path)
    }

    /// Whether the target's record is for the same volume.
    fn recorded_as(&self, call: &MountCall) -> bool {
        let recorded = self.store.recorded(&call.target);
        recorded.is_some_and(|recorded| recorded.mounts_the_same_as(call))
    }

    pub(super) fn begin(self: &Arc<Self>, target: &str) -> Result<Busy, AgentError> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.insert(target.to_owned()) {
            Ok(Busy {
                mounts: Arc::clone(self),
                target: target.to_owned(),
            })
        } else {
            Err(AgentError::InProgress(target.to_owned()))
        }
    }
}

/// Does something about a target that may block, in a thread of its own.
pub(super) async fn in_thread<T, E>(
    target: &str,
    act: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, AgentError>
where
    T: Send + 'static,
    E: Into<AgentError> + Send + 'static,
{
    let done = thread::run(act).await.map_err(|source| AgentError::Thread {
        target: target.to_owned(),
        source,
    })?;
    done.map_err(Into::into)
}

/// Some clients don't need it, and a client that does reports it.
fn make_fuse_device() {
    if let Err(error) = target_mounts::make_fuse_device() {
        warn!(error = %chain(&error), "there is no /dev/fuse, and the agent failed to make it");
    }
}

pub(super) fn warn_of(target: &str, what: &str, error: &AgentError) {
    let error = AgentFailure::from(error).message;
    warn!(target.path = target, error, "{what}");
}

/// The time of a program that starts now, for a call about a target.
pub(super) fn for_program(target: &str, deadlines: AgentDeadlines) -> Result<Duration, AgentError> {
    let limit = deadlines.for_program();
    limit.ok_or_else(|| AgentError::NoTime(target.to_owned()))
}

/// Marks a target as busy until it is dropped.
pub(super) struct Busy {
    mounts: Arc<Mounts>,
    target: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut busy = self.mounts.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.remove(&self.target);
    }
}

pub(super) fn flags(call: &MountCall) -> Result<MountFlags, InvalidVolume> {
    Ok(mount_options::sort(&call.mount_options, false)?.flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::FailureCategory;
    use crate::volume::device_owner::DeviceOwner;

    #[tokio::test(start_paused = true)]
    async fn a_mount_that_waited_for_another_one_starts_no_program_with_the_rest_of_its_call() {
        use FailureCategory::{Draining, InProgress};
        for (limit, waited, expected) in [
            (90, 80, InProgress),
            (90, 60, Draining),
            (11, 0, Draining),
            (11, 7, InProgress),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
            let mounts = Arc::new(mounts);
            // A mount that could go on ends here.
            mounts.drain();
            let target = dir.path().join("pods/u/volumes/mooring.dev~vcs/v");
            std::fs::create_dir_all(&target).unwrap();
            let json = serde_json::json!({
                "target": target, "client": "block", "source": "nbd://h/e", "limit_ms": limit * 1000
            });
            let call: MountCall = serde_json::from_value(json).unwrap();
            let other = mounts.one_at_a_time.of(&call).lock_owned().await;
            let mounting = tokio::spawn(async move { mounts.mount(call).await });
            tokio::time::sleep(Duration::from_secs(waited)).await;
            drop(other);
            let error = mounting.await.unwrap().unwrap_err();
            let category = error.category();
            assert_eq!(
                category, expected,
                "its program was to start {waited} s after the call: {error}"
            );
        }
    }

    #[tokio::test]
    async fn a_device_that_a_volume_has_is_no_other_volume_s_in_whichever_client_container() {
        for (client, fs_type, source, is_device) in [
            ("block", "", "nbd://h/e", true),
            ("block", "raw", "nbd://h/e", true),
            ("rbd", "", "rbd://h/p/i", true),
            ("iscsi", "", "iscsi://h/iqn.x:t/1", true),
            ("s3", "", "https://h/b", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path();
            let agents = ["one", "two"].map(|name| {
                let own = root.join(name);
                std::fs::create_dir(&own).unwrap();
                Arc::new(Mounts::new(root.to_owned(), Store::unprepared(&own)).unwrap())
            });
            let call = |pod: &str, volume: &str| {
                let target = root.join(format!("pods/{pod}/volumes/mooring.dev~vcs/{volume}"));
                std::fs::create_dir_all(&target).unwrap();
                let json = serde_json::json!({
                    "target": target, "client": client, "source": source, "fs_type": fs_type,
                    "owner": DeviceOwner::persistent_volume(volume), "limit_ms": 90000
                });
                serde_json::from_value::<MountCall>(json).unwrap()
            };
            for (agent, pod) in [(0, "u"), (0, "w"), (1, "x")] {
                agents[agent].claim(&call(pod, "pv-1")).unwrap();
            }
            for agent in &agents {
                // A mount that could go on ends here, and what it claimed is nobody's.
                agent.drain();
                let error = agent.mount(call("y", "pv-1")).await.unwrap_err();
                assert!(matches!(error, AgentError::Draining), "{client} {fs_type}: {error}");
                let error = agent.mount(call("y", "pv-2")).await.unwrap_err();
                let (expected, text) = if is_device {
                    (FailureCategory::InUse, "PersistentVolume pv-1 has")
                } else {
                    (FailureCategory::Draining, "")
                };
                assert_eq!(error.category(), expected, "{client} {fs_type}: {error}");
                assert!(error.to_string().contains(text), "{error}");
            }
            for pod in ["u", "w", "x"] {
                std::fs::remove_dir(&call(pod, "pv-1").target).unwrap();
            }
            let error = agents[0].mount(call("y", "pv-2")).await.unwrap_err();
            assert!(matches!(error, AgentError::Draining), "{client} {fs_type}: {error}");
        }
    }

    #[tokio::test]
    async fn an_agent_does_not_end_while_it_can_t_read_the_record_of_a_mount() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
        let mounts = Arc::new(mounts);
        assert!(mounts.is_idle().await);
        let record = dir.path().join("mounts/x.json");
        std::fs::write(&record, "{").unwrap();
        assert!(!mounts.is_idle().await);
        assert!(mounts.hello().await.unwrap().mounts.is_empty());
        std::fs::remove_file(&record).unwrap();
        assert!(mounts.is_idle().await);
    }
}
