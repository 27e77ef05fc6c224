//! What an agent does with its mounts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tracing::warn;

use super::claims::{ClaimError, Claims};
use super::dead_mounts::DeadMounts;
use super::one_at_a_time::{Alone, OneAtATime};
use super::program::{self, Brings, InvalidVolume, Invocation};
use super::protocol::{AgentFailure, FailureCategory, Hello, MountCall, MountHealth, MountState, SecretBytes, VERSION};
use super::record::{self, ImageRecordError};
use super::revivals::Revivals;
use super::run::{self, OUTPUT_GRACE, ProgramError, REAP};
use super::services::{ServiceError, ServiceRun, Services};

use super::store::{self, Store, StoreError};
use super::target_mounts::{self, TargetMountError};
use crate::deadlines::{AgentDeadlines, SMALLEST_MARGIN};
use crate::sys::look::{self, LookError, LookedAt};
use crate::sys::thread;
use crate::volume::mount_options::{self, MountFlags};
use crate::volume::mount_table::DeviceNumber;
use crate::volume::target::{Target, TargetError};
use crate::volume::volume_id::VolumeId;
use mooring_program::error::chain;

/// Longest that a caller waits for a cleanup after an unmount or a failed mount.
pub const CLEAR_UP_WAIT: Duration = Duration::from_secs(20);

// Between the end of a program that took too long and the answer, the program is killed and its output read.
const _: () = assert!(REAP.as_millis() + OUTPUT_GRACE.as_millis() < SMALLEST_MARGIN.as_millis());

/// Longest cleanup by a program. While a server is silent, the kernel takes each of its steps until that has a time
/// limit of its own: it writes what it has, gives locks back, and ends its session. Ending the program would interrupt
/// the step, and what the server keeps for this node would stay there.
const UNDO_LIMIT: Duration = Duration::from_mins(5);

/// Most that one volume may take of the memory that all volumes of a client Pod share, with its Secret and its record:
/// room for a whole bundle of certificates beside the keys.
pub const MOST_MEMORY: usize = 256 << 10;

/// What a file takes at least: the kernel's memory comes in pages.
const PAGE: usize = 4 << 10;

/// How long a mounted file system may take to answer. If it takes longer, its server is slow, but its daemon is not
/// dead.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// How long a target must have been without its mount before the agent cleans up unasked. A file system first leaves
/// the mount table, and then writes what it has in memory; its program has to live until then. The mounter, which
/// unmounts, knows when that is done, and says so.
pub const SETTLED: Duration = Duration::from_secs(15);

/// How long a mount that answered counts as alive. A look keeps the mount busy for a moment, and an unmount fails
/// meanwhile.
const ALIVE_FOR: Duration = Duration::from_mins(1);

/// How many times a clean-up fails before the mounter is told.
const FAILED_FOR_GOOD: u32 = 3;

/// Environment variable of a program that mounts: the source that the volume's FUSE mounts are to show.
const VOLUME_ID: &str = "MOORING_VOLUME_ID";

/// Why the agent could not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The options cannot be passed on.
    #[error(transparent)]
    Volume(#[from] InvalidVolume),
    /// The record that the image brings refuses the volume.
    #[error(transparent)]
    Record(#[from] ImageRecordError),
    /// A key that can't be a file name.
    #[error("secret key {0:?} is not a file name: use letters, digits, dots, dashes and underscores")]
    SecretKey(String),
    /// It would take what other volumes of the client Pod need.
    #[error(
        "the volume's Secret and options take {} KiB, and may take {} KiB (each key of the Secret counts as {} at least): \
         leave out of the Secret what the volume's client does not need",
        .0 / 1024, MOST_MEMORY / 1024, PAGE / 1024
    )]
    TooLarge(usize),
    /// Another call for the same target is still running.
    #[error("another operation on {0} is in progress: Mooring tries again")]
    InProgress(String),
    /// Waiting for something else took most of the call's time.
    #[error(
        "{0} was not mounted: too little of the call's time was left for the client image's program: Mooring tries again"
    )]
    NoTime(String),
    /// The agent takes no new mounts.
    #[error("this client container is ending and takes no new mounts: another takes its place")]
    Draining,
    /// It is not one of this agent's.
    #[error("{0} is not a volume of this client container")]
    Unknown(String),
    #[error("{0} is not dead, so the agent does not mount it again")]
    NotDead(String),
    #[error("the program that served {0} ended, and Mooring is mounting it again: wait some seconds")]
    Dead(String),
    /// What served a raw block volume has ended.
    #[error(
        "the program that served the device at {0} has ended: delete the Pod; its replacement gets the device again"
    )]
    DeadDevice(String),
    /// The program for a raw block volume named no device.
    #[error("the client image's program exited with 0, but named no device: have it call service give-device")]
    NothingGiven,
    /// It answers, or has not been silent for long.
    #[error("{0} answers or may still answer: Mooring ended nothing")]
    NotSilent(String),
    /// The mount on the target is not FUSE's.
    #[error("{0} is not a FUSE mount: Mooring ended nothing, and its users wait for its server")]
    NotFuse(String),
    /// Nobody in the image can have it grow.
    #[error(
        "the volume is on a device, and the client image has no {program} to grow a mounted file system: use an image \
         that has it, or delete the Pod if the client grows the file system when it mounts it"
    )]
    NoExpansion { program: String },
    /// The image's program says so, with what to do.
    #[error(transparent)]
    KeepsItsSize(ProgramError),
    #[error("{target} has another file system mounted on it: delete the Pod, so that the kubelet unmounts it")]
    Occupied { target: String },
    /// The program does not know labels.
    #[error(
        "client {0} mounted the volume without the SELinux label of the Pod, which could not use it: have a client \
         mount it that knows labels, or leave the files' labels to the container runtime, with seLinuxMount: false in \
         the CSIDriver"
    )]
    NoLabel(String),
    /// Another Pod has the same volume in a way that this one can't have too.
    #[error(
        "another Pod on this node has this volume {0}, and all Pods of a node have one device of it: delete that Pod, \
         or have both use the volume alike"
    )]
    UsedOtherwise(&'static str),
    /// Its clean-up may still succeed.
    #[error("{0} is mounted, or its clean-up has not failed again and again: Mooring goes on with it")]
    NotLeft(String),
    /// Another Pod, which goes on, waits for the same server.
    #[error("{0} is used by another Pod as well, which is not being deleted: Mooring ended nothing")]
    UsedByOthers(String),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Look(#[from] LookError),
    #[error(transparent)]
    Kernel(#[from] TargetMountError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The container has no thread left for system calls.
    #[error(
        "failed to start a thread for {target}: its client container has as many processes as it may (the kubelet's \
         podPidsLimit), or no memory"
    )]
    Thread {
        target: String,
        #[source]
        source: io::Error,
    },
}

impl AgentError {
    fn category(&self) -> FailureCategory {
        match self {
            Self::Target(TargetError::OutsideRoot { .. } | TargetError::NotAVolume { .. })
            | Self::Volume(_)
            | Self::SecretKey(_)
            | Self::TooLarge(_)
            | Self::Occupied { .. }
            | Self::NoLabel(_)
            | Self::NoExpansion { .. }
            | Self::KeepsItsSize(_) => FailureCategory::Invalid,
            Self::InProgress(_)
            | Self::NoTime(_)
            | Self::Dead(_)
            | Self::NotDead(_)
            | Self::NotSilent(_)
            | Self::NotFuse(_)
            | Self::NotLeft(_)
            | Self::UsedByOthers(_)
            | Self::Kernel(TargetMountError::Gone(_)) => FailureCategory::InProgress,
            Self::Draining => FailureCategory::Draining,
            Self::Program(ProgramError::TimedOut { .. }) => FailureCategory::TimedOut,
            Self::Service(error) => error.category(),
            Self::Record(error) => error.category(),
            Self::Program(_)
            | Self::DeadDevice(_)
            | Self::NothingGiven
            | Self::Kernel(TargetMountError::NothingMounted) => FailureCategory::Refused,
            Self::Claim(ClaimError::Taken { .. } | ClaimError::Elsewhere { .. } | ClaimError::Foreign(_))
            | Self::UsedOtherwise(_)
            | Self::Kernel(TargetMountError::InUse(_)) => FailureCategory::InUse,
            // A directory that can't be opened just now, and a volume that was unmounted meanwhile, may be there again.
            Self::Target(_)
            | Self::Unknown(_)
            | Self::Look(_)
            | Self::Kernel(_)
            | Self::Store(_)
            | Self::Claim(_)
            | Self::Thread { .. } => FailureCategory::System,
        }
    }
}

impl From<&AgentError> for AgentFailure {
    fn from(error: &AgentError) -> Self {
        Self {
            category: error.category(),
            message: chain(error),
            limit_ms: match error {
                AgentError::Program(ProgramError::TimedOut { limit, .. }) => Some(in_ms(*limit)),
                _ => None,
            },
        }
    }
}

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
            let health = match self.begin(&call.target) {
                Err(_) => MountHealth::Busy,
                Ok(busy) => match self
                    .look_seldom(&call.target)
                    .await
                    .inspect(|_| self.free_ended_device(&call))
                {
                    // A mount that can't be checked must not hide the others.
                    Err(error) => {
                        let error = AgentFailure::from(&error).message;
                        warn!(target.path = call.target, error, "failed to look at it");
                        MountHealth::Busy
                    }
                    Ok(LookedAt::Alive) => MountHealth::Mounted,
                    Ok(LookedAt::Dead) if self.is_given_up(&call.target) => MountHealth::Busy,
                    Ok(LookedAt::Dead) => {
                        self.revive(call.clone());
                        MountHealth::Dead
                    }
                    Ok(LookedAt::Nothing) if !self.is_gone_for_good(&call.target) => MountHealth::Busy,
                    Ok(LookedAt::Nothing) => match self
                        .clear_up(&call, busy, cleaned_up.saturating_duration_since(Instant::now()))
                        .await
                    {
                        Ok(()) => continue,
                        Err(AgentError::InProgress(_)) => MountHealth::Busy,
                        // It still has something of the volume, which so must not be detached.
                        Err(error) => {
                            let error = AgentFailure::from(&error).message;
                            warn!(target.path = call.target, error, "failed to clean up");
                            MountHealth::Busy
                        }
                    },
                },
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

    /// Mounts a volume. If the same one is mounted already, that is success; if its daemon is dead, it is being mounted
    /// again. Of a raw block volume the device is returned, for the mounter to show it.
    pub async fn mount(self: &Arc<Self>, call: MountCall) -> Result<Option<DeviceNumber>, AgentError> {
        let deadlines = AgentDeadlines::of(Duration::from_millis(call.limit_ms));
        let target = self.target(&call.target)?;
        check_secrets(&call)?;
        let busy = self.begin(&call.target)?;
        match self.look(&call.target).await? {
            // What is mounted already stays: an earlier release may have mounted it.
            LookedAt::Nothing => check_size(&call)?,
            LookedAt::Alive if self.recorded_as(&call) && target.is_device() => return Ok(target.device()?),
            LookedAt::Alive if self.recorded_as(&call) => return Ok(None),
            LookedAt::Dead if target.is_device() => return Err(AgentError::DeadDevice(call.target.clone())),
            LookedAt::Alive => {
                return Err(AgentError::Occupied {
                    target: call.target.clone(),
                });
            }
            LookedAt::Dead => {
                let recorded = self.store.recorded(&call.target);
                self.revive(recorded.ok_or_else(|| AgentError::Occupied {
                    target: call.target.clone(),
                })?);
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
                let error = AgentFailure::from(&error).message;
                warn!(target.path = call.target, error, "failed to clean up");
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

    /// How a volume was mounted, with its secrets.
    pub fn recall(&self, target: &str) -> Result<MountCall, AgentError> {
        let call = self.store.recorded(target);
        let call = call.ok_or_else(|| AgentError::Unknown(target.to_owned()))?;
        Ok(call.with_secrets(self.store.read_secrets(target)?))
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
        let call = self.store.recorded(target);
        let call = call.ok_or_else(|| AgentError::Unknown(target.to_owned()))?;
        let call = call.renewed(secrets, secrets_at);
        check_secrets(&call)?;
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
        check_secrets(&call)?;
        let busy = self.begin(&call.target)?;
        if self.look(&call.target).await? != LookedAt::Dead {
            return Err(AgentError::NotDead(call.target.clone()));
        }
        if self.draining.load(Ordering::SeqCst) {
            return Err(AgentError::Draining);
        }
        if let Err(error) = target_mounts::make_fuse_device() {
            warn!(
                error = %chain(&error),
                "there is no /dev/fuse, and the agent failed to make it"
            );
        }
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
        thread::run(move || target_mounts::unmount_target(&target))
            .await
            .map_err(no_thread(path))??;
        self.clear_up(&call, busy, CLEAR_UP_WAIT).await
    }

    /// Runs a program that has a volume as a device of the node. The mounter shows it to the Pod before the agent takes
    /// the target for one that was unmounted ([`SETTLED`]).
    async fn have_device(
        self: &Arc<Self>,
        call: &MountCall,
        deadlines: AgentDeadlines,
    ) -> Result<DeviceNumber, AgentError> {
        if let Err(error) = target_mounts::make_fuse_device() {
            warn!(error = %chain(&error), "there is no /dev/fuse, and the agent failed to make it");
        }
        let staging = self.store.staging(&call.target);
        let secrets = self.store.secrets(&call.target);
        let invocation = program::device(call, Brings::of(call), &staging, &secrets)?;
        let volume = call.without_secrets();
        let checked = thread::run(move || record::check_device(&volume));
        checked.await.map_err(no_thread(&call.target))??;
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
        if let Err(error) = target_mounts::make_fuse_device() {
            // Some clients don't need it, and a client that does reports it.
            warn!(
                error = %chain(&error),
                "there is no /dev/fuse, and the agent failed to make it"
            );
        }
        let brings = Brings::of(call);
        let staging = self.store.staging(&call.target);
        let secrets = self.store.secrets(&call.target);
        let invocation = program::mount(call, brings, &staging, &secrets)?;
        check_record(call).await?;
        self.store.prepare(&call.target, &call.secrets)?;
        self.run_mount(call, invocation, || for_program(&call.target, deadlines))
            .await?;
        if brings != Brings::Program {
            self.store.remove_secrets(&call.target)?;
        }
        let flags = flags(call)?;
        let target = target.clone();
        thread::run(move || target_mounts::move_onto(&staging, &target, flags))
            .await
            .map_err(no_thread(&call.target))??;
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
        let bears = thread::run(move || target_mounts::bears(&staging, &label)).await;
        let bears = bears.map_err(no_thread(&call.target))?;
        if bears.map_err(TargetMountError::from)? {
            Ok(())
        } else {
            Err(AgentError::NoLabel(call.client.clone()))
        }
    }

    /// Undoes what a program did besides mounting, within `limit`. The caller repeats it until it succeeds.
    pub(super) async fn undo(&self, call: &MountCall, limit: Duration) -> Result<(), AgentError> {
        let volume = self.store.volume(&call.target);
        self.services.release(&volume).await?;
        if program::override_path(&call.client).exists() {
            let mut invocation = program::unmount(call, &self.store.staging(&call.target))?;
            invocation.env.extend(self.services.environment(&volume));
            run::run(&invocation, limit).await?;
        }
        Ok(())
    }

    /// Notes that a target has just answered.
    pub(super) fn seen_alive(&self, target: &str) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.insert(target.to_owned(), Instant::now());
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).remove(target);
    }

    /// Whether a target has been without its mount for long enough.
    fn is_gone_for_good(&self, target: &str) -> bool {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.entry(target.to_owned()).or_insert_with(Instant::now).elapsed() >= SETTLED
    }

    /// Undoes what a mount did besides mounting, and forgets it. The caller repeats it until it succeeds. It goes on
    /// after `wait`, however the caller ends, and the target is busy until its end: no other try interrupts it.
    async fn clear_up(self: &Arc<Self>, call: &MountCall, busy: Busy, wait: Duration) -> Result<(), AgentError> {
        let (mounts, of) = (Arc::clone(self), call.clone());
        let work = async move {
            let done = mounts.clear_up_all(&of).await;
            mounts.note_clean_up(&of.target, &done);
            done
        };
        to_its_end(&call.target, busy, wait, work).await
    }

    async fn clear_up_all(&self, call: &MountCall) -> Result<(), AgentError> {
        self.store.unstage(&call.target)?;
        let _alone = self.one_at_a_time(call).await;
        // What serves it ends with its last Pod.
        if !self.has_sharers(&call.target)? {
            self.undo(call, UNDO_LIMIT).await?;
        }
        self.claims.withdraw(&call.target)?;
        self.store.discard(&call.target)?;
        self.forget(&call.target)
    }

    /// Forgets a volume that is not mounted.
    fn forget(&self, target: &str) -> Result<(), AgentError> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).remove(target);
        self.take_up(target);
        self.dead.forget(target);
        Ok(self.store.forget(target)?)
    }

    fn note_clean_up(&self, target: &str, done: &Result<(), AgentError>) {
        let mut unclean = self.unclean.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(()) => drop(unclean.remove(target)),
            Err(error) => {
                let (failures, why) = unclean.entry(target.to_owned()).or_default();
                *failures += 1;
                *why = AgentFailure::from(error).message;
            }
        }
    }

    /// Why the clean-up after a target fails, if it has failed again and again.
    fn clean_up_failure(&self, target: &str) -> Option<String> {
        let unclean = self.unclean.lock().unwrap_or_else(PoisonError::into_inner);
        let (failures, why) = unclean.get(target)?;
        (*failures >= FAILED_FOR_GOOD).then(|| why.clone())
    }

    /// Gives up a clean-up that fails again and again: what it should have removed stays. The volume's Secret goes, if
    /// that can be removed.
    pub async fn give_up_clean_up(self: &Arc<Self>, path: &str) -> Result<(), AgentError> {
        let _busy = self.begin(path)?;
        if self.clean_up_failure(path).is_none() || self.look(path).await? != LookedAt::Nothing {
            return Err(AgentError::NotLeft(path.to_owned()));
        }
        if let Err(error) = self.store.remove_secrets(path) {
            warn!(target.path = path, error = %chain(&error), "failed to remove the Secret of a volume that is given up");
        }
        self.claims.withdraw(path)?;
        self.forget(path)?;
        self.note_clean_up(path, &Ok(()));
        Ok(())
    }

    pub(super) async fn look(self: &Arc<Self>, path: &str) -> Result<LookedAt, AgentError> {
        let target = self.target(path)?;
        if !look::is_mounted(&target)? {
            return Ok(LookedAt::Nothing);
        }
        // A thread still waits for an answer from this one. Further threads would use up all that there are, and keep
        // mounts of other servers from being made.
        match self.looked_at().entry(path.to_owned()) {
            Entry::Occupied(_) => return Ok(LookedAt::Alive),
            Entry::Vacant(entry) => entry.insert(Instant::now()),
        };
        let looking = Looking {
            mounts: Arc::clone(self),
            target: path.to_owned(),
        };
        let looked = thread::run(move || {
            let found = look::look(&target);
            drop(looking);
            found
        });
        match tokio::time::timeout(LOOK_LIMIT, looked).await {
            Ok(Ok(found)) => Ok(found?),
            Ok(Err(source)) => Err(no_thread(path)(source)),
            Err(_) => Ok(LookedAt::Alive),
        }
    }

    /// [`Self::look`], but a target that answered lately is not asked again.
    async fn look_seldom(self: &Arc<Self>, path: &str) -> Result<LookedAt, AgentError> {
        let alive = || self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if !look::is_mounted(&self.target(path)?)? {
            alive().remove(path);
            return Ok(LookedAt::Nothing);
        }
        if alive().get(path).is_some_and(|since| since.elapsed() < ALIVE_FOR) {
            return Ok(LookedAt::Alive);
        }
        let found = self.look(path).await?;
        if found == LookedAt::Alive {
            alive().insert(path.to_owned(), Instant::now());
        }
        Ok(found)
    }

    pub(super) fn looked_at(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.looking.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Does something about a target that goes on after `wait`, and after its caller. Until its end, `busy` is kept.
async fn to_its_end(
    target: &str,
    busy: impl Send + 'static,
    wait: Duration,
    work: impl Future<Output = Result<(), AgentError>> + Send + 'static,
) -> Result<(), AgentError> {
    let (sender, done) = oneshot::channel();
    let of = target.to_owned();
    tokio::spawn(async move {
        let ended = work.await;
        drop(busy);
        if let Err(Err(error)) = sender.send(ended) {
            warn!(target.path = of, error = %AgentFailure::from(&error).message, "failed to clean up");
        }
    });
    match tokio::time::timeout(wait, done).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(_)) | Err(_) => Err(AgentError::InProgress(target.to_owned())),
    }
}

/// The time of a program that starts now, for a call about a target.
pub(super) fn for_program(target: &str, deadlines: AgentDeadlines) -> Result<Duration, AgentError> {
    let limit = deadlines.for_program();
    limit.ok_or_else(|| AgentError::NoTime(target.to_owned()))
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The error for a target when there is no thread.
pub(super) fn no_thread(target: &str) -> impl FnOnce(io::Error) -> AgentError {
    let target = target.to_owned();
    move |source| AgentError::Thread { target, source }
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

/// Marks a target as asked and silent until it is dropped.
struct Looking {
    mounts: Arc<Mounts>,
    target: String,
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.mounts.looked_at().remove(&self.target);
    }
}

pub(super) fn flags(call: &MountCall) -> Result<MountFlags, InvalidVolume> {
    Ok(mount_options::sort(&call.mount_options, false)?.flags)
}

/// Checks the volume against the client image's own record, if it has one.
async fn check_record(call: &MountCall) -> Result<(), AgentError> {
    let volume = call.without_secrets();
    let checked = thread::run(move || record::check(&volume));
    Ok(checked.await.map_err(no_thread(&call.target))??)
}

fn check_secrets(call: &MountCall) -> Result<(), AgentError> {
    match call.secrets.keys().find(|key| !is_file_name(key)) {
        Some(key) => Err(AgentError::SecretKey(key.clone())),
        None => Ok(()),
    }
}

/// Fails if a volume takes more memory than its part of what all volumes of the client Pod have.
fn check_size(call: &MountCall) -> Result<(), AgentError> {
    let takes = |length: usize| length.max(1).next_multiple_of(PAGE);
    let secret: usize = call.secrets.values().map(|value| takes(value.0.len())).sum();
    let size = secret + takes(store::record_length(call));
    if size > MOST_MEMORY {
        return Err(AgentError::TooLarge(size));
    }
    Ok(())
}

fn is_file_name(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= 253
        && !key.starts_with("..")
        && key != "."
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::SecretBytes;
    use crate::volume::device_owner::DeviceOwner;

    #[test]
    fn a_secret_s_key_stays_in_its_directory() {
        for good in ["ssh-privatekey", "known_hosts", ".dockerconfigjson", "a"] {
            assert!(is_file_name(good), "{good}");
        }
        for bad in ["", ".", "..", "..x", "a/b", "/etc/passwd", "a\0", "ä"] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }

    #[tokio::test]
    async fn what_takes_longer_than_its_caller_waits_or_lives_goes_on_and_keeps_the_target_busy() {
        let wait = Duration::from_millis(20);
        // The receiver waits as long as the guard is there.
        let (busy, mut free) = tokio::sync::mpsc::channel::<()>(1);
        let (go, gone) = oneshot::channel::<()>();
        let work = async move {
            let _ = gone.await;
            Ok(())
        };
        let answer = to_its_end("/t", busy, wait, work).await;
        assert!(matches!(answer, Err(AgentError::InProgress(_))), "{answer:?}");
        assert!(tokio::time::timeout(wait, free.recv()).await.is_err());
        go.send(()).unwrap();
        assert_eq!(free.recv().await, None);

        let (go, gone) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let work = async move {
            let _ = gone.await;
            end.send(()).unwrap();
            Ok(())
        };
        let caller = tokio::spawn(to_its_end("/t", (), Duration::from_mins(1), work));
        tokio::time::sleep(wait).await;
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        go.send(()).unwrap();
        ended.await.unwrap();

        let failed = to_its_end("/t", (), wait, async { Err(AgentError::Draining) }).await;
        assert!(matches!(failed, Err(AgentError::Draining)), "{failed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_takes_too_long_and_a_clean_up_that_hangs_leave_the_agent_time_for_its_answer() {
        for limit in [90, 11].map(Duration::from_secs) {
            let began = tokio::time::Instant::now();
            let deadlines = AgentDeadlines::of(limit);
            // The program runs as long as it may, and does not end at once when it is killed.
            tokio::time::sleep(deadlines.for_program().unwrap() + REAP + OUTPUT_GRACE).await;
            let wait = CLEAR_UP_WAIT.min(deadlines.until_answer());
            let answer = to_its_end("/t", (), wait, std::future::pending()).await;
            assert!(matches!(answer, Err(AgentError::InProgress(_))), "{answer:?}");
            let took = began.elapsed();
            // The paused clock counts in milliseconds.
            assert!(took <= limit + Duration::from_millis(1), "{took:?} of {limit:?}");
        }
    }

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
    async fn one_volume_takes_no_more_of_the_client_pod_s_memory_than_its_part() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
        let mounts = Arc::new(mounts);
        // A mount that could go on ends here.
        mounts.drain();
        let target = dir.path().join("pods/u/volumes/mooring.dev~vcs/v");
        std::fs::create_dir_all(&target).unwrap();
        let json = serde_json::json!({"target": target, "client": "s3", "source": "h:/e", "limit_ms": 90000});
        let call: MountCall = serde_json::from_value(json).unwrap();
        // The record takes one page.
        let most = MOST_MEMORY - PAGE;
        for (keys, bytes, option, fits) in [
            (0, 0, 0, true),
            (1, most, 0, true),
            (1, most + 1, 0, false),
            (3, most / 3, 0, true),
            (3, most / 3 + 1, 0, false),
            (63, 1, 0, true),
            (64, 0, 0, false),
            (0, 0, most, true),
            (0, 0, MOST_MEMORY, false),
            (1, most, PAGE, false),
        ] {
            let key = |n| (format!("key-{n}"), SecretBytes(vec![0; bytes]));
            let mut large = call.clone();
            large.secrets = (0..keys).map(key).collect();
            large.options = BTreeMap::from([("option".to_owned(), "x".repeat(option))]);
            let error = mounts.mount(large).await.unwrap_err();
            let expected = if fits {
                FailureCategory::Draining
            } else {
                FailureCategory::Invalid
            };
            assert_eq!(
                error.category(),
                expected,
                "{keys} keys of {bytes}, option of {option}: {error}"
            );
            assert!(fits || error.to_string().contains("may take 256 KiB"), "{error}");
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

    /// A volume that was unmounted for good.
    fn unmounted_call(mounts: &Mounts, dir: &std::path::Path) -> MountCall {
        let target = dir.join("pods/u/volumes/mooring.dev~vcs/v");
        std::fs::create_dir_all(&target).unwrap();
        let json = serde_json::json!({"target": target, "client": "nfs", "source": "h:/e", "limit_ms": 1000});
        let call: MountCall = serde_json::from_value(json).unwrap();
        mounts.store.record(&call, &store::id(&call.target)).unwrap();
        let settled = Instant::now().checked_sub(SETTLED).unwrap();
        mounts.gone.lock().unwrap().insert(call.target.clone(), settled);
        call
    }

    /// Its note on the Node is taken back, and the volume detached, once no agent has it.
    #[tokio::test]
    async fn a_volume_that_is_unmounted_stays_the_agent_s_until_it_is_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
        let mounts = Arc::new(mounts);
        let call = unmounted_call(&mounts, dir.path());
        // The staging directory can't be removed.
        let staging = mounts.store.staging(&call.target);
        std::fs::create_dir_all(staging.join("full")).unwrap();
        for failures in 1..5 {
            let hello = mounts.hello().await.unwrap();
            let [mount] = &hello.mounts[..] else {
                panic!("it counts as cleaned up")
            };
            assert_eq!(mount.health, MountHealth::Busy);
            assert_eq!(mount.clean_up_failure.is_some(), failures >= FAILED_FOR_GOOD);
            if failures == 1 {
                let error = mounts.give_up_clean_up(&call.target).await.unwrap_err();
                assert!(matches!(error, AgentError::NotLeft(_)), "{error}");
            }
        }
        assert!(!mounts.is_idle().await);
        std::fs::remove_dir_all(&staging).unwrap();
        assert!(mounts.hello().await.unwrap().mounts.is_empty());
        assert!(mounts.is_idle().await);
        // What failed before does not count against its next mount.
        assert_eq!(mounts.clean_up_failure(&call.target), None);
    }

    #[tokio::test]
    async fn a_clean_up_that_fails_for_good_can_be_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
        let mounts = Arc::new(mounts);
        let call = unmounted_call(&mounts, dir.path());
        std::fs::create_dir_all(mounts.store.staging(&call.target).join("full")).unwrap();
        for _ in 0..FAILED_FOR_GOOD {
            assert_eq!(mounts.hello().await.unwrap().mounts.len(), 1);
        }
        mounts.give_up_clean_up(&call.target).await.unwrap();
        assert!(mounts.hello().await.unwrap().mounts.is_empty());
        assert!(mounts.is_idle().await);
        let error = mounts.give_up_clean_up(&call.target).await.unwrap_err();
        assert!(matches!(error, AgentError::NotLeft(_)), "{error}");
    }

    #[test]
    fn a_failure_names_each_cause_once() {
        let error = AgentError::Program(ProgramError::Start {
            program: "mount".into(),
            source: io::ErrorKind::NotFound.into(),
        });
        assert_eq!(
            AgentFailure::from(&error).message,
            "failed to start mount in the client container: does the client image have it?: entity not found"
        );
    }
}
