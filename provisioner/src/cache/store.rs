//! What is watched, and who is woken by it. One watch of each kind serves both controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error as WatchError};
use kube::{Resource, ResourceExt};
use mooring_contract::names::{annotations, finalizers, labels};
use mooring_contract::operation::Operation;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tracing::warn;

use crate::cache::expectations::SeenTo;
use crate::cache::limiter::{InFlight, Slots};
use crate::cache::work_queue::{Target, Waker};
use crate::operation::Departed;
use crate::operation::delete::is_ours;
use crate::process::context::Context;
use crate::process::metrics::Metrics;
use crate::run::outcome::{PodState, observe};
use crate::run::pod;
use crate::volume::topology::{HOSTNAME, Node};

/// How long the first list of a namespace's Pods is waited for; after that the others are served without it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Objects a page of a list: more would be held twice for a moment.
const PAGE: u32 = 50;

/// What is known of the cluster. A clone is another handle on the same.
#[derive(Clone)]
pub struct Watched {
    /// All claims.
    pub claims: Store<PersistentVolumeClaim>,
    /// All PVs.
    pub volumes: Store<PersistentVolume>,
    /// The provisioning Pods of each namespace that they may run in.
    pods: BTreeMap<String, Store<Pod>>,
    /// The namespaces whose Pods have been listed.
    listed: Arc<RwLock<BTreeSet<String>>>,
    /// All classes.
    pub classes: Store<StorageClass>,
    nodes: Store<PartialObjectMeta<ApiNode>>,
    /// Names of the PVs that name a claim's uid.
    by_claim: Arc<RwLock<BTreeMap<String, BTreeSet<String>>>>,
    /// How provisioning Pods were when they went, by uid of a claim that is not done with.
    departed: Arc<RwLock<BTreeMap<String, Departed>>>,
    /// A provisioning Pod has changed.
    changed: Arc<Notify>,
}

/// What fills [`Watched`]; see [`Watched::new`].
pub struct Writers {
    claims: Writer<PersistentVolumeClaim>,
    volumes: Writer<PersistentVolume>,
    pods: BTreeMap<String, Writer<Pod>>,
    classes: Writer<StorageClass>,
    nodes: Writer<PartialObjectMeta<ApiNode>>,
}

impl Watched {
    /// Nothing known yet, and what fills it. Pods are watched in `namespaces` and nowhere else.
    pub fn new(namespaces: &BTreeSet<String>) -> (Self, Writers) {
        let (claims, claims_writer) = store();
        let (volumes, volumes_writer) = store();
        let mut pods = BTreeMap::new();
        let mut pods_writers = BTreeMap::new();
        for namespace in namespaces {
            let (reader, writer) = store();
            pods.insert(namespace.clone(), reader);
            pods_writers.insert(namespace.clone(), writer);
        }
        let (classes, classes_writer) = store();
        let (nodes, nodes_writer) = store();
        let watched = Self {
            claims,
            volumes,
            pods,
            listed: Arc::default(),
            classes,
            nodes,
            by_claim: Arc::default(),
            departed: Arc::default(),
            changed: Arc::default(),
        };
        let writers = Writers {
            claims: claims_writer,
            volumes: volumes_writer,
            pods: pods_writers,
            classes: classes_writer,
            nodes: nodes_writer,
        };
        (watched, writers)
    }

    /// Returns when everything has been listed once, but for Pods: a namespace without rights would hold up the others, so
    /// see [`Self::knows_pods_of`]. Before that, what is not known may be there all the same.
    pub async fn ready(&self) {
        // A writer that is gone means that the process is ending.
        let _ = tokio::join!(
            self.claims.wait_until_ready(),
            self.volumes.wait_until_ready(),
            self.classes.wait_until_ready(),
            self.nodes.wait_until_ready(),
            tokio::time::timeout(PATIENCE, join_all(self.pods.values().map(Store::wait_until_ready))),
        );
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<Node> {
        self.nodes.get(&ObjectRef::new(name)).as_deref().map(as_node)
    }

    /// The node with this host name.
    pub fn node_by_host(&self, host: &str) -> Option<Node> {
        let is = |node: &PartialObjectMeta<ApiNode>| {
            node.labels()
                .get(HOSTNAME)
                .map_or(node.name_any() == host, |label| label == host)
        };
        self.nodes.find(is).as_deref().map(as_node)
    }

    /// The Pod `namespace/name`.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(namespace)?.get(&ObjectRef::new(name).within(namespace))
    }

    /// Whether the Pods of a namespace have been listed: before that, a Pod that is not known may be there.
    pub fn knows_pods_of(&self, namespace: &str) -> bool {
        self.listed
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(namespace)
    }

    fn pods(&self, wanted: impl Fn(&Pod) -> bool + Copy) -> Vec<Arc<Pod>> {
        self.pods.values().flat_map(|pods| pods.state_filter(wanted)).collect()
    }

    /// The PVs that bear the name or the uid of a claim, the rightly named first.
    pub fn volumes_of(&self, uid: &str) -> Vec<Arc<PersistentVolume>> {
        let by_claim = self.by_claim.read().unwrap_or_else(PoisonError::into_inner);
        let named = pod::pv_name(uid);
        let others = by_claim.get(uid).into_iter().flatten().filter(|name| **name != named);
        std::iter::once(&named)
            .chain(others)
            .filter_map(|name| self.volumes.get(&ObjectRef::new(name)))
            .collect()
    }

    /// Whether a claim with this uid is there.
    pub fn has_claim(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let claim = self.claims.get(&ObjectRef::new(name).within(namespace));
        claim.is_some_and(|claim| claim.metadata.uid.as_deref() == Some(uid))
    }

    /// Whether a PV with this uid is there.
    pub fn has_volume(&self, name: &str, uid: &str) -> bool {
        let volume = self.volumes.get(&ObjectRef::new(name));
        volume.is_some_and(|volume| volume.metadata.uid.as_deref() == Some(uid))
    }

    /// The Pods that are not over.
    pub fn in_flight(&self) -> Vec<InFlight> {
        let over = |pod: &Pod| matches!(observe(pod), PodState::Finished(_));
        let pods = self.pods(|pod| !over(pod));
        pods.iter()
            .map(|pod| {
                let config = pod.annotations().get(annotations::CONFIG).cloned().unwrap_or_default();
                (key(&**pod), config)
            })
            .collect()
    }

    /// Returns when a provisioning Pod has changed since the last time.
    pub async fn pods_changed(&self) {
        self.changed.notified().await;
    }

    /// The Pods of a claim.
    pub fn pods_of(&self, uid: &str) -> Vec<Arc<Pod>> {
        self.pods(|pod| pod::label(pod, labels::CLAIM_UID) == Some(uid))
    }

    /// How the last Pod that provisioned for a claim was when it went; nothing if that was not seen, or there is another.
    pub fn departed(&self, uid: &str) -> Option<Departed> {
        let departed = self.departed.read().unwrap_or_else(PoisonError::into_inner);
        departed.get(uid).cloned()
    }

    /// Keeps what a provisioning Pod was like when it went, and forgets that as soon as there is another.
    fn note_pod(&self, pod: &Pod, gone: bool) {
        if pod::label(pod, labels::OPERATION) != Some(Operation::Provision.as_str()) {
            return;
        }
        let Some(uid) = pod::label(pod, labels::CLAIM_UID) else {
            return;
        };
        let claim = pod.annotations().get(annotations::CLAIM);
        let held = claim
            .and_then(|claim| claim.split_once('/'))
            .is_some_and(|(namespace, name)| {
                let claim = self.claims.get(&ObjectRef::new(name).within(namespace));
                claim.is_some_and(|claim| {
                    claim.metadata.uid.as_deref() == Some(uid)
                        && claim.finalizers().iter().any(|name| name == finalizers::CLAIM)
                })
            });
        let mut departed = self.departed.write().unwrap_or_else(PoisonError::into_inner);
        if gone && held {
            departed.insert(uid.to_owned(), Departed::of(pod));
        } else {
            departed.remove(uid);
        }
    }

    fn forget_departed(&self, claim: &PersistentVolumeClaim) {
        let mut departed = self.departed.write().unwrap_or_else(PoisonError::into_inner);
        departed.remove(claim.metadata.uid.as_deref().unwrap_or_default());
    }

    /// The uids of claims of which there are Pods but neither the claim nor a PV that Mooring holds.
    pub fn orphans(&self) -> BTreeSet<String> {
        let pods = self.pods(|_| true);
        let uids = pods.iter().filter_map(|pod| {
            let uid = pod::label(pod, labels::CLAIM_UID)?;
            let (namespace, name) = pod.annotations().get(annotations::CLAIM)?.split_once('/')?;
            let held = || self.volumes.get(&ObjectRef::new(&pod::pv_name(uid)));
            let orphan = !self.has_claim(namespace, name, uid) && !held().is_some_and(|volume| is_ours(&volume));
            orphan.then(|| uid.to_owned())
        });
        uids.collect()
    }

    fn note_volume(&self, volume: &PersistentVolume, there: bool) {
        let uid = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
        let mut by_claim = self.by_claim.write().unwrap_or_else(PoisonError::into_inner);
        let Some(uid) = uid else { return };
        let names = by_claim.entry(uid.clone()).or_default();
        if there {
            names.insert(volume.name_any());
        } else {
            names.remove(&volume.name_any());
        }
        if names.is_empty() {
            by_claim.remove(&uid);
        }
    }

    fn wake_claims(&self, waker: &Waker, wanted: impl Fn(&PersistentVolumeClaim) -> bool) {
        for claim in self.claims.state_filter(wanted) {
            waker.wake(&claim_target(&claim));
        }
    }

    /// Wakes all that has something open.
    pub fn wake_all(&self, waker: &Waker) {
        self.wake_claims(waker, is_open);
        for volume in self.volumes.state_filter(is_ours) {
            waker.wake(&Target::Volume(volume.name_any()));
        }
    }
}

#[cfg(test)]
impl Watched {
    /// Knows just these, as if they had been listed.
    pub(crate) fn filled(
        self,
        mut writers: Writers,
        claims: Vec<PersistentVolumeClaim>,
        volumes: Vec<PersistentVolume>,
        pods: &[Pod],
        classes: Vec<StorageClass>,
    ) -> Self {
        fn fill<K: Resource<DynamicType = ()> + Clone + 'static>(writer: &mut Writer<K>, objects: Vec<K>) {
            writer.apply_watcher_event(&Event::Init);
            for object in objects {
                writer.apply_watcher_event(&Event::InitApply(object));
            }
            writer.apply_watcher_event(&Event::InitDone);
        }
        for volume in &volumes {
            self.note_volume(volume, true);
        }
        fill(&mut writers.claims, claims);
        fill(&mut writers.volumes, volumes);
        fill(&mut writers.classes, classes);
        for (namespace, writer) in &mut writers.pods {
            fill(writer, pods.to_vec());
            self.listed.write().unwrap().insert(namespace.clone());
        }
        self
    }
}

/// `namespace/name`.
pub fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

fn as_node(node: &PartialObjectMeta<ApiNode>) -> Node {
    Node {
        name: node.name_any(),
        labels: node.labels().clone(),
    }
}

fn claim_target(claim: &PersistentVolumeClaim) -> Target {
    Target::Claim(claim.namespace().unwrap_or_default(), claim.name_any())
}

/// A claim without a volume, or one that Mooring has not let go.
fn is_open(claim: &PersistentVolumeClaim) -> bool {
    let bound = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
    !bound || claim.finalizers().iter().any(|name| name == finalizers::CLAIM)
}

/// Keeps [`Watched`] up to date and wakes the controllers, until it is dropped.
pub async fn watch(
    context: Context,
    watched: Watched,
    writers: Writers,
    waker: Waker,
    slots: Arc<Slots>,
    seen_to: Arc<SeenTo>,
) {
    let Context {
        client,
        configs,
        metrics,
        ..
    } = context;
    let all = || Config::default().page_size(PAGE);
    let ours = all().labels(&format!("{}={}", labels::COMPONENT, labels::COMPONENT_PROVISIONING));
    let claims = {
        let (watched, waker, slots, seen_to) = (watched.clone(), waker.clone(), slots.clone(), seen_to.clone());
        drive(
            "claims",
            watcher(Api::all(client.clone()), all()),
            writers.claims,
            move |event| match event {
                Event::Apply(claim) => waker.wake(&claim_target(&claim)),
                Event::Delete(claim) => {
                    watched.forget_departed(&claim);
                    seen_to.gone(claim.metadata.uid.as_deref().unwrap_or_default());
                    for operation in [Operation::Provision, Operation::Delete] {
                        let name = pod::name(operation, claim.metadata.uid.as_deref().unwrap_or_default());
                        slots.forget(&name);
                    }
                    // Who was behind it may be the next.
                    for target in slots.next() {
                        waker.wake(&target);
                    }
                    // Its volume may be waiting for it to go.
                    let volumes = watched.volumes_of(claim.metadata.uid.as_deref().unwrap_or_default());
                    for volume in volumes {
                        waker.wake(&Target::Volume(volume.name_any()));
                    }
                }
                // Claims that went while nobody watched are told of by nothing else, and their volumes wait for that.
                Event::InitDone => {
                    watched.wake_claims(&waker, |_| true);
                    watched.wake_all(&waker);
                }
                Event::Init | Event::InitApply(_) => {}
            },
        )
    };
    let volumes = {
        let (watched, waker, seen_to) = (watched.clone(), waker.clone(), seen_to.clone());
        drive(
            "persistentvolumes",
            watcher(Api::all(client.clone()), all()),
            writers.volumes,
            move |event| {
                let there = !matches!(event, Event::Delete(_));
                match event {
                    Event::Apply(volume) | Event::Delete(volume) => {
                        watched.note_volume(&volume, there);
                        if !there {
                            seen_to.gone(volume.metadata.uid.as_deref().unwrap_or_default());
                        }
                        waker.wake(&Target::Volume(volume.name_any()));
                        if let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) {
                            let part = |part: &Option<String>| part.clone().unwrap_or_default();
                            waker.wake(&Target::Claim(part(&claim.namespace), part(&claim.name)));
                        }
                    }
                    Event::InitApply(volume) => watched.note_volume(&volume, true),
                    Event::InitDone => {
                        let volumes = watched.volumes.state();
                        seen_to.keep_volumes(&volumes.iter().filter_map(|volume| volume.uid()).collect());
                        watched.wake_all(&waker);
                    }
                    Event::Init => {}
                }
            },
        )
    };
    let pods = join_all(writers.pods.into_iter().map(|(namespace, writer)| {
        let (watched, waker, slots, seen_to) = (watched.clone(), waker.clone(), slots.clone(), seen_to.clone());
        let metrics = metrics.clone();
        let pods = watcher(Api::namespaced(client.clone(), &namespace), ours.clone());
        let seen = move |event: Event<Pod>| {
            let gone = matches!(event, Event::Delete(_));
            match event {
                Event::Apply(pod) | Event::Delete(pod) => {
                    watched.note_pod(&pod, gone);
                    slots.seen(&key(&pod));
                    if gone {
                        seen_to.gone(pod.metadata.uid.as_deref().unwrap_or_default());
                    }
                    let next = slots.next();
                    for target in pod_targets(&pod).iter().chain(&next) {
                        waker.wake(target);
                    }
                }
                Event::InitDone => {
                    let mut listed = watched.listed.write().unwrap_or_else(PoisonError::into_inner);
                    listed.insert(namespace.clone());
                    drop(listed);
                    seen_to.keep_pods(&watched.pods(|_| true).iter().filter_map(|pod| pod.uid()).collect());
                    watched.wake_all(&waker);
                }
                Event::Init | Event::InitApply(_) => {}
            }
            watched.changed.notify_one();
            count(&watched, &slots, &metrics);
        };
        drive("pods", pods, writer, seen)
    }));
    let classes = {
        let (watched, waker) = (watched.clone(), waker.clone());
        drive(
            "storageclasses",
            watcher(Api::all(client.clone()), all()),
            writers.classes,
            move |event| match event {
                Event::Apply(class) | Event::Delete(class) => {
                    let name = class.name_any();
                    watched.wake_claims(&waker, |claim| {
                        let of = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
                        of == Some(&name) && is_open(claim)
                    });
                }
                Event::InitDone => watched.wake_all(&waker),
                Event::Init | Event::InitApply(_) => {}
            },
        )
    };
    let nodes = {
        let (watched, waker) = (watched.clone(), waker.clone());
        drive(
            "nodes",
            watcher(Api::<PartialObjectMeta<ApiNode>>::all(client.clone()), all()),
            writers.nodes,
            move |event| {
                // Nodes change all the time; only their going matters here.
                if let Event::Delete(_) | Event::InitDone = event {
                    watched.wake_all(&waker);
                }
            },
        )
    };
    let by_config = async {
        let mut changes = configs.subscribe();
        while changes.changed().await.is_ok() {
            watched.wake_all(&waker);
        }
    };
    tokio::join!(claims, volumes, pods, classes, nodes, by_config);
}

/// Who a Pod was made for.
fn pod_targets(pod: &Pod) -> Vec<Target> {
    let claim = pod
        .annotations()
        .get(annotations::CLAIM)
        .and_then(|claim| claim.split_once('/'));
    let uid = pod::label(pod, labels::CLAIM_UID);
    claim
        .map(|(namespace, name)| Target::Claim(namespace.to_owned(), name.to_owned()))
        .into_iter()
        .chain(uid.map(|uid| Target::Volume(pod::pv_name(uid))))
        .collect()
}

fn count(watched: &Watched, slots: &Slots, metrics: &Metrics) {
    for operation in [Operation::Provision, Operation::Delete] {
        let is = |pod: &Pod| pod::label(pod, labels::OPERATION) == Some(operation.as_str());
        let count = watched.pods(|pod| is(pod) && !matches!(observe(pod), PodState::Finished(_)));
        metrics.set_in_flight(operation, count.len());
    }
    metrics.set_queued(Operation::Provision, slots.waiting());
}

/// Runs one watch for good: what it sees goes into the store, then to `seen`.
fn drive<K>(
    kind: &'static str,
    events: impl futures::Stream<Item = Result<Event<K>, WatchError>> + Send + 'static,
    writer: Writer<K>,
    mut seen: impl FnMut(Event<K>) + Send + 'static,
) -> impl Future<Output = ()> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let events = events
        .default_backoff()
        .modify(|object: &mut K| object.meta_mut().managed_fields = None)
        .reflect(writer)
        .inspect_err(move |error| {
            warn!(
                kind,
                error = error as &dyn std::error::Error,
                "failed to watch; trying again"
            );
        });
    async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            if let Ok(event) = event {
                seen(event);
            }
        }
    }
}
