//! The watches that fill [`Cache`] and put into the queue what a change concerns. One watch of each kind serves all
//! controllers.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, PoisonError};

use futures::future::join_all;
use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node as ApiNode, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error as WatchError};
use kube::{Client, Resource, ResourceExt};
use mooring_contract::operation::Operation;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::PAGE;
use super::capacity_watch;
use super::consumer_watch;
use super::departures::Departures;
use super::expectations::Expectations;
use super::grant_watch::GrantApi;
use super::group_watch::GroupApi;
use super::limiter::Limiter;
use super::optional_api::keep_watching;
use super::snapshot_watch::SnapshotApi;
use super::store::{Cache, Writers, claim_target, is_open};
use super::work_queue::{WorkItem, WorkQueue};
use crate::config::storage_class::is_discovered;
use crate::config::store::ConfigStore;
use crate::context::Context;
use crate::operation::describe::{Reads, SubjectKind, describe};
use crate::operation::modify;
use crate::process::metrics::Metrics;
use crate::run::Run;
use crate::run::carrier::{Carrier, selector};

/// Keeps [`Cache`] up to date and the queue filled, until it is dropped.
pub async fn watch(
    context: Context,
    cache: Cache,
    writers: Writers,
    queue: WorkQueue,
    limiter: Arc<Limiter>,
    expectations: Arc<Expectations>,
) {
    let capacities = capacity_watch::watch(context.clone(), cache.capacities.clone());
    let consumers = consumer_watch::watch(context.clone(), cache.clone(), queue.clone());
    let Context {
        client,
        configs,
        metrics,
        ..
    } = context;
    let departures = Departures {
        limiter: limiter.clone(),
        expectations: expectations.clone(),
    };
    let seen = Seen {
        cache,
        queue,
        limiter,
        expectations,
        metrics,
    };
    let by_config = seen.clone().follow_configs(configs, departures.clone());
    let turns = seen.clone().take_turns();
    let snapshots = keep_watching(SnapshotApi {
        client: client.clone(),
        cache: seen.cache.clone(),
        writers: writers.snapshots,
        queue: seen.queue.clone(),
        departures: departures.clone(),
    });
    let groups = keep_watching(GroupApi {
        client: client.clone(),
        cache: seen.cache.clone(),
        writers: writers.groups,
        queue: seen.queue.clone(),
        departures: departures.clone(),
    });
    let grants = keep_watching(GrantApi {
        client: client.clone(),
        cache: seen.cache.clone(),
        queue: seen.queue.clone(),
    });
    let runs = writers.carriers.into_iter().map(|(namespace, writer)| {
        let (seen, ours) = (seen.clone(), pages().labels(&selector()));
        let carriers = watcher(Api::namespaced(client.clone(), &namespace), ours);
        drive("pods", carriers, writer, departures.clone(), move |event| {
            seen.run(&namespace, event);
        })
    });
    tokio::join!(
        drive(
            "claims",
            all(&client),
            writers.claims,
            departures.clone(),
            seen.by(Seen::claim)
        ),
        drive(
            "persistentvolumes",
            all(&client),
            writers.volumes,
            departures.clone(),
            seen.by(Seen::volume)
        ),
        join_all(runs),
        drive(
            "storageclasses",
            all(&client),
            writers.classes,
            departures.clone(),
            seen.by(Seen::class)
        ),
        drive(
            "volumeattributesclasses",
            all(&client),
            writers.attributes,
            departures.clone(),
            seen.by(Seen::attributes)
        ),
        drive(
            "nodes",
            watcher(Api::<PartialObjectMeta<ApiNode>>::all(client.clone()), pages()),
            writers.nodes,
            departures.clone(),
            seen.by(Seen::node)
        ),
        snapshots,
        groups,
        grants,
        consumers,
        capacities,
        by_config,
        turns,
    );
}

fn pages() -> Config {
    Config::default().page_size(PAGE)
}

/// The watch of all objects of a kind.
fn all<K>(client: &Client) -> impl Stream<Item = Result<Event<K>, WatchError>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(Api::all(client.clone()), pages())
}

/// What a change that a watch shows is written to, and whom it wakes.
#[derive(Clone)]
struct Seen {
    cache: Cache,
    queue: WorkQueue,
    limiter: Arc<Limiter>,
    expectations: Arc<Expectations>,
    metrics: Metrics,
}

impl Seen {
    /// What a watch calls with each event of its kind.
    fn by<K>(&self, seen: fn(&Self, Event<K>)) -> impl FnMut(Event<K>) + Send + 'static + use<K>
    where
        K: 'static,
    {
        let own = self.clone();
        move |event| seen(&own, event)
    }

    /// Wakes everybody when a ConfigMap has changed.
    async fn follow_configs(self, configs: ConfigStore, departures: Departures) {
        let mut changes = configs.subscribe();
        let uids = || -> BTreeSet<String> { configs.all().iter().map(|config| config.uid.clone()).collect() };
        let mut known = uids();
        while changes.changed().await.is_ok() {
            let there = uids();
            for uid in known.difference(&there) {
                departures.gone(uid);
            }
            known = there;
            self.cache.queue_all(&self.queue);
        }
    }

    /// Wakes those that may have a place now.
    async fn take_turns(self) {
        loop {
            self.limiter.moved().await;
            for target in self.limiter.next() {
                self.queue.add(&target);
            }
            self.count_waiting();
        }
    }

    fn claim(&self, event: Event<PersistentVolumeClaim>) {
        let Self { cache, queue, .. } = self;
        match event {
            Event::Apply(claim) => {
                cache.note_copy(&claim, true);
                queue.add(&claim_target(&claim));
                cache.queue_copies(queue, &claim.namespace().unwrap_or_default(), &claim.name_any());
                cache.queue_sources(queue, &claim);
                if let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) {
                    // A snapshot may be waiting for the end of what was done to it.
                    cache.queue_snapshots_of(queue, volume);
                    // A Pod that was seen before may be waiting for it.
                    if cache
                        .consumers
                        .has(&claim.namespace().unwrap_or_default(), &claim.name_any())
                    {
                        queue.add(&WorkItem::Volume(volume.to_owned()));
                    }
                }
            }
            Event::Delete(claim) => {
                cache.note_copy(&claim, false);
                cache.queue_copies(queue, &claim.namespace().unwrap_or_default(), &claim.name_any());
                cache.queue_sources(queue, &claim);
                cache.forget_departed(&claim);
                // Its volume may be waiting for it to go.
                for volume in cache.volumes_of(claim.metadata.uid.as_deref().unwrap_or_default()) {
                    queue.add(&WorkItem::Volume(volume.name_any()));
                }
            }
            // Of claims that went while nobody watched there is no other sign, and their volumes wait for one.
            Event::InitDone => {
                cache.queue_claims(queue, |_| true);
                cache.queue_all(queue);
            }
            Event::InitApply(claim) => cache.note_copy(&claim, true),
            Event::Init => {}
        }
    }

    fn volume(&self, event: Event<PersistentVolume>) {
        let Self { cache, queue, .. } = self;
        let there = !matches!(event, Event::Delete(_));
        match event {
            Event::Apply(volume) | Event::Delete(volume) => {
                cache.note_volume(&volume, there);
                queue.add(&WorkItem::Volume(volume.name_any()));
                if let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) {
                    let part = |part: &Option<String>| part.clone().unwrap_or_default();
                    queue.add(&WorkItem::Claim(part(&claim.namespace), part(&claim.name)));
                    cache.queue_copies(queue, &part(&claim.namespace), &part(&claim.name));
                }
            }
            Event::InitApply(volume) => cache.note_volume(&volume, true),
            Event::InitDone => cache.queue_all(queue),
            Event::Init => {}
        }
    }

    /// A run is like this, or was when it went.
    fn run_is(&self, run: &Run, gone: bool) {
        self.cache.note_run(run, gone);
        self.limiter.seen(&run.place());
        if gone {
            self.expectations.gone(&run.uid());
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

    fn run(&self, namespace: &str, event: Event<Carrier>) {
        let Self { cache, queue, .. } = self;
        let gone = matches!(event, Event::Delete(_));
        match event {
            Event::Apply(carrier) | Event::Delete(carrier) => {
                let run = cache.as_run(Arc::new(carrier));
                if run.is_on_worker() {
                    self.worker(&run, gone);
                } else {
                    self.run_is(&run, gone);
                }
                self.limiter.wake();
            }
            Event::InitDone => {
                let mut listed = cache.listed.write().unwrap_or_else(PoisonError::into_inner);
                listed.insert(namespace.to_owned());
                drop(listed);
                self.expectations
                    .keep_runs(&cache.runs().map(|run| run.uid().into_owned()).collect());
                cache.note_workers_of(namespace);
                cache.queue_all(queue);
            }
            Event::Init | Event::InitApply(_) => {}
        }
        cache.changed.notify_one();
        self.count();
    }

    fn class(&self, event: Event<StorageClass>) {
        let Self { cache, queue, .. } = self;
        cache.capacities.wake();
        match event {
            Event::Apply(class) | Event::Delete(class) => {
                let name = class.name_any();
                if is_discovered(&class) {
                    queue.add(&WorkItem::Configs);
                }
                cache.queue_claims(queue, |claim| {
                    let of = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
                    of == Some(&name) && is_open(claim)
                });
            }
            Event::InitDone => cache.queue_all(queue),
            Event::Init | Event::InitApply(_) => {}
        }
    }

    fn attributes(&self, event: Event<VolumeAttributesClass>) {
        let Self { cache, queue, .. } = self;
        match event {
            Event::Apply(class) => {
                let name = class.name_any();
                cache.queue_claims(queue, |claim| modify::names(claim, &name) && is_open(claim));
            }
            Event::InitDone => cache.queue_all(queue),
            // What goes by it is waited for as if it had never been there.
            Event::Delete(_) | Event::Init | Event::InitApply(_) => {}
        }
    }

    #[allow(clippy::needless_pass_by_value)] // as the others
    fn node(&self, event: Event<PartialObjectMeta<ApiNode>>) {
        let Self { cache, queue, .. } = self;
        cache.capacities.wake();
        match event {
            Event::Delete(node) => {
                cache.note_node(&node.name_any(), false);
                cache.queue_all(queue);
            }
            // Volumes, copies and snapshots on it may have waited for it.
            Event::Apply(node) if cache.note_node(&node.name_any(), true) => cache.queue_all(queue),
            // It may not use a volume any more, or be out of service.
            Event::Apply(node) => cache.queue_attached(queue, &node.name_any()),
            Event::Init => cache.forget_nodes(),
            Event::InitApply(node) => {
                cache.note_node(&node.name_any(), true);
            }
            Event::InitDone => cache.queue_all(queue),
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
            self.metrics.set_queued(operation, self.limiter.waiting(operation));
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

/// Runs one watch for good: what it sees goes into the store, then to `seen`.
fn drive<K>(
    kind: &'static str,
    events: impl Stream<Item = Result<Event<K>, WatchError>> + Send + 'static,
    mut writer: Writer<K>,
    departures: Departures,
    mut seen: impl FnMut(Event<K>) + Send + 'static,
) -> impl Future<Output = ()> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let events = events
        .default_backoff()
        .modify(|object: &mut K| object.meta_mut().managed_fields = None)
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
                departures.reflect(&mut writer, &event);
                seen(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::{FutureExt, Stream, StreamExt};
    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::Seen;
    use crate::cache::limiter::Limiter;
    use crate::cache::store::{Cache, Writers};
    use crate::cache::work_queue::{Queued, WorkQueue};
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
    fn seen(change: impl FnOnce(Cache, Writers) -> Cache) -> (Seen, Queued) {
        let (cache, writers) = Cache::new(&["admin".to_owned()].into());
        let (queue, queued) = WorkQueue::new();
        let seen = Seen {
            cache: change(cache, writers),
            queue,
            limiter: Arc::new(Limiter::new(1)),
            expectations: Arc::default(),
            metrics: Metrics::new(),
        };
        (seen, queued)
    }

    fn known(cache: Cache, writers: Writers) -> Cache {
        let volume: PersistentVolume = object(json!({
            "metadata": {"name": "disk", "uid": "v1", "finalizers": ["mooring.dev/volume"], "annotations": {
                "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner"}},
            "spec": {"csi": {"driver": "vcs.mooring.dev", "volumeHandle": "lun-7"},
                     "claimRef": {"namespace": "default", "name": "data", "uid": "u1"}},
        }));
        let snapshot = content(&json!({"spec": {"source": {"volumeHandle": "lun-7"}}}));
        cache.filled(
            writers,
            vec![claim()],
            vec![volume],
            &[],
            (vec![], vec![]),
            (vec![object(snapshot)], vec![], vec![]),
        )
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
        seen.claim(Event::Apply(claim()));
        let (_, _, snapshots, _) = queued.split();
        assert_eq!(names(snapshots), ["snapcontent-s1"], "no snapshot is woken");
    }

    #[test]
    fn the_end_of_a_snapshot_wakes_the_volume_of_its_handle() {
        let (seen, queued) = seen(known);
        seen.cache.queue_handle(&seen.queue, "lun-7");
        seen.cache.queue_handle(&seen.queue, "not-known");
        let (_, volumes, ..) = queued.split();
        assert_eq!(names(volumes), ["disk", "not-known"]);
    }

    #[test]
    fn a_node_that_comes_back_wakes_what_waits_for_it() {
        let (seen, queued) = seen(known);
        let node = || object(json!({"metadata": {"name": "node-a"}}));
        let (claims, volumes, mut snapshots, _) = queued.split();
        drop((claims, volumes));
        let mut woken = || {
            let next = std::iter::from_fn(|| snapshots.next().now_or_never().flatten());
            next.count()
        };
        for there_since in [Event::InitApply(node()), Event::Apply(node())] {
            seen.node(Event::Init);
            seen.node(there_since);
            woken();
            seen.node(Event::Apply(node()));
            assert_eq!(woken(), 0, "it was there");
            seen.node(Event::Delete(node()));
            assert_eq!(woken(), 1, "it is gone");
            seen.node(Event::Apply(node()));
            assert_eq!(woken(), 1, "it is back");
        }
    }
}
