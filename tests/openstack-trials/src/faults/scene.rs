//! The lives of volumes and shares that runs go wrong in.

use super::fault::Choice;

/// The node that attachments are for.
pub(super) const NODE: &str = "node-1";

/// An operation of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Provision,
    Delete,
    Expand,
    Attach,
    Detach,
    Snapshot,
    DeleteSnapshot,
    Backup,
    DeleteBackup,
    Restore,
    RestoreBackup,
    Clone,
}

impl Act {
    /// As the contract calls it.
    pub(super) fn operation(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Delete => "delete",
            Self::Expand => "expand",
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Snapshot => "snapshot",
            Self::DeleteSnapshot => "delete-snapshot",
            Self::Backup => "backup",
            Self::DeleteBackup => "delete-backup",
            Self::Restore | Self::RestoreBackup => "restore",
            Self::Clone => "clone",
        }
    }

    /// Whether it makes or deletes a snapshot or a backup, not a volume.
    pub(super) fn is_about_other(self) -> bool {
        matches!(
            self,
            Self::Snapshot | Self::DeleteSnapshot | Self::Backup | Self::DeleteBackup
        )
    }

    /// Whether something is there afterwards that the next step of a round removes.
    pub(super) fn makes(self) -> bool {
        !matches!(
            self,
            Self::Delete | Self::Detach | Self::Expand | Self::DeleteSnapshot | Self::DeleteBackup
        )
    }
}

/// An operation on a volume, with the snapshot, the backup or the volume that it is about besides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) volume: &'static str,
    pub(super) other: &'static str,
    /// Whether it goes wrong.
    pub(super) fails: bool,
}

const fn fails(act: Act, volume: &'static str, other: &'static str) -> Step {
    Step {
        act,
        volume,
        other,
        fails: true,
    }
}

const fn works(act: Act, volume: &'static str, other: &'static str) -> Step {
    Step {
        fails: false,
        ..fails(act, volume, other)
    }
}

#[derive(Debug)]
pub(super) struct Scene {
    /// `cinder` or `manila`.
    pub(super) service: &'static str,
    pub(super) name: &'static str,
    pub(super) faults: Choice,
    /// Whether a share has one key, as where the image is not asked to attach.
    pub(super) has_key: bool,
    pub(super) before: &'static [Step],
    /// What is done for each fault.
    pub(super) round: &'static [Step],
    pub(super) after: &'static [Step],
}

/// The longest first.
pub(super) const SCENES: [Scene; 16] = [
    Scene {
        service: "manila",
        name: "restore",
        faults: Choice::Few,
        has_key: false,
        before: &[works(Act::Provision, "a", ""), works(Act::Snapshot, "a", "s")],
        round: &[fails(Act::Restore, "b", "s"), works(Act::Delete, "b", "")],
        after: &[works(Act::DeleteSnapshot, "a", "s"), works(Act::Delete, "a", "")],
    },
    Scene {
        service: "manila",
        name: "copy",
        faults: Choice::Few,
        has_key: false,
        before: &[works(Act::Provision, "a", "")],
        round: &[fails(Act::Clone, "b", "a"), works(Act::Delete, "b", "")],
        after: &[works(Act::Delete, "a", "")],
    },
    Scene {
        service: "cinder",
        name: "backup",
        faults: Choice::Few,
        has_key: false,
        before: &[works(Act::Provision, "a", "")],
        round: &[fails(Act::Backup, "a", "k"), fails(Act::DeleteBackup, "a", "k")],
        after: &[works(Act::Delete, "a", "")],
    },
    Scene {
        service: "cinder",
        name: "restored-backup",
        faults: Choice::Few,
        has_key: false,
        before: &[works(Act::Provision, "a", ""), works(Act::Backup, "a", "k")],
        round: &[fails(Act::RestoreBackup, "b", "k"), works(Act::Delete, "b", "")],
        after: &[works(Act::DeleteBackup, "a", "k"), works(Act::Delete, "a", "")],
    },
    Scene {
        service: "cinder",
        name: "attachment",
        faults: Choice::All,
        has_key: false,
        before: &[works(Act::Provision, "a", "")],
        round: &[fails(Act::Attach, "a", ""), fails(Act::Detach, "a", "")],
        after: &[works(Act::Delete, "a", "")],
    },
    Scene {
        service: "cinder",
        name: "last-snapshot",
        faults: Choice::Few,
        has_key: false,
        before: &[],
        round: &[
            works(Act::Provision, "a", ""),
            works(Act::Snapshot, "a", "s"),
            fails(Act::Delete, "a", ""),
            fails(Act::DeleteSnapshot, "a", "s"),
        ],
        after: &[],
    },
    Scene {
        service: "manila",
        name: "last-snapshot",
        faults: Choice::Few,
        has_key: false,
        before: &[],
        round: &[
            works(Act::Provision, "a", ""),
            works(Act::Snapshot, "a", "s"),
            fails(Act::Delete, "a", ""),
            fails(Act::DeleteSnapshot, "a", "s"),
        ],
        after: &[],
    },
    Scene {
        service: "manila",
        name: "share",
        faults: Choice::All,
        has_key: false,
        before: &[],
        round: &[fails(Act::Provision, "a", ""), fails(Act::Delete, "a", "")],
        after: &[],
    },
    Scene {
        service: "manila",
        name: "share-with-a-key",
        faults: Choice::Few,
        has_key: true,
        before: &[],
        round: &[fails(Act::Provision, "a", ""), fails(Act::Delete, "a", "")],
        after: &[],
    },
    Scene {
        service: "manila",
        name: "attachment",
        faults: Choice::All,
        has_key: false,
        before: &[works(Act::Provision, "a", "")],
        round: &[fails(Act::Attach, "a", ""), fails(Act::Detach, "a", "")],
        after: &[works(Act::Delete, "a", "")],
    },
    Scene {
        service: "cinder",
        name: "volume",
        faults: Choice::All,
        has_key: false,
        before: &[],
        round: &[fails(Act::Provision, "a", ""), fails(Act::Delete, "a", "")],
        after: &[],
    },
    Scene {
        service: "manila",
        name: "growth",
        faults: Choice::Few,
        has_key: false,
        before: &[works(Act::Provision, "a", "")],
        round: &[fails(Act::Expand, "a", "")],
        after: &[works(Act::Delete, "a", "")],
    },
    Scene {
        service: "cinder",
        name: "growth",
        faults: Choice::Few,
        has_key: false,
        before: &[works(Act::Provision, "a", "")],
        round: &[fails(Act::Expand, "a", "")],
        after: &[works(Act::Delete, "a", "")],
    },
    Scene {
        service: "cinder",
        name: "snapshot",
        faults: Choice::All,
        has_key: false,
        before: &[works(Act::Provision, "a", "")],
        round: &[fails(Act::Snapshot, "a", "s"), fails(Act::DeleteSnapshot, "a", "s")],
        after: &[works(Act::Delete, "a", "")],
    },
    Scene {
        service: "manila",
        name: "snapshot",
        faults: Choice::All,
        has_key: false,
        before: &[works(Act::Provision, "a", "")],
        round: &[fails(Act::Snapshot, "a", "s"), fails(Act::DeleteSnapshot, "a", "s")],
        after: &[works(Act::Delete, "a", "")],
    },
    Scene {
        service: "cinder",
        name: "restore-and-copy",
        faults: Choice::Few,
        has_key: false,
        before: &[works(Act::Provision, "a", ""), works(Act::Snapshot, "a", "s")],
        round: &[
            fails(Act::Restore, "b", "s"),
            works(Act::Delete, "b", ""),
            fails(Act::Clone, "c", "a"),
            works(Act::Delete, "c", ""),
        ],
        after: &[works(Act::DeleteSnapshot, "a", "s"), works(Act::Delete, "a", "")],
    },
];
