//! The properties of a run: their names, and the environment variable of each.

/// Names of the properties that Mooring itself sets. Any other key is the ConfigMap's, the class's or the secret's own.
pub mod keys {
    /// Begins the name of each parameter of the class in [`ATTRIBUTES_CLASS`]: its parameter `iops` is property
    /// `attribute-iops`.
    pub const ATTRIBUTE_PREFIX: &str = "attribute-";

    crate::keys! {
        /// All of these, in the contract's order.
        pub ALL:

        /// See [`crate::operation::Operation`].
        OPERATION = "operation";
        /// See [`crate::CONTRACT_VERSION`].
        CONTRACT = "contract";
        /// Name of the PV: the same at every retry.
        PV_NAME = "pv-name";
        /// Who created the claim; empty where the cluster does not say.
        USERNAME = "username";
        /// The creator's groups, comma-separated.
        GROUPS = "groups";
        /// Asked capacity in bytes.
        SIZE = "size";
        /// Asked capacity in GiB, rounded up.
        SIZE_GI = "size-gi";
        PVC_NAME = "pvc-name";
        PVC_NAMESPACE = "pvc-namespace";
        STORAGE_CLASS = "storage-class";
        /// The claim's access modes, comma-separated (`ReadWriteOnce,ReadOnlyMany`).
        ACCESS_MODES = "access-modes";
        /// `Filesystem` or `Block`.
        VOLUME_MODE = "volume-mode";
        /// The file system asked for by the class (`csi.storage.k8s.io/fstype` or `fs-type`); empty for the image's own
        /// choice.
        FS_TYPE = "fs-type";
        /// The class's mount options, comma-separated.
        MOUNT_OPTIONS = "mount-options";
        /// `Delete` or `Retain`.
        RECLAIM_POLICY = "reclaim-policy";
        /// The node chosen with WaitForFirstConsumer; empty with Immediate.
        NODE_NAME = "node-name";
        /// The chosen node's topology labels as JSON (`{"topology.kubernetes.io/zone":"a"}`); `{}` with Immediate.
        TOPOLOGY = "topology";
        /// The class's `allowedTopologies` as JSON (`[{"topology.kubernetes.io/zone":["a","b"]}]`). Not set where the
        /// class has none.
        ALLOWED_TOPOLOGIES = "allowed-topologies";
        /// The service account that the Pod runs as.
        SERVICE_ACCOUNT = "service-account";
        /// A token of that account.
        SERVICE_TOKEN = "service-token";
        /// Address of the Kubernetes API, `https://host:port`.
        KUBE_API = "kube-api";

        /// For `clone`: name of the PV to copy; for `restore`: of the PV that the snapshot or backup was taken of,
        /// empty where nobody knows. Not set for any other operation.
        SOURCE_PV_NAME = "source-pv-name";
        /// For `clone`: capacity of the volume to copy, in bytes; for `restore`: of the volume that the snapshot or
        /// backup was taken of, 0 where nobody knows. Not set for any other operation.
        SOURCE_SIZE = "source-size";
        /// For `snapshot`, `delete-snapshot` and the `restore` of a snapshot: its name, the same at every retry. Not
        /// set for any other operation.
        SNAPSHOT_NAME = "snapshot-name";
        /// For `backup`, `delete-backup` and the `restore` of a backup: its name, the same at every retry. Not set for
        /// any other operation.
        BACKUP_NAME = "backup-name";
        /// For `snapshot-group` and `delete-group`: the group's name, the same at every retry. Not set for any other
        /// operation.
        SNAPSHOT_GROUP = "snapshot-group";

        /// For `attach` and `detach`: addresses of the node, comma-separated; empty where its Node is gone. Not set for
        /// any other operation.
        NODE_ADDRESSES = "node-addresses";
        /// For `attach` and `detach`: the name by which the node's clients log in at a target (iSCSI). Not set for any
        /// other operation.
        INITIATOR_NAME = "initiator-name";
        /// For `attach` and `detach`: what the node's cloud calls it (its Node's `providerID`). Not set where that says
        /// nothing, nor for any other operation.
        NODE_PROVIDER_ID = "node-provider-id";
        /// For `detach`: `true` if the node is gone for good, so that the storage has to keep it out before this ends.
        NODE_GONE = "node-gone";
        /// For `attach`: what `pv options --seal` encrypts with.
        ANSWER_KEY = "answer-key";

        /// Name of the `VolumeAttributesClass` that the volume has or, for `modify`, is to have. Not set for a volume
        /// that has none.
        ATTRIBUTES_CLASS = "attributes-class";
    }
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
