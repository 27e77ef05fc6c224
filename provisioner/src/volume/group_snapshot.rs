//! The objects of the API of group snapshots, as far as Mooring reads them.
//!
//! The types are those of kubernetes-csi/external-snapshotter, `client/apis/volumegroupsnapshot/v1/types.go`. A user's
//! `VolumeGroupSnapshot` is not among them: all that Mooring needs of it, its content says.

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::snapshot::{DeletionPolicy, SnapshotError, VolumeSnapshotClass, kind};

/// The API group of group snapshots.
pub const GROUP: &str = "groupsnapshot.storage.k8s.io";

/// The snapshots of a group on the storage, and how to take them. snapshot-controller makes one for each
/// `VolumeGroupSnapshot`; an administrator makes one for existing snapshots.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct VolumeGroupSnapshotContent {
    pub metadata: ObjectMeta,
    pub spec: GroupContentSpec,
    pub status: Option<GroupContentStatus>,
}

/// What a [`VolumeGroupSnapshotContent`] asks for.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupContentSpec {
    /// The `VolumeGroupSnapshot` that it is for. The uid of a content that an administrator made is empty until they
    /// are bound.
    pub volume_group_snapshot_ref: ObjectReference,
    /// Whether the snapshots go with their objects.
    pub deletion_policy: DeletionPolicy,
    pub driver: String,
    /// The class, with the image's parameters.
    pub volume_group_snapshot_class_name: Option<String>,
    /// What the snapshots are of, or are.
    pub source: GroupContentSource,
}

/// What the snapshots of a group are of, or are: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupContentSource {
    #[serde(default)]
    pub volume_handles: Vec<String>,
    /// The handles of snapshots that are there already.
    pub group_snapshot_handles: Option<GroupSnapshotHandles>,
}

/// A group of snapshots that exists already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshotHandles {
    pub volume_group_snapshot_handle: String,
    pub volume_snapshot_handles: Vec<String>,
}

/// What there is of a group of snapshots.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupContentStatus {
    /// See [`Handle`](super::snapshot::Handle).
    pub volume_group_snapshot_handle: Option<String>,
    /// Whether volumes can be made of all of them.
    pub ready_to_use: Option<bool>,
    /// Why there are none yet.
    pub error: Option<SnapshotError>,
}

/// How the snapshots of groups are taken. It has the fields of a [`VolumeSnapshotClass`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct VolumeGroupSnapshotClass(pub VolumeSnapshotClass);

kind!(VolumeGroupSnapshotContent of GROUP: ClusterResourceScope, "volumegroupsnapshotcontents", metadata);
kind!(VolumeGroupSnapshotClass of GROUP: ClusterResourceScope, "volumegroupsnapshotclasses", 0.metadata);

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::{VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};
    use crate::volume::content_view::ContentView;

    /// A content as snapshot-controller makes it, with changes to its parts.
    pub(crate) fn group_content(change: &Value) -> Value {
        let mut content = json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
            "metadata": {"name": "groupsnapcontent-g1", "uid": "s1", "finalizers": [
                "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"]},
            "spec": {
                "driver": "vcs.mooring.dev", "deletionPolicy": "Delete",
                "source": {"volumeHandles": ["pvc-u1", "pvc-u2"]}, "volumeGroupSnapshotClassName": "silver",
                "volumeGroupSnapshotRef": {"kind": "VolumeGroupSnapshot", "namespace": "default", "name": "monday",
                                           "uid": "v1", "apiVersion": "groupsnapshot.storage.k8s.io/v1"},
            },
        });
        for (part, new) in change.as_object().unwrap() {
            for (key, value) in new.as_object().unwrap() {
                content[part][key] = value.clone();
            }
        }
        content
    }

    #[test]
    fn a_class_of_groups_is_read_as_one_of_snapshots() {
        let class = json!({"metadata": {"name": "a"}, "driver": "vcs.mooring.dev", "deletionPolicy": "Delete",
                           "parameters": {"tier": "cold"}});
        let VolumeGroupSnapshotClass(class) = serde_json::from_value(class).unwrap();
        assert_eq!(class.metadata.name.as_deref(), Some("a"));
        assert_eq!(class.parameters.unwrap()["tier"], "cold");
    }

    #[test]
    fn a_content_of_a_group_says_what_that_of_a_snapshot_says() {
        let is_over = |change: &Value| {
            let content: VolumeGroupSnapshotContent = serde_json::from_value(group_content(change)).unwrap();
            let view = ContentView::from(&content);
            assert!(view.is_ours() && view.is_group && !view.is_ready);
            view.is_over()
        };
        let going = json!("2026-11-21T00:00:00Z");
        let marked = json!({"groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted": "yes"});
        assert!(!is_over(&json!({})));
        assert!(!is_over(&json!({"metadata": {"deletionTimestamp": going}})));
        assert!(!is_over(&json!({"metadata": {"annotations": marked}})), "retained");
        assert!(is_over(
            &json!({"metadata": {"deletionTimestamp": going, "annotations": marked}})
        ));
        let handles = json!({"volumeGroupSnapshotHandle": "group:a/b/c", "volumeSnapshotHandles": ["a/b/c.d"]});
        let unbound = json!({"metadata": {"deletionTimestamp": going}, "spec": {
            "source": {"groupSnapshotHandles": handles},
            "volumeGroupSnapshotRef": {"name": "x", "namespace": "y"}}});
        assert!(is_over(&unbound));
    }
}
