//! The watches of the snapshot API, which a cluster may get at any time, or lose.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, Error as WatchError, Event, watcher};
use kube::{Client, ResourceExt};
use tracing::{info, warn};

use super::PAGE;
use super::snapshots::SnapshotWriters;
use super::store::Cache;
use super::work_queue::{WorkItem, WorkQueue};
use crate::operation::content::Content;
use crate::process::call::is_not_found;
use crate::volume::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

/// How often the controller looks whether the snapshot API has come. It is one small request; a watch of the cluster's
/// `CustomResourceDefinition`s would need rights on all of them.
const LOOK_FOR_API: Duration = Duration::from_secs(10);

/// How long the watches wait after an error.
const AGAIN: Duration = Duration::from_secs(5);

/// Queues the claims that are to be made of a snapshot.
fn queue_restores(cache: &Cache, queue: &WorkQueue, namespace: &str, name: &str) {
    cache.queue_claims(queue, |claim| {
        let named = match Content::of(claim) {
            Content::Snapshot(source) => source.namespace == namespace && source.name == name,
            Content::Empty | Content::Claim(_) | Content::Populated => false,
        };
        named && super::store::is_open(claim)
    });
}

/// What one of the three watches has brought.
#[allow(clippy::large_enum_variant)] // each lives for a moment only
enum Brought {
    Content(Event<VolumeSnapshotContent>),
    Snapshot(Event<VolumeSnapshot>),
    Class(Event<VolumeSnapshotClass>),
}

/// Keeps [`Snapshots`](super::snapshots::Snapshots) up to date and the queue filled, for as long as it is not dropped.
pub(super) async fn watch_all(client: Client, cache: Cache, mut writers: SnapshotWriters, queue: WorkQueue) {
    loop {
        match is_served(&client).await {
            Ok(true) => {}
            Ok(false) => {
                forget(&cache, &mut writers);
                tokio::time::sleep(LOOK_FOR_API).await;
                continue;
            }
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "failed to look for the snapshot API; trying again"
                );
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        }
        let error = follow(&client, &cache, &mut writers, &queue).await;
        warn!(
            error = error.as_ref().map(|error| error as &dyn std::error::Error),
            "failed to watch snapshots; trying again"
        );
        tokio::time::sleep(AGAIN).await;
    }
}

/// Whether the cluster has the snapshot API. All of its three kinds are installed together.
async fn is_served(client: &Client) -> Result<bool, kube::Error> {
    let one = ListParams::default().limit(1);
    let contents: Api<VolumeSnapshotContent> = Api::all(client.clone());
    let snapshots: Api<VolumeSnapshot> = Api::all(client.clone());
    let classes: Api<VolumeSnapshotClass> = Api::all(client.clone());
    let found = async {
        contents.list_metadata(&one).await?;
        snapshots.list_metadata(&one).await?;
        classes.list_metadata(&one).await
    };
    match found.await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The API is not there, or not any more, and neither is what was known of it.
fn forget(cache: &Cache, writers: &mut SnapshotWriters) {
    if !cache.snapshots.is_known() {
        info!("the cluster has no snapshot API; looked for from time to time");
    }
    writers.contents.apply_watcher_event(&Event::Init);
    writers.contents.apply_watcher_event(&Event::InitDone);
    writers.snapshots.apply_watcher_event(&Event::Init);
    writers.snapshots.apply_watcher_event(&Event::InitDone);
    writers.classes.apply_watcher_event(&Event::Init);
    writers.classes.apply_watcher_event(&Event::InitDone);
    cache.snapshots.note(false);
}

/// Watches until something goes wrong.
async fn follow(
    client: &Client,
    cache: &Cache,
    writers: &mut SnapshotWriters,
    queue: &WorkQueue,
) -> Option<WatchError> {
    let all = || Config::default().page_size(PAGE);
    let contents = watcher(Api::all(client.clone()), all()).map(|event| event.map(Brought::Content));
    let snapshots = watcher(Api::all(client.clone()), all()).map(|event| event.map(Brought::Snapshot));
    let classes = watcher(Api::all(client.clone()), all()).map(|event| event.map(Brought::Class));
    let mut events = stream::select(contents.boxed(), stream::select(snapshots.boxed(), classes.boxed()));
    let mut listed = [false; 3];
    while let Some(event) = events.next().await {
        match event {
            Err(error) => return Some(error),
            Ok(Brought::Content(event)) => {
                let event = slim(event);
                writers.contents.apply_watcher_event(&event);
                match event {
                    Event::Apply(content) | Event::Delete(content) => {
                        queue.add(&WorkItem::Snapshot(content.name_any()));
                        let of = &content.spec.volume_snapshot_ref;
                        if let (Some(namespace), Some(name)) = (&of.namespace, &of.name) {
                            queue_restores(cache, queue, namespace, name);
                        }
                        queue.add(&WorkItem::Configs);
                        // What a volume's deletion waits for may be over.
                        if let Some(volume) = content.spec.source.volume_handle {
                            queue.add(&WorkItem::Volume(volume));
                        }
                    }
                    Event::InitDone => listed[0] = true,
                    Event::Init | Event::InitApply(_) => {}
                }
            }
            Ok(Brought::Snapshot(event)) => {
                let event = slim(event);
                writers.snapshots.apply_watcher_event(&event);
                match event {
                    Event::Apply(snapshot) | Event::Delete(snapshot) => {
                        let namespace = snapshot.namespace().unwrap_or_default();
                        queue_restores(cache, queue, &namespace, &snapshot.name_any());
                    }
                    Event::InitDone => listed[1] = true,
                    Event::Init | Event::InitApply(_) => {}
                }
            }
            Ok(Brought::Class(event)) => {
                let event = slim(event);
                writers.classes.apply_watcher_event(&event);
                queue.add(&WorkItem::Configs);
                match event {
                    Event::Apply(_) => cache.snapshots.queue(queue, None),
                    Event::InitDone => listed[2] = true,
                    Event::Delete(_) | Event::Init | Event::InitApply(_) => {}
                }
            }
        }
        if listed == [true; 3] {
            listed = [false; 3];
            cache.snapshots.note(true);
            cache.queue_all(queue);
        }
    }
    None
}

/// Without what nobody here reads.
fn slim<K: ResourceExt>(event: Event<K>) -> Event<K> {
    event.modify(|object| object.meta_mut().managed_fields = None)
}
