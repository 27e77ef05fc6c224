//! Each operation described once: which object asks for it, where its intent stands, what the image is given, what
//! becomes of the answer, and how Events name it. Whatever serves several operations reads it here.
//!
//! A new operation is a [`Kind`], a description here, and a file beside this one with its plan, unless it shares that
//! of another: a clone and a restore are provisioned as any volume. If it is asked for by another object, such as a
//! `VolumeSnapshotContent`, the attachment of a volume to a node or a ConfigMap, that is an arm of [`SubjectKind`] too.
//! The compiler then names what is left to decide.

use super::decision::Intent;
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
            Self::Config => None,
        }
    }

    /// What errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Volume => "PersistentVolume",
            Self::Snapshot => "VolumeSnapshotContent",
            Self::Config => "ConfigMap",
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
        Kind::Provision => &PROVISION,
        Kind::Delete => &DELETE,
        Kind::Expand => &EXPAND,
        Kind::Modify => &MODIFY,
        Kind::Clone => &CLONE,
        Kind::Snapshot => &SNAPSHOT,
        Kind::DeleteSnapshot => &DELETE_SNAPSHOT,
        Kind::Restore => &RESTORE,
        Kind::Backup => &BACKUP,
        Kind::DeleteBackup => &DELETE_BACKUP,
        Kind::Discover => &DISCOVER,
        Kind::Attach => &ATTACH,
        Kind::Detach => &DETACH,
    }
}

/// From a claim without a volume to a volume that is judged.
const PROVISION: Description = Description {
    subject: SubjectKind::Claim,
    intent: Intent::ToRecord,
    given: Given::Asked,
    answer: Answer::Judged,
    words: Words {
        action: "Provision",
        doing: "provisioning",
        failed: reasons::FAILED,
        begun: Some((reasons::STARTED, "makes the volume")),
    },
};

/// From a volume that is not wanted any more to none.
const DELETE: Description = Description {
    subject: SubjectKind::Volume,
    intent: Intent::Released,
    given: Given::Standing,
    answer: Answer::Believed,
    words: Words {
        action: "Delete",
        doing: "deleting",
        failed: reasons::DELETE_FAILED,
        begun: None,
    },
};

/// From a volume that is too small to one that has the asked size.
const EXPAND: Description = Description {
    subject: SubjectKind::Claim,
    intent: Intent::ToRecord,
    given: Given::Standing,
    answer: Answer::Believed,
    words: Words {
        action: "Expand",
        doing: "expanding",
        failed: reasons::RESIZE_FAILED,
        begun: Some((reasons::RESIZING, "makes the volume larger")),
    },
};

/// From a volume with other attributes to one that has those of a class.
const MODIFY: Description = Description {
    subject: SubjectKind::Claim,
    intent: Intent::ToRecord,
    given: Given::Standing,
    answer: Answer::Believed,
    words: Words {
        action: "Modify",
        doing: "modifying",
        failed: reasons::MODIFY_FAILED,
        begun: Some((reasons::MODIFYING, "gives the volume other attributes")),
    },
};

/// From a claim without a volume to a volume that is judged, with the content of another.
const CLONE: Description = Description {
    subject: SubjectKind::Claim,
    intent: Intent::ToRecord,
    given: Given::Asked,
    answer: Answer::Judged,
    words: Words {
        action: "Clone",
        doing: "cloning",
        failed: reasons::FAILED,
        begun: Some((reasons::STARTED, "copies the volume")),
    },
};

/// From a content without a snapshot to one that says which snapshot it is.
const SNAPSHOT: Description = Description {
    subject: SubjectKind::Snapshot,
    intent: Intent::ToRecord,
    given: Given::Standing,
    answer: Answer::Believed,
    words: Words {
        action: "Snapshot",
        doing: "taking the snapshot",
        failed: reasons::SNAPSHOT_FAILED,
        // snapshot-controller tells of it.
        begun: None,
    },
};

/// From a snapshot that is not wanted any more to none.
const DELETE_SNAPSHOT: Description = Description {
    subject: SubjectKind::Snapshot,
    intent: Intent::ToRecord,
    given: Given::Standing,
    answer: Answer::Believed,
    words: Words {
        action: "DeleteSnapshot",
        doing: "deleting the snapshot",
        failed: reasons::SNAPSHOT_DELETE_FAILED,
        begun: None,
    },
};

/// From a claim without a volume to a volume that is judged, with the content of a snapshot or a backup.
const RESTORE: Description = Description {
    subject: SubjectKind::Claim,
    intent: Intent::ToRecord,
    given: Given::Asked,
    answer: Answer::Judged,
    words: Words {
        action: "Restore",
        doing: "restoring",
        failed: reasons::FAILED,
        begun: Some((reasons::STARTED, "makes the volume of its snapshot")),
    },
};

/// From a content without a backup to one that says which backup it is.
const BACKUP: Description = Description {
    words: Words {
        action: "Backup",
        doing: "backing up the volume",
        ..SNAPSHOT.words
    },
    ..SNAPSHOT
};

/// From a backup that is not wanted any more to none.
const DELETE_BACKUP: Description = Description {
    words: Words {
        action: "DeleteBackup",
        doing: "deleting the backup",
        ..DELETE_SNAPSHOT.words
    },
    ..DELETE_SNAPSHOT
};

/// From a ConfigMap to the classes of what its storage can serve.
const DISCOVER: Description = Description {
    subject: SubjectKind::Config,
    intent: Intent::Configured,
    given: Given::Asked,
    // Its run stays until the next one is due, and is looked at again and again until then.
    answer: Answer::Believed,
    words: Words {
        action: "Discover",
        doing: "discovering",
        failed: reasons::DISCOVER_FAILED,
        begun: None,
    },
};

/// From a volume that no node has to one that a node has.
const ATTACH: Description = Description {
    subject: SubjectKind::Volume,
    intent: Intent::ToRecord,
    given: Given::Standing,
    answer: Answer::Believed,
    words: Words {
        action: "Attach",
        doing: "attaching",
        failed: reasons::ATTACH_FAILED,
        begun: None,
    },
};

/// From a volume that a node has to one that none has.
const DETACH: Description = Description {
    subject: SubjectKind::Volume,
    intent: Intent::ToRecord,
    given: Given::Standing,
    answer: Answer::Believed,
    words: Words {
        action: "Detach",
        doing: "detaching",
        failed: reasons::DETACH_FAILED,
        begun: None,
    },
};

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
