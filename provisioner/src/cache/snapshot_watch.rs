//! The watches of the snapshot API.

use futures::{StreamExt, stream};
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, Error as WatchError, Event, watcher};
use kube::{Client, ResourceExt};

use super::PAGE;
use super::departures::Departures;
use super::optional_api::OptionalApi;
use super::snapshots::SnapshotWriters;
use super::store::{Cache, slim};
use super::work_queue::{WorkItem, WorkQueue};
use crate::operation::content::Content;
use crate::process::call::is_not_found;
use crate::volume::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

/// Queues the claims that restore a snapshot.
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

/// Keeps [`Snapshots`](super::snapshots::Snapshots) up to date and the queue filled.
pub(super) struct SnapshotApi {
    pub(super) client: Client,
    pub(super) cache: Cache,
    pub(super) writers: SnapshotWriters,
    pub(super) queue: WorkQueue,
    pub(super) departures: Departures,
}

impl OptionalApi for SnapshotApi {
    const OBJECTS: &'static str = "volumesnapshotcontents";
    type Served = ();

    /// All of its three kinds are installed together.
    async fn find(&self) -> Result<Option<()>, kube::Error> {
        let one = ListParams::default().limit(1);
        let contents: Api<VolumeSnapshotContent> = Api::all(self.client.clone());
        let snapshots: Api<VolumeSnapshot> = Api::all(self.client.clone());
        let classes: Api<VolumeSnapshotClass> = Api::all(self.client.clone());
        let found = async {
            contents.list_metadata(&one).await?;
            snapshots.list_metadata(&one).await?;
            classes.list_metadata(&one).await
        };
        match found.await {
            Ok(_) => Ok(Some(())),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_known(&self) -> bool {
        self.cache.snapshots.presence.is_known()
    }

    fn forget(&mut self) {
        self.departures.empty(&mut self.writers.contents);
        self.departures.empty(&mut self.writers.snapshots);
        self.departures.empty(&mut self.writers.classes);
        self.cache.snapshots.presence.note(false);
    }

    async fn follow(&mut self, (): ()) -> Option<WatchError> {
        let Self {
            client,
            cache,
            writers,
            queue,
            departures,
        } = self;
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
                    departures.reflect(&mut writers.contents, &event);
                    match event {
                        Event::Apply(content) | Event::Delete(content) => {
                            queue.add(&WorkItem::Snapshot(content.name_any()));
                            let of = &content.spec.volume_snapshot_ref;
                            if let (Some(namespace), Some(name)) = (&of.namespace, &of.name) {
                                queue_restores(cache, queue, namespace, name);
                            }
                            queue.add(&WorkItem::Configs);
                            // What a volume's deletion waits for may be over.
                            if let Some(handle) = content.spec.source.volume_handle {
                                cache.queue_handle(queue, &handle);
                            }
                        }
                        Event::InitDone => listed[0] = true,
                        Event::Init | Event::InitApply(_) => {}
                    }
                }
                Ok(Brought::Snapshot(event)) => {
                    let event = slim(event);
                    departures.reflect(&mut writers.snapshots, &event);
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
                    departures.reflect(&mut writers.classes, &event);
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
                cache.snapshots.presence.note(true);
                cache.queue_all(queue);
            }
        }
        None
    }
}
