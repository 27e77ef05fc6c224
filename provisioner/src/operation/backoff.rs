//! How long a volume waits before its next attempt.
//!
//! A pure function of the attempt's number and the claim's uid, and its result is written to the API as a moment
//! (`not-before` of the record), so it survives the controller.

use std::time::Duration;

use sha2::{Digest, Sha256};

/// Bounds of the wait between two attempts on one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Wait after the first failure.
    pub base: Duration,
    /// Longest wait.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(5),
            cap: Duration::from_mins(10),
        }
    }
}

/// Part of the wait that is left to chance, so that volumes that failed together do not come back together.
const JITTER_PERCENT: u32 = 20;

impl Backoff {
    /// The wait after `failures` failed attempts on the volume of the claim `uid`: doubling from [`Self::base`] up to
    /// [`Self::cap`], less up to a fifth that depends on uid and attempt alone.
    pub fn delay(&self, failures: u32, uid: &str) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.base.saturating_mul(1 << doublings).min(self.cap);
        let digest = Sha256::new()
            .chain_update(uid)
            .chain_update(failures.to_le_bytes())
            .finalize();
        let percent = u32::from(digest[0]) * JITTER_PERCENT / u32::from(u8::MAX);
        full * (100 - percent) / 100
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use std::time::Duration;

    #[test]
    fn waits_double_up_to_the_cap_and_stay_within_a_fifth() {
        let backoff = Backoff {
            base: Duration::from_secs(10),
            cap: Duration::from_mins(5),
        };
        for (failures, full) in [
            (1, 10),
            (2, 20),
            (3, 40),
            (4, 80),
            (5, 160),
            (6, 300),
            (40, 300),
            (u32::MAX, 300),
        ] {
            for uid in ["a", "b", "c", "d"] {
                let delay = backoff.delay(failures, uid);
                let full = Duration::from_secs(full);
                assert!(delay <= full && delay >= full * 8 / 10, "{failures} {uid}: {delay:?}");
                assert_eq!(delay, backoff.delay(failures, uid), "the same after a restart");
            }
        }
    }

    #[test]
    fn volumes_that_fail_together_do_not_come_back_together() {
        let delays: std::collections::BTreeSet<_> = (0..20)
            .map(|n| Backoff::default().delay(3, &format!("uid-{n}")))
            .collect();
        assert!(delays.len() > 5);
    }
}
