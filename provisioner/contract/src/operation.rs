//! What a provisioning image can be asked to do.

use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// One operation on one volume, or on a group of them; property `operation`, where the image sees these names.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Operation {
        /// Make the volume.
        #[default]
        Provision = "provision",
        /// Remove the volume.
        Delete = "delete",
        /// Make the volume larger.
        Expand = "expand",
        /// Give the volume other attributes.
        Modify = "modify",
        /// Make the volume as a copy of another.
        Clone = "clone",
        /// Take a snapshot of the volume.
        Snapshot = "snapshot",
        /// Remove a snapshot.
        DeleteSnapshot = "delete-snapshot",
        /// Take snapshots of several volumes at once.
        SnapshotGroup = "snapshot-group",
        /// Remove the snapshots of such a group.
        DeleteGroup = "delete-group",
        /// Make the volume with the content of a snapshot or a backup.
        Restore = "restore",
        /// Copy the volume elsewhere.
        Backup = "backup",
        /// Remove such a copy.
        DeleteBackup = "delete-backup",
        /// Make the volume reachable from a node.
        Attach = "attach",
        /// Undo [`Operation::Attach`].
        Detach = "detach",
        /// List what the storage has.
        Discover = "discover",
    }
}

#[derive(Debug, thiserror::Error)]
#[error("unknown operation {0:?}")]
pub struct UnknownOperation(String);

impl std::str::FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|operation| operation.as_str() == s)
            .ok_or_else(|| UnknownOperation(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::Operation;

    #[test]
    fn every_operation_reads_back_from_its_name_and_from_json() {
        for operation in Operation::ALL {
            assert_eq!(operation.as_str().parse::<Operation>().unwrap(), operation);
            let json = serde_json::to_string(&operation).unwrap();
            assert_eq!(json, format!("{:?}", operation.as_str()));
        }
        assert!("provison".parse::<Operation>().is_err());
    }
}
