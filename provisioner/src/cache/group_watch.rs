//! The watches of the API of group snapshots.

use futures::{StreamExt, stream};
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, Error as WatchError, Event, watcher};
use kube::{Client, ResourceExt};

use super::PAGE;
use super::departures::Departures;
use super::groups::GroupWriters;
use super::optional_api::OptionalApi;
use super::store::{Cache, slim};
use super::work_queue::{WorkItem, WorkQueue};
use crate::process::call::is_not_found;
use crate::volume::group_snapshot::{VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};

/// Keeps [`Groups`](super::groups::Groups) up to date and the queue filled.
pub(super) struct GroupApi {
    pub(super) client: Client,
    pub(super) cache: Cache,
    pub(super) writers: GroupWriters,
    pub(super) queue: WorkQueue,
    pub(super) departures: Departures,
}

/// What one of the two watches has brought.
#[allow(clippy::large_enum_variant)] // each lives for a moment only
enum Brought {
    Content(Event<VolumeGroupSnapshotContent>),
    Class(Event<VolumeGroupSnapshotClass>),
}

impl OptionalApi for GroupApi {
    const OBJECTS: &'static str = "volumegroupsnapshotcontents";
    type Served = ();

    async fn find(&self) -> Result<Option<()>, kube::Error> {
        let one = ListParams::default().limit(1);
        let contents: Api<VolumeGroupSnapshotContent> = Api::all(self.client.clone());
        let classes: Api<VolumeGroupSnapshotClass> = Api::all(self.client.clone());
        let found = async {
            contents.list_metadata(&one).await?;
            classes.list_metadata(&one).await
        };
        match found.await {
            Ok(_) => Ok(Some(())),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_known(&self) -> bool {
        self.cache.groups.presence.is_known()
    }

    fn forget(&mut self) {
        self.departures.empty(&mut self.writers.contents);
        self.departures.empty(&mut self.writers.classes);
        self.cache.groups.presence.note(false);
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
        let classes = watcher(Api::all(client.clone()), all()).map(|event| event.map(Brought::Class));
        let mut events = stream::select(contents.boxed(), classes.boxed());
        let mut listed = [false; 2];
        while let Some(event) = events.next().await {
            match event {
                Err(error) => return Some(error),
                Ok(Brought::Content(event)) => {
                    let event = slim(event);
                    departures.reflect(&mut writers.contents, &event);
                    match event {
                        Event::Apply(content) | Event::Delete(content) => {
                            queue.add(&WorkItem::Group(content.name_any()));
                            cache.snapshots.queue_members(queue, &content);
                            // What a volume's deletion waits for may be over.
                            for handle in content.spec.source.volume_handles {
                                cache.queue_handle(queue, &handle);
                            }
                        }
                        Event::InitDone => listed[0] = true,
                        Event::Init | Event::InitApply(_) => {}
                    }
                }
                Ok(Brought::Class(event)) => {
                    let event = slim(event);
                    departures.reflect(&mut writers.classes, &event);
                    match event {
                        Event::Apply(_) => cache.groups.queue(queue, None),
                        Event::InitDone => listed[1] = true,
                        Event::Delete(_) | Event::Init | Event::InitApply(_) => {}
                    }
                }
            }
            if listed == [true; 2] {
                listed = [false; 2];
                cache.groups.presence.note(true);
                cache.queue_all(queue);
            }
        }
        None
    }
}
