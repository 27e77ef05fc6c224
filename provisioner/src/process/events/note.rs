//! What an Event says.

use k8s_openapi::api::core::v1::ObjectReference;

/// Whether an Event is good or bad news.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    /// Somebody should look.
    Warning,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// Good or bad news.
    pub kind: EventType,
    /// One of [`reasons`](super::reasons).
    pub reason: &'static str,
    /// What was being done, such as `Provision`.
    pub action: &'static str,
    /// The sentence that people read. Cut to what the API takes (1 KiB).
    pub text: String,
    /// Another object that is involved.
    pub related: Option<ObjectReference>,
    /// Whether it says that something begins, which nobody needs to know where the end follows at once.
    pub is_beginning: bool,
}

impl Note {
    /// Good news.
    pub fn normal(reason: &'static str, action: &'static str, text: impl Into<String>) -> Self {
        Self {
            kind: EventType::Normal,
            reason,
            action,
            text: text.into(),
            related: None,
            is_beginning: false,
        }
    }

    /// That something begins.
    pub fn beginning(reason: &'static str, action: &'static str, text: impl Into<String>) -> Self {
        Self {
            is_beginning: true,
            ..Self::normal(reason, action, text)
        }
    }

    /// Bad news.
    pub fn warning(reason: &'static str, action: &'static str, text: impl Into<String>) -> Self {
        Self {
            kind: EventType::Warning,
            ..Self::normal(reason, action, text)
        }
    }
}
