//! Operation `restore`: a claim's volume made with the content of a snapshot. The plan is that of
//! [`provision`](super::provision); which snapshot it is is [`source`](super::source)'s.

use super::decision::Intent;
use super::describe::{Answer, Description, Given, SubjectKind, Words};
use crate::process::events::reasons;

/// From a claim without a volume to a volume that is judged, with the content of a snapshot.
pub(super) const DESCRIPTION: Description = Description {
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
