//! The watches that fill [`Cache`] and put into the queue what a change concerns. One watch of each kind serves all
//! controllers.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass, VolumeAttributesClass};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::{Client, ResourceExt};
use mooring_contract::names::labels;
use mooring_contract::operation::Operation;

use super::departures::Departures;
use super::expectations::Expectations;
use super::limiter::Limiter;
use super::store::{Cache, claim_target, is_open};
use super::table::{Table, Watched};
use super::watch::Kind::{Optional, Required};
use super::watch::{Kind, LOOK_FOR_API, follow, pages};
use super::work_queue::{WorkItem, WorkQueue};
use crate::config::storage_class::is_discovered;
use crate::config::store::ConfigStore;
use crate::context::Context;
use crate::operation::content::Content;
use crate::operation::describe::{Reads, SubjectKind, describe};
use crate::operation::modify;
use crate::process::metrics::Metrics;
use crate::run::Run;
use crate::run::carrier::{Carrier, selector};
use crate::volume::grant::{ReferenceGrant, Version};
use crate::volume::group_snapshot::{VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};
use crate::volume::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

/// Keeps [`Cache`] up to date and the queue filled, until it is dropped.
pub async fn watch(
    context: Context,
    cache: Cache,
    queue: WorkQueue,
    limiter: Arc<Limiter>,
    expectations: Arc<Expectations>,
) {
    let Context {
        client,
        configs,
        metrics,
        settings,
        ..
    } = context;
    let seen = Seen {
        cache,
        queue,
        departures: Departures { limiter, expectations },
        metrics,
    };
    let Cache { snapshots, groups, .. } = &seen.cache;
    let runs = seen.cache.carriers.iter().map(|(namespace, table)| {
        let api = Api::namespaced(client.clone(), namespace);
        let ours = pages().labels(&selector());
        seen.keep(Required("pods".into()), api, ours, table, move |seen, change| {
            seen.run(namespace, change);
        })
    });
    tokio::join!(
        seen.required(&client, &seen.cache.claims, Seen::claim),
        seen.required(&client, &seen.cache.volumes, Seen::volume),
        join_all(runs),
        seen.required(&client, &seen.cache.classes, Seen::class),
        seen.optional(&client, &seen.cache.attributes, Seen::attributes),
        seen.required(&client, &seen.cache.nodes, Seen::node),
        seen.optional(&client, &snapshots.contents, Seen::snapshot_content),
        seen.optional(&client, &snapshots.snapshots, Seen::snapshot),
        seen.optional(&client, &snapshots.classes, Seen::snapshot_class),
        seen.optional(&client, &groups.contents, Seen::group_content),
        seen.optional(&client, &groups.classes, Seen::group_class),
        seen.grants(&client),
        seen.consumers(&client, &configs),
        seen.capacities(&client, &settings.namespace),
        seen.follow_configs(&configs),
        seen.take_turns(),
    );
}

/// What a watch has brought of a kind, which its table knows by now.
#[derive(Debug)]
enum Change<K> {
    /// The object is there; whether it has come just now.
    There {
        object: Arc<K>,
        is_new: bool,
    },
    Gone(Arc<K>),
    /// The object is in the list that is being read; its table knows it when all have been listed.
    Coming(Arc<K>),
    /// All that there are have been listed.
    Listed,
}

impl<K> Change<K> {
    /// The object that has come, changed or gone.
    fn object(&self) -> Option<&Arc<K>> {
        match self {
            Self::There { object, .. } | Self::Gone(object) => Some(object),
            Self::Coming(_) | Self::Listed => None,
        }
    }

    fn is_there(&self) -> bool {
        matches!(self, Self::There { .. })
    }
}

/// What a change that a watch shows is written to, and whom it wakes.
struct Seen {
    cache: Cache,
    queue: WorkQueue,
    departures: Departures,
    metrics: Metrics,
}

impl Seen {
    /// Watches objects of a kind for good: what it sees goes into the table, then to `seen`.
    async fn keep<K: Watched>(
        &self,
        kind: Kind,
        api: Api<K>,
        config: Config,
        table: &Table<K>,
        seen: impl Fn(&Self, &Change<K>) + Send + Sync,
    ) {
        loop {
            let take = |event: Event<K>| self.take(&kind, table, event, &seen);
            follow(&kind, &api, config.clone(), take).await;
            if let Optional(kind) = &kind {
                self.departures.empty(table);
                self.cache.presence.note(kind, false);
            }
            tokio::time::sleep(LOOK_FOR_API).await;
        }
    }

    fn take<K: Watched>(
        &self,
        kind: &Kind,
        table: &Table<K>,
        event: Event<K>,
        seen: &(impl Fn(&Self, &Change<K>) + Send + Sync),
    ) {
        let is_new = matches!(&event, Event::Apply(object) if !table.knows(object));
        self.departures.reflect(table, &event);
        let change = match event {
            Event::Apply(object) => Change::There {
                object: object.into(),
                is_new,
            },
            Event::Delete(object) => Change::Gone(object.into()),
            Event::InitApply(object) => Change::Coming(object.into()),
            Event::InitDone => Change::Listed,
            Event::Init => return,
        };
        let is_listed = matches!(change, Change::Listed);
        if let (true, Optional(kind)) = (is_listed, kind) {
            self.cache.presence.note(kind, true);
        }
        seen(self, &change);
        if is_listed {
            self.cache.queue_all(&self.queue);
        }
    }

    /// Watches all objects of a kind that every cluster has.
    fn required<K: Watched>(
        &self,
        client: &Client,
        table: &Table<K>,
        seen: impl Fn(&Self, &Change<K>) + Send + Sync,
    ) -> impl Future<Output = ()> + Send {
        let kind = Required(K::plural(&()));
        self.keep(kind, Api::all(client.clone()), pages(), table, seen)
    }

    /// The same of a kind that a cluster may lack.
    fn optional<K: Watched>(
        &self,
        client: &Client,
        table: &Table<K>,
        seen: impl Fn(&Self, &Change<K>) + Send + Sync,
    ) -> impl Future<Output = ()> + Send {
        let kind = Optional(K::plural(&()));
        self.keep(kind, Api::all(client.clone()), pages(), table, seen)
    }

    /// Watches the `ReferenceGrant`s in the newest version that the cluster has.
    async fn grants(&self, client: &Client) {
        let kind = Optional("referencegrants".into());
        loop {
            for version in Version::ALL {
                let api = Api::all_with(client.clone(), &version);
                follow(&kind, &api, pages(), |event| self.grant(version, event)).await;
            }
            self.cache.grants.none();
            if let Optional(kind) = &kind {
                self.cache.presence.note(kind, false);
            }
            tokio::time::sleep(LOOK_FOR_API).await;
        }
    }

    fn grant(&self, version: Version, event: Event<ReferenceGrant>) {
        let wakes = match &event {
            Event::InitDone => Some(None),
            Event::Apply(grant) => Some(grant.namespace()),
            // What is being made goes on; what is begun next is refused.
            Event::Delete(_) | Event::Init | Event::InitApply(_) => None,
        };
        self.cache.grants.take(version, event);
        if let Some(namespace) = wakes {
            self.cache.queue_grantees(&self.queue, namespace.as_deref());
        }
    }

    /// Watches the Pods of the cluster for as long as a ConfigMap has volumes attached.
    async fn consumers(&self, client: &Client, configs: &ConfigStore) {
        let mut changes = configs.subscribe();
        let offered = || configs.offers(Operation::Attach) || configs.offers(Operation::Detach);
        let (kind, api) = (Required("pods of the cluster".into()), Api::all(client.clone()));
        loop {
            if offered() {
                let pods = pages().fields("spec.nodeName!=");
                let over = async { while offered() && changes.changed().await.is_ok() {} };
                tokio::select! {
                    () = follow(&kind, &api, pods, |event| self.consumer(event)) => {}
                    () = over => {}
                }
                self.cache.consumers.clear();
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn consumer(&self, event: Event<Pod>) {
        let Self { cache, queue, .. } = self;
        let is_whole = matches!(event, Event::InitDone);
        for claim in cache.consumers.take(event) {
            let claim = claim.split_once('/');
            if let Some(volume) = claim.and_then(|(namespace, name)| cache.volume_name(namespace, name)) {
                queue.add(&WorkItem::Volume(volume));
            }
        }
        if is_whole {
            cache.queue_all(queue);
        }
    }

    /// Watches Mooring's own `CSIStorageCapacity` objects.
    async fn capacities(&self, client: &Client, namespace: &str) {
        let own = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_MOORING);
        let api: Api<CSIStorageCapacity> = Api::namespaced(client.clone(), namespace);
        let capacities = &self.cache.capacities;
        let take = |event: Event<CSIStorageCapacity>| {
            let is_whole = !matches!(event, Event::Init | Event::InitApply(_));
            capacities.take(event);
            if is_whole {
                capacities.wake();
            }
        };
        follow(
            &Required("csistoragecapacities".into()),
            &api,
            pages().labels(&own),
            take,
        )
        .await;
    }

    fn snapshot_content(&self, change: &Change<VolumeSnapshotContent>) {
        let Self { cache, queue, .. } = self;
        let Some(content) = change.object() else { return };
        queue.add(&WorkItem::Snapshot(content.name_any()));
        let of = &content.spec.volume_snapshot_ref;
        if let (Some(namespace), Some(name)) = (&of.namespace, &of.name) {
            self.queue_restores(namespace, name);
        }
        queue.add(&WorkItem::Configs);
        // What a volume's deletion waits for may be over.
        if let Some(handle) = &content.spec.source.volume_handle {
            cache.queue_handle(queue, handle);
        }
    }

    fn snapshot(&self, change: &Change<VolumeSnapshot>) {
        if let Some(snapshot) = change.object() {
            self.queue_restores(&snapshot.namespace().unwrap_or_default(), &snapshot.name_any());
        }
    }

    /// Queues the claims that restore a snapshot.
    fn queue_restores(&self, namespace: &str, name: &str) {
        self.cache.queue_claims(&self.queue, |claim| {
            let named = match Content::of(claim) {
                Content::Snapshot(source) => source.namespace == namespace && source.name == name,
                Content::Empty | Content::Claim(_) | Content::Populated => false,
            };
            named && is_open(claim)
        });
    }

    fn snapshot_class(&self, change: &Change<VolumeSnapshotClass>) {
        if change.is_there() {
            self.cache.snapshots.queue(&self.queue, None);
        }
        if change.object().is_some() {
            self.queue.add(&WorkItem::Configs);
        }
    }

    fn group_content(&self, change: &Change<VolumeGroupSnapshotContent>) {
        let Self { cache, queue, .. } = self;
        let Some(content) = change.object() else { return };
        queue.add(&WorkItem::Group(content.name_any()));
        cache.snapshots.queue_members(queue, content);
        // What a volume's deletion waits for may be over.
        for handle in &content.spec.source.volume_handles {
            cache.queue_handle(queue, handle);
        }
    }

    fn group_class(&self, change: &Change<VolumeGroupSnapshotClass>) {
        if change.is_there() {
            self.cache.groups.queue(&self.queue, None);
        }
    }

    /// Wakes everybody when a ConfigMap has changed.
    async fn follow_configs(&self, configs: &ConfigStore) {
        let mut changes = configs.subscribe();
        let uids = || -> BTreeSet<String> { configs.all().iter().map(|config| config.uid.clone()).collect() };
        let mut known = uids();
        while changes.changed().await.is_ok() {
            let there = uids();
            for uid in known.difference(&there) {
                self.departures.gone(uid);
            }
            known = there;
            self.cache.queue_all(&self.queue);
        }
    }

    /// Wakes those that may have a place now.
    async fn take_turns(&self) {
        loop {
            self.departures.limiter.moved().await;
            for target in self.departures.limiter.next() {
                self.queue.add(&target);
            }
            self.count_waiting();
        }
    }

    fn claim(&self, change: &Change<PersistentVolumeClaim>) {
        let Self { cache, queue, .. } = self;
        cache.uses_changed.notify_one();
        let claim = match change {
            Change::There { object, .. } | Change::Gone(object) => object,
            Change::Coming(claim) => return cache.note_copy(claim, true),
            // Of claims that went while nobody watched there is no other sign, and their volumes wait for one.
            Change::Listed => return cache.queue_claims(queue, |_| true),
        };
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        cache.note_copy(claim, change.is_there());
        cache.queue_copies(queue, &namespace, &name);
        cache.queue_sources(queue, claim);
        if !change.is_there() {
            cache.forget_departed(claim);
            // Its volume may be waiting for it to go.
            for volume in cache.volumes_of(claim.metadata.uid.as_deref().unwrap_or_default()) {
                queue.add(&WorkItem::Volume(volume.name_any()));
            }
            return;
        }
        queue.add(&claim_target(claim));
        if let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) {
            // A snapshot may be waiting for the end of what was done to it.
            cache.queue_snapshots_of(queue, volume);
            // A Pod that was seen before may be waiting for it.
            if cache.consumers.has(&namespace, &name) {
                queue.add(&WorkItem::Volume(volume.to_owned()));
            }
        }
    }

    fn volume(&self, change: &Change<PersistentVolume>) {
        let Self { cache, queue, .. } = self;
        cache.uses_changed.notify_one();
        let volume = match change {
            Change::There { object, .. } | Change::Gone(object) => object,
            Change::Coming(volume) => return cache.note_volume(volume, true),
            Change::Listed => return,
        };
        cache.note_volume(volume, change.is_there());
        queue.add(&WorkItem::Volume(volume.name_any()));
        if let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) {
            let part = |part: &Option<String>| part.clone().unwrap_or_default();
            queue.add(&WorkItem::Claim(part(&claim.namespace), part(&claim.name)));
            cache.queue_copies(queue, &part(&claim.namespace), &part(&claim.name));
        }
    }

    /// A run is like this, or was when it went.
    fn run_is(&self, run: &Run, gone: bool) {
        self.cache.note_run(run, gone);
        self.cache.note_answer(run);
        self.departures.limiter.seen(&run.place());
        if gone {
            self.departures.expectations.gone(&run.uid());
        }
        for target in targets(run) {
            self.queue.add(&target);
        }
    }

    /// A worker's Pod is like this, or was when it went. That it has a run no more is the end of that.
    fn worker(&self, run: &Run, gone: bool) {
        if let Some(before) = self.cache.note_worker(run, gone) {
            self.run_is(&before, true);
        }
        if run.is_run() && !gone {
            self.run_is(run, false);
        }
        self.cache.workers_changed.notify_one();
    }

    fn run(&self, namespace: &str, change: &Change<Carrier>) {
        let cache = &self.cache;
        match change {
            Change::There { object, .. } | Change::Gone(object) => {
                let run = cache.as_run(object.clone());
                if run.is_on_worker() {
                    self.worker(&run, !change.is_there());
                } else {
                    self.run_is(&run, !change.is_there());
                }
                self.departures.limiter.wake();
            }
            Change::Coming(_) => return,
            Change::Listed => {
                let mut listed = cache.listed.write().unwrap_or_else(PoisonError::into_inner);
                listed.insert(namespace.to_owned());
                drop(listed);
                self.departures
                    .expectations
                    .keep_runs(&cache.runs().map(|run| run.uid().into_owned()).collect());
                cache.note_workers_of(namespace);
                cache.runs().for_each(|run| cache.note_answer(&run));
            }
        }
        cache.changed.notify_one();
        self.count();
    }

    fn class(&self, change: &Change<StorageClass>) {
        let Self { cache, queue, .. } = self;
        cache.capacities.wake();
        cache.classes_changed.notify_one();
        let Some(class) = change.object() else { return };
        let name = class.name_any();
        if is_discovered(class) {
            queue.add(&WorkItem::Configs);
        }
        cache.queue_claims(queue, |claim| {
            let of = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
            of == Some(&name) && is_open(claim)
        });
    }

    /// What goes by a class that is gone is waited for as if it had never been there.
    fn attributes(&self, change: &Change<VolumeAttributesClass>) {
        if let Change::There { object, .. } = change {
            let (cache, name) = (&self.cache, object.name_any());
            cache.queue_claims(&self.queue, |claim| modify::names(claim, &name) && is_open(claim));
        }
    }

    fn node(&self, change: &Change<PartialObjectMeta<ApiNode>>) {
        let Self { cache, queue, .. } = self;
        cache.capacities.wake();
        match change {
            // It may not use a volume any more, or be out of service.
            Change::There { object, is_new: false } => cache.queue_attached(queue, &object.name_any()),
            // Volumes, copies and snapshots on it may have waited for it.
            Change::There { is_new: true, .. } | Change::Gone(_) => cache.queue_all(queue),
            Change::Coming(_) | Change::Listed => {}
        }
    }

    fn count(&self) {
        for operation in Operation::ALL {
            let runs = self.cache.runs();
            let in_flight = runs.filter(|run| run.operation() == Some(operation) && !run.is_over());
            self.metrics.set_in_flight(operation, in_flight.count());
        }
        self.count_waiting();
    }

    fn count_waiting(&self) {
        for operation in Operation::ALL {
            self.metrics
                .set_queued(operation, self.departures.limiter.waiting(operation));
        }
    }
}

/// Wakes whoever waits for the run that the worker with this Pod has.
pub fn wake_by_worker(cache: &Cache, queue: &WorkQueue, pod_uid: &str) {
    for target in cache.run_on(pod_uid).iter().flat_map(targets) {
        queue.add(&target);
    }
    cache.changed.notify_one();
    cache.workers_changed.notify_one();
}

/// What a run was begun for.
fn targets(run: &Run) -> Vec<WorkItem> {
    let described = run.operation().map(describe);
    if described.is_some_and(|described| described.subject == SubjectKind::Config) {
        return vec![WorkItem::Configs];
    }
    // What was copied may be waiting for the end of that.
    let copied = described.filter(|described| described.reads == Reads::SourceVolume);
    let copied = copied.and_then(|_| run.request().ok()?.source);
    let snapshot = described.filter(|described| described.is_about_snapshot());
    let snapshot = snapshot.and_then(|_| run.request().ok());
    run.claim()
        .map(|(namespace, name)| WorkItem::Claim(namespace.to_owned(), name.to_owned()))
        .into_iter()
        .chain(run.pv_name().map(WorkItem::Volume))
        .chain(copied.map(|source| WorkItem::Volume(source.pv_name)))
        .chain(snapshot.iter().flat_map(|request| {
            let content = request.snapshot.as_ref().map(|snapshot| snapshot.content_name.clone());
            let content = content.map(
                if described.is_some_and(|described| described.subject == SubjectKind::Group) {
                    WorkItem::Group
                } else {
                    WorkItem::Snapshot
                },
            );
            let members = request.members().iter().map(|member| &member.pv_name);
            let volumes = members.chain([&request.pv_name]);
            content
                .into_iter()
                .chain(volumes.map(|name| WorkItem::Volume(name.clone())))
        }))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::{FutureExt, Stream, StreamExt};
    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::{Carrier, Change, Required, Seen};
    use crate::cache::departures::Departures;
    use crate::cache::limiter::Limiter;
    use crate::cache::store::Cache;
    use crate::cache::work_queue::{Queued, WorkQueue};
    use crate::operation::tests::ended;
    use crate::process::metrics::Metrics;
    use crate::volume::snapshot::tests::content;

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    /// A claim that is bound to the PV `disk`.
    fn claim() -> PersistentVolumeClaim {
        object(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "u1"},
            "spec": {"volumeName": "disk"},
            "status": {"phase": "Bound"},
        }))
    }

    /// What the watches have brought: a claim with the PV `disk`, which an image made with a handle of its own, and a
    /// snapshot of that handle.
    fn seen(change: impl FnOnce(Cache) -> Cache) -> (Seen, Queued) {
        let cache = Cache::new(&["admin".to_owned()].into());
        let (queue, queued) = WorkQueue::new();
        let seen = Seen {
            cache: change(cache),
            queue,
            departures: Departures {
                limiter: Arc::new(Limiter::new(1)),
                expectations: Arc::default(),
            },
            metrics: Metrics::new(),
        };
        (seen, queued)
    }

    fn known(cache: Cache) -> Cache {
        let volume: PersistentVolume = object(json!({
            "metadata": {"name": "disk", "uid": "v1", "finalizers": ["mooring.dev/volume"], "annotations": {
                "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner"}},
            "spec": {"csi": {"driver": "vcs.mooring.dev", "volumeHandle": "lun-7"},
                     "claimRef": {"namespace": "default", "name": "data", "uid": "u1"}},
        }));
        let snapshot = content(&json!({"spec": {"source": {"volumeHandle": "lun-7"}}}));
        cache.filled(
            vec![claim()],
            vec![volume],
            &[],
            (vec![], vec![]),
            (vec![object(snapshot)], vec![], vec![]),
        )
    }

    fn there<K>(object: K) -> Change<K> {
        Change::There {
            object: Arc::new(object),
            is_new: false,
        }
    }

    fn names<K: kube::Resource<DynamicType = ()>>(
        queued: impl Stream<Item = kube::runtime::reflector::ObjectRef<K>>,
    ) -> Vec<String> {
        let mut queued = std::pin::pin!(queued);
        std::iter::from_fn(|| queued.next().now_or_never().flatten())
            .map(|object| object.name)
            .collect()
    }

    #[test]
    fn the_end_of_a_claim_s_change_wakes_the_snapshots_of_its_volume_whatever_that_is_called() {
        let (seen, queued) = seen(known);
        seen.claim(&there(claim()));
        assert_eq!(names(queued.snapshots), ["snapcontent-s1"], "no snapshot is woken");
    }

    #[test]
    fn the_end_of_a_snapshot_wakes_the_volume_of_its_handle() {
        let (seen, queued) = seen(known);
        seen.cache.queue_handle(&seen.queue, "lun-7");
        seen.cache.queue_handle(&seen.queue, "not-known");
        assert_eq!(names(queued.volumes), ["disk", "not-known"]);
    }

    #[test]
    fn the_answer_that_states_that_its_image_can_be_a_worker_is_noted_also_of_a_run_that_was_there_before() {
        let carrier = |message: &str| -> Carrier {
            object(json!({
                "metadata": {"name": "provision-u1", "namespace": "admin", "uid": "p1",
                             "labels": {"mooring.dev/component": "provisioning", "mooring.dev/operation": "provision",
                                        "mooring.dev/claim-uid": "u1"},
                             "annotations": {"mooring.dev/config": "admin/c", "mooring.dev/fingerprint": "f"}},
                "status": ended(0, message),
            }))
        };
        let (plain, stating) = (r#"{"client":"nfs"}"#, r#"{"client":"nfs","mooring.dev/workers":true}"#);
        for (message, is_capable) in [(plain, false), (stating, true)] {
            let (seen, _queued) = seen(known);
            seen.run("admin", &there(carrier(message)));
            assert_eq!(seen.cache.workers.capable.has("f"), is_capable);
        }
        let listed = |cache: Cache| {
            let nothing = (vec![], vec![], vec![]);
            cache.filled(vec![], vec![], &[carrier(stating)], (vec![], vec![]), nothing)
        };
        let (seen, _queued) = seen(listed);
        seen.run("admin", &Change::Listed);
        assert!(seen.cache.workers.capable.has("f"));
    }

    #[test]
    fn a_node_that_comes_back_wakes_what_waits_for_it() {
        let (seen, queued) = seen(known);
        let node = || object(json!({"metadata": {"name": "node-a"}}));
        let mut snapshots = queued.snapshots;
        let mut woken = || {
            let next = std::iter::from_fn(|| snapshots.next().now_or_never().flatten());
            next.count()
        };
        let kind = Required("nodes".into());
        let take = |event| seen.take(&kind, &seen.cache.nodes, event, &Seen::node);
        let listed = [Event::Init, Event::InitApply(node()), Event::InitDone];
        let came = [Event::Init, Event::InitDone, Event::Apply(node())];
        for there_since in [listed, came] {
            there_since.into_iter().for_each(take);
            woken();
            take(Event::Apply(node()));
            assert_eq!(woken(), 0, "it was there");
            take(Event::Delete(node()));
            assert_eq!(woken(), 1, "it is gone");
            take(Event::Apply(node()));
            assert_eq!(woken(), 1, "it is back");
        }
    }
}
