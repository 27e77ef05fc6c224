//! Each operation described once: which object asks for it, where its intent is recorded, what the image is given, what
//! becomes of the answer, what it changes and reads, and how Events name it. Whatever serves several operations asks
//! here, and matches on no [`Operation`].
//!
//! A new operation is a variant of [`Operation`], a description here, and a file beside this one with its plan, which
//! the file of this module calls, unless it shares that of another: a clone and a restore are provisioned as any volume.
//! Of an operation on a volume that is there, the vendor's kit tries what it tries of any; checks of its own are named in
//! `provisioner/cli/src/conform/checks.rs`. If it is asked for by another object, such as a `VolumeSnapshotContent`, the
//! attachment of a volume to a node or a ConfigMap, that is an arm of [`SubjectKind`] too. The compiler then names what
//! is left to decide. So each description is a full row: a default would decide silently what a new column means for it.

use crate::process::events::{Note, reasons};
use mooring_contract::names::finalizers;
use mooring_contract::operation::Operation;

/// All facts about an operation that do not depend on a cluster.
#[derive(Debug)]
pub struct Description {
    /// The object that asks for it, and carries its record.
    pub subject: SubjectKind,
    /// Where the intent to do it is recorded before its first run.
    pub intent: Intent,
    pub effect: Effect,
    /// The operation that undoes it, where nobody wants what it made any more.
    pub undone_by: Option<Operation>,
    /// What has to exist, and must not be deleted, while it runs.
    pub reads: Reads,
    /// How Events name it.
    pub events: EventText,
}

impl Description {
    /// Whether it makes a volume. There is none yet that the image could be told of, so an impossible request is
    /// refused before anything runs, and what the image has made is checked: the end of its run matters even if the run
    /// was removed before anybody looked. What other operations answer is believed, and their runs are repeated, which
    /// does no harm.
    pub fn makes_volume(&self) -> bool {
        self.effect == Effect::MakesVolume
    }

    /// Whether the image may answer with secrets: it gets a key to seal them with.
    pub fn seals(&self) -> bool {
        self.effect == Effect::AttachesVolume
    }

    /// Whether the volume of backups, if the image is given that, can't be written: what a restore reads stays as it
    /// is.
    pub fn only_reads_backups(&self) -> bool {
        self.reads == Reads::Snapshot
    }

    /// Whether a request for it names a snapshot, a backup or a group.
    pub fn is_about_snapshot(&self) -> bool {
        matches!(self.subject, SubjectKind::Snapshot | SubjectKind::Group) || self.reads == Reads::Snapshot
    }

    /// Where the intent is recorded before a first run, if this object asks for it. Only the state of the operation's
    /// own subject can say it; any other object gets a record.
    pub fn intent_on(&self, asked_by: SubjectKind) -> Intent {
        if asked_by == self.subject {
            self.intent
        } else {
            Intent::ToRecord
        }
    }
}

/// Where the intent to make a run is recorded before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// In the record, which has to be written first: it is new or has changed.
    ToRecord,
    /// In the record, which has it already.
    Recorded,
    /// In the PV itself: it is released and Mooring's finalizer holds it. That is all that a first attempt to delete it
    /// needs; a record begins with the first failure.
    Released,
    /// In another run, which is the record: see `orphan.rs`.
    Run,
    /// In the ConfigMap itself: it promises the operation, and no run of it is there.
    Configured,
}

impl Intent {
    /// Whether a record has it, or is to have it.
    pub fn is_recorded(self) -> bool {
        match self {
            Self::ToRecord | Self::Recorded => true,
            Self::Released | Self::Run | Self::Configured => false,
        }
    }
}

/// A kind of object that asks for operations, by its own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectKind {
    Claim,
    Volume,
    /// A `VolumeSnapshotContent`.
    Snapshot,
    /// A `VolumeGroupSnapshotContent`.
    Group,
    /// A provisioner ConfigMap.
    Config,
}

impl SubjectKind {
    /// The finalizer that holds such an object for as long as an operation on it is open. Nothing holds a ConfigMap:
    /// what is run for it only reads.
    pub fn finalizer(self) -> Option<&'static str> {
        match self {
            Self::Claim => Some(finalizers::CLAIM),
            Self::Volume => Some(finalizers::VOLUME),
            Self::Snapshot => Some(finalizers::SNAPSHOT_CONTENT),
            Self::Group => Some(finalizers::GROUP_CONTENT),
            Self::Config => None,
        }
    }

    /// What errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Volume => "PersistentVolume",
            Self::Snapshot => "VolumeSnapshotContent",
            Self::Group => "VolumeGroupSnapshotContent",
            Self::Config => "ConfigMap",
        }
    }
}

/// What an operation changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    MakesVolume,
    RemovesVolume,
    ExpandsVolume,
    ModifiesVolume,
    /// A snapshot, a backup or a group of snapshots is made.
    TakesSnapshot,
    /// A snapshot, a backup or a group of snapshots is deleted.
    RemovesSnapshot,
    AttachesVolume,
    DetachesVolume,
    /// No volume and no snapshot is made, deleted or changed.
    KeepsAll,
}

impl Effect {
    pub fn makes_volume(self) -> bool {
        self == Self::MakesVolume
    }

    pub fn removes_volume(self) -> bool {
        self == Self::RemovesVolume
    }

    /// Whether an existing volume changes.
    pub fn changes_volume(self) -> bool {
        match self {
            Self::ExpandsVolume | Self::ModifiesVolume => true,
            Self::MakesVolume
            | Self::RemovesVolume
            | Self::TakesSnapshot
            | Self::RemovesSnapshot
            | Self::AttachesVolume
            | Self::DetachesVolume
            | Self::KeepsAll => false,
        }
    }
}

/// What a run reads, so that it must neither be deleted nor change meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Nothing but what it is about.
    Nothing,
    /// The volume that is copied: that of another claim (properties `source-…`).
    SourceVolume,
    /// The snapshot or backup that the volume is made of.
    Snapshot,
    /// The volume that the snapshot or backup is taken of, or those of the group.
    SnapshotVolume,
}

/// What Events say of an operation. The reasons about expansions and modifications are those of external-resizer, those
/// about snapshots those of external-snapshotter.
#[derive(Debug, Clone, Copy)]
pub struct EventText {
    /// An Event's `action`.
    pub action: &'static str,
    /// What is being done.
    pub doing: &'static str,
    /// The reason of an Event when an attempt has failed.
    pub failed: &'static str,
    /// The reason of the Event that the first run has begun, and what the run does; `None` where users need not know.
    pub begun: Option<(&'static str, &'static str)>,
    /// The reason of the Event that it is done; `None` where no Event says so.
    pub done: Option<&'static str>,
}

/// A row for each operation. Every fact has its column, so a new one is decided for each of them.
macro_rules! descriptions {
    ($(
        $(#[doc = $says:literal])*
        $operation:ident: $subject:ident, $intent:ident, $effect:ident, undone by $undone_by:expr, reads $reads:ident;
        $action:literal, $doing:literal, $failed:literal, begun $begun:expr, done $done:expr;
    )+) => {
        pub fn describe(operation: Operation) -> &'static Description {
            match operation {
                $(Operation::$operation => &Description {
                    subject: SubjectKind::$subject,
                    intent: Intent::$intent,
                    effect: Effect::$effect,
                    undone_by: $undone_by,
                    reads: Reads::$reads,
                    events: EventText {
                        action: $action,
                        doing: $doing,
                        failed: $failed,
                        begun: $begun,
                        done: $done,
                    },
                },)+
            }
        }
    };
}

descriptions! {
    /// Makes a volume for a claim.
    Provision: Claim, ToRecord, MakesVolume, undone by Some(Operation::Delete), reads Nothing;
        "Provision", "provisioning", "ProvisioningFailed",
        begun Some(("ProvisioningStarted", "makes the volume")), done Some("Provisioned");

    /// Deletes a volume.
    Delete: Volume, Released, RemovesVolume, undone by None, reads Nothing;
        "Delete", "deleting", "VolumeDeletionFailed", begun None, done None;

    /// Grows a volume to the requested size.
    Expand: Claim, ToRecord, ExpandsVolume, undone by None, reads Nothing;
        "Expand", "expanding", "VolumeResizeFailed",
        begun Some(("Resizing", "makes the volume larger")), done Some("VolumeResizeSuccessful");

    /// Gives a volume the attributes of a class.
    Modify: Claim, ToRecord, ModifiesVolume, undone by None, reads Nothing;
        "Modify", "modifying", "VolumeModifyFailed",
        begun Some(("VolumeModify", "gives the volume other attributes")), done Some("VolumeModifySuccessful");

    /// Makes a volume for a claim, with the content of another volume.
    Clone: Claim, ToRecord, MakesVolume, undone by Some(Operation::Delete), reads SourceVolume;
        "Clone", "cloning", "ProvisioningFailed",
        begun Some(("ProvisioningStarted", "copies the volume")), done Some("Provisioned");

    /// Takes a snapshot for a `VolumeSnapshotContent`. That it has begun and is done, snapshot-controller says.
    Snapshot: Snapshot, ToRecord, TakesSnapshot, undone by Some(Operation::DeleteSnapshot), reads SnapshotVolume;
        "Snapshot", "taking the snapshot", "SnapshotCreationFailed", begun None, done None;

    /// Deletes a snapshot.
    DeleteSnapshot: Snapshot, ToRecord, RemovesSnapshot, undone by None, reads Nothing;
        "DeleteSnapshot", "deleting the snapshot", "SnapshotDeleteError", begun None, done None;

    /// Takes the snapshots of a group for a `VolumeGroupSnapshotContent`; snapshot-controller speaks of them too.
    SnapshotGroup: Group, ToRecord, TakesSnapshot, undone by Some(Operation::DeleteGroup), reads SnapshotVolume;
        "SnapshotGroup", "taking the snapshots of the group", "GroupSnapshotCreationFailed", begun None, done None;

    /// Deletes the snapshots of a group.
    DeleteGroup: Group, ToRecord, RemovesSnapshot, undone by None, reads Nothing;
        "DeleteGroup", "deleting the snapshots of the group", "GroupSnapshotDeleteError", begun None, done None;

    /// Makes a volume for a claim, with the content of a snapshot or a backup.
    Restore: Claim, ToRecord, MakesVolume, undone by Some(Operation::Delete), reads Snapshot;
        "Restore", "restoring", "ProvisioningFailed",
        begun Some(("ProvisioningStarted", "makes the volume of its snapshot")), done Some("Provisioned");

    /// Makes a backup for a `VolumeSnapshotContent`.
    Backup: Snapshot, ToRecord, TakesSnapshot, undone by Some(Operation::DeleteBackup), reads SnapshotVolume;
        "Backup", "backing up the volume", "SnapshotCreationFailed", begun None, done None;

    /// Deletes a backup.
    DeleteBackup: Snapshot, ToRecord, RemovesSnapshot, undone by None, reads Nothing;
        "DeleteBackup", "deleting the backup", "SnapshotDeleteError", begun None, done None;

    /// Lists what the storage of a ConfigMap can serve.
    Discover: Config, Configured, KeepsAll, undone by None, reads Nothing;
        "Discover", "discovering", "DiscoveryFailed", begun None, done None;

    /// Attaches a volume to a node.
    Attach: Volume, ToRecord, AttachesVolume, undone by Some(Operation::Detach), reads Nothing;
        "Attach", "attaching", "VolumeAttachFailed", begun None, done Some("VolumeAttached");

    /// Detaches a volume from its node.
    Detach: Volume, ToRecord, DetachesVolume, undone by None, reads Nothing;
        "Detach", "detaching", "VolumeDetachFailed", begun None, done None;
}

pub(crate) fn action(operation: Operation) -> &'static str {
    describe(operation).events.action
}

/// Tells users that an operation is done, if its description has a reason for that.
pub(crate) fn done(operation: Operation, text: impl Into<String>) -> Option<Note> {
    let reason = describe(operation).events.done?;
    Some(Note::normal(reason, action(operation), text))
}

pub(crate) fn waiting(operation: Operation, text: impl Into<String>) -> Note {
    Note::warning(reasons::WAITING, action(operation), text)
}

#[cfg(test)]
mod tests {
    use super::{Effect, Intent, SubjectKind, describe};
    use mooring_contract::operation::Operation;

    #[test]
    fn what_one_operation_makes_another_removes_for_the_same_object() {
        for operation in Operation::ALL {
            let made = describe(operation);
            let removed = match made.effect {
                Effect::MakesVolume => Some(Effect::RemovesVolume),
                Effect::TakesSnapshot => Some(Effect::RemovesSnapshot),
                Effect::AttachesVolume => Some(Effect::DetachesVolume),
                Effect::DetachesVolume
                | Effect::RemovesVolume
                | Effect::ExpandsVolume
                | Effect::ModifiesVolume
                | Effect::RemovesSnapshot
                | Effect::KeepsAll => None,
            };
            let undone_by = made.undone_by.map(describe);
            assert_eq!(undone_by.map(|undo| undo.effect), removed, "{operation:?}");
            let about = |undo: &super::Description| (undo.subject, undo.is_about_snapshot());
            let of_claim = |undo: &super::Description| undo.effect == Effect::RemovesVolume;
            assert!(
                undone_by.is_none_or(|undo| of_claim(undo) || about(undo) == about(made)),
                "{operation:?}"
            );
        }
    }

    #[test]
    fn a_released_pv_says_itself_that_it_is_to_be_deleted_and_a_claim_needs_a_record() {
        let delete = describe(Operation::Delete);
        assert_eq!(delete.intent_on(SubjectKind::Volume), Intent::Released);
        assert_eq!(delete.intent_on(SubjectKind::Claim), Intent::ToRecord);
        assert_eq!(
            describe(Operation::Provision).intent_on(SubjectKind::Claim),
            Intent::ToRecord
        );
    }
}
