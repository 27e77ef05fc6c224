//! Operation `clone`: a claim's volume made as a copy of another claim's. The plan is that of
//! [`provision`](super::provision); what is to be copied is [`source`](super::source)'s.

use super::decision::Intent;
use super::describe::{Answer, Description, Given, SubjectKind, Words};
use crate::process::events::reasons;

/// From a claim without a volume to a volume that is judged, with the content of another.
pub(super) const DESCRIPTION: Description = Description {
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
