//! Waiting for a state of the storage.

use std::time::{Duration, Instant};

use crate::error::OpenstackError;

/// How patient a run is.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Longest pause between two looks at something that changes. The first ones are shorter.
    pub period: Duration,
    /// Longest wait for one state. A run is ended after ten minutes, unless the ConfigMap says otherwise; one that ends
    /// by itself can say what it waits for.
    pub limit: Duration,
    /// Longest time in all that a busy server can have a run pause.
    pub pauses: Duration,
}

impl Pace {
    /// For runs; tests have one without pauses.
    pub fn usual() -> Self {
        Self {
            period: Duration::from_secs(1),
            limit: Duration::from_mins(8),
            pauses: Duration::from_mins(1),
        }
    }
}

#[derive(Debug)]
pub enum LookResult<T> {
    Ready(T),
    /// Not yet, and the state so far.
    NotYet(String),
}

/// Looks until it is there. `what` names the state, as in "the making of volume x".
pub fn until<T>(
    pace: Pace,
    what: &str,
    mut look: impl FnMut() -> Result<LookResult<T>, OpenstackError>,
) -> Result<T, OpenstackError> {
    let end = Instant::now() + pace.limit;
    let mut pause = pace.period / 8;
    loop {
        match look()? {
            LookResult::Ready(value) => return Ok(value),
            LookResult::NotYet(state) if Instant::now() >= end => {
                return Err(OpenstackError::Slow {
                    what: what.to_owned(),
                    state,
                    limit: pace.limit,
                });
            }
            LookResult::NotYet(_) => std::thread::sleep(pause),
        }
        pause = (pause * 3 / 2).min(pace.period);
    }
}

#[cfg(test)]
mod tests {
    use super::{LookResult, Pace, until};
    use std::time::Duration;

    #[test]
    fn a_wait_ends_with_what_it_saw() {
        let pace = Pace {
            period: Duration::ZERO,
            limit: Duration::ZERO,
            pauses: Duration::ZERO,
        };
        let error = until::<()>(pace, "rain", || Ok(LookResult::NotYet("sunny".into()))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rain takes longer than 0 s (sunny): it is looked at again"
        );
        assert_eq!(error.exit_code(), 75);
    }
}
