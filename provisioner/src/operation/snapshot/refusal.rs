//! Why a snapshot, a backup or the snapshots of a group are not taken.

use mooring_contract::names::parameters;

use crate::config::NotOffered;
use crate::operation::request::NoHistory;
use crate::volume::snapshot::{FormError, HandleError};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotRefusal {
    #[error("there is no PersistentVolume {0:?} to take the snapshot of: delete the snapshot")]
    NoVolume(String),
    #[error("Mooring did not make volume {0}, so it can't take a snapshot of it: use the means of its storage")]
    NotOurs(String),
    #[error("volume {0} has no claim any more, so Mooring can't take a snapshot of it: bind a claim to it")]
    Unclaimed(String),
    /// Something is being done to it.
    #[error("claim {0:?} has an operation in progress (see its Events): Mooring takes the snapshot after that")]
    Busy(String),
    #[error("the volume is on node {0}, which is not in the cluster: Mooring waits for the node")]
    NodeGone(String),
    /// All such contents would have one name on the storage.
    #[error(
        "{reference}.uid of the content is empty, and Mooring names the {what} after that uid: delete the content, and \
         create a {kind}, for which snapshot-controller creates a content with the uid"
    )]
    Unbound {
        /// The content's field.
        reference: &'static str,
        what: &'static str,
        /// Of the user's object.
        kind: &'static str,
    },
    /// What made it is not known.
    #[error(transparent)]
    Unknown(#[from] NoHistory),
    #[error("VolumeSnapshotClass {0:?} does not exist: Mooring waits for it")]
    NoClass(String),
    /// One run of one image takes all snapshots of a group.
    #[error(
        "ConfigMap {made_by} made volume {volume} of the group, and ConfigMap {serves} made another of its volumes: \
         have the selector choose claims of one ConfigMap only"
    )]
    OtherConfig {
        volume: String,
        /// The ConfigMap that made it.
        made_by: String,
        /// The ConfigMap that made the group's first volume.
        serves: String,
    },
    /// One run is on one node.
    #[error(
        "the group's volumes are on nodes {0} and {1}: have the selector choose claims whose volumes are on one node"
    )]
    OtherNode(String, String),
    /// A group is nothing that a backup could be made of.
    #[error(
        "VolumeGroupSnapshotClass {0:?} has parameter {key}, and groups can't be backed up: create the class again \
         without it, and back up the volumes one by one",
        key = parameters::BACKUP
    )]
    GroupBackup(String),
    #[error("VolumeGroupSnapshotClass {0:?} does not exist: Mooring waits for it")]
    NoGroupClass(String),
    /// The ConfigMap does not offer it.
    #[error(transparent)]
    NoOperation(#[from] NotOffered),
    /// A name that no administrator should have written.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// A class that no administrator should have written.
    #[error(transparent)]
    Form(#[from] FormError),
}

impl SnapshotRefusal {
    /// Whether it passes by itself.
    pub(super) fn is_wait(&self) -> bool {
        match self {
            Self::Busy(_) | Self::NodeGone(_) | Self::NoClass(_) | Self::NoGroupClass(_) => true,
            Self::NoVolume(_)
            | Self::NotOurs(_)
            | Self::Unclaimed(_)
            | Self::Unbound { .. }
            | Self::Unknown(_)
            | Self::OtherConfig { .. }
            | Self::OtherNode(..)
            | Self::GroupBackup(_)
            | Self::NoOperation(_)
            | Self::Handle(_)
            | Self::Form(_) => false,
        }
    }
}
