//! Which volumes are being mounted again ([`super::revive`]), and when each may be tried.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::protocol::Reviving;

/// Pause after the first failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Longest pause between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// After a volume has been alive for this long, its pauses start from the shortest again.
const HEALTHY: Duration = Duration::from_mins(5);

/// The volumes that are being mounted again, and those that were lately.
#[derive(Debug, Default)]
pub struct Revivals(Mutex<BTreeMap<String, Pace>>);

/// The tries of one target.
#[derive(Debug, Default)]
struct Pace {
    /// Set while it is being mounted again.
    now: Option<Reviving>,
    /// Tries since it was last healthy.
    tries: u32,
    /// When it was last mounted again.
    alive: Option<Instant>,
}

impl Pace {
    /// Pause before the next try.
    fn wait(&mut self, now: Instant) -> Duration {
        let lived = self.alive.take().map(|since| now.saturating_duration_since(since));
        if lived.is_some_and(|lived| lived >= HEALTHY) {
            self.tries = 0;
        }
        let wait = match self.tries {
            0 => Duration::ZERO,
            tries => FIRST_WAIT
                .saturating_mul(1 << (tries - 1).min(16))
                .min(LONGEST_WAIT)
                // The time that it was alive counts as part of the pause.
                .saturating_sub(lived.unwrap_or_default()),
        };
        self.tries = self.tries.saturating_add(1);
        wait
    }
}

impl Revivals {
    /// The state of a target that is being mounted again.
    pub fn of(&self, target: &str) -> Option<Reviving> {
        self.lock().get(target).and_then(|pace| pace.now.clone())
    }

    /// Whether the caller is the one to mount a target again.
    pub(super) fn begin(&self, target: &str) -> bool {
        let mut all = self.lock();
        let pace = all.entry(target.to_owned()).or_default();
        let first = pace.now.is_none();
        pace.now.get_or_insert_default();
        first
    }

    pub(super) fn wait(&self, target: &str) -> Duration {
        let mut all = self.lock();
        all.entry(target.to_owned()).or_default().wait(Instant::now())
    }

    pub(super) fn failed(&self, target: &str, message: String, secrets_at: Option<u64>) {
        if let Some(now) = self.lock().get_mut(target).and_then(|pace| pace.now.as_mut()) {
            now.failures += 1;
            now.message = message;
            now.secrets_at = secrets_at;
        }
    }

    pub(super) fn done(&self, target: &str, end: End) {
        let mut all = self.lock();
        match (end, all.get_mut(target)) {
            (End::Alive, Some(pace)) => {
                pace.now = None;
                pace.alive = Some(Instant::now());
            }
            _ => drop(all.remove(target)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Pace>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of mounting a volume again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It can be used.
    Alive,
    /// It was unmounted meanwhile.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_try_is_made_at_once_and_later_ones_with_growing_pauses() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let waits: Vec<_> = (0..20).map(|_| pace.wait(now)).collect();
        assert_eq!(waits[..3], [Duration::ZERO, FIRST_WAIT, FIRST_WAIT * 2]);
        assert_eq!(waits[19], LONGEST_WAIT);
    }

    #[test]
    fn a_volume_that_dies_soon_after_it_was_mounted_again_waits_and_one_that_has_lived_does_not() {
        let revivals = Revivals::default();
        let start = Instant::now();
        let wait = |alive: Duration| {
            let mut all = revivals.lock();
            let pace = all.get_mut("t").unwrap();
            pace.alive = Some(start);
            pace.wait(start + alive)
        };
        assert!(revivals.begin("t"));
        assert!(!revivals.begin("t"));
        assert_eq!(revivals.wait("t"), Duration::ZERO);
        revivals.done("t", End::Alive);
        assert_eq!(revivals.of("t"), None);
        assert!(revivals.begin("t"));
        assert_eq!(wait(Duration::ZERO), FIRST_WAIT);
        assert_eq!(wait(Duration::ZERO), FIRST_WAIT * 2);
        assert_eq!(wait(Duration::from_secs(9)), Duration::ZERO);
        wait(Duration::ZERO);
        assert_eq!(wait(HEALTHY), Duration::ZERO);
        assert_eq!(wait(Duration::ZERO), FIRST_WAIT);
    }

    #[test]
    fn a_failure_is_reported_until_it_is_over() {
        let revivals = Revivals::default();
        revivals.begin("t");
        revivals.failed("t", "no server".into(), None);
        revivals.failed("t", "still no server".into(), None);
        let now = revivals.of("t").unwrap();
        assert_eq!((now.failures, now.message.as_str()), (2, "still no server"));
        revivals.done("t", End::Gone);
        assert!(revivals.lock().is_empty());
    }
}
