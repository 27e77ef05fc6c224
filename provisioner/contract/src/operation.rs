//! What a provisioning image can be asked to do.

use serde::{Deserialize, Serialize};

/// One operation on one volume, or on a group of them; property `operation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Make the volume.
    Provision,
    /// Remove the volume.
    Delete,
    /// Make the volume larger.
    Expand,
    /// Give the volume other attributes.
    Modify,
    /// Make the volume as a copy of another.
    Clone,
    /// Take a snapshot of the volume.
    Snapshot,
    /// Remove a snapshot.
    DeleteSnapshot,
    /// Take snapshots of several volumes at once.
    SnapshotGroup,
    /// Remove the snapshots of such a group.
    DeleteGroup,
    /// Make the volume with the content of a snapshot or a backup.
    Restore,
    /// Copy the volume elsewhere.
    Backup,
    /// Remove such a copy.
    DeleteBackup,
    /// Make the volume reachable from a node.
    Attach,
    /// Undo [`Operation::Attach`].
    Detach,
    /// List what the storage has.
    Discover,
}

impl Operation {
    pub const ALL: [Self; 15] = [
        Self::Provision,
        Self::Delete,
        Self::Expand,
        Self::Modify,
        Self::Clone,
        Self::Snapshot,
        Self::DeleteSnapshot,
        Self::SnapshotGroup,
        Self::DeleteGroup,
        Self::Restore,
        Self::Backup,
        Self::DeleteBackup,
        Self::Attach,
        Self::Detach,
        Self::Discover,
    ];

    /// The operation's name as the image sees it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Delete => "delete",
            Self::Expand => "expand",
            Self::Modify => "modify",
            Self::Clone => "clone",
            Self::Snapshot => "snapshot",
            Self::DeleteSnapshot => "delete-snapshot",
            Self::SnapshotGroup => "snapshot-group",
            Self::DeleteGroup => "delete-group",
            Self::Backup => "backup",
            Self::DeleteBackup => "delete-backup",
            Self::Restore => "restore",
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Discover => "discover",
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
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
