//! What every driver calls: it guards the volume, checks its server's circuit breaker, and asks its client. Runs in the
//! daemon.
//!
//! Files: [`client`] (what it asks of the client for client containers), [`guard`] (one operation at a time on a
//! volume), [`circuit_breaker`] (servers that do not answer), [`waits`] (tells of a mount that takes long),
//! [`untold`] (failures that the kubelet only logs), `pod_group` (whose its files are), [`metrics`] (what is counted).

pub mod circuit_breaker;
pub mod client;
pub mod guard;
pub mod metrics;
mod pod_group;
pub mod untold;
pub mod waits;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mooring_contract::volume::Volume;
use mooring_contract::volume::clients::gives_devices;
use mooring_program::error::chain;
use tracing::{Span, info, warn};

use self::circuit_breaker::{CallEnd, CircuitBreakers};
use self::client::{Client, Expansion, MountJob, Rest, Trouble};
use self::guard::Guards;
use self::metrics::MounterMetrics;
use self::pod_group::{Giving, Unfinished};
use self::untold::Untold;
use self::waits::{Waiting, Waits};
use crate::api::recorder::{Recorder, clean_up_failed};
use crate::deadlines::{self, FAIR_LIMIT, LONGEST_CALL};
use crate::grant::author::Author;
use crate::grant::granter::Granter;
use crate::grant::request::MountRequest;
use crate::grant::{Grant, Granted, ToAttach};
use crate::node::attachments::Attachments;
use crate::sys::look::LookedAt;
use crate::sys::{Kernel, Sys as _};
use crate::volume::cause::Cause;
use crate::volume::job::{Access, MountError, mount_table};
use crate::volume::mount_table::{MountEntry, Table};
use crate::volume::registry::{Registry, Serving};
use crate::volume::target::Target;
use crate::volume::volume_id::source_in_words;
use crate::worker::usage::Usage;
use crate::worker::{REAP, Task, WorkerError, Workers};

/// The part of an unmount's time that a plain one gets; the rest is for a lazy unmount (`MNT_DETACH`) of what hangs.
const PLAIN_UNMOUNT: f32 = 0.6;

/// Longest cleanup after a mount that was ended half-way: the kubelet is waiting.
const CLEAR_LIMIT: Duration = Duration::from_secs(1);

/// How long a mount that is in use may take to answer.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// What a local volume waits for.
const OWN_DISK: &str = "the disk under the node's pool";

// The longest call: what is left of it after its work is enough to end a worker, to clean up, and to end that worker.
const _: () = assert!(
    deadlines::inner(LONGEST_CALL).as_secs() + 2 * REAP.as_secs() + CLEAR_LIMIT.as_secs() < LONGEST_CALL.as_secs()
);

/// What is left at most of a call whose time is up: the rest is for its answer.
const CALL_END: Duration = Duration::from_secs(7);

// Also where an agent ended a program that had less than the fair time. In a call that is longer than this, a program
// has twice that time, or the fair time at least.
const _: () = assert!({
    let twice = FAIR_LIMIT.saturating_mul(2);
    let wait = twice.saturating_add(CALL_END);
    let program = deadlines::inner(deadlines::inner(wait));
    program.as_millis() >= twice.as_millis() && wait.as_millis() - program.as_millis() < CALL_END.as_millis()
});

/// Whether a mount that took too long, after so many seconds, had only what was left of its call: the rest went to the
/// volume's attachment or its client container. The kubelet's next call is all for the server.
fn is_cut_short(seconds: u64, deadline: Instant) -> bool {
    seconds < FAIR_LIMIT.as_secs() && deadline.saturating_duration_since(Instant::now()) < CALL_END
}

/// Fails for a Pod's own volume that may lead out of the directory that its namespace was allowed: these programs follow
/// symbolic links on the server, and an NFS volume is named by its directory.
fn check_links(author: Author, client: &str, serving: &Serving) -> Result<(), MountError> {
    let follows = match serving {
        Serving::Host => true,
        Serving::Container(_) => matches!(client, "nfs" | "nfs4"),
        Serving::Local | Serving::Pool | Serving::Kernel => false,
    };
    if author != Author::Tenant || !follows {
        return Ok(());
    }
    let message = format!(
        "a Pod may not mount {client} volumes of its own here: mounter-config has a program mount them that follows \
         symbolic links on the server, out of the directory that is allowed. Use a claim, or have an administrator set \
         {client}=self"
    );
    Err(MountError::Forbidden(message.into()))
}

/// Where the mounter's own clients find what they need.
#[derive(Debug, Clone)]
pub struct Places {
    /// Where the kubelet keeps its Pods, such as `/var/lib/kubelet`.
    pub kubelet_root: PathBuf,
    pub pool: PathBuf,
    /// The host's mount namespace, if it is not the kubelet's.
    pub host_namespace: Option<PathBuf>,
}

/// What keeps all volumes from being mounted, with its cure. The daemon may find it out, or see it go, while it runs.
#[derive(Debug, Clone, Default)]
pub struct Obstacle(Arc<Mutex<Option<String>>>);

impl Obstacle {
    /// Sets the obstacle, or that there is none; whether that is a change.
    pub fn set(&self, cure: Option<String>) -> bool {
        let mut there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *there != cure;
        *there = cure;
        news
    }

    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a core works with.
pub struct CoreParts {
    pub places: Places,
    pub registry: Registry,
    /// Serves the types that client images serve.
    pub container: Option<Arc<dyn Client>>,
    pub workers: Workers,
    pub metrics: MounterMetrics,
    /// Refuses mounts while it gives a reason for the kubelet's root.
    pub obstacle: fn(&Path) -> Option<String>,
    /// Refuses mounts while it is set.
    pub unheld: Obstacle,
    /// Reports mounts that wait for a server.
    pub waits: Waits,
    /// Where to say what stays on this node, and the node's name.
    pub events: Option<(Recorder, String)>,
    pub granter: Granter,
    /// Where attachments are waited for. Without it a volume that needs one is not mounted.
    pub attachments: Option<Arc<Attachments>>,
}

/// Does the work of every call, whichever driver it came through.
pub struct Core {
    parts: CoreParts,
    guards: Guards,
    breakers: CircuitBreakers,
    untold: Untold,
    unfinished: Unfinished,
}

impl Core {
    pub fn new(parts: CoreParts) -> Self {
        Self {
            parts,
            guards: Guards::default(),
            breakers: CircuitBreakers::default(),
            untold: Untold::default(),
            unfinished: Unfinished::default(),
        }
    }

    /// Where the kubelet keeps its Pods, such as `/var/lib/kubelet`.
    pub fn kubelet_root(&self) -> &Path {
        &self.parts.places.kubelet_root
    }

    pub fn registry(&self) -> &Registry {
        &self.parts.registry
    }

    /// Servers that did not answer.
    pub fn breakers(&self) -> &CircuitBreakers {
        &self.breakers
    }

    /// Failures that the kubelet only logs.
    pub fn untold(&self) -> &Untold {
        &self.untold
    }

    /// What runs the tasks that may block.
    pub fn workers(&self) -> &Workers {
        &self.parts.workers
    }

    pub fn metrics(&self) -> &MounterMetrics {
        &self.parts.metrics
    }

    /// Mooring's mounts on this node, by file system type, as the mount table has them.
    pub fn mounts(&self) -> std::io::Result<Vec<(PathBuf, String)>> {
        let table = Table::read()?;
        let volumes = table.known_volumes(&self.parts.places.kubelet_root);
        Ok(volumes
            .map(|entry| (entry.mount_point.clone(), entry.fs_type.clone()))
            .collect())
    }

    /// What keeps all volumes from being mounted, with its cure.
    pub fn obstacle(&self) -> Option<String> {
        (self.parts.obstacle)(&self.parts.places.kubelet_root).or_else(|| self.parts.unheld.get())
    }

    /// What is wrong with a mounted volume, as far as its client has heard.
    pub fn trouble(&self, target: &Target) -> Option<Trouble> {
        self.parts.container.as_ref()?.trouble(target)
    }

    /// The source of the volume that is mounted on a target, for people. None where nothing is mounted.
    pub fn source_of(&self, target: &Target) -> Result<Option<String>, MountError> {
        Ok(self.source_in(&mount_table()?, target))
    }

    fn source_in(&self, table: &Table, target: &Target) -> Option<String> {
        let entry = table.top(&target.path())?;
        let remembered = self
            .parts
            .container
            .as_ref()
            .and_then(|client| client.source_of(target));
        Some(remembered.unwrap_or_else(|| source_in_words(entry).to_owned()))
    }

    /// How full the volume on a target is. `source` is what it was mounted from. A volume that its client knows to be
    /// in trouble is not asked.
    pub async fn usage(&self, target: &Target, source: &str, deadline: Instant) -> Result<Usage, MountError> {
        if let Some(trouble) = self.trouble(target) {
            return Err(MountError::Container {
                client: source.to_owned(),
                cause: Cause::of(trouble),
            });
        }
        let used = self.parts.workers.usage(target, deadline).await;
        used.map_err(|error| error.into_mount_error(&format!("to ask how full {target} is"), source))
    }

    /// Mounts what is asked for, as far as that is granted.
    pub async fn mount(&self, request: MountRequest, deadline: Instant) -> Result<(), MountError> {
        let span = Span::current();
        let target = request.target.clone();
        span.record("volume.name", target.name());
        span.record("pod", format!("{}/{}", request.pod.namespace, request.pod.name));
        let _guard = self.guards.enter(&target, "mount")?;
        // The Pod would start without it and write to the node's own disk.
        if let Some(cure) = self.obstacle() {
            return Err(MountError::Node(cure.into()));
        }
        let grant = match self.parts.granter.grant(request, deadline).await? {
            Granted::Now(grant) => *grant,
            Granted::ToAttach(to_attach) => self.connect(*to_attach, deadline).await?,
        };
        let job = MountJob {
            grant,
            image: None,
            deadline,
        };
        let result = self.mount_granted(job, &span).await;
        if let (Err(_), Some(attachments)) = (&result, &self.parts.attachments) {
            attachments.leave(&target).await;
        }
        result
    }

    async fn connect(&self, to_attach: ToAttach, deadline: Instant) -> Result<Grant, MountError> {
        let Some(attachments) = &self.parts.attachments else {
            let cure =
                "the volume has to be attached, and the mounter does not know its node: set --node-name (NODE_NAME)";
            return Err(MountError::Node(cure.to_owned().into()));
        };
        attachments.connect(to_attach, deadline).await
    }

    async fn mount_granted(&self, job: MountJob, span: &Span) -> Result<(), MountError> {
        let volume = job.grant.volume();
        let server = job.grant.server();
        span.record("volume.client", volume.client.as_str());
        span.record("volume.server", &server);
        if job.grant.access() == Access::Device && !gives_devices(volume.client.as_str(), &volume.fs_type) {
            return Err(MountError::NoDevice {
                client: volume.client.to_string(),
            });
        }
        let serving = self.parts.registry.serving(volume)?;
        span.record("serving", serving.as_str());
        let permit = if serving.is_remote() {
            Some(self.breakers.enter(&breaker_name(volume), Instant::now())?)
        } else {
            None
        };
        let deadline = job.deadline;
        let giving = Giving::of(&job.grant)?;
        let result = self.mount_by(serving, job, &server).await;
        if let Some(permit) = permit {
            match &result {
                Err(MountError::Timeout { seconds, .. }) if is_cut_short(*seconds, deadline) => drop(permit),
                Err(MountError::Timeout { .. }) => {
                    warn!(
                        server,
                        "server did not answer in time: its volumes are refused for a while"
                    );
                    permit.end(CallEnd::Late, Instant::now());
                }
                // These say nothing about the server.
                Err(
                    MountError::Container { .. }
                    | MountError::Forbidden(_)
                    | MountError::BadOptions(_)
                    | MountError::InProgress { .. },
                ) => drop(permit),
                Ok(()) => permit.end(CallEnd::Mounted, Instant::now()),
                Err(_) => permit.end(CallEnd::Failed, Instant::now()),
            }
        }
        result?;
        // The server has answered, and others wait for the permit. How long this takes is up to whoever has the files.
        match giving {
            Some(giving) => self.give(giving, deadline).await,
            None => Ok(()),
        }
    }

    async fn mount_by(&self, serving: Serving, mut job: MountJob, server: &str) -> Result<(), MountError> {
        let grant = &job.grant;
        let client = grant.volume().client.to_string();
        if grant.access() == Access::Device && !matches!(serving, Serving::Local | Serving::Container(_)) {
            return Err(MountError::NoDevice { client });
        }
        check_links(grant.author(), &client, &serving)?;
        let is_remote = serving.is_remote();
        let task = match serving {
            Serving::Container(image) => {
                let container = self.parts.container.as_ref().ok_or_else(|| MountError::Container {
                    client,
                    cause:
                        "the mounter has no access to the Kubernetes API, so it can start no client Pod: see its log"
                            .into(),
                })?;
                job.image = Some(image);
                return container.mount(&job).await;
            }
            Serving::Local => Task::Local {
                pool: self.parts.places.pool.clone(),
                grant: grant.clone(),
            },
            Serving::Pool => Task::Pool {
                pool: self.parts.places.pool.clone(),
                grant: grant.clone(),
            },
            Serving::Kernel => Task::Kernel {
                namespace: self.parts.places.host_namespace.clone(),
                grant: grant.clone(),
            },
            Serving::Host => Task::Host {
                namespace: self.parts.places.host_namespace.clone(),
                grant: grant.clone(),
            },
        };
        let attempted = format!("the mount of {client} volume {}", grant.volume().source);
        let server = if is_remote { server } else { OWN_DISK };
        let mounting = self.parts.workers.run(&task, job.deadline);
        let done = if is_remote {
            self.parts.waits.watch(Waiting::of(grant), mounting).await
        } else {
            mounting.await
        };
        let done = done.map_err(|error| error.into_mount_error(&attempted, server));
        if matches!(done, Err(MountError::Timeout { .. })) {
            self.clear_stage(grant.target()).await;
        }
        done
    }

    /// Removes what a mount by the host's program may have left.
    async fn clear_stage(&self, target: &Target) {
        if !self.parts.registry.has_host() {
            return;
        }
        let task = Task::ClearStage {
            namespace: self.parts.places.host_namespace.clone(),
            target: target.clone(),
        };
        if let Err(error) = self.parts.workers.run(&task, Instant::now() + CLEAR_LIMIT).await {
            self.tell_of_stage(target, &error);
        }
    }

    fn tell_of_stage(&self, target: &Target, error: &WorkerError) {
        let why = chain(error);
        warn!(target.path = %target, error = why, "failed to clean up after a mount by the host's program");
        // A worker that was ended may have left nothing.
        if let (WorkerError::Failed(_), Some((events, node))) = (error, &self.parts.events) {
            let words = left_on_stage(target.name(), &Kernel.stage(target), &why);
            // If there is no room for the Event, the log has it.
            let _ = events.record(clean_up_failed(node, words));
        }
    }

    /// Unmounts whatever is on a target.
    pub async fn unmount(&self, target: &Target, deadline: Instant) -> Result<(), MountError> {
        Span::current().record("volume.name", target.name());
        let _guard = self.guards.enter(target, "unmount")?;
        self.unfinished.take(target);
        let unmounted = self.unmount_guarded(target, deadline).await;
        self.untold.note_unmount(target, &unmounted);
        let rest = unmounted?;
        match (&self.parts.attachments, rest) {
            (Some(attachments), Some(rest)) => attachments.leave_after(target, rest).await,
            (Some(attachments), None) => attachments.leave(target).await,
            (None, _) => {}
        }
        Ok(())
    }

    /// Returns what its client still has to clean up.
    async fn unmount_guarded(&self, target: &Target, deadline: Instant) -> Result<Option<Rest>, MountError> {
        if target.is_device() {
            return self.hide(target, deadline).await;
        }
        if let Some(container) = &self.parts.container
            && container.unmount(target, deadline).await?
        {
            return Ok(None);
        }
        let first = Instant::now()
            + deadline
                .saturating_duration_since(Instant::now())
                .mul_f32(PLAIN_UNMOUNT);
        let attempted = format!("the unmount of {target}");
        let plain = Task::Unmount {
            target: target.clone(),
            detach: false,
        };
        let said = |error: WorkerError| error.into_mount_error(&attempted, "the volume's server");
        // The kernel takes it from the mount table before it writes what it has in memory.
        let on_device = is_on_a_device(&mount_table(), target);
        let dead = match self.silence_of_smb(target, first).await? {
            Some(error) => Some(error),
            None => match self.parts.workers.run(&plain, first).await.map_err(said) {
                // With a dead server, an unmount waits for data that can never be written. A disk of this node may just
                // be slow, and then the data has to be written.
                Err(error) if !on_device && self.never_ends(target, &error).await => Some(error),
                other => other.map(|()| None)?,
            },
        };
        if let Some(error) = dead {
            warn!(
                target.path = %target,
                error = %chain(&error),
                "unmounted lazily: the kernel removes it with its last user"
            );
            let detach = Task::Unmount {
                target: target.clone(),
                detach: true,
            };
            self.parts.workers.run(&detach, deadline).await.map_err(said)?;
        }
        let rest = self.unmounted(target).await;
        self.clear_stage(target).await;
        Ok(rest)
    }

    async fn unmounted(&self, target: &Target) -> Option<Rest> {
        self.parts.container.as_ref()?.unmounted(target).await
    }

    /// Takes a raw block volume from its Pod.
    async fn hide(&self, target: &Target, deadline: Instant) -> Result<Option<Rest>, MountError> {
        let task = Task::Hide {
            pool: self.parts.places.pool.clone(),
            target: target.clone(),
        };
        let done = self.parts.workers.run(&task, deadline).await;
        done.map_err(|error| error.into_mount_error(&format!("the removal of the device at {target}"), OWN_DISK))?;
        Ok(self.unmounted(target).await)
    }

    /// What the server of an SMB volume said instead of an answer: the kernel must not remove such a file system while
    /// its server is silent ([`crate::worker::last_user`]). No other volume's server is asked.
    async fn silence_of_smb(&self, target: &Target, deadline: Instant) -> Result<Option<MountError>, MountError> {
        let table = mount_table()?;
        if !table.top(&target.path()).is_some_and(MountEntry::is_smb) {
            return Ok(None);
        }
        let deadline = deadline.min(Instant::now() + FAIR_LIMIT);
        let asked = self.parts.workers.usage(target, deadline).await;
        let silence =
            |error: WorkerError| error.into_mount_error("the question before the unmount", "the volume's server");
        Ok(asked.err().map(silence))
    }

    /// Whether a failed unmount would fail again: the server hangs, and with it every process that has a file there.
    async fn never_ends(&self, target: &Target, error: &MountError) -> bool {
        match error {
            MountError::Timeout { .. } => true,
            MountError::InUse { .. } => match self.parts.workers.look(target, LOOK_LIMIT, LOOK_LIMIT).await {
                Ok(found) => found == LookedAt::Dead,
                Err(error) => matches!(error, WorkerError::Late { .. } | WorkerError::Failed(_)),
            },
            _ => false,
        }
    }

    /// Expands the volume on a target to `size` bytes at least. The mount table alone says what is there: a volume of a
    /// server has grown already when the server says so, and one on a device of this node has a file system that has
    /// to.
    pub async fn expand(&self, target: &Target, size: u64, deadline: Instant) -> Result<(), MountError> {
        Span::current().record("volume.name", target.name());
        let _guard = self.guards.enter(target, "expandfs")?;
        let expanded = self.expand_guarded(target, size, deadline).await;
        self.untold.note_expansion(target, &expanded);
        expanded
    }

    async fn expand_guarded(&self, target: &Target, size: u64, deadline: Instant) -> Result<(), MountError> {
        let attempted = format!("the expansion of the volume on {target}");
        let table = mount_table()?;
        let top = table.top(&target.path());
        let mut unknown = None;
        if top.is_some()
            && let Some(container) = &self.parts.container
        {
            match container.expand(target, size, deadline).await? {
                Expansion::Done => return Ok(()),
                Expansion::NotMine => {}
                Expansion::Unknown(error) => unknown = Some(error),
            }
        }
        if !target.is_device() && top.is_some_and(|entry| !entry.device.is_of_a_device()) {
            // A FUSE program is a client container's, and the image may have something to do.
            if let Some(error) = unknown
                && top.is_some_and(MountEntry::is_fuse)
            {
                return Err(error);
            }
            info!("nothing to do on the node");
            return Ok(());
        }
        let task = Task::Expand {
            pool: self.parts.places.pool.clone(),
            target: target.clone(),
            size,
        };
        let done = self.parts.workers.run(&task, deadline).await;
        done.map_err(|error| match (error, unknown) {
            // It is not on a file of the pool, so the client container has it whose agent does not answer just now.
            (WorkerError::Failed(MountError::NotExpanded { .. }), Some(unknown)) => unknown,
            (error, _) => error.into_mount_error(&attempted, OWN_DISK),
        })
    }
}

/// Whether a volume is on a device of this node, as far as is known: what is not known may be.
fn is_on_a_device(table: &Result<Table, MountError>, target: &Target) -> bool {
    let Ok(table) = table else { return true };
    let Some(top) = table.top(&target.path()) else {
        return false;
    };
    // Some file systems, such as btrfs, have a number of the kernel's own, and show the device.
    let shows_device = !top.is_fuse() && top.source.starts_with('/') && !top.source.starts_with("//");
    top.device.is_of_a_device() || shows_device
}

/// What an administrator is to do about a directory on which the host's program was to mount.
fn left_on_stage(volume: &str, stage: &Path, why: &str) -> String {
    let stage = stage.display();
    format!(
        "what the host's mount program did for volume {volume} may still be on this node, and Mooring does not try \
         again. If there is a directory {stage} on the node, run there: umount -l {stage}; rmdir {stage}. The reason: \
         {why}"
    )
}

/// A server may be dead as one type of server and alive as another.
fn breaker_name(volume: &Volume) -> String {
    format!("{} ({})", volume.server(), volume.client)
}

#[cfg(test)]
pub(crate) mod tests;
