//! `/run/mooring/request.json`: the properties of a run, typed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::operation::Operation;

/// One run of a provisioning image: one operation on one volume, or on a group of them.
///
/// The same values stand in `/run/mooring/properties/` and in the environment; see `docs/vendors.md`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Request {
    /// Contract version, [`crate::CONTRACT_VERSION`].
    pub contract: u32,
    pub operation: Operation,
    /// Name of the PV, `pvc-<claim uid>`: the same at every retry, so it is the idempotency key.
    pub pv_name: String,
    /// Who created the claim; empty where the cluster does not say.
    pub username: String,
    /// The creator's groups.
    pub groups: Vec<String>,
    /// Asked capacity in bytes.
    pub size: u64,
    /// Asked capacity in GiB, rounded up.
    pub size_gi: u64,
    pub pvc_name: String,
    pub pvc_namespace: String,
    pub pvc_uid: String,
    pub storage_class: String,
    /// The claim's access modes, as Kubernetes spells them.
    pub access_modes: Vec<String>,
    /// `Filesystem` or `Block`.
    pub volume_mode: String,
    /// File system asked for by the class; empty for the image's own choice.
    pub fs_type: String,
    /// The class's mount options.
    pub mount_options: Vec<String>,
    /// `Delete` or `Retain`.
    pub reclaim_policy: String,
    /// For what takes or deletes a snapshot, a backup or a group: the deletion policy of its content, `Delete` or
    /// `Retain`. Empty in requests of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deletion_policy: String,
    /// The node chosen with WaitForFirstConsumer; empty with Immediate.
    pub node_name: String,
    /// The chosen node's topology labels.
    pub topology: BTreeMap<String, String>,
    /// The class's `allowedTopologies`: labels, each with the values of which a node has one. A node has to have all
    /// labels of one of them. None: the volume is for all nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_topologies: Vec<BTreeMap<String, Vec<String>>>,
    /// The service account that the Pod runs as; empty if it runs without rights.
    pub service_account: String,
    /// Address of the Kubernetes API.
    pub kube_api: String,
    /// Every key that Mooring does not know: of the ConfigMap, the class's parameters and the secret, in rising
    /// precedence. Values of a Secret and the token are in the property files only.
    pub parameters: BTreeMap<String, String>,
    /// For `delete` and later operations: the options of the existing volume, as its PV has them. Empty before.
    #[serde(default)]
    pub volume: BTreeMap<String, String>,
    /// For `clone`: the volume to copy. For `restore`: the volume that the snapshot or backup was taken of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// For `snapshot`, `backup`, `snapshot-group`, what deletes one, and `restore`: the snapshot, backup or group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// The attributes that the volume has or, for `modify`, is to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Whether nodes get the volume by `attach`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attaches: bool,
    /// For `attach` and `detach`: what the storage may need to know of node [`Self::node_name`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Attachment>,
}

/// The attachment of a volume to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Attachment {
    /// The node's addresses; empty where its Node is gone.
    pub addresses: Vec<String>,
    /// The name by which the node's clients log in at a target.
    pub initiator: String,
    /// What the node's cloud calls it, as its Node says it; empty where that says nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// The node is gone for good: the storage has to keep it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// What a claim asks of its volume by a `VolumeAttributesClass`, which can be changed during the volume's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Attributes {
    pub class: String,
    pub parameters: BTreeMap<String, String>,
}

/// The snapshot, backup or group of snapshots that an operation is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Snapshot {
    /// Its name on the storage: the same at every retry.
    pub name: String,
    /// Name of its `VolumeSnapshotContent` or `VolumeGroupSnapshotContent`.
    pub content_name: String,
    pub content_uid: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
    /// For a group, its snapshots, each with its volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Member>>,
}

/// One snapshot of a group. Where an administrator has named the group, nothing is known of the volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Member {
    /// Name of the snapshot on the storage: the same at every retry.
    pub snapshot_name: String,
    pub pv_name: String,
    /// What Kubernetes calls the volume.
    pub volume_handle: String,
    /// `Filesystem` or `Block`.
    pub volume_mode: String,
    /// Name of the volume's claim.
    pub pvc_name: String,
    pub pvc_uid: String,
    /// The volume's capacity in bytes.
    pub size: u64,
    /// The volume's options, as its PV has them.
    pub volume: BTreeMap<String, String>,
    /// The parameters that the volume was made with.
    pub parameters: BTreeMap<String, String>,
}

/// The volume that a `clone` copies, or that a snapshot or backup was taken of. Where an administrator has named one,
/// nothing is known of its volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Source {
    pub pv_name: String,
    pub pvc_name: String,
    /// That claim's namespace; empty in requests of earlier versions, where it is that of the claim that is made.
    #[serde(default)]
    pub pvc_namespace: String,
    pub pvc_uid: String,
    /// Its capacity in bytes: the new volume's is not smaller.
    pub size: u64,
    /// Its options, as its PV has them.
    pub volume: BTreeMap<String, String>,
}

impl Request {
    /// The snapshots of the group that it is about; none if it is about no group.
    pub fn members(&self) -> &[Member] {
        let members = self.snapshot.as_ref().and_then(|snapshot| snapshot.members.as_deref());
        members.unwrap_or_default()
    }

    /// Whether it is about the volume of this PV, alone or with others.
    pub fn is_about(&self, pv_name: &str) -> bool {
        self.pv_name == pv_name || self.members().iter().any(|member| member.pv_name == pv_name)
    }
}

/// Bytes in a GiB.
const GIB: u64 = 1 << 30;

/// Bytes in GiB, rounded up.
pub fn gib_rounded_up(bytes: u64) -> u64 {
    bytes.div_ceil(GIB)
}

#[cfg(test)]
mod tests {
    use super::{GIB, gib_rounded_up};

    #[test]
    fn a_started_gibibyte_counts_whole() {
        assert_eq!(gib_rounded_up(0), 0);
        assert_eq!(gib_rounded_up(1), 1);
        assert_eq!(gib_rounded_up(GIB), 1);
        assert_eq!(gib_rounded_up(GIB + 1), 2);
        assert_eq!(gib_rounded_up(u64::MAX), 1 << 34);
    }
}
