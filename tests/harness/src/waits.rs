//! The wait of the tests, with a limit, which is longer on a busy machine.

use std::num::NonZero;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::waiting::wait_for;
use mooring_testbed::progress::spoken;

/// The shortest pause between two looks, then the longest.
const PERIOD: Duration = Duration::from_millis(200);
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

/// How many times as long a wait may take on a busy machine, and how many processes of each processor want to run then
/// for each time. The suite runs several clusters on two processors, where a load of 60 was seen.
const MOST_PATIENCE: f64 = 4.0;
const BUSY: f64 = 4.0;

/// Looks until there is something, or the limit is over. An error does not end the wait: the API server may be
/// restarting.
pub async fn wait_until<T>(what: &str, limit: Duration, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    let _waiting = wait_for(what);
    loop {
        let began = Instant::now();
        let seen = match look().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => String::new(),
            Err(error) => format!("; last error: {error:#}"),
        };
        let waited = start.elapsed();
        if waited >= limit && waited >= limit.mul_f64(patience()) {
            bail!("waited {} for {what} in vain{seen}", spoken(waited));
        }
        // A long look, such as a command in a Pod, takes processor time from what the test waits for.
        tokio::time::sleep((began.elapsed() * 2).clamp(PERIOD, LONGEST_PERIOD)).await;
    }
}

/// By what factor waits may be longer now.
fn patience() -> f64 {
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
    use super::patience_at;

    #[test]
    fn waits_are_longer_on_a_busy_machine_but_not_for_ever() {
        let on_two = |load: &str| (patience_at(load, 2) * 10.0).round() / 10.0;
        assert!((on_two("0.52 1.40 1.10 1/200 99") - 1.0).abs() < f64::EPSILON);
        assert!((on_two("16.00 1.40 1.10 1/200 99") - 2.0).abs() < f64::EPSILON);
        assert!((on_two("60.10 1.40 1.10 1/200 99") - 4.0).abs() < f64::EPSILON);
        assert!((on_two("") - 1.0).abs() < f64::EPSILON);
    }
}
