//! What the controllers know of the cluster: the objects that the watches have brought, and where to find them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node as ApiNode, ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use mooring_contract::names::labels::HOSTNAME;
use mooring_contract::names::{CSI_DRIVER, annotations, finalizers};
use mooring_contract::pool::PoolRoom;
use tokio::sync::Notify;

use super::capacities::Capacities;
use super::consumers::Consumers;
use super::grants::Grants;
use super::groups::Groups;
use super::limiter::InFlight;
use super::snapshots::Snapshots;
use super::table::Table;
#[cfg(test)]
use super::table::Watched;
use super::watch::Presence;
use super::work_queue::{WorkItem, WorkQueue};
use crate::config::ProvisionerConfig;
use crate::operation::attach::nodes::VolumeNodes;
use crate::operation::content::{Content, ObservedSource, Permission};
use crate::operation::describe::{SubjectKind, describe};
use crate::operation::is_change_asked;
use crate::operation::record::Record;
use crate::run::carrier::{self, Carrier};
use crate::run::departed::Departed;
use crate::run::observed::has;
use crate::run::outcome::{Finish, State};
use crate::run::worker::Worker;
use crate::run::worker_set::WorkerSet;
use crate::run::workers::{WorkerPatience, Workers};
use crate::run::{Run, RunId};
#[cfg(test)]
use crate::volume::group_snapshot::VolumeGroupSnapshotClass;
use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::persistent_volume::{self, is_ours};
use crate::volume::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use crate::volume::topology::Node;

/// How long the first list of a namespace's runs is waited for; after that the others are served without it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Objects, by namespace and name.
type Names = BTreeSet<(String, String)>;

/// What is known of the cluster. A clone is another handle on the same.
#[derive(Clone, Default)]
pub struct Cache {
    /// All claims of the cluster, whether Mooring serves them or not.
    pub claims: Table<PersistentVolumeClaim>,
    pub volumes: Table<PersistentVolume>,
    /// What carries out the runs of each namespace that they may be in.
    pub(super) carriers: BTreeMap<String, Table<Carrier>>,
    /// What the workers among them say.
    pub workers: Workers,
    /// The runs that workers have, by uid of the worker's Pod.
    on_workers: Arc<RwLock<BTreeMap<String, Run>>>,
    /// The namespaces whose runs have been listed.
    pub(super) listed: Arc<RwLock<BTreeSet<String>>>,
    pub classes: Table<StorageClass>,
    /// What claims may ask of volumes that stand.
    pub(super) attributes: Table<VolumeAttributesClass>,
    /// The snapshots, where the cluster has any.
    pub snapshots: Snapshots,
    /// The group snapshots, where the cluster has any.
    pub groups: Groups,
    /// Which namespaces let claims of others in.
    pub grants: Grants,
    pub(super) presence: Presence,
    pub(super) nodes: Table<PartialObjectMeta<ApiNode>>,
    /// The Pods that use claims.
    pub consumers: Consumers,
    /// What the scheduler reads of classes.
    pub capacities: Capacities,
    /// Names of the PVs that name a claim's uid.
    by_claim: Arc<RwLock<BTreeMap<String, BTreeSet<String>>>>,
    /// The claims that copy another one, namespace and name, by `namespace/name` of their source.
    by_source: Arc<RwLock<BTreeMap<String, Names>>>,
    /// How runs were when they went, by uid of a claim that is not done with.
    departed: Arc<RwLock<BTreeMap<String, Departed>>>,
    /// A class has changed.
    pub classes_changed: Arc<Notify>,
    /// A claim or a PV has changed, and so perhaps how often classes are used.
    pub uses_changed: Arc<Notify>,
    /// A run has changed.
    pub(super) changed: Arc<Notify>,
    /// A worker has changed.
    pub(super) workers_changed: Arc<Notify>,
}

impl Cache {
    /// Nothing known yet. Runs are watched in `namespaces` and nowhere else.
    pub fn new(namespaces: &BTreeSet<String>) -> Self {
        Self {
            carriers: namespaces.iter().map(|name| (name.clone(), Table::default())).collect(),
            ..Self::default()
        }
    }

    /// Returns when everything has been listed once, but for attributes, snapshots, grants and runs: what there are no
    /// rights for, or no API, would hold up the others, so see [`Self::knows_runs_of`]. Before that, what is not known
    /// may be there all the same.
    pub async fn ready(&self) {
        // A writer that is gone means that the process is ending.
        let _ = tokio::join!(
            self.claims.wait_until_ready(),
            self.volumes.wait_until_ready(),
            self.classes.wait_until_ready(),
            self.nodes.wait_until_ready(),
            tokio::time::timeout(
                PATIENCE,
                join_all(self.carriers.values().map(|table| table.wait_until_ready()))
            ),
            tokio::time::timeout(PATIENCE, self.attributes.wait_until_ready()),
            tokio::time::timeout(PATIENCE, self.snapshots.contents.wait_until_ready()),
            tokio::time::timeout(PATIENCE, self.snapshots.snapshots.wait_until_ready()),
            tokio::time::timeout(PATIENCE, self.snapshots.classes.wait_until_ready()),
            tokio::time::timeout(PATIENCE, self.groups.contents.wait_until_ready()),
            tokio::time::timeout(PATIENCE, self.groups.classes.wait_until_ready()),
            tokio::time::timeout(PATIENCE, self.grants.ready()),
        );
    }

    pub fn node(&self, name: &str) -> Option<Node> {
        self.nodes.get(&ObjectRef::new(name)).as_deref().map(as_node)
    }

    pub fn node_by_host(&self, host: &str) -> Option<Node> {
        let is = |node: &PartialObjectMeta<ApiNode>| {
            node.labels()
                .get(HOSTNAME)
                .map_or(node.name_any() == host, |label| label == host)
        };
        self.nodes.find(is).as_deref().map(as_node)
    }

    /// What the nodes' pools have left, by the nodes' host names: the least where two nodes have one name.
    pub fn pools(&self) -> BTreeMap<String, PoolRoom> {
        let mut pools: BTreeMap<String, PoolRoom> = BTreeMap::new();
        for node in self.nodes.state() {
            let noted = node.annotations().get(annotations::NODE_POOL);
            let pool: Option<PoolRoom> = noted.and_then(|text| serde_json::from_str(text).ok());
            if let Some((host, pool)) = node.labels().get(HOSTNAME).zip(pool) {
                pools
                    .entry(host.clone())
                    .and_modify(|least| *least = least.least(pool))
                    .or_insert(pool);
            }
        }
        pools
    }

    pub fn attributes(&self, name: &str) -> Option<Arc<VolumeAttributesClass>> {
        self.attributes.get(&ObjectRef::new(name))
    }

    /// The run, if it is in this namespace.
    pub fn run(&self, namespace: &str, id: &RunId) -> Option<Run> {
        let carriers = self.carriers.get(namespace)?;
        let own = carriers.get(&ObjectRef::new(&id.name()).within(namespace)).map(Run::of);
        own.or_else(|| {
            let on_worker = |carrier: &Carrier| has(carrier, id);
            carriers.find(on_worker).map(|carrier| self.as_run(carrier))
        })
    }

    /// Whether a run, by `namespace/name`, has a Pod of its own that has not ended.
    pub fn has_own_pod(&self, run: &str) -> bool {
        let place = run.split_once('/');
        let pod = place.and_then(|(namespace, name)| {
            let carriers = self.carriers.get(namespace)?;
            carriers.get(&ObjectRef::new(name).within(namespace))
        });
        pod.is_some_and(|pod| !Run::of(pod).is_over())
    }

    /// The workers that there are.
    pub fn all_workers(&self) -> impl Iterator<Item = Worker> {
        let carriers = self.carriers.values().flat_map(|table| table.state());
        carriers.filter_map(|carrier| Worker::of(&carrier))
    }

    /// A worker of this set for a run of this ConfigMap, which nobody else is given until it has the run or is given
    /// back. `is_waited_for` says whether somebody waits for the run.
    pub fn take_worker(&self, config: &ProvisionerConfig, set: &WorkerSet, is_waited_for: bool) -> Option<Worker> {
        let carriers = self.carriers.get(&config.reference.namespace)?;
        let is_free = |carrier: &Carrier| carrier::is_worker(carrier) && !carrier::has_run(carrier);
        let free = carriers.state_filter(is_free);
        let mut free = free.iter().filter_map(Worker::of);
        let is_of_set =
            |worker: &Worker| worker.is_for(config) && worker.set() == *set && !self.workers.is_spent(config, worker);
        free.find(|worker| is_of_set(worker) && self.workers.take(worker, is_waited_for))
    }

    /// It was not given the run after all.
    pub fn give_back(&self, worker: &Worker) {
        self.workers.contacts.give_back(worker);
        self.wake_keeper();
    }

    /// How much longer a run that has waited since this time waits for a worker of this set, none of which was free. The
    /// watch may not show yet what they are busy with.
    pub fn worker_patience(
        &self,
        config: &ProvisionerConfig,
        set: &WorkerSet,
        since: Instant,
        patience: WorkerPatience,
    ) -> Option<Duration> {
        let carriers = self.carriers.get(&config.reference.namespace)?;
        let busy = carriers.state_filter(carrier::is_worker);
        let busy = busy.iter().filter_map(Worker::of);
        let of_set = busy.filter(|worker| worker.is_for(config) && worker.set() == *set && !worker.is_leaving());
        self.workers.patience(set, since, patience, of_set)
    }

    /// A worker's Pod is like this, or gone. Returns the run that it had and has no more.
    pub(super) fn note_worker(&self, run: &Run, gone: bool) -> Option<Run> {
        let uid = run.meta().uid.clone().unwrap_or_default();
        let report = self.workers.contacts.report(&uid);
        let has_run = run.is_run() && !gone;
        let mut all = self.on_workers.write().unwrap_or_else(PoisonError::into_inner);
        let before = all.remove(&uid);
        let before = before.filter(|before| !has_run || before.uid() != run.uid());
        if has_run {
            all.insert(uid, run.clone());
        } else if gone {
            self.workers.contacts.forget(&uid);
        }
        before.map(|before| before.reported(report))
    }

    /// The workers of a namespace have been listed anew.
    pub(super) fn note_workers_of(&self, namespace: &str) {
        let listed = self
            .carriers
            .get(namespace)
            .map(|table| table.state())
            .unwrap_or_default();
        let mut all = self.on_workers.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, run| run.namespace() != Some(namespace));
        let runs = listed.into_iter().map(Run::of).filter(Run::is_run);
        let on_workers = runs.filter(Run::is_on_worker);
        all.extend(on_workers.map(|run| (run.meta().uid.clone().unwrap_or_default(), run)));
        self.workers_changed.notify_one();
    }

    /// The run that the worker with this Pod has, with what it says of it.
    pub(super) fn run_on(&self, pod_uid: &str) -> Option<Run> {
        let all = self.on_workers.read().unwrap_or_else(PoisonError::into_inner);
        let run = all.get(pod_uid).cloned();
        run.map(|run| run.reported(self.workers.contacts.report(pod_uid)))
    }

    /// A worker was lost sight of.
    pub fn wake_keeper(&self) {
        self.workers_changed.notify_one();
    }

    /// Returns when a worker has changed since the last time.
    pub async fn workers_changed(&self) {
        self.workers_changed.notified().await;
    }

    /// With what its worker says, if it is on one.
    pub(super) fn as_run(&self, carrier: Arc<Carrier>) -> Run {
        self.reported(Run::of(carrier))
    }

    /// The same of a run that was read.
    pub fn reported(&self, run: Run) -> Run {
        if run.is_on_worker() {
            let uid = run.meta().uid.as_deref().unwrap_or_default();
            let report = self.workers.contacts.report(uid);
            run.reported(report)
        } else {
            run
        }
    }

    /// Whether the runs of a namespace have been listed: before that, a run that is not known may be there.
    pub fn knows_runs_of(&self, namespace: &str) -> bool {
        self.listed
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(namespace)
    }

    pub fn runs(&self) -> impl Iterator<Item = Run> {
        let carriers = self.carriers.values().flat_map(|table| table.state());
        carriers.map(|carrier| self.as_run(carrier)).filter(Run::is_run)
    }

    /// The PVs that bear the name or the uid of a claim, the rightly named first.
    pub fn volumes_of(&self, uid: &str) -> Vec<Arc<PersistentVolume>> {
        let by_claim = self.by_claim.read().unwrap_or_else(PoisonError::into_inner);
        let named = persistent_volume::name_for(uid);
        let others = by_claim.get(uid).into_iter().flatten().filter(|name| **name != named);
        std::iter::once(&named)
            .chain(others)
            .filter_map(|name| self.volumes.get(&ObjectRef::new(name)))
            .collect()
    }

    pub fn has_claim(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let claim = self.claims.get(&ObjectRef::new(name).within(namespace));
        claim.is_some_and(|claim| claim.metadata.uid.as_deref() == Some(uid))
    }

    /// The claim that a PV refers to, if it is there.
    pub fn claim(&self, of: &ObjectReference) -> Option<Arc<PersistentVolumeClaim>> {
        let named = ObjectRef::new(of.name.as_deref()?).within(of.namespace.as_deref()?);
        let claim = self.claims.get(&named)?;
        (claim.metadata.uid.is_some() && claim.metadata.uid == of.uid).then_some(claim)
    }

    /// Name of the PV that a claim is bound to.
    pub(super) fn volume_name(&self, namespace: &str, name: &str) -> Option<String> {
        let claim = self.claims.get(&ObjectRef::new(name).within(namespace))?;
        claim.spec.as_ref()?.volume_name.clone()
    }

    /// Queues the PVs whose volumes this node has, or is to have or to lose.
    pub(super) fn queue_attached(&self, queue: &WorkQueue, node: &str) {
        if !self.consumers.is_listed() {
            return;
        }
        let of = |volume: &PersistentVolume| {
            let has_record = || {
                Record::on(volume)
                    .ok()
                    .flatten()
                    .is_some_and(|record| record.node == node)
            };
            VolumeNodes::of(volume).concern(node) || has_record()
        };
        for volume in self.volumes.state_filter(of) {
            queue.add(&WorkItem::Volume(volume.name_any()));
        }
    }

    pub fn has_volume(&self, name: &str, uid: &str) -> bool {
        let volume = self.volumes.get(&ObjectRef::new(name));
        volume.is_some_and(|volume| volume.metadata.uid.as_deref() == Some(uid))
    }

    /// The runs that have not ended. Nodes are given this `slack` to say that one has.
    pub fn in_flight(&self, slack: Duration) -> Vec<InFlight> {
        let now = Timestamp::now();
        self.runs()
            .filter(|run| !run.is_over() && !run.has_run_out(slack, now))
            .map(|run| InFlight {
                run: run.place(),
                config: run.config().unwrap_or_default().to_owned(),
                namespace: run.claim().map_or("", |(namespace, _)| namespace).to_owned(),
            })
            .collect()
    }

    /// Returns when a run has changed since the last time.
    pub async fn runs_changed(&self) {
        self.changed.notified().await;
    }

    pub fn runs_of(&self, uid: &str) -> Vec<Run> {
        self.runs().filter(|run| run.claim_uid() == Some(uid)).collect()
    }

    /// How the last run for a claim was when it went, if its answer is judged; `None` if that was not seen, or there is
    /// another run.
    pub fn departed(&self, uid: &str) -> Option<Departed> {
        let departed = self.departed.read().unwrap_or_else(PoisonError::into_inner);
        departed.get(uid).cloned()
    }

    /// Keeps what a run was like when it went, and forgets that as soon as there is another.
    pub(super) fn note_run(&self, run: &Run, gone: bool) {
        if !run.operation().is_some_and(|kind| describe(kind).makes_volume()) {
            return;
        }
        let Some(uid) = run.claim_uid() else {
            return;
        };
        let held = run.claim().is_some_and(|(namespace, name)| {
            let claim = self.claims.get(&ObjectRef::new(name).within(namespace));
            claim.is_some_and(|claim| {
                claim.metadata.uid.as_deref() == Some(uid)
                    && claim.finalizers().iter().any(|name| name == finalizers::CLAIM)
            })
        });
        let mut departed = self.departed.write().unwrap_or_else(PoisonError::into_inner);
        if gone && held {
            departed.insert(uid.to_owned(), Departed::of(run));
        } else {
            departed.remove(uid);
        }
    }

    /// Takes in whether the image of a run states in its answer that its containers can be workers.
    pub fn note_answer(&self, run: &Run) {
        let State::Finished(Finish {
            can_be_worker: true, ..
        }) = run.state()
        else {
            return;
        };
        let fingerprint = run.fingerprint().unwrap_or_default();
        if self.workers.note_capable(fingerprint, &run.place()) {
            self.wake_keeper();
        }
    }

    pub(super) fn forget_departed(&self, claim: &PersistentVolumeClaim) {
        let mut departed = self.departed.write().unwrap_or_else(PoisonError::into_inner);
        departed.remove(claim.metadata.uid.as_deref().unwrap_or_default());
    }

    /// The uids of claims that have runs, but of which there is neither the claim nor a PV that Mooring holds, and
    /// those of contents that have runs and are gone.
    pub fn orphans(&self) -> BTreeSet<String> {
        let uids = self.runs().filter_map(|run| {
            let uid = run.claim_uid()?;
            match run.operation().map(|kind| describe(kind).subject) {
                // It belongs to its ConfigMap, and goes with that.
                Some(SubjectKind::Config) => return None,
                Some(kind @ (SubjectKind::Snapshot | SubjectKind::Group)) => {
                    let name = run.request().ok()?.snapshot?.content_name;
                    let there = match kind {
                        SubjectKind::Group => self.groups.content(&name).and_then(|content| content.uid()),
                        _ => self.snapshots.content(&name).and_then(|content| content.uid()),
                    };
                    return (there.as_deref() != Some(uid)).then(|| uid.to_owned());
                }
                Some(SubjectKind::Claim | SubjectKind::Volume) | None => {}
            }
            let (namespace, name) = run.claim()?;
            let held = || self.volumes.get(&ObjectRef::new(&run.pv_name()?));
            let orphan = !self.has_claim(namespace, name, uid) && !held().is_some_and(|volume| is_ours(&volume));
            orphan.then(|| uid.to_owned())
        });
        uids.collect()
    }

    pub(super) fn note_volume(&self, volume: &PersistentVolume, there: bool) {
        let Some(uid) = persistent_volume::claim_uid(volume) else {
            return;
        };
        let mut by_claim = self.by_claim.write().unwrap_or_else(PoisonError::into_inner);
        let names = by_claim.entry(uid.to_owned()).or_default();
        if there {
            names.insert(volume.name_any());
        } else {
            names.remove(&volume.name_any());
        }
        if names.is_empty() {
            by_claim.remove(uid);
        }
    }

    /// The source of a claim, as far as it exists.
    pub fn source_of(&self, claim: &PersistentVolumeClaim) -> ObservedSource {
        let content = Content::of(claim);
        let access = match content.needs_grant(claim) {
            Some(wanted) => self.grants.access(&wanted),
            None => Permission::Own,
        };
        let nothing = ObservedSource {
            access,
            ..ObservedSource::default()
        };
        match access {
            Permission::Own | Permission::Granted => {}
            Permission::Refused(_) | Permission::NoApi | Permission::NotKnown => return nothing,
        }
        let source = match content {
            Content::Claim(source) => source,
            Content::Snapshot(source) => {
                let (snapshot, content) = self.snapshots.source_of(source);
                return ObservedSource {
                    snapshot,
                    has_snapshot_api: self.presence.of::<VolumeSnapshot>(),
                    content,
                    ..nothing
                };
            }
            Content::Empty | Content::Populated => return nothing,
        };
        let claim = self.claims.get(&ObjectRef::new(source.name).within(source.namespace));
        let volume = claim
            .as_ref()
            .and_then(|claim| claim.spec.as_ref()?.volume_name.as_deref());
        ObservedSource {
            volume: volume.and_then(|volume| self.volumes.get(&ObjectRef::new(volume))),
            claim,
            ..nothing
        }
    }

    /// Whether there are snapshots, or may be.
    pub fn has_snapshots(&self) -> bool {
        let (snapshots, groups) = (
            self.presence.of::<VolumeSnapshotContent>(),
            self.presence.of::<VolumeGroupSnapshotContent>(),
        );
        snapshots != Some(false) || groups != Some(false)
    }

    /// Whether the cluster has snapshots, and all that there are are known.
    pub fn knows_snapshots(&self) -> bool {
        let presence = &self.presence;
        [
            presence.of::<VolumeSnapshotContent>(),
            presence.of::<VolumeSnapshot>(),
            presence.of::<VolumeSnapshotClass>(),
        ] == [Some(true); 3]
    }

    /// The PV of this handle of a CSI volume of Mooring's.
    pub fn volume_of_handle(&self, handle: &str) -> Option<Arc<PersistentVolume>> {
        let is = |volume: &PersistentVolume| {
            let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            csi.is_some_and(|csi| csi.driver == CSI_DRIVER && csi.volume_handle == handle)
        };
        let named = self.volumes.get(&ObjectRef::new(handle)).filter(|volume| is(volume));
        // One that an image made itself may have another.
        named.or_else(|| self.volumes.find(is))
    }

    /// Queues the PV of this handle, which snapshots name.
    pub(super) fn queue_handle(&self, queue: &WorkQueue, handle: &str) {
        let named = self.volume_of_handle(handle).map(|volume| volume.name_any());
        queue.add(&WorkItem::Volume(named.unwrap_or_else(|| handle.to_owned())));
    }

    /// Queues the contents of the snapshots and groups of this PV's volume.
    pub(super) fn queue_snapshots_of(&self, queue: &WorkQueue, volume: &str) {
        let known = self.volumes.get(&ObjectRef::new(volume));
        let csi = known.as_ref().and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
        // That of a volume without CSI is its name.
        let handle = csi.map_or(volume, |csi| &csi.volume_handle);
        self.snapshots.queue(queue, Some(handle));
        self.groups.queue(queue, Some(handle));
    }

    /// The claims that copy this one's volume, and exist.
    pub fn copies_of(&self, namespace: &str, name: &str) -> Vec<Arc<PersistentVolumeClaim>> {
        let by_source = self.by_source.read().unwrap_or_else(PoisonError::into_inner);
        let copies = by_source.get(&format!("{namespace}/{name}"));
        let copies = copies.into_iter().flatten();
        copies
            .filter_map(|(namespace, name)| self.claims.get(&ObjectRef::new(name).within(namespace)))
            .collect()
    }

    pub(super) fn note_copy(&self, claim: &PersistentVolumeClaim, there: bool) {
        let Content::Claim(source) = Content::of(claim) else {
            return;
        };
        let source = format!("{}/{}", source.namespace, source.name);
        let copy = (claim.namespace().unwrap_or_default(), claim.name_any());
        let mut by_source = self.by_source.write().unwrap_or_else(PoisonError::into_inner);
        let copies = by_source.entry(source.clone()).or_default();
        if there {
            copies.insert(copy);
        } else {
            copies.remove(&copy);
        }
        if copies.is_empty() {
            by_source.remove(&source);
        }
    }

    /// Queues the copies that wait for this claim and its volume.
    pub(super) fn queue_copies(&self, queue: &WorkQueue, namespace: &str, name: &str) {
        for copy in self.copies_of(namespace, name) {
            if is_open(&copy) {
                queue.add(&claim_target(&copy));
            }
        }
    }

    /// Queues the PVs and claims that wait for what copies them, where this claim does.
    pub(super) fn queue_sources(&self, queue: &WorkQueue, claim: &PersistentVolumeClaim) {
        let Content::Claim(source) = Content::of(claim) else {
            return;
        };
        let copied = |volume: &PersistentVolume| {
            let of = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            of.is_some_and(|of| {
                of.name.as_deref() == Some(source.name) && of.namespace.as_deref() == Some(source.namespace)
            })
        };
        for volume in self.volumes.state_filter(copied) {
            queue.add(&WorkItem::Volume(volume.name_any()));
        }
        let source = ObjectRef::new(source.name).within(source.namespace);
        if let Some(source) = self.claims.get(&source).filter(|source| is_change_asked(source)) {
            queue.add(&claim_target(&source));
        }
    }

    /// Queues the claims whose source is in this other namespace, or in any.
    pub(super) fn queue_grantees(&self, queue: &WorkQueue, namespace: Option<&str>) {
        self.queue_claims(queue, |claim| {
            let wanted = Content::of(claim).needs_grant(claim);
            let there = wanted.is_some_and(|wanted| namespace.is_none_or(|namespace| wanted.namespace == namespace));
            there && is_open(claim)
        });
    }

    pub(super) fn queue_claims(&self, queue: &WorkQueue, wanted: impl Fn(&PersistentVolumeClaim) -> bool) {
        for claim in self.claims.state_filter(wanted) {
            queue.add(&claim_target(&claim));
        }
    }

    /// Queues every claim and PV that has something open.
    pub fn queue_all(&self, queue: &WorkQueue) {
        self.queue_claims(queue, is_open);
        for volume in self.volumes.state_filter(is_ours) {
            queue.add(&WorkItem::Volume(volume.name_any()));
        }
        self.snapshots.queue(queue, None);
        self.groups.queue(queue, None);
        queue.add(&WorkItem::Configs);
    }
}

#[cfg(test)]
impl Cache {
    /// Knows just these nodes, as if they had been listed.
    pub(crate) fn know_nodes(&self, nodes: Vec<PartialObjectMeta<ApiNode>>) {
        self.nodes.fill(nodes);
        self.capacities.wake();
    }

    /// Knows just these groups, as if they had been listed.
    pub(crate) fn know_groups(
        &self,
        contents: Vec<VolumeGroupSnapshotContent>,
        classes: Vec<VolumeGroupSnapshotClass>,
    ) {
        self.groups.contents.fill(contents);
        self.groups.classes.fill(classes);
    }

    /// The versions of what is known that rehearsals change, by kind and `namespace/name`.
    pub(crate) fn versions(&self) -> BTreeMap<&'static str, BTreeMap<String, serde_json::Value>> {
        fn of<K: Watched>(store: &Table<K>) -> BTreeMap<String, serde_json::Value> {
            let of_one = |object: Arc<K>| {
                let key = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
                (key, object.resource_version().into())
            };
            store.state().into_iter().map(of_one).collect()
        }
        let pods = self.carriers.values().flat_map(of);
        [
            ("pods", pods.collect()),
            ("claims", of(&self.claims)),
            ("volumes", of(&self.volumes)),
            ("contents", of(&self.snapshots.contents)),
            ("classes", of(&self.classes)),
            ("attributes", of(&self.attributes)),
            ("snapshotclasses", of(&self.snapshots.classes)),
        ]
        .into()
    }

    /// Knows just these, as if they had been listed.
    pub(crate) fn filled(
        self,
        claims: Vec<PersistentVolumeClaim>,
        volumes: Vec<PersistentVolume>,
        carriers: &[Carrier],
        classes: (Vec<StorageClass>, Vec<VolumeAttributesClass>),
        snapshots: (
            Vec<VolumeSnapshotContent>,
            Vec<VolumeSnapshot>,
            Vec<VolumeSnapshotClass>,
        ),
    ) -> Self {
        use kube::Resource as _;
        for volume in &volumes {
            self.note_volume(volume, true);
        }
        for claim in &claims {
            self.note_copy(claim, true);
        }
        self.claims.fill(claims);
        self.volumes.fill(volumes);
        self.classes.fill(classes.0);
        self.attributes.fill(classes.1);
        self.snapshots.contents.fill(snapshots.0);
        self.snapshots.snapshots.fill(snapshots.1);
        self.snapshots.classes.fill(snapshots.2);
        self.presence.note(&VolumeSnapshotContent::plural(&()), true);
        self.presence.note(&VolumeSnapshot::plural(&()), true);
        self.presence.note(&VolumeSnapshotClass::plural(&()), true);
        for (namespace, table) in &self.carriers {
            table.fill(carriers.to_vec());
            self.listed.write().unwrap().insert(namespace.clone());
        }
        self
    }
}

fn as_node(node: &PartialObjectMeta<ApiNode>) -> Node {
    Node {
        name: node.name_any(),
        labels: node.labels().clone(),
    }
}

pub(super) fn claim_target(claim: &PersistentVolumeClaim) -> WorkItem {
    WorkItem::Claim(claim.namespace().unwrap_or_default(), claim.name_any())
}

/// A claim without a volume, one that Mooring still holds, or one that asks for something else than it has.
pub(super) fn is_open(claim: &PersistentVolumeClaim) -> bool {
    let bound = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
    !bound || is_change_asked(claim) || claim.finalizers().iter().any(|name| name == finalizers::CLAIM)
}
