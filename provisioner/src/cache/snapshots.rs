//! What is known of the cluster's snapshots. A cluster may have no snapshot API: then nothing is known of it and nobody
//! waits for it, until a watch finds it.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::table::Table;
use super::work_queue::{WorkItem, WorkQueue};
use crate::operation::content::SourceRef;
use crate::volume::content_view::ContentView;
use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

/// The objects of the snapshot API that the watches have brought.
#[derive(Clone, Default)]
pub struct Snapshots {
    pub contents: Table<VolumeSnapshotContent>,
    pub snapshots: Table<VolumeSnapshot>,
    pub classes: Table<VolumeSnapshotClass>,
}

impl Snapshots {
    pub fn content(&self, name: &str) -> Option<Arc<VolumeSnapshotContent>> {
        self.contents.get(&ObjectRef::new(name))
    }

    /// The snapshot that a claim names, and the content that this says to be bound to.
    pub(super) fn source_of(
        &self,
        source: SourceRef<'_>,
    ) -> (Option<Arc<VolumeSnapshot>>, Option<Arc<VolumeSnapshotContent>>) {
        let named = ObjectRef::new(source.name).within(source.namespace);
        let snapshot = self.snapshots.get(&named);
        let content = snapshot.as_ref().and_then(|snapshot| {
            let status = snapshot.status.as_ref()?;
            self.content(status.bound_volume_snapshot_content_name.as_deref()?)
        });
        (snapshot, content)
    }

    /// Queues the contents of a group's snapshots.
    pub(super) fn queue_members(&self, queue: &WorkQueue, group: &VolumeGroupSnapshotContent) {
        let group = ContentView::from(group);
        let wanted = |content: &VolumeSnapshotContent| {
            let view = content.view();
            view.of_group.is_some() && view.of_group == group.handle()
        };
        for content in self.contents.state_filter(wanted) {
            queue.add(&WorkItem::Snapshot(content.name_any()));
        }
    }

    /// Queues the contents that may have something open: of a volume, or all.
    pub(super) fn queue(&self, queue: &WorkQueue, of_volume: Option<&str>) {
        let wanted = |content: &VolumeSnapshotContent| {
            let of = of_volume.is_none_or(|volume| content.spec.source.volume_handle.as_deref() == Some(volume));
            of && content.view().is_ours()
        };
        for content in self.contents.state_filter(wanted) {
            queue.add(&WorkItem::Snapshot(content.name_any()));
        }
    }
}
