//! Which volumes are being mounted anew ([`super::revive`]), and how often each may be tried.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::protocol::Reviving;

/// Wait after the first failure; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A volume that has lived for so long begins anew with its waits.
const HEALTHY: Duration = Duration::from_mins(5);

/// What is being mounted anew, and what was of late.
#[derive(Debug, Default)]
pub struct Revivals(Mutex<BTreeMap<String, Pace>>);

/// How often a target may be tried.
#[derive(Debug, Default)]
struct Pace {
    /// While it is being mounted anew.
    now: Option<Reviving>,
    /// Tries since it was last healthy.
    tries: u32,
    /// When it was last mounted anew.
    alive: Option<Instant>,
}

impl Pace {
    /// How long the next try waits.
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
                // What it lived it need not wait.
                .saturating_sub(lived.unwrap_or_default()),
        };
        self.tries = self.tries.saturating_add(1);
        wait
    }
}

impl Revivals {
    /// How a target is being mounted anew.
    pub fn of(&self, target: &str) -> Option<Reviving> {
        self.lock().get(target).and_then(|pace| pace.now.clone())
    }

    /// Whether it is the caller who is to mount a target anew.
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

    pub(super) fn failed(&self, target: &str, message: String) {
        if let Some(now) = self.lock().get_mut(target).and_then(|pace| pace.now.as_mut()) {
            now.failures += 1;
            now.message = message;
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

/// How a volume's revival ended.
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
    fn the_first_try_is_made_at_once_and_later_ones_ever_more_seldom() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let waits: Vec<_> = (0..20).map(|_| pace.wait(now)).collect();
        assert_eq!(waits[..3], [Duration::ZERO, FIRST_WAIT, FIRST_WAIT * 2]);
        assert_eq!(waits[19], LONGEST_WAIT);
    }

    #[test]
    fn what_dies_soon_after_it_was_mounted_anew_waits_and_what_has_lived_does_not() {
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
    fn what_went_wrong_is_told_until_it_is_over() {
        let revivals = Revivals::default();
        revivals.begin("t");
        revivals.failed("t", "no server".into());
        revivals.failed("t", "still no server".into());
        let now = revivals.of("t").unwrap();
        assert_eq!((now.failures, now.message.as_str()), (2, "still no server"));
        revivals.done("t", End::Gone);
        assert!(revivals.lock().is_empty());
    }
}
