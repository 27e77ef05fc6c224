//! How soon an object or a loop looks again after the API failed: each has its own wait.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::controller::Action;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::apply::ApplyError;
use crate::operation::backoff::Backoff;

/// Waits after errors of the API, which are about the API and not about a volume.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(500),
    cap: Duration::from_mins(1),
};

/// How often in a row each object has failed.
#[derive(Debug, Default)]
pub struct Retries {
    failures: Mutex<HashMap<String, u32>>,
}

impl Retries {
    /// Forgets the failures of an object that has been dealt with. Returns the result with its name for metrics.
    pub fn settle(&self, key: &str, result: Result<Action, ApplyError>) -> (Result<Action, ApplyError>, &'static str) {
        let name = match &result {
            Ok(_) => {
                self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
                "ok"
            }
            Err(error) => error.category(),
        };
        (result, name)
    }

    /// Logs a failure and says when to try again.
    pub fn failed(&self, controller: &'static str, key: &str, error: &ApplyError) -> Action {
        let failures = {
            let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            let failures = all.entry(key.to_owned()).or_default();
            *failures = failures.saturating_add(1);
            *failures
        };
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

#[cfg(test)]
mod tests {
    use super::Retries;
    use crate::apply::ApplyError;
    use kube::runtime::controller::Action;

    #[test]
    fn each_object_has_its_own_wait_and_a_success_ends_it() {
        let retries = Retries::default();
        let error = ApplyError::Changed("x".into());
        let first = retries.failed("c", "a", &error);
        let second = retries.failed("c", "a", &error);
        assert_ne!(first, second);
        let (_, name) = retries.settle("a", Ok(Action::await_change()));
        assert_eq!(name, "ok");
        assert_eq!(retries.failed("c", "a", &error), first);
    }
}
