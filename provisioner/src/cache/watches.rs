//! The watches that fill [`Cache`] and put into the queue what a change concerns. One watch of each kind serves all
//! controllers.

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, PoisonError};

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error as WatchError};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::consumers;
use super::expectations::Expectations;
use super::limiter::Limiter;
use super::snapshot_watch::watch_all;
use super::store::{Cache, Writers, claim_target, is_open};
use super::work_queue::{WorkItem, WorkQueue};
use crate::config::storage_class::is_discovered;
use crate::operation::modify;
use crate::process::context::Context;
use crate::process::metrics::Metrics;
use crate::run::observed::{Carrier, selector};
use crate::run::{Kind, Run, RunId};
use crate::volume::persistent_volume;

/// Objects a page of a list: more would be held twice for a moment.
pub(super) const PAGE: u32 = 50;

/// Keeps [`Cache`] up to date and the queue filled, until it is dropped.
pub async fn watch(
    context: Context,
    cache: Cache,
    writers: Writers,
    queue: WorkQueue,
    limiter: Arc<Limiter>,
    expectations: Arc<Expectations>,
) {
    let consumers = consumers::watch(context.clone(), cache.clone(), queue.clone());
    let Context {
        client,
        configs,
        metrics,
        ..
    } = context;
    let all = || Config::default().page_size(PAGE);
    let ours = all().labels(&selector());
    let claims = {
        let (cache, queue, limiter, expectations) =
            (cache.clone(), queue.clone(), limiter.clone(), expectations.clone());
        drive(
            "claims",
            watcher(Api::all(client.clone()), all()),
            writers.claims,
            move |event| match event {
                Event::Apply(claim) => {
                    cache.note_copy(&claim, true);
                    queue.add(&claim_target(&claim));
                    cache.queue_copies(&queue, &claim.namespace().unwrap_or_default(), &claim.name_any());
                    cache.queue_sources(&queue, &claim);
                    if let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) {
                        // A snapshot may be waiting for the end of what was done to it.
                        cache.snapshots.queue(&queue, Some(volume));
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
                    cache.queue_copies(&queue, &claim.namespace().unwrap_or_default(), &claim.name_any());
                    cache.queue_sources(&queue, &claim);
                    cache.forget_departed(&claim);
                    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
                    expectations.gone(uid);
                    for kind in Kind::ALL {
                        limiter.forget(&RunId::new(kind, uid).name());
                    }
                    // What was behind it may be the next.
                    for target in limiter.next() {
                        queue.add(&target);
                    }
                    // Its volume may be waiting for it to go.
                    let volumes = cache.volumes_of(uid);
                    for volume in volumes {
                        queue.add(&WorkItem::Volume(volume.name_any()));
                    }
                }
                // Of claims that went while nobody watched there is no other sign, and their volumes wait for one.
                Event::InitDone => {
                    cache.queue_claims(&queue, |_| true);
                    cache.queue_all(&queue);
                }
                Event::InitApply(claim) => cache.note_copy(&claim, true),
                Event::Init => {}
            },
        )
    };
    let volumes = {
        let (cache, queue, expectations) = (cache.clone(), queue.clone(), expectations.clone());
        drive(
            "persistentvolumes",
            watcher(Api::all(client.clone()), all()),
            writers.volumes,
            move |event| {
                let there = !matches!(event, Event::Delete(_));
                match event {
                    Event::Apply(volume) | Event::Delete(volume) => {
                        cache.note_volume(&volume, there);
                        if !there {
                            expectations.gone(volume.metadata.uid.as_deref().unwrap_or_default());
                        }
                        queue.add(&WorkItem::Volume(volume.name_any()));
                        if let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) {
                            let part = |part: &Option<String>| part.clone().unwrap_or_default();
                            queue.add(&WorkItem::Claim(part(&claim.namespace), part(&claim.name)));
                            cache.queue_copies(&queue, &part(&claim.namespace), &part(&claim.name));
                        }
                    }
                    Event::InitApply(volume) => cache.note_volume(&volume, true),
                    Event::InitDone => {
                        let volumes = cache.volumes.state();
                        expectations.keep_volumes(&volumes.iter().filter_map(|volume| volume.uid()).collect());
                        cache.queue_all(&queue);
                    }
                    Event::Init => {}
                }
            },
        )
    };
    let runs = join_all(writers.carriers.into_iter().map(|(namespace, writer)| {
        let (cache, queue, limiter, expectations) =
            (cache.clone(), queue.clone(), limiter.clone(), expectations.clone());
        let metrics = metrics.clone();
        let carriers = watcher(Api::namespaced(client.clone(), &namespace), ours.clone());
        let seen = move |event: Event<Carrier>| {
            let gone = matches!(event, Event::Delete(_));
            match event {
                Event::Apply(carrier) | Event::Delete(carrier) => {
                    let run = Run::of(carrier);
                    cache.note_run(&run, gone);
                    limiter.seen(&run.place());
                    if gone {
                        expectations.gone(run.uid());
                    }
                    let next = limiter.next();
                    for target in targets(&run).iter().chain(&next) {
                        queue.add(target);
                    }
                }
                Event::InitDone => {
                    let mut listed = cache.listed.write().unwrap_or_else(PoisonError::into_inner);
                    listed.insert(namespace.clone());
                    drop(listed);
                    expectations.keep_runs(&cache.runs().map(|run| run.uid().to_owned()).collect());
                    cache.queue_all(&queue);
                }
                Event::Init | Event::InitApply(_) => {}
            }
            cache.changed.notify_one();
            count(&cache, &limiter, &metrics);
        };
        drive("pods", carriers, writer, seen)
    }));
    let classes = {
        let (cache, queue) = (cache.clone(), queue.clone());
        drive(
            "storageclasses",
            watcher(Api::all(client.clone()), all()),
            writers.classes,
            move |event| match event {
                Event::Apply(class) | Event::Delete(class) => {
                    let name = class.name_any();
                    if is_discovered(&class) {
                        queue.add(&WorkItem::Configs);
                    }
                    cache.queue_claims(&queue, |claim| {
                        let of = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
                        of == Some(&name) && is_open(claim)
                    });
                }
                Event::InitDone => cache.queue_all(&queue),
                Event::Init | Event::InitApply(_) => {}
            },
        )
    };
    let attributes = {
        let (cache, queue) = (cache.clone(), queue.clone());
        drive(
            "volumeattributesclasses",
            watcher(Api::all(client.clone()), all()),
            writers.attributes,
            move |event| match event {
                Event::Apply(class) => {
                    let name = class.name_any();
                    cache.queue_claims(&queue, |claim| modify::names(claim, &name) && is_open(claim));
                }
                Event::InitDone => cache.queue_all(&queue),
                // What goes by it is waited for as if it had never been there.
                Event::Delete(_) | Event::Init | Event::InitApply(_) => {}
            },
        )
    };
    let nodes = {
        let (cache, queue) = (cache.clone(), queue.clone());
        drive(
            "nodes",
            watcher(Api::<PartialObjectMeta<ApiNode>>::all(client.clone()), all()),
            writers.nodes,
            move |event| {
                match event {
                    Event::Delete(_) | Event::InitDone => cache.queue_all(&queue),
                    // It may not use a volume any more, or be out of service.
                    Event::Apply(node) => cache.queue_attached(&queue, &node.name_any()),
                    Event::Init | Event::InitApply(_) => {}
                }
            },
        )
    };
    let snapshots = watch_all(client.clone(), cache.clone(), writers.snapshots, queue.clone());
    let by_config = async {
        let mut changes = configs.subscribe();
        while changes.changed().await.is_ok() {
            cache.queue_all(&queue);
        }
    };
    tokio::join!(
        claims, volumes, runs, classes, attributes, nodes, snapshots, consumers, by_config
    );
}

/// What a run was begun for.
fn targets(run: &Run) -> Vec<WorkItem> {
    // What was copied may be waiting for the end of that.
    let copied = match run.kind() {
        Some(Kind::Clone) => run.request().ok().and_then(|request| request.source),
        _ => None,
    };
    if run.kind() == Some(Kind::Discover) {
        return vec![WorkItem::Configs];
    }
    let snapshot = match run.kind() {
        Some(Kind::Snapshot | Kind::DeleteSnapshot | Kind::Restore | Kind::Backup | Kind::DeleteBackup) => {
            run.request().ok()
        }
        _ => None,
    };
    run.claim()
        .map(|(namespace, name)| WorkItem::Claim(namespace.to_owned(), name.to_owned()))
        .into_iter()
        .chain(
            run.claim_uid()
                .map(|uid| WorkItem::Volume(persistent_volume::name_for(uid))),
        )
        .chain(copied.map(|source| WorkItem::Volume(source.pv_name)))
        .chain(snapshot.iter().flat_map(|request| {
            let content = request.snapshot.as_ref();
            let content = content.map(|snapshot| WorkItem::Snapshot(snapshot.content_name.clone()));
            content.into_iter().chain([WorkItem::Volume(request.pv_name.clone())])
        }))
        .collect()
}

fn count(cache: &Cache, limiter: &Limiter, metrics: &Metrics) {
    for kind in Kind::ALL {
        let in_flight = cache.runs().filter(|run| run.kind() == Some(kind) && !run.is_over());
        metrics.set_in_flight(kind.into(), in_flight.count());
    }
    metrics.set_queued(Kind::Provision.into(), limiter.waiting());
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
