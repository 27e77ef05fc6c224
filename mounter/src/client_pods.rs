//! The client Pods of this node: the daemon creates one when the first volume of a client is mounted, and deletes it
//! when the last is unmounted.
//!
//! All state is in the API, in the agents and in the mount table; a mounter that starts finds it there. Files:
//! [`plan`](mod@plan) (what to do, pure), [`pod`] (the skeleton), [`status`] (what a Pod says of itself), [`link`]
//! (talks to an agent), [`client`] (the core's client for volumes that they serve), [`idle`] (deletes unused ones),
//! [`old`] (those of an earlier version), `lost` (volumes whose Pod is gone), `looks` (whether a mount answers),
//! [`renew`] (newer Secrets), [`clean_up`] (what agents do after an unmount), [`kept`] (how to mount them again),
//! [`args`] and [`resources`] (flags).

pub mod args;
pub mod clean_up;
pub mod client;
pub mod idle;
pub mod kept;
pub mod link;
mod looks;
mod lost;
pub mod old;
pub mod plan;
pub mod pod;
pub mod renew;
pub mod resources;
pub mod status;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, watcher};
use mooring_contract::image::ImageRef;
use mooring_contract::names::{CLIENT_IMAGES_POLICY, SETTINGS_CONFIG, labels};
use mooring_contract::volume::ClientName;
use mooring_program::error::{answer_of, chain};
use mooring_program::repeated::Repeated;
use tokio::sync::{OnceCell, watch};
use tracing::{Instrument as _, info, info_span, warn};

use self::args::ClientPodArgs;
use self::kept::{KeptRecord, KeptVolumes};
use self::link::{LinkError, ask};
use self::old::{OldPod, Origin};
use self::plan::{PodDecision, VolumeId, Wanted, plan};
use self::pod::Template;
use self::status::{Problem, SeenPod};
use crate::agent::protocol::{AgentAnswer, Call, Hello, MountState};
use crate::api::recorder::Recorder;
use crate::core::client::Trouble;
use crate::node::node_pods::NodePods;
use crate::node::volume_secrets::VolumeSecrets;
use crate::settings::{ImageError, SettingsInForce};
use crate::volume::registry::Registry;
use crate::volume::target::Target;
use crate::worker::Workers;

/// How often to ask whether the agent of a starting Pod is there: the Pod's status says so up to a second later.
const START_PERIOD: Duration = Duration::from_millis(100);

/// Wait before a failed deletion of a Pod is tried again, and before the facts that Pods are made from are asked for
/// again.
const AGAIN: Duration = Duration::from_secs(5);

/// Longest that an agent may take to introduce itself.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct MounterIdentity {
    /// Name of the node that it runs on.
    pub node: String,
    /// Namespace of its Pod, and of the client Pods.
    pub namespace: String,
    /// Name of its Pod.
    pub pod: String,
    pub kubelet_root: PathBuf,
}

pub struct Cluster {
    pub client: kube::Client,
    pub events: Recorder,
    /// The Pods of this node, if the mounter may list them.
    pub node_pods: Option<Arc<NodePods>>,
    /// The Secrets of volumes, as far as the mounter may read them.
    pub volume_secrets: Option<VolumeSecrets>,
    pub settings: SettingsInForce,
}

/// What a client Pod is wanted for.
#[derive(Debug, Clone, Copy)]
pub struct PodNeed<'a> {
    pub client: &'a ClientName,
    pub image: &'a str,
    /// Whether the volume names the image.
    pub by_volume: bool,
    pub target: &'a Target,
    pub source: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub enum PodError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("failed to {attempted}: {}", answer_of(source))]
    Api {
        attempted: String,
        source: Box<kube::Error>,
    },
    /// The mounter's own Pod lacks what the installation gives it.
    #[error("the mounter's own Pod {0} has no {1}: install Mooring by its manifests, or set --mounter-image")]
    OwnPod(String, &'static str),
    #[error(
        "the Kubernetes API did not say in time which client Pods run on this node: see whether this node reaches it"
    )]
    NoList,
    #[error(
        "the API server lets no client Pod in, since there is no ConfigMap {SETTINGS_CONFIG}: an administrator has to \
         make it, and it may be empty: kubectl create configmap {SETTINGS_CONFIG} -n {0}"
    )]
    NoSettings(String),
    /// The settings that this mounter has read allow the Pod.
    #[error(
        "the API server refuses client Pod {0} by other settings than ConfigMap {SETTINGS_CONFIG} has now. If that lasts \
         for more than a minute, it keeps those of an earlier installation until an administrator restarts kube-apiserver"
    )]
    EarlierSettings(String),
    /// A Pod that is not Mooring's has the name.
    #[error("Pod {0} has the name of a client Pod but is not one: delete it")]
    Foreign(String),
    #[error("client Pod {name} does not start: {problem}")]
    Stuck {
        /// `metadata.name`, in Mooring's namespace.
        name: String,
        #[source]
        problem: Problem,
    },
    /// It did not start in time.
    #[error("client Pod {name} has not started in time: {awaited}")]
    Late {
        /// `metadata.name`, in Mooring's namespace.
        name: String,
        /// What was waited for last.
        #[source]
        awaited: Awaited,
    },
}

/// What a client Pod is waited for.
#[derive(Debug, thiserror::Error)]
pub enum Awaited {
    /// The API has not answered whether it made the Pod.
    #[error("the Kubernetes API did not answer")]
    Made,
    #[error("the Kubernetes API does not list it yet")]
    Listed,
    #[error("its image is being pulled, or its container started")]
    Started,
    /// Something keeps it from starting that may pass by itself.
    #[error(transparent)]
    Mended(Problem),
    /// It has started, and its agent does not answer.
    #[error(transparent)]
    Answered(LinkError),
    #[error("it is shutting down, and another Pod replaces it")]
    Replaced,
}

/// A Pod whose agent answered. It is not deleted as idle while this lives.
#[derive(Debug)]
pub struct Lease {
    pub name: String,
    pub uid: String,
    users: Arc<Users>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.users.leave(&self.uid);
    }
}

/// How many operations use each Pod at the moment.
#[derive(Debug, Default)]
struct Users(Mutex<HashMap<String, usize>>);

impl Users {
    fn enter(&self, uid: &str) {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *users.entry(uid.to_owned()).or_default() += 1;
    }

    fn leave(&self, uid: &str) {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = users.get_mut(uid) {
            *count -= 1;
            if *count == 0 {
                users.remove(uid);
            }
        }
    }

    fn any(&self, uid: &str) -> bool {
        let users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        users.contains_key(uid)
    }
}

/// What the daemon asks the API once, before it makes the first Pod.
#[derive(Debug)]
struct Known {
    template: Template,
    mounter_image: String,
}

pub struct ClientPods {
    client: kube::Client,
    events: Recorder,
    node_pods: Option<Arc<NodePods>>,
    volume_secrets: Option<VolumeSecrets>,
    kept: KeptVolumes,
    identity: MounterIdentity,
    args: ClientPodArgs,
    settings: SettingsInForce,
    registry: Registry,
    store: Store<Pod>,
    /// Counts every change of a Pod or a mount.
    changes: watch::Sender<u64>,
    users: Arc<Users>,
    /// Uids of Pods that are being deleted, or were, and may be seen yet.
    leaving: Mutex<HashSet<String>>,
    lost: lost::Lost,
    workers: Workers,
    known: OnceCell<Known>,
}

impl ClientPods {
    /// Starts to watch this node's client Pods, and to delete idle ones.
    pub fn start(
        cluster: Cluster,
        identity: MounterIdentity,
        args: ClientPodArgs,
        registry: Registry,
        kept: KeptVolumes,
        workers: Workers,
    ) -> Arc<Self> {
        let Cluster {
            client,
            events,
            node_pods,
            volume_secrets,
            settings,
        } = cluster;
        let (store, writer) = reflector::store();
        let pods = Arc::new(Self {
            client,
            events,
            node_pods,
            volume_secrets,
            kept,
            identity,
            args,
            registry,
            settings,
            store,
            changes: watch::channel(0).0,
            users: Arc::default(),
            leaving: Mutex::default(),
            lost: lost::Lost::default(),
            workers,
            known: OnceCell::new(),
        });
        let config = watcher::Config::default()
            .labels(&format!("{}={}", labels::COMPONENT, labels::COMPONENT_CLIENT))
            .fields(&format!("spec.nodeName={}", pods.identity.node))
            .page_size(50);
        let events = watcher(pods.api(), config)
            .default_backoff()
            .modify(|pod: &mut Pod| pod.metadata.managed_fields = None)
            .reflect(writer);
        let watching = Arc::clone(&pods);
        tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            let mut logged = Repeated::default();
            while let Some(event) = events.next().await {
                match event {
                    // Another try to list begins with it.
                    Ok(watcher::Event::Init) => {}
                    Ok(_) => logged.end(),
                    Err(error) => {
                        let error = chain(&error);
                        if logged.is_due(&error) {
                            warn!(error, "failed to watch the client Pods of this node; trying again");
                        }
                    }
                }
                watching.changed();
            }
        });
        tokio::spawn(idle::run(Arc::clone(&pods)));
        let knowing = Arc::clone(&pods);
        // Ahead of the first mount, which would otherwise wait for the API.
        tokio::spawn(async move {
            while let Err(error) = knowing.known().instrument(info_span!("own-pod")).await {
                warn!(
                    "failed to learn the image and service account of client Pods: {}",
                    chain(&error)
                );
                tokio::time::sleep(AGAIN).await;
            }
        });
        pods
    }

    /// Gives a Pod of the needed image whose agent answers, and makes one if there is none.
    pub async fn lease(self: &Arc<Self>, need: PodNeed<'_>, deadline: Instant) -> Result<Lease, PodError> {
        let PodNeed {
            client,
            image,
            by_volume,
            target,
            source,
        } = need;
        let image = self.settings.client_image(image)?;
        let limit = tokio::time::Instant::from_std(deadline);
        let known = tokio::time::timeout_at(limit, self.known())
            .await
            .map_err(|_| PodError::NoList)??;
        let wanted = Wanted {
            client: client.to_string(),
            node: self.identity.node.clone(),
            image,
            mounter_image: known.mounter_image.clone(),
            by_volume,
            volume: self.args.client_pod_per_volume.contains(client).then(|| VolumeId {
                name: target.name().to_owned(),
                source: source.to_owned(),
            }),
        };
        tokio::time::timeout_at(limit, self.store.wait_until_ready())
            .await
            .map_err(|_| PodError::NoList)?
            .map_err(|_| PodError::NoList)?;
        let mut changes = self.changes.subscribe();
        // The Pod that this waits for: the lease keeps a Pod that starts slowly from being deleted as idle.
        let mut held: Option<Lease> = None;
        let mut before: Option<String> = None;
        loop {
            changes.mark_unchanged();
            let (name, awaited) = match plan(&wanted, &self.seen(), before.as_deref(), Timestamp::now()) {
                PodDecision::Use { name, uid, problem } => {
                    // Taken before the agent is asked, so that the Pod is not deleted in between.
                    let lease = match held.take() {
                        Some(lease) if lease.uid == uid => lease,
                        _ => self.enter(&name, &uid),
                    };
                    let awaited = match (self.hello(&uid).await, problem) {
                        (Ok(hello), _) if !hello.draining => return Ok(lease),
                        (Ok(_), _) => Awaited::Replaced,
                        (Err(_), Some(problem)) if problem.settled => {
                            return Err(PodError::Stuck { name, problem });
                        }
                        (Err(_), Some(problem)) => Awaited::Mended(problem),
                        (Err(LinkError::NotThere), None) => Awaited::Started,
                        (Err(error), None) => Awaited::Answered(error),
                    };
                    held = Some(lease);
                    (name, awaited)
                }
                PodDecision::Create { name, ended } => {
                    held = None;
                    for (uid, name) in ended {
                        self.delete_soon(&name, &uid);
                    }
                    let create = self.create(&known.template, &wanted, &name);
                    let Ok(created) = tokio::time::timeout_at(limit, create).await else {
                        let awaited = Awaited::Made;
                        return Err(PodError::Late { name, awaited });
                    };
                    created?;
                    (name, Awaited::Listed)
                }
                PodDecision::Report { name, problem } => return Err(PodError::Stuck { name, problem }),
            };
            before = Some(name.clone());
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep(START_PERIOD) => {}
                () = tokio::time::sleep_until(limit) => return Err(PodError::Late { name, awaited }),
            }
        }
    }

    /// Whether Pods of an image may be made.
    pub fn allows(&self, image: &str) -> bool {
        self.settings.client_image(image).is_ok()
    }

    /// All client Pods of this node, as last seen.
    pub fn seen(&self) -> Vec<SeenPod> {
        let mut seen: Vec<_> = self.store.state().iter().filter_map(|pod| status::seen(pod)).collect();
        seen.sort_by(|a, b| a.name.cmp(&b.name));
        seen
    }

    /// The client Pods of this node whose agents may be asked what they have. Until the API has said which there are,
    /// those that this mounter, or one before it, had mount a volume: an API that is away stops no growth and no
    /// revival.
    pub fn agents(&self) -> Vec<SeenPod> {
        if self.has_list() {
            return self.seen();
        }
        self.kept.pods().into_iter().map(SeenPod::kept).collect()
    }

    /// Whether the API has said which client Pods there are.
    pub fn has_list(&self) -> bool {
        self.store.wait_until_ready().now_or_never().is_some()
    }

    /// Those of an earlier version, and what they serve; `None` until the list of Pods has arrived.
    pub async fn old(&self) -> Option<Vec<OldPod>> {
        let ready = tokio::time::timeout(HELLO_LIMIT, self.store.wait_until_ready()).await;
        ready.ok()?.ok()?;
        let old = self.origins_of_old()?.into_iter();
        let asked = old.map(async |(name, uid, origin)| {
            let hello = self.hello(&uid).await.ok();
            let mounts = hello.as_ref().map(|hello| hello.mounts.as_slice());
            OldPod::new(name, origin, mounts)
        });
        let mut old = join_all(asked).await;
        old.sort_by(|a, b| a.name.cmp(&b.name));
        Some(old)
    }

    /// Name, uid and origin of the Pods of an earlier version; `None` until this version is known.
    fn origins_of_old(&self) -> Option<Vec<(String, String, Origin)>> {
        let known = self.known.get()?;
        let servings = self.registry.servings();
        let is_old = |origin: &Origin| origin.is_old(&known.mounter_image, &servings);
        Some(
            self.origins()
                .into_iter()
                .filter(|(_, _, origin)| is_old(origin))
                .collect(),
        )
    }

    /// Name, uid and origin of all Pods.
    fn origins(&self) -> Vec<(String, String, Origin)> {
        let pods = self.store.state();
        let origins = pods
            .iter()
            .filter_map(|pod| Some((pod.metadata.name.clone()?, pod.metadata.uid.clone()?, Origin::of(pod)?)));
        origins.collect()
    }

    /// Asks a Pod's agent who it is and what it has mounted.
    pub async fn hello(&self, uid: &str) -> Result<Hello, LinkError> {
        match self.ask(uid, Call::Hello, HELLO_LIMIT).await? {
            AgentAnswer::Hello(hello) => {
                self.lost.heard(uid, &hello.mounts);
                Ok(hello)
            }
            AgentAnswer::Failed(failure) => {
                warn!("an agent failed to say what it has mounted: {}", failure.message);
                Err(LinkError::NotThere)
            }
            _ => Err(LinkError::NotThere),
        }
    }

    /// Mounts that did not answer when their agent was last asked: the uid of the agent's Pod, the mount, and how long
    /// it has been silent.
    pub fn silent(&self) -> Vec<(String, MountState, Duration)> {
        self.lost.silent()
    }

    /// What is wrong with the volume on a target, as its agent last reported.
    pub fn trouble(&self, target: &str) -> Option<Trouble> {
        self.lost.trouble(target)
    }

    /// The source of the volume on a target. A FUSE mount itself shows only its volume's id.
    pub fn source_of(&self, target: &str) -> Option<String> {
        let reported = self.lost.served(target).map(|(_, mount)| mount.source);
        reported.or_else(|| Some(self.kept.get(target)?.call.source.clone()))
    }

    /// Remembers a volume that a client Pod has mounted.
    pub fn keep(&self, record: KeptRecord) {
        self.lost.forget(&record.call.target);
        self.kept.put(record);
    }

    /// The uid of the Pod whose agent reported a volume last, or had mounted it.
    fn owner_of(&self, target: &Target) -> Option<String> {
        let target = target.to_string();
        let reported = self.lost.served(&target).map(|(uid, _)| uid);
        reported.or_else(|| self.kept.by(&target))
    }

    pub fn forget(&self, target: &Target) {
        let target = target.to_string();
        self.lost.forget(&target);
        self.kept.remove(&target);
    }

    /// Starts to mount a volume again whose Pod is gone. Gives the reason why that has failed so far, or `None` if
    /// nothing is remembered of the volume.
    pub fn revive(self: &Arc<Self>, target: &Target) -> Option<String> {
        lost::revive(self, target)
    }

    pub async fn ask(&self, uid: &str, call: Call, limit: Duration) -> Result<AgentAnswer, LinkError> {
        ask(&self.identity.kubelet_root, uid, call, limit).await
    }

    /// Counts every change of a Pod or a mount.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn kubelet_root(&self) -> &Path {
        &self.identity.kubelet_root
    }

    /// Notes that a mount came or went.
    pub fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn enter(&self, name: &str, uid: &str) -> Lease {
        self.users.enter(uid);
        Lease {
            name: name.to_owned(),
            uid: uid.to_owned(),
            users: Arc::clone(&self.users),
        }
    }

    async fn known(&self) -> Result<&Known, PodError> {
        self.known.get_or_try_init(|| self.find_out()).await
    }

    async fn find_out(&self) -> Result<Known, PodError> {
        let MounterIdentity {
            node: _,
            namespace,
            pod: own_name,
            kubelet_root,
        } = &self.identity;
        let own = self
            .api()
            .get(own_name)
            .await
            .map_err(api_error(format!("get the mounter's own Pod {own_name}")))?;
        let own_pod = |what| PodError::OwnPod(own_name.clone(), what);
        let spec = own.spec.ok_or_else(|| own_pod("spec"))?;
        let account = spec.service_account_name.ok_or_else(|| own_pod("service account"))?;
        let image = match &self.args.mounter_image {
            Some(image) => image.clone(),
            None => spec
                .containers
                .into_iter()
                .find(|container| container.name == "mounter")
                .and_then(|container| container.image)
                .ok_or_else(|| own_pod("container named mounter"))?,
        };
        let owner = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace)
            .get(&account)
            .await
            .map_err(api_error(format!("get the mounter's service account {account}")))?;
        let uid = owner.metadata.uid.unwrap_or_default();
        Ok(Known {
            mounter_image: image.parse::<ImageRef>().map_err(ImageError::from)?.to_string(),
            template: Template {
                namespace: namespace.clone(),
                kubelet_root: kubelet_root.to_string_lossy().into_owned(),
                owner: pod::owner(&account, &uid),
                service_account: self.args.client_service_account.clone(),
                priority_class: self.args.client_priority_class.clone(),
                resources: self.args.resources.clone(),
                grace_seconds: i64::try_from(self.args.client_grace.as_secs()).unwrap_or(i64::MAX),
            },
        })
    }

    /// Makes a Pod. An existing one of that name is as good, if it is Mooring's.
    async fn create(&self, template: &Template, wanted: &Wanted, name: &str) -> Result<(), PodError> {
        let pod = pod::build(template, wanted, name, self.settings.pull_secrets());
        match self.api().create(&PostParams::default(), &pod).await {
            Ok(_) => {
                info!(
                    pod.name = name,
                    client.name = wanted.client,
                    client.image = wanted.image,
                    "made a client Pod"
                );
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let there = self
                    .api()
                    .get_opt(name)
                    .await
                    .map_err(api_error(format!("get Pod {name}")))?;
                match there {
                    Some(there) if owner_uid(&there) != Some(&template.owner.uid) => {
                        Err(PodError::Foreign(name.to_owned()))
                    }
                    // Ours, or gone by now: the watch will show which.
                    _ => Ok(()),
                }
            }
            Err(error) => Err(self.not_made(name, wanted, error)),
        }
    }

    /// Why there is no Pod whose client image the settings here allow.
    fn not_made(&self, name: &str, wanted: &Wanted, error: kube::Error) -> PodError {
        if let kube::Error::Api(status) = &error {
            // The admission policy for client images has nothing to go by.
            if status.message.contains("no params found") {
                return PodError::NoSettings(self.identity.namespace.clone());
            }
            let is_by_policy = status.message.contains(CLIENT_IMAGES_POLICY);
            if is_by_policy && self.settings.client_image(&wanted.mounter_image).is_ok() {
                return PodError::EarlierSettings(name.to_owned());
            }
        }
        api_error(format!("create client Pod {name}"))(error)
    }

    /// Starts to delete a Pod, but no other Pod of the same name. The Pod stays while it has mounts.
    fn delete_soon(self: &Arc<Self>, name: &str, uid: &str) {
        if !self.leaving().insert(uid.to_owned()) {
            return;
        }
        let (pods, name, uid) = (Arc::clone(self), name.to_owned(), uid.to_owned());
        tokio::spawn(async move {
            if !pods.delete(&name, &uid).await {
                tokio::time::sleep(AGAIN).await;
                pods.leaving().remove(&uid);
                pods.changed();
            }
        });
    }

    /// Uids of Pods that are being deleted, or were, and may be seen yet.
    fn leaving(&self) -> MutexGuard<'_, HashSet<String>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the API to delete a Pod; whether it agreed, or the Pod is gone.
    async fn delete(&self, name: &str, uid: &str) -> bool {
        let only_this = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.api().delete(name, &only_this).await {
            Ok(_) => {
                info!(pod.name = name, "deleted a client Pod");
                true
            }
            // 404: gone; 409: another has its name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => true,
            Err(error) => {
                warn!(
                    pod.name = name,
                    error = %chain(&error),
                    "failed to delete a client Pod; trying again"
                );
                false
            }
        }
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.identity.namespace)
    }
}

fn owner_uid(pod: &Pod) -> Option<&String> {
    let owners = pod.metadata.owner_references.as_deref()?;
    owners.first().map(|owner| &owner.uid)
}

fn api_error(attempted: String) -> impl FnOnce(kube::Error) -> PodError {
    move |source| PodError::Api {
        attempted,
        source: Box::new(source),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use clap::Parser;
    use kube::core::Status;
    use mooring_contract::names::CLIENT_IMAGES_POLICY;
    use mooring_program::settings::Settings;
    use tokio::net::UnixListener;

    use super::client::ContainerClient;
    use super::kept::KeptVolumes;
    use super::kept::tests::record;
    use super::plan::Wanted;
    use super::pod::AGENT_VOLUME;
    use super::{ClientPodArgs, ClientPods, Cluster, MounterIdentity, lost};
    use crate::agent::protocol::{self, AgentAnswer, AgentRequest, Call, Hello, MountHealth, MountState, SOCKET};
    use crate::api::recorder::Recorder;
    use crate::api::tests::silent_server_within;
    use crate::core::client::{Client as _, Expansion};
    use crate::core::waits::Waits;
    use crate::settings::SettingsInForce;
    use crate::sys::fake::target;
    use crate::volume::job::PodRef;
    use crate::volume::registry::Registry;
    use crate::worker::Workers;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: ClientPodArgs,
    }

    /// Those of node-1, with an API that is silent but for Events.
    pub(crate) async fn client_pods(events: kube::Client) -> Arc<ClientPods> {
        client_pods_within(events, "/nonexistent".into()).await
    }

    /// The same, with the kubelet's root.
    pub(crate) async fn client_pods_within(events: kube::Client, kubelet_root: PathBuf) -> Arc<ClientPods> {
        // A loop that waited for one call would not end.
        let client = silent_server_within("", Duration::from_hours(1)).await;
        let cluster = Cluster {
            events: Recorder::start(events, None),
            client,
            node_pods: None,
            volume_secrets: None,
            settings: SettingsInForce::default(),
        };
        let identity = MounterIdentity {
            node: "node-1".into(),
            namespace: "mooring".into(),
            pod: "mounter-x".into(),
            kubelet_root,
        };
        let flags = Flags::parse_from(["mounter"]);
        let (registry, workers) = (Registry::default(), Workers::default());
        ClientPods::start(cluster, identity, flags.args, registry, KeptVolumes::default(), workers)
    }

    #[tokio::test]
    async fn a_silent_api_does_not_hold_up_the_loop_that_lets_pods_go_and_looks_for_lost_volumes() {
        let events = silent_server_within("", Duration::from_hours(1)).await;
        let pods = client_pods(events).await;
        let looked = async {
            for _ in 0..10 {
                pods.delete_soon("client-sshfs-0", "uid");
                // While the Pods are not known, no volume counts as lost.
                assert!(lost::look_after(&pods).await);
            }
        };
        let looked = tokio::time::timeout(Duration::from_mins(1), looked).await;
        looked.expect("the loop waits for the API");
        assert!(pods.leaving().contains("uid"));
    }

    #[tokio::test]
    async fn a_pod_that_only_the_api_server_refuses_is_refused_by_earlier_settings() {
        let pods = client_pods(silent_server_within("", Duration::from_hours(1)).await).await;
        let why = |policy: &str| {
            let wanted = Wanted {
                client: "sshfs".into(),
                node: "node-1".into(),
                image: "r.example.com/client-sshfs:1".into(),
                mounter_image: "r.example.com/mounter:1".into(),
                by_volume: false,
                volume: None,
            };
            let said = format!("ValidatingAdmissionPolicy '{policy}' denied request: no");
            let refusal = kube::Error::Api(Status::failure(&said, "Invalid").boxed());
            pods.not_made("client-sshfs-0", &wanted, refusal).to_string()
        };
        let refused = |policy: &str| {
            format!(
                "failed to create client Pod client-sshfs-0: ValidatingAdmissionPolicy '{policy}' denied request: no"
            )
        };
        // The mounter's own image is not among those of the settings.
        assert_eq!(why(CLIENT_IMAGES_POLICY), refused(CLIENT_IMAGES_POLICY));
        pods.settings.set(Settings {
            registry: Some("r.example.com".parse().unwrap()),
            ..Settings::default()
        });
        assert!(why(CLIENT_IMAGES_POLICY).contains("restarts kube-apiserver"));
        assert_eq!(why("mooring-mounter"), refused("mooring-mounter"));
    }

    /// The socket of the agent of the Pod `uid`.
    pub(crate) fn agent_socket(kubelet_root: &Path, uid: &str) -> UnixListener {
        let volumes = kubelet_root.join("pods").join(uid).join("volumes");
        let dir = volumes.join("kubernetes.io~empty-dir").join(AGENT_VOLUME);
        std::fs::create_dir_all(&dir).unwrap();
        UnixListener::bind(dir.join(SOCKET)).unwrap()
    }

    /// An agent that answers like this.
    pub(crate) async fn serve(listener: UnixListener, answer: impl Fn(Call) -> AgentAnswer) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let request: AgentRequest = protocol::receive(&mut stream).await.unwrap();
            protocol::send(&mut stream, &answer(request.call)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_volume_that_this_node_remembers_grows_while_the_api_is_silent() {
        let root = tempfile::tempdir().unwrap();
        let mount = MountState {
            target: target().to_string(),
            client: "sshfs".into(),
            source: "a@b:/c".into(),
            pod: PodRef::default(),
            health: MountHealth::Mounted,
            dead: None,
            reviving: None,
            silent_ms: None,
            on_device: false,
            clean_up_failure: None,
            by_owner: None,
        };
        tokio::spawn(serve(agent_socket(root.path(), "u"), move |call| match call {
            Call::Hello => AgentAnswer::Hello(Hello {
                version: protocol::VERSION,
                release: String::new(),
                draining: false,
                revives: true,
                holds_dead: true,
                mounts: vec![mount.clone()],
            }),
            Call::Expand { .. } => AgentAnswer::Noted,
            other => panic!("{}", other.name()),
        }));
        let events = silent_server_within("", Duration::from_hours(1)).await;
        let pods = client_pods_within(events, root.path().to_owned()).await;
        let client = ContainerClient::new(Arc::clone(&pods), Waits::new(None));
        let grow = async || {
            let deadline = Instant::now() + Duration::from_secs(30);
            client.expand(&target(), 1, deadline).await.unwrap()
        };
        // Nobody knows who has it.
        assert!(matches!(grow().await, Expansion::Unknown(_)));
        pods.keep(record(&target().to_string(), "u"));
        assert!(matches!(grow().await, Expansion::Done));
    }
}
