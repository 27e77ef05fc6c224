//! The properties of a run: their names, and the environment variable of each.

/// Names of the properties that Mooring itself sets. Any other key is the ConfigMap's, the class's or the secret's own.
pub mod keys {
    /// See [`crate::operation::Operation`].
    pub const OPERATION: &str = "operation";
    /// See [`crate::CONTRACT_VERSION`].
    pub const CONTRACT: &str = "contract";
    /// Name of the PV: the same at every retry.
    pub const PV_NAME: &str = "pv-name";
    /// Who created the claim; empty where the cluster does not say.
    pub const USERNAME: &str = "username";
    /// The creator's groups, comma-separated.
    pub const GROUPS: &str = "groups";
    /// Asked capacity in bytes.
    pub const SIZE: &str = "size";
    /// Asked capacity in GiB, rounded up.
    pub const SIZE_GI: &str = "size-gi";
    pub const PVC_NAME: &str = "pvc-name";
    pub const PVC_NAMESPACE: &str = "pvc-namespace";
    pub const STORAGE_CLASS: &str = "storage-class";
    /// The claim's access modes, comma-separated (`ReadWriteOnce,ReadOnlyMany`).
    pub const ACCESS_MODES: &str = "access-modes";
    /// `Filesystem` or `Block`.
    pub const VOLUME_MODE: &str = "volume-mode";
    /// The file system asked for by the class (`csi.storage.k8s.io/fstype` or `fs-type`); empty for the image's own
    /// choice.
    pub const FS_TYPE: &str = "fs-type";
    /// The class's mount options, comma-separated.
    pub const MOUNT_OPTIONS: &str = "mount-options";
    /// `Delete` or `Retain`.
    pub const RECLAIM_POLICY: &str = "reclaim-policy";
    /// The node chosen with WaitForFirstConsumer; empty with Immediate.
    pub const NODE_NAME: &str = "node-name";
    /// The chosen node's topology labels as JSON (`{"topology.kubernetes.io/zone":"a"}`); `{}` with Immediate.
    pub const TOPOLOGY: &str = "topology";
    /// The class's `allowedTopologies` as JSON (`[{"topology.kubernetes.io/zone":["a","b"]}]`). Not set where the class
    /// has none.
    pub const ALLOWED_TOPOLOGIES: &str = "allowed-topologies";
    /// The service account that the Pod runs as.
    pub const SERVICE_ACCOUNT: &str = "service-account";
    /// A token of that account.
    pub const SERVICE_TOKEN: &str = "service-token";
    /// Address of the Kubernetes API, `https://host:port`.
    pub const KUBE_API: &str = "kube-api";

    /// For `clone`: name of the PV to copy; for `restore`: of the PV that the snapshot or backup was taken of, empty
    /// where nobody knows. Not set for any other operation.
    pub const SOURCE_PV_NAME: &str = "source-pv-name";
    /// For `clone`: capacity of the volume to copy, in bytes; for `restore`: of the volume that the snapshot or backup
    /// was taken of, 0 where nobody knows. Not set for any other operation.
    pub const SOURCE_SIZE: &str = "source-size";
    /// For `snapshot`, `delete-snapshot` and the `restore` of a snapshot: its name, the same at every retry. Not set
    /// for any other operation.
    pub const SNAPSHOT_NAME: &str = "snapshot-name";
    /// For `backup`, `delete-backup` and the `restore` of a backup: its name, the same at every retry. Not set for any
    /// other operation.
    pub const BACKUP_NAME: &str = "backup-name";
    /// For `snapshot-group` and `delete-group`: the group's name, the same at every retry. Not set for any other
    /// operation.
    pub const SNAPSHOT_GROUP: &str = "snapshot-group";

    /// For `attach` and `detach`: addresses of the node, comma-separated; empty where its Node is gone. Not set for any
    /// other operation.
    pub const NODE_ADDRESSES: &str = "node-addresses";
    /// For `attach` and `detach`: the name by which the node's clients log in at a target (iSCSI). Not set for any
    /// other operation.
    pub const INITIATOR_NAME: &str = "initiator-name";
    /// For `attach` and `detach`: what the node's cloud calls it (its Node's `providerID`). Not set where that says
    /// nothing, nor for any other operation.
    pub const NODE_PROVIDER_ID: &str = "node-provider-id";
    /// For `detach`: `true` if the node is gone for good, so that the storage has to keep it out before this ends.
    pub const NODE_GONE: &str = "node-gone";
    /// For `attach`: what `pv options --seal` encrypts with.
    pub const ANSWER_KEY: &str = "answer-key";

    /// Name of the `VolumeAttributesClass` that the volume has or, for `modify`, is to have. Not set for a volume that
    /// has none.
    pub const ATTRIBUTES_CLASS: &str = "attributes-class";
    /// Begins the name of each parameter of that class: its parameter `iops` is property `attribute-iops`.
    pub const ATTRIBUTE_PREFIX: &str = "attribute-";

    /// All of the above but the prefix, in the contract's order.
    pub const ALL: &[&str] = &[
        OPERATION,
        CONTRACT,
        PV_NAME,
        USERNAME,
        GROUPS,
        SIZE,
        SIZE_GI,
        PVC_NAME,
        PVC_NAMESPACE,
        STORAGE_CLASS,
        ACCESS_MODES,
        VOLUME_MODE,
        FS_TYPE,
        MOUNT_OPTIONS,
        RECLAIM_POLICY,
        NODE_NAME,
        TOPOLOGY,
        ALLOWED_TOPOLOGIES,
        SERVICE_ACCOUNT,
        SERVICE_TOKEN,
        KUBE_API,
        SOURCE_PV_NAME,
        SOURCE_SIZE,
        SNAPSHOT_NAME,
        BACKUP_NAME,
        SNAPSHOT_GROUP,
        NODE_ADDRESSES,
        INITIATOR_NAME,
        NODE_PROVIDER_ID,
        NODE_GONE,
        ANSWER_KEY,
        ATTRIBUTES_CLASS,
    ];
}

/// The environment variable that carries a property: upper-cased, `-` and `.` as `_`.
///
/// ```
/// assert_eq!(mooring_contract::property::env_name("use-nfs-server"), "USE_NFS_SERVER");
/// ```
pub fn env_name(property: &str) -> String {
    property
        .chars()
        .map(|c| match c {
            '-' | '.' => '_',
            c => c.to_ascii_uppercase(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{env_name, keys};
    use std::collections::BTreeSet;

    #[test]
    fn mooring_s_own_properties_do_not_collide_as_variables() {
        let names: BTreeSet<_> = keys::ALL.iter().map(|key| env_name(key)).collect();
        assert_eq!(names.len(), keys::ALL.len());
    }
}
