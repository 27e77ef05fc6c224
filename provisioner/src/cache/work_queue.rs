//! The queue of claims, PVs and snapshots that a controller is to look at again.

use std::sync::Arc;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::snapshot::VolumeSnapshotContent;

/// What a controller looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkItem {
    /// The claim of this namespace and name.
    Claim(String, String),
    /// The PV of this name.
    Volume(String),
    /// The `VolumeSnapshotContent` of this name.
    Snapshot(String),
    /// The `VolumeGroupSnapshotContent` of this name.
    Group(String),
    /// The provisioner ConfigMaps that promise to discover: they are looked at together.
    Configs,
}

/// The end of the queue that watches add to. Without a limit: what is sent is two strings, and the controllers merge
/// repetitions.
#[derive(Debug, Clone)]
pub struct WorkQueue {
    claims: UnboundedSender<ObjectRef<PersistentVolumeClaim>>,
    volumes: UnboundedSender<ObjectRef<PersistentVolume>>,
    snapshots: UnboundedSender<ObjectRef<VolumeSnapshotContent>>,
    groups: UnboundedSender<ObjectRef<VolumeGroupSnapshotContent>>,
    configs: Arc<Notify>,
}

/// The end of the queue that the controllers take from.
#[derive(Debug)]
pub struct Queued {
    pub claims: UnboundedReceiver<ObjectRef<PersistentVolumeClaim>>,
    pub volumes: UnboundedReceiver<ObjectRef<PersistentVolume>>,
    pub snapshots: UnboundedReceiver<ObjectRef<VolumeSnapshotContent>>,
    pub groups: UnboundedReceiver<ObjectRef<VolumeGroupSnapshotContent>>,
}

impl WorkQueue {
    /// An empty queue, by its two ends.
    pub fn new() -> (Self, Queued) {
        let (claims, queued_claims) = unbounded();
        let (volumes, queued_volumes) = unbounded();
        let (snapshots, queued_snapshots) = unbounded();
        let (groups, queued_groups) = unbounded();
        (
            Self {
                claims,
                volumes,
                snapshots,
                groups,
                configs: Arc::default(),
            },
            Queued {
                claims: queued_claims,
                volumes: queued_volumes,
                snapshots: queued_snapshots,
                groups: queued_groups,
            },
        )
    }

    /// Returns when it is time to look at the ConfigMaps again.
    pub async fn configs_queued(&self) {
        self.configs.notified().await;
    }

    /// Has an object looked at. After the controllers have stopped it does nothing.
    pub fn add(&self, target: &WorkItem) {
        match target {
            WorkItem::Claim(namespace, name) => send(&self.claims, ObjectRef::new(name).within(namespace)),
            WorkItem::Volume(name) => send(&self.volumes, ObjectRef::new(name)),
            WorkItem::Snapshot(name) => send(&self.snapshots, ObjectRef::new(name)),
            WorkItem::Group(name) => send(&self.groups, ObjectRef::new(name)),
            WorkItem::Configs => self.configs.notify_one(),
        }
    }
}

fn send<T>(queue: &UnboundedSender<T>, item: T) {
    let _ = queue.unbounded_send(item);
}
