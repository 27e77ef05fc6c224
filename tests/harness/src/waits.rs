//! The wait of the tests, with a limit, which is longer on a busy machine.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::waiting::wait_for;
use mooring_testbed::progress::{note, spoken};

/// The shortest pause between two looks, then the longest.
const PERIOD: Duration = Duration::from_millis(200);
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

/// How many times as long a wait may take on a busy machine, and how many processes of each processor want to run then
/// for each time. The suite runs several clusters on two processors, where a load of 60 was seen.
const MOST_PATIENCE: f64 = 4.0;
const BUSY: f64 = 4.0;

/// The errors that a wait meets. Each one is printed once, also if the wait succeeds: a state may be wrong for a moment.
#[derive(Default)]
struct Errors {
    seen: BTreeSet<String>,
    last: Option<String>,
}

impl Errors {
    /// Keeps an error; whether it differs from all earlier ones by more than numbers.
    fn keep(&mut self, error: &anyhow::Error) -> bool {
        let text = format!("{error:#}");
        let is_new = self.seen.insert(text.replace(|c: char| c.is_ascii_digit(), ""));
        self.last = Some(text);
        is_new
    }
}

/// The limit of a wait, which begins now.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    since: Instant,
    usual: Duration,
}

impl Limit {
    /// A limit that is this long on a machine with time to spare.
    #[must_use]
    pub fn of(usual: Duration) -> Self {
        let since = Instant::now();
        Self { since, usual }
    }

    /// Whether it is over, also for the load of this moment.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let waited = self.since.elapsed();
        waited >= self.usual && waited >= self.usual.mul_f64(patience())
    }
}

/// Looks until there is something, or the limit is over. An error does not end the wait: the API server may be
/// restarting.
pub async fn wait_until<T>(what: &str, limit: Duration, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let limit = Limit::of(limit);
    let _waiting = wait_for(what);
    let mut errors = Errors::default();
    loop {
        let began = Instant::now();
        match look().await {
            Ok(Some(value)) => return Ok(value),
            Err(error) if errors.keep(&error) => note(format!("waiting for {what}: {error:#}")),
            Ok(None) | Err(_) => {}
        }
        if limit.is_over() {
            let waited = limit.since.elapsed();
            let last = errors
                .last
                .map(|error| format!("; last error: {error}"))
                .unwrap_or_default();
            bail!("waited {} for {what} in vain{last}", spoken(waited));
        }
        // A long look, such as a command in a Pod, takes processor time from what the test waits for.
        tokio::time::sleep((began.elapsed() * 2).clamp(PERIOD, LONGEST_PERIOD)).await;
    }
}

/// By what factor waits may be longer now.
pub(super) fn patience() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    patience_at(&load, processors)
}

fn patience_at(load: &str, processors: usize) -> f64 {
    let last_minute = load.split(' ').next().and_then(|word| word.parse().ok());
    let processors = u32::try_from(processors).unwrap_or(1);
    let busy: f64 = last_minute.unwrap_or(0.0) / (BUSY * f64::from(processors));
    busy.clamp(1.0, MOST_PATIENCE)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::{anyhow, bail};

    use super::{Errors, Limit, patience_at, wait_until};

    #[test]
    fn errors_that_differ_in_numbers_only_are_printed_once() {
        let mut errors = Errors::default();
        let texts = ["3 are left", "2 are left", "no route", "1 are left"];
        let new = texts.map(|text| errors.keep(&anyhow!(text)));
        assert_eq!(new, [true, false, true, false]);
        assert_eq!(errors.last.as_deref(), Some("1 are left"));
    }

    #[tokio::test]
    async fn a_wait_in_vain_reports_the_last_error_also_when_a_later_look_had_none() {
        let mut looks = 0;
        let waited = wait_until("it", Duration::from_millis(100), async || {
            looks += 1;
            if looks == 1 {
                bail!("no route");
            }
            Ok(None::<()>)
        });
        let error = waited.await.unwrap_err().to_string();
        assert!(error.ends_with("for it in vain; last error: no route"), "{error}");
    }

    #[test]
    fn a_limit_is_over_no_sooner_than_usual() {
        assert!(Limit::of(Duration::ZERO).is_over());
        assert!(!Limit::of(Duration::from_hours(1)).is_over());
    }

    #[test]
    fn waits_are_longer_on_a_busy_machine_but_not_for_ever() {
        let on_two = |load: &str| (patience_at(load, 2) * 10.0).round() / 10.0;
        assert!((on_two("0.52 1.40 1.10 1/200 99") - 1.0).abs() < f64::EPSILON);
        assert!((on_two("16.00 1.40 1.10 1/200 99") - 2.0).abs() < f64::EPSILON);
        assert!((on_two("60.10 1.40 1.10 1/200 99") - 4.0).abs() < f64::EPSILON);
        assert!((on_two("") - 1.0).abs() < f64::EPSILON);
    }
}
