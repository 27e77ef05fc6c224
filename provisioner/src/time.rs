//! Spans and moments, as the API keeps them.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Time from one moment to a later one; zero if it isn't later.
pub(crate) fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

/// A moment after another; to the whole second above, as the API keeps time.
pub(crate) fn later(from: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// A moment, rounded down to whole seconds.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
