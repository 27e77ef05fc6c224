//! How an operation is named to users.

use crate::process::events::{Note, reasons};
use crate::run::kind::Kind;

/// The words and Event reasons of one operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// An Event's `action`.
    pub(crate) action: &'static str,
    /// What is being done.
    pub(crate) doing: &'static str,
    /// The reason of an Event when an attempt has failed.
    pub(crate) failed: &'static str,
}

/// The words of an operation.
pub(crate) fn words(kind: Kind) -> Words {
    match kind {
        Kind::Provision => Words {
            action: "Provision",
            doing: "provisioning",
            failed: reasons::FAILED,
        },
        Kind::Delete => Words {
            action: "Delete",
            doing: "deleting",
            failed: reasons::DELETE_FAILED,
        },
    }
}

/// An Event's `action`.
pub(crate) fn action(kind: Kind) -> &'static str {
    words(kind).action
}

/// Tells what an operation waits for.
pub(crate) fn waiting(kind: Kind, text: impl Into<String>) -> Note {
    Note::warning(reasons::WAITING, action(kind), text)
}
