//! The watch of the cluster's Pods, which says who uses a claim.

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error as WatchError, Event, watcher};
use mooring_contract::operation::Operation;
use tracing::warn;

use super::PAGE;
use super::consumers::ConsumerListing;
use super::store::Cache;
use super::work_queue::{WorkItem, WorkQueue};
use crate::context::Context;

/// Watches the Pods of the cluster for as long as a ConfigMap has volumes attached.
pub(super) async fn watch(context: Context, cache: Cache, queue: WorkQueue) {
    let configs = context.configs.clone();
    let mut changes = configs.subscribe();
    let offered = || configs.offers(Operation::Attach) || configs.offers(Operation::Detach);
    loop {
        if offered() {
            let pods = Config::default().fields("spec.nodeName!=").page_size(PAGE);
            let events = watcher(Api::<Pod>::all(context.client.clone()), pods);
            let over = async { while offered() && changes.changed().await.is_ok() {} };
            tokio::select! {
                () = follow(events, &cache, &queue) => {}
                () = over => {}
            }
            cache.consumers.clear();
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn follow(events: impl Stream<Item = Result<Event<Pod>, WatchError>> + Send, cache: &Cache, queue: &WorkQueue) {
    let mut events = std::pin::pin!(events.default_backoff());
    let mut listing = ConsumerListing::default();
    while let Some(event) = events.next().await {
        let news = match event {
            Ok(Event::Init) => {
                listing = ConsumerListing::default();
                continue;
            }
            Ok(Event::InitApply(pod)) => {
                listing.add(&pod);
                continue;
            }
            Ok(Event::InitDone) => {
                cache.consumers.replace(std::mem::take(&mut listing));
                cache.queue_all(queue);
                continue;
            }
            Ok(Event::Apply(pod)) => cache.consumers.put(&pod),
            Ok(Event::Delete(pod)) => cache.consumers.remove(&pod),
            Err(error) => {
                warn!(
                    kind = "pods of the cluster",
                    error = &error as &dyn std::error::Error,
                    "failed to watch; trying again"
                );
                continue;
            }
        };
        for claim in news {
            if let Some(volume) = claim
                .split_once('/')
                .and_then(|(namespace, name)| cache.volume_name(namespace, name))
            {
                queue.add(&WorkItem::Volume(volume));
            }
        }
    }
}
