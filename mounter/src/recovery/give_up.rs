//! Volumes that keep their Pod from ending although it is being deleted. Those whose server does not answer: the Pod's
//! processes can't end and the kubelet can't unmount the volume, since both wait in the kernel. And those that the
//! kubelet takes for missing (`leftovers`).
//!
//! Agents report which of their mounts are silent ([`crate::agent::give_up`]). `network` asks the kernel's own network
//! file systems, even those that Mooring did not mount. If there is one, the daemon asks the API which Pods of this
//! node are being deleted. Some time after such a Pod's grace period (`fate`), all that wait for the volume get an
//! error: the agent ends the FUSE connection, or a forced unmount ends what waits for the server
//! ([`crate::worker::force`]). A worker unmounts what is missing. The daemon leaves volumes of other Pods alone,
//! however long their server hangs: their users wait, and continue when the server is back.
//!
//! A volume that is not unmounted because of a mount within it gets an Event, and nothing else.

mod fate;
mod leftovers;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use mooring_program::error::chain;
use mooring_program::repeated::Repeated;
use tracing::{Instrument as _, info, info_span, warn};

use crate::agent::give_up::SILENCE;
use crate::agent::protocol::{AgentAnswer, Call, FailureCategory};
use crate::api::volume_events::{VolumeEvent, VolumeRecorder};
use crate::client_pods::ClientPods;
use crate::core::metrics::MounterMetrics;
use crate::core::untold::Untold;
use crate::node::node_pods::{NodePod, NodePods};
use crate::volume::job::MountError;
use crate::volume::target::Target;
use crate::worker::{Task, WorkerError, Workers};
use fate::{BOUND, Fate, fate};
use leftovers::Leftovers;
use network::Network;

/// How often to check whether a mount is silent. The check itself asks no one.
const PERIOD: Duration = Duration::from_secs(5);

/// How often to ask the API while a mount is silent.
const ASK_PERIOD: Duration = Duration::from_secs(15);

/// Longest that an agent or a worker may take.
const LIMIT: Duration = Duration::from_secs(15);

/// A volume that does not answer, that is left mounted, or of which the user is told something.
#[derive(Debug)]
struct Stuck {
    target: Target,
    cure: Cure,
}

/// What lets the volume's Pod end.
#[derive(Debug)]
enum Cure {
    /// Its agent ends what waits for it.
    ByAgent {
        /// The uid of the agent's client Pod.
        uid: String,
        client: String,
    },
    /// The kernel ends what waits for it.
    ByKernel { fs_type: String },
    /// A worker unmounts what the kubelet takes for missing.
    UnmountMissing,
    /// The user does something.
    Tell(VolumeEvent),
}

/// Finds volumes that do not answer, and lets Pods end whose grace period is over.
pub struct GiveUp {
    pods: Arc<ClientPods>,
    network: Network,
    leftovers: Leftovers,
    untold: Untold,
    workers: Workers,
    /// The host's mount namespace, if not the kubelet's.
    host_namespace: Option<PathBuf>,
    node_pods: Arc<NodePods>,
    /// Why the Pods of the node are not known.
    blind: Repeated,
    metrics: MounterMetrics,
    recorder: VolumeRecorder,
    asked: Option<Instant>,
    /// Since when Pods with stuck volumes are not known to the API any more, by uid.
    missing: BTreeMap<String, Instant>,
}

impl GiveUp {
    pub fn new(
        pods: Arc<ClientPods>,
        workers: Workers,
        untold: Untold,
        host_namespace: Option<PathBuf>,
        node_pods: Arc<NodePods>,
        metrics: MounterMetrics,
        recorder: VolumeRecorder,
    ) -> Self {
        Self {
            network: Network::new(pods.kubelet_root().to_owned(), workers.clone()),
            leftovers: Leftovers::new(pods.kubelet_root().to_owned()),
            untold,
            pods,
            workers,
            host_namespace,
            node_pods,
            blind: Repeated::default(),
            metrics,
            recorder,
            asked: None,
            missing: BTreeMap::new(),
        }
    }

    /// Runs for as long as the mounter.
    pub async fn run(mut self) {
        // Ask once at the start, so that a missing right shows before it matters.
        self.node_pods().await;
        loop {
            tokio::time::sleep(PERIOD).await;
            self.look().instrument(info_span!("give-up")).await;
        }
    }

    async fn look(&mut self) {
        self.leftovers.look().await;
        let stuck = self.stuck();
        self.keep(&stuck);
        let is_told =
            |volume: &Stuck| matches!(&volume.cure, Cure::Tell(event) if self.recorder.is_last(&volume.target, event));
        if stuck.iter().all(is_told) || self.asked.is_some_and(|asked| asked.elapsed() < ASK_PERIOD) {
            return;
        }
        self.asked = Some(Instant::now());
        let Some(there) = self.node_pods().await else { return };
        let over: BTreeSet<_> = stuck
            .iter()
            .map(|volume| volume.target.pod_uid().to_owned())
            .filter(|uid| self.is_over(uid, &there))
            .collect();
        for Stuck { target, cure } in &stuck {
            let (event, kind) = match cure {
                Cure::Tell(event) => (Some(event.clone()), ""),
                _ if !over.contains(target.pod_uid()) => continue,
                Cure::ByAgent { uid, client } => (self.by_agent(uid, target).await, client.as_str()),
                Cure::ByKernel { fs_type } => (self.by_kernel(target, &over).await, fs_type.as_str()),
                Cure::UnmountMissing => {
                    self.unmount_missing(target).await;
                    continue;
                }
            };
            if let Some(event) = event {
                let uid = target.pod_uid();
                let pod = there.iter().map(|seen| &seen.pod).find(|pod| pod.uid == uid);
                let given_up = event == VolumeEvent::GivenUp;
                if self.recorder.record(target, pod, event) && given_up {
                    self.metrics.given_up(kind);
                }
            }
        }
    }

    async fn node_pods(&mut self) -> Option<Vec<NodePod>> {
        match self.node_pods.list().await {
            Ok(there) => {
                self.blind.end();
                Some(there)
            }
            Err(error) => {
                let error = chain(&error);
                if self.blind.is_due(&error) {
                    warn!("failed to learn which Pods are being deleted, so none is helped to end: {error}");
                }
                None
            }
        }
    }

    /// The volumes that have been silent for long enough, those that are left mounted, and those of which there is
    /// something to tell.
    fn stuck(&mut self) -> Vec<Stuck> {
        self.network.ask();
        let of_agents = self.pods.silent().into_iter().filter_map(|(uid, mount, silence)| {
            let target = Target::parse_any(self.pods.kubelet_root(), &mount.target).ok()?;
            let client = mount.client;
            // A mount of the kernel that a program in a container made is asked from here as well.
            (silence >= SILENCE && !self.network.has(&target)).then_some(Stuck {
                target,
                cure: Cure::ByAgent { uid, client },
            })
        });
        let of_the_kernel = self.network.silent().map(|(target, fs_type)| Stuck {
            target: target.clone(),
            cure: Cure::ByKernel {
                fs_type: fs_type.to_owned(),
            },
        });
        let left = self.leftovers.found().map(|target| Stuck {
            target: target.clone(),
            cure: Cure::UnmountMissing,
        });
        let untold = self.untold.events().into_iter().map(|(target, event)| Stuck {
            target,
            cure: Cure::Tell(event),
        });
        // In this order: one that is silent is asked last.
        of_agents.chain(of_the_kernel).chain(left).chain(untold).collect()
    }

    /// Forgets what is no longer stuck.
    fn keep(&mut self, stuck: &[Stuck]) {
        let targets: BTreeSet<_> = stuck.iter().map(|volume| &volume.target).collect();
        self.recorder.keep(|target| targets.contains(target));
        self.missing
            .retain(|uid, _| stuck.iter().any(|volume| volume.target.pod_uid() == uid));
    }

    /// Whether a Pod's grace period and some time more are over.
    fn is_over(&mut self, uid: &str, there: &[NodePod]) -> bool {
        match fate(uid, there, Timestamp::now()) {
            Fate::Stays => {
                self.missing.remove(uid);
                false
            }
            Fate::Over => true,
            Fate::Missing => {
                let since = self.missing.entry(uid.to_owned()).or_insert_with(Instant::now);
                since.elapsed() >= BOUND
            }
        }
    }

    /// Has a mount's agent end its connection; the Event to record, if any.
    async fn by_agent(&self, uid: &str, target: &Target) -> Option<VolumeEvent> {
        let target = target.to_string();
        let call = Call::GiveUp { target: target.clone() };
        match self.pods.ask(uid, call, LIMIT).await {
            Ok(AgentAnswer::Failed(failure)) if failure.category == FailureCategory::InProgress => {
                info!(target.path = target, "not given up: {}", failure.message);
            }
            Ok(AgentAnswer::Failed(failure)) => {
                warn!(target.path = target, "failed to give up a volume: {}", failure.message);
            }
            Ok(_) => {
                // The kubelet goes on, and the agent has something else to say.
                self.pods.changed();
                return Some(VolumeEvent::GivenUp);
            }
            Err(error) => warn!(
                target.path = target,
                error = %chain(&error),
                "failed to tell an agent to give up a volume"
            ),
        }
        None
    }

    /// Has the kernel end what waits for a mount, unless other Pods than these wait with it; the Event to record, if
    /// any.
    async fn by_kernel(&self, target: &Target, over: &BTreeSet<String>) -> Option<VolumeEvent> {
        let task = Task::Force {
            namespace: self.host_namespace.clone(),
            target: target.clone(),
            over: over.clone(),
        };
        match self.workers.run(&task, Instant::now() + LIMIT).await {
            // A worker that hangs has told the kernel, and waits for the rest of the unmount.
            Ok(()) | Err(WorkerError::Late { .. }) => Some(VolumeEvent::GivenUp),
            Err(WorkerError::Failed(error @ MountError::Shared { .. })) => {
                info!(target.path = %target, "not given up: {}", chain(&error));
                Some(VolumeEvent::Shared)
            }
            Err(error) => {
                warn!(target.path = %target, "failed to give up a volume: {}", chain(&error));
                None
            }
        }
    }

    /// Unmounts what the kubelet takes for missing of a volume. The kubelet then goes on by itself.
    async fn unmount_missing(&mut self, target: &Target) {
        let task = Task::UnmountMissing { target: target.clone() };
        let done = self.workers.run(&task, Instant::now() + LIMIT).await;
        let done =
            done.map_err(|error| error.into_mount_error("the unmount of what is missing", "the volume's server"));
        self.untold.note_unmount(target, &done);
        match done {
            Ok(()) => info!(target.path = %target, "unmounted what the kubelet takes for missing, if anything"),
            Err(error) => {
                warn!(target.path = %target, "failed to unmount what the kubelet takes for missing: {}", chain(&error));
            }
        }
        self.leftovers.forget(target);
    }
}
