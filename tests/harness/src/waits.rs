//! The wait of the tests, with a limit.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::waiting::wait_for;
use mooring_testbed::progress::spoken;

/// The shortest pause between two looks, then the longest.
const PERIOD: Duration = Duration::from_millis(200);
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

/// Looks until there is something, or the limit is over. An error does not end the wait: the API server may be
/// restarting.
pub async fn wait_until<T>(what: &str, limit: Duration, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    let _waiting = wait_for(what);
    loop {
        let began = Instant::now();
        let seen = match look().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => String::new(),
            Err(error) => format!("; last error: {error:#}"),
        };
        if Instant::now() >= deadline {
            bail!("waited {} for {what} in vain{seen}", spoken(limit));
        }
        // A long look, such as a command in a Pod, takes processor time from what the test waits for.
        tokio::time::sleep((began.elapsed() * 2).clamp(PERIOD, LONGEST_PERIOD)).await;
    }
}
