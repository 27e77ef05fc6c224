//! Each operation described once: which object asks for it, where its intent stands, what the image is given, what
//! becomes of the answer, and how Events name it. Whatever serves several operations reads it here.
//!
//! A new operation is a [`Kind`], a file beside [`provision`] with its description and its plan, and an arm of
//! [`describe`]. If it is asked for by another object, such as a `VolumeSnapshotContent`, the attachment of a volume to
//! a node or a ConfigMap, that is an arm of [`SubjectKind`] too. The compiler then names what is left to decide.

use super::decision::Intent;
use super::{clone, delete, expand, modify, provision, restore, snapshot};
use crate::process::events::{Note, reasons};
use crate::run::Kind;
use mooring_contract::names::finalizers;

/// What there is to know of an operation without looking at a cluster.
#[derive(Debug)]
pub struct Description {
    /// The object that asks for it, and carries its record.
    pub subject: SubjectKind,
    /// Where it is written, before the first run of it, that it is to be done.
    pub intent: Intent,
    /// What the image is told of the volume.
    pub given: Given,
    /// What becomes of the image's answer that it is done.
    pub answer: Answer,
    /// How users are told of it.
    pub words: Words,
}

impl Description {
    /// Where the intent stands before a first run, if it is this object that asks for it. Only of the operation's own
    /// subject the state can say it; any other gets a record.
    pub fn intent_on(&self, asked_by: SubjectKind) -> Intent {
        if asked_by == self.subject {
            self.intent
        } else {
            Intent::ToRecord
        }
    }
}

/// A kind of object that asks for operations, by its own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectKind {
    /// A claim.
    Claim,
    /// A PV.
    Volume,
    /// A `VolumeSnapshotContent`.
    Snapshot,
}

impl SubjectKind {
    /// The finalizer that holds such an object for as long as an operation on it is open.
    pub fn finalizer(self) -> &'static str {
        match self {
            Self::Claim => finalizers::CLAIM,
            Self::Volume => finalizers::VOLUME,
            Self::Snapshot => finalizers::SNAPSHOT_CONTENT,
        }
    }

    /// What errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Volume => "PersistentVolume",
            Self::Snapshot => "VolumeSnapshotContent",
        }
    }
}

/// What the image is told of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// What is asked for: there is no volume yet. What can't be had is refused before anything is run.
    Asked,
    /// The options of the volume that stands, as its PV has them (property `volume`). Nothing is refused.
    Standing,
}

/// What becomes of the image's answer that the operation is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// What it made is judged first. So how a run ended matters even if it was removed before anybody looked.
    Judged,
    /// It is believed. A run that was removed before anybody looked is repeated, which does no harm.
    Believed,
}

/// How Events name an operation.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// An Event's `action`.
    pub action: &'static str,
    /// What is being done.
    pub doing: &'static str,
    /// The reason of an Event when an attempt has failed.
    pub failed: &'static str,
    /// The reason of the Event that the first run has begun, and what the run does; `None` where users need not know.
    pub begun: Option<(&'static str, &'static str)>,
}

/// The description of an operation.
pub fn describe(kind: Kind) -> &'static Description {
    match kind {
        Kind::Provision => &provision::DESCRIPTION,
        Kind::Delete => &delete::DESCRIPTION,
        Kind::Expand => &expand::DESCRIPTION,
        Kind::Modify => &modify::DESCRIPTION,
        Kind::Clone => &clone::DESCRIPTION,
        Kind::Snapshot => &snapshot::DESCRIPTION,
        Kind::DeleteSnapshot => &snapshot::DELETION,
        Kind::Restore => &restore::DESCRIPTION,
    }
}

/// An Event's `action`.
pub(crate) fn action(kind: Kind) -> &'static str {
    describe(kind).words.action
}

/// Says what an operation waits for.
pub(crate) fn waiting(kind: Kind, text: impl Into<String>) -> Note {
    Note::warning(reasons::WAITING, action(kind), text)
}

#[cfg(test)]
mod tests {
    use super::{Intent, SubjectKind, describe};
    use crate::run::Kind;

    #[test]
    fn a_released_pv_says_itself_that_it_is_to_be_deleted_and_a_claim_needs_a_record() {
        let delete = describe(Kind::Delete);
        assert_eq!(delete.intent_on(SubjectKind::Volume), Intent::Released);
        assert_eq!(delete.intent_on(SubjectKind::Claim), Intent::ToRecord);
        assert_eq!(
            describe(Kind::Provision).intent_on(SubjectKind::Claim),
            Intent::ToRecord
        );
    }
}
