//! The operations of the contract that this controller has the image run.

use mooring_contract::operation::Operation;
use serde::{Deserialize, Serialize};

/// An operation that this controller has the image run. [`crate::operation::describe`] has the description of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
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
    /// Make the volume with the content of a snapshot or a backup.
    Restore,
    /// Copy the volume elsewhere.
    Backup,
    /// Remove such a copy.
    DeleteBackup,
    /// List what the storage can serve.
    Discover,
    /// Have the storage let a node have the volume.
    Attach,
    /// Have the storage take the volume from a node.
    Detach,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Provision,
        Self::Delete,
        Self::Expand,
        Self::Modify,
        Self::Clone,
        Self::Snapshot,
        Self::DeleteSnapshot,
        Self::Restore,
        Self::Backup,
        Self::DeleteBackup,
        Self::Attach,
        Self::Detach,
        Self::Discover,
    ];

    /// The kind of an operation of the contract; `None` if this version does not run it.
    ///
    /// Here alone it is decided which operations are run: one that the contract gains does not compile until it has an
    /// arm.
    pub fn of(operation: Operation) -> Option<Self> {
        match operation {
            Operation::Provision => Some(Self::Provision),
            Operation::Delete => Some(Self::Delete),
            Operation::Expand => Some(Self::Expand),
            Operation::Modify => Some(Self::Modify),
            Operation::Clone => Some(Self::Clone),
            Operation::Snapshot => Some(Self::Snapshot),
            Operation::DeleteSnapshot => Some(Self::DeleteSnapshot),
            Operation::Restore => Some(Self::Restore),
            Operation::Backup => Some(Self::Backup),
            Operation::DeleteBackup => Some(Self::DeleteBackup),
            Operation::Discover => Some(Self::Discover),
            Operation::Attach => Some(Self::Attach),
            Operation::Detach => Some(Self::Detach),
        }
    }

    /// The operation's name as the image sees it.
    pub fn as_str(self) -> &'static str {
        Operation::from(self).as_str()
    }

    /// The kind that a run's label names; `None` if it names no operation that is run here.
    pub fn of_label(label: &str) -> Option<Self> {
        label.parse().ok().and_then(Self::of)
    }
}

impl From<Kind> for Operation {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Provision => Self::Provision,
            Kind::Delete => Self::Delete,
            Kind::Expand => Self::Expand,
            Kind::Modify => Self::Modify,
            Kind::Clone => Self::Clone,
            Kind::Snapshot => Self::Snapshot,
            Kind::DeleteSnapshot => Self::DeleteSnapshot,
            Kind::Restore => Self::Restore,
            Kind::Backup => Self::Backup,
            Kind::DeleteBackup => Self::DeleteBackup,
            Kind::Discover => Self::Discover,
            Kind::Attach => Self::Attach,
            Kind::Detach => Self::Detach,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;
    use mooring_contract::operation::Operation;

    #[test]
    fn a_kind_is_read_from_a_label_a_record_and_the_contract() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_label(kind.as_str()), Some(kind));
            assert_eq!(Kind::of(Operation::from(kind)), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert_eq!(Kind::of_label("no operation"), None);
    }

    #[test]
    fn every_operation_that_has_a_kind_is_listed() {
        let kinds: Vec<_> = Operation::ALL.into_iter().filter_map(Kind::of).collect();
        assert_eq!(kinds, Kind::ALL);
    }
}
