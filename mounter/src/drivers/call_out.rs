//! What both drivers do around a call-out of the kubelet: its span, the log of its answer, its metrics.

use std::fmt::Display;
use std::time::Duration;

use tracing::{Span, debug, debug_span, field, info, info_span, warn};

use crate::core::metrics::MounterMetrics;

/// Call-out that mounts a volume. Logs and metrics have these names, whichever driver the call-out comes by.
pub(super) const MOUNT: &str = "mount";

/// Call-out that unmounts a volume.
pub(super) const UNMOUNT: &str = "unmount";

/// Call-out that asks how full a volume is. The kubelet repeats it every minute.
pub(super) const STATS: &str = "stats";

/// Call-out that expands a volume's file system.
pub(super) const EXPAND: &str = "expandfs";

/// The answer to a call-out, as logs and metrics show it.
pub(super) enum CallOutcome<'a> {
    Success,
    /// The driver leaves it to the kubelet.
    NotSupported,
    Failure {
        /// One of a fixed few, for metrics.
        category: &'static str,
        message: &'a (dyn Display + Sync),
    },
}

impl CallOutcome<'_> {
    /// The labels `result` and `category`.
    fn labels(&self) -> (&'static str, &'static str) {
        match self {
            Self::Success => ("Success", ""),
            Self::NotSupported => ("Not supported", "not-supported"),
            Self::Failure { category, .. } => ("Failure", category),
        }
    }
}

/// The span of a call-out. The core records the empty fields as it learns them.
pub(super) fn span(call: &str) -> Span {
    info_span!(
        "call",
        call,
        volume.name = field::Empty,
        volume.client = field::Empty,
        volume.server = field::Empty,
        serving = field::Empty,
        pod = field::Empty
    )
}

/// Answers a question that is about no volume, at once and in a span of its own. It is not counted: it asks what the
/// driver is, and nothing is done for it.
pub(super) fn asked<T>(call: &str, answer: impl FnOnce() -> T) -> T {
    debug_span!("call", call).in_scope(|| {
        debug!("answered");
        answer()
    })
}

/// Logs and counts the answer to a call-out that took this long. Call it within the call-out's [`span`].
pub(super) fn answered(metrics: &MounterMetrics, call: &str, took: Duration, outcome: &CallOutcome<'_>) {
    let milliseconds = took.as_millis();
    match outcome {
        CallOutcome::Success if call == STATS => debug!(milliseconds, "answered with success"),
        CallOutcome::Success => info!(milliseconds, "answered with success"),
        CallOutcome::NotSupported => debug!(milliseconds, "answered: not supported"),
        CallOutcome::Failure { category, message } => {
            warn!(milliseconds, category, "answered with a failure: {message}");
        }
    }
    let (result, category) = outcome.labels();
    metrics.called(call, result, category, took);
}
