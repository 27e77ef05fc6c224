//! The nodes of a volume that has to be attached, as its PV has them.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use mooring_contract::attachment::{AttachedNodes, is_for_many};
use mooring_contract::names::annotations;

use crate::operation::record::Record;

#[derive(Debug, Clone, Default)]
pub struct VolumeNodes {
    /// Those that the storage lets have it.
    pub attached: AttachedNodes,
    /// Attachments and detachments that wait while another node has its turn. Whether the storage lets such a node have
    /// the volume is not known.
    pub deferred: Vec<Record>,
    /// Whether several nodes can have it at once.
    pub for_many: bool,
}

impl VolumeNodes {
    pub fn of(volume: &PersistentVolume) -> Self {
        let note = |key: &str| volume.annotations().get(key);
        let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
        Self {
            attached: note(annotations::ATTACHED_TO)
                .and_then(|text| AttachedNodes::parse(text).ok())
                .unwrap_or_default(),
            deferred: note(annotations::DEFERRED)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
            for_many: is_for_many(modes.unwrap_or_default()),
        }
    }

    pub fn deferred_of(&self, node: &str) -> Option<&Record> {
        self.deferred.iter().find(|record| record.node == node)
    }

    /// The nodes that have the volume, or may have it.
    pub fn names(&self) -> Vec<&str> {
        let attached = self.attached.0.iter().map(|to| to.node.as_str());
        attached
            .chain(self.deferred.iter().map(|record| record.node.as_str()))
            .collect()
    }

    /// Whether it may have the volume.
    pub fn concern(&self, node: &str) -> bool {
        self.attached.has(node) || self.deferred_of(node).is_some()
    }

    /// Whether this node can have it beside the others that have it, or may have it.
    pub fn have_room_for(&self, node: &str) -> bool {
        self.for_many || self.names().iter().all(|other| *other == node)
    }

    /// The annotation of what is deferred, without that of this node; `None` if there is nothing.
    pub fn deferred_without(&self, node: &str) -> Option<String> {
        text(self.deferred.iter().filter(|record| record.node != node))
    }

    /// The annotation of what is deferred, with this.
    pub fn deferred_with(&self, record: &Record) -> Option<String> {
        let others = self.deferred.iter().filter(|other| other.node != record.node);
        text(others.chain([record]))
    }
}

fn text<'a>(records: impl Iterator<Item = &'a Record>) -> Option<String> {
    let records: Vec<_> = records.collect();
    (!records.is_empty()).then(|| serde_json::to_string(&records).unwrap_or_default())
}
