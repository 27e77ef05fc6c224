//! How soon an object or a loop looks again after the API failed: each has its own wait.

use std::time::Duration;

use kube::runtime::controller::Action;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::apply::ApplyError;
use crate::operation::backoff::Backoff;

/// Waits after errors of the API, which are about the API and not about a volume.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(500),
    cap: Duration::from_mins(1),
};

/// Logs a failure, after which an object has failed so often in a row, and says when to try again.
pub(super) fn again(controller: &'static str, key: &str, error: &ApplyError, failures: u32) -> Action {
    let delay = BACKOFF.delay(failures, key);
    if error.category() == "conflict" {
        // Somebody else was quicker; the watch brings what they wrote.
        debug!(controller, key, error = error.chain(), "acted on old knowledge");
    } else {
        warn!(
            controller,
            key,
            error = error.chain(),
            failures,
            ?delay,
            "failed; trying again"
        );
    }
    Action::requeue(delay)
}

/// Waits until a loop has another turn: by `call`, since ConfigMaps have changed, or since it is time. False if it is to
/// end.
pub(super) async fn woken(
    stop: &CancellationToken,
    changes: &mut watch::Receiver<u64>,
    call: impl Future<Output = ()>,
    next: Instant,
) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = call => true,
        woken = changes.changed() => woken.is_ok(),
        () = sleep_until(next) => true,
    }
}

/// First and longest wait before a loop tries again what failed.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// How soon a loop looks again: less and less soon for as long as something fails.
#[derive(Debug)]
pub(super) struct Pace(Duration);

impl Pace {
    pub(super) fn new() -> Self {
        Self(RETRY.0)
    }

    /// When to look again after a turn: once `after` is over, or sooner if something failed.
    pub(super) fn next(&mut self, is_well: bool, after: Duration) -> Instant {
        let wait = if is_well { after } else { after.min(self.0) };
        self.0 = if is_well { RETRY.0 } else { (self.0 * 2).min(RETRY.1) };
        Instant::now() + wait
    }
}
