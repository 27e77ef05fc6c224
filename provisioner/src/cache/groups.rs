//! What is known of the cluster's group snapshots. A cluster may have no such API: then nothing is known of it and
//! nobody waits for it, until a watch finds it.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::table::Table;
use super::work_queue::{WorkItem, WorkQueue};
use crate::volume::content_view::ContentView;
use crate::volume::group_snapshot::{VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};

/// The objects of the API of group snapshots that the watches have brought.
#[derive(Clone, Default)]
pub struct Groups {
    pub contents: Table<VolumeGroupSnapshotContent>,
    pub classes: Table<VolumeGroupSnapshotClass>,
}

impl Groups {
    pub fn content(&self, name: &str) -> Option<Arc<VolumeGroupSnapshotContent>> {
        self.contents.get(&ObjectRef::new(name))
    }

    /// The content of the group that a snapshot belongs to, by the handle that the snapshot's content says, or by what
    /// an administrator has named.
    pub fn of(&self, snapshot: &ContentView<'_>) -> Option<Arc<VolumeGroupSnapshotContent>> {
        let (group, named) = (snapshot.of_group, snapshot.named);
        if group.is_none() && named.is_none() {
            return None;
        }
        self.contents.find(|content| {
            let view = ContentView::from(content);
            let by_handle = group.is_some() && view.handle() == group;
            let by_name = named.is_some_and(|named| view.named_members.iter().any(|member| member == named));
            view.is_ours() && (by_handle || by_name)
        })
    }

    /// Queues the contents that may have something open: of a volume, or all.
    pub(super) fn queue(&self, queue: &WorkQueue, of_volume: Option<&str>) {
        let wanted = |content: &VolumeGroupSnapshotContent| {
            let volumes = &content.spec.source.volume_handles;
            let of = of_volume.is_none_or(|volume| volumes.iter().any(|handle| handle == volume));
            of && ContentView::from(content).is_ours()
        };
        for content in self.contents.state_filter(wanted) {
            queue.add(&WorkItem::Group(content.name_any()));
        }
    }
}
