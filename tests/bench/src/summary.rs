//! Many samples in three numbers.

use serde::{Deserialize, Serialize};

/// The median of samples, and the range of the middle eight of ten.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub count: usize,
    pub median: f64,
    /// A tenth is below.
    pub low: f64,
    /// A tenth is above.
    pub high: f64,
}

impl Summary {
    /// The summary of samples; none if there are none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let sorted = sorted(samples);
        let last = sorted.len().checked_sub(1)?;
        let at = |percent: usize| sorted[(last * percent + 50) / 100];
        let middle = f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]);
        Some(Self {
            count: sorted.len(),
            median: middle,
            low: at(10),
            high: at(90),
        })
    }
}

/// What at most one sample of a hundred is above.
pub(super) fn p99(samples: &[f64]) -> Option<f64> {
    let sorted = sorted(samples);
    // Of fewer than a hundred, the largest.
    sorted.get((sorted.len() * 99).div_ceil(100).checked_sub(1)?).copied()
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// A count as a floating-point number.
pub(super) fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use super::{Summary, p99};

    fn parts(samples: &[f64]) -> String {
        let Summary { low, median, high, .. } = Summary::of(samples).unwrap();
        format!("{low} {median} {high}")
    }

    #[test]
    fn the_middle_and_the_spread_do_not_depend_on_the_order() {
        assert!(Summary::of(&[]).is_none());
        assert_eq!(parts(&[2.0]), "2 2 2");
        assert_eq!(parts(&[3.0, 1.0]), "1 2 3");
        let many: Vec<_> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(parts(&many), "10 50 90");
    }

    #[test]
    fn one_of_a_hundred_may_be_above() {
        assert_eq!(p99(&[]), None);
        assert_eq!(p99(&[3.0, 1.0]), Some(3.0));
        let many: Vec<_> = (1..=200).map(f64::from).collect();
        assert_eq!(p99(&many), Some(198.0));
    }
}
