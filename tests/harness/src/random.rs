//! Random numbers that are the same for the same seed, so that a failed test can be repeated exactly.

/// Environment variable: the seed of tests that draw random numbers.
pub const SEED_VARIABLE: &str = "MOORING_TESTBED_SEED";

const USUAL_SEED: u64 = 20_261_121;

/// A source of random numbers. `SplitMix64`: small, and good enough for such choices.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The seed to use: the environment's, else a fixed one.
    pub fn seed() -> u64 {
        let given = std::env::var(SEED_VARIABLE).ok();
        given.and_then(|seed| seed.parse().ok()).unwrap_or(USUAL_SEED)
    }

    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another source, which depends on this one.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.draw())
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw().checked_rem(limit).unwrap_or_default()
    }

    /// True in one case out of `count`.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_same_seed_draws_the_same() {
        let (mut one, mut two) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| one.below(1000) == two.below(1000)));
        assert_ne!(one.split().draw(), one.draw());
    }
}
