//! How an operation is named to users.

use mooring_contract::operation::Operation;

use crate::process::events::{Note, reasons};

/// An Event's `action`.
pub(crate) fn action(operation: Operation) -> &'static str {
    match operation {
        Operation::Delete => "Delete",
        _ => "Provision",
    }
}

/// Tells what an operation waits for.
pub(crate) fn waiting(operation: Operation, text: impl Into<String>) -> Note {
    Note::warning(reasons::WAITING, action(operation), text)
}
