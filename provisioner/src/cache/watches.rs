//! The watches that fill [`Cache`] and put into the queue what a change concerns. One watch of each kind serves all
//! controllers.

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, PoisonError};

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error as WatchError};
use kube::{Resource, ResourceExt};
use mooring_contract::names::{annotations, labels};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::expectations::Expectations;
use super::limiter::Limiter;
use super::store::{Cache, Writers, claim_target, is_open, key};
use super::work_queue::{Target, WorkQueue};
use crate::process::context::Context;
use crate::process::metrics::Metrics;
use crate::run::kind::Kind;
use crate::run::outcome::{PodState, observe};
use crate::run::pod;
use crate::volume::persistent_volume;

/// Objects a page of a list: more would be held twice for a moment.
const PAGE: u32 = 50;

/// Keeps [`Cache`] up to date and the queue filled, until it is dropped.
pub async fn watch(
    context: Context,
    cache: Cache,
    writers: Writers,
    queue: WorkQueue,
    limiter: Arc<Limiter>,
    expectations: Arc<Expectations>,
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
        let (cache, queue, limiter, expectations) =
            (cache.clone(), queue.clone(), limiter.clone(), expectations.clone());
        drive(
            "claims",
            watcher(Api::all(client.clone()), all()),
            writers.claims,
            move |event| match event {
                Event::Apply(claim) => queue.add(&claim_target(&claim)),
                Event::Delete(claim) => {
                    cache.forget_departed(&claim);
                    expectations.gone(claim.metadata.uid.as_deref().unwrap_or_default());
                    for operation in Kind::ALL {
                        let name = pod::name(operation, claim.metadata.uid.as_deref().unwrap_or_default());
                        limiter.forget(&name);
                    }
                    // Who was behind it may be the next.
                    for target in limiter.next() {
                        queue.add(&target);
                    }
                    // Its volume may be waiting for it to go.
                    let volumes = cache.volumes_of(claim.metadata.uid.as_deref().unwrap_or_default());
                    for volume in volumes {
                        queue.add(&Target::Volume(volume.name_any()));
                    }
                }
                // Claims that went while nobody watched are told of by nothing else, and their volumes wait for that.
                Event::InitDone => {
                    cache.queue_claims(&queue, |_| true);
                    cache.queue_all(&queue);
                }
                Event::Init | Event::InitApply(_) => {}
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
                        queue.add(&Target::Volume(volume.name_any()));
                        if let Some(claim) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) {
                            let part = |part: &Option<String>| part.clone().unwrap_or_default();
                            queue.add(&Target::Claim(part(&claim.namespace), part(&claim.name)));
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
    let pods = join_all(writers.pods.into_iter().map(|(namespace, writer)| {
        let (cache, queue, limiter, expectations) =
            (cache.clone(), queue.clone(), limiter.clone(), expectations.clone());
        let metrics = metrics.clone();
        let pods = watcher(Api::namespaced(client.clone(), &namespace), ours.clone());
        let seen = move |event: Event<Pod>| {
            let gone = matches!(event, Event::Delete(_));
            match event {
                Event::Apply(pod) | Event::Delete(pod) => {
                    cache.note_pod(&pod, gone);
                    limiter.seen(&key(&pod));
                    if gone {
                        expectations.gone(pod.metadata.uid.as_deref().unwrap_or_default());
                    }
                    let next = limiter.next();
                    for target in pod_targets(&pod).iter().chain(&next) {
                        queue.add(target);
                    }
                }
                Event::InitDone => {
                    let mut listed = cache.listed.write().unwrap_or_else(PoisonError::into_inner);
                    listed.insert(namespace.clone());
                    drop(listed);
                    expectations.keep_pods(&cache.pods(|_| true).iter().filter_map(|pod| pod.uid()).collect());
                    cache.queue_all(&queue);
                }
                Event::Init | Event::InitApply(_) => {}
            }
            cache.changed.notify_one();
            count(&cache, &limiter, &metrics);
        };
        drive("pods", pods, writer, seen)
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
    let nodes = {
        let (cache, queue) = (cache.clone(), queue.clone());
        drive(
            "nodes",
            watcher(Api::<PartialObjectMeta<ApiNode>>::all(client.clone()), all()),
            writers.nodes,
            move |event| {
                // Nodes change all the time; only their going matters here.
                if let Event::Delete(_) | Event::InitDone = event {
                    cache.queue_all(&queue);
                }
            },
        )
    };
    let by_config = async {
        let mut changes = configs.subscribe();
        while changes.changed().await.is_ok() {
            cache.queue_all(&queue);
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
        .chain(uid.map(|uid| Target::Volume(persistent_volume::name_for(uid))))
        .collect()
}

fn count(cache: &Cache, limiter: &Limiter, metrics: &Metrics) {
    for operation in Kind::ALL {
        let is = |pod: &Pod| pod::label(pod, labels::OPERATION) == Some(operation.as_str());
        let count = cache.pods(|pod| is(pod) && !matches!(observe(pod), PodState::Finished(_)));
        metrics.set_in_flight(operation.into(), count.len());
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
