//! Waits with a limit; the error says where to look.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::command::last_lines;

#[derive(Debug, thiserror::Error)]
#[error("waited {} for {what} in vain; last seen: {seen}{hint}", crate::progress::spoken(*limit))]
pub struct WaitError {
    pub what: String,
    pub limit: Duration,
    /// The last state.
    pub seen: String,
    /// Where to look.
    pub hint: String,
}

pub enum Look<T> {
    Ready(T),
    /// Not yet, and the state so far.
    NotYet(String),
}

/// How often to look.
const PERIOD: Duration = Duration::from_millis(100);

/// Looks until it is there or the limit is over. The error shows the last lines of `logs`.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    logs: &[PathBuf],
    mut look: impl FnMut() -> Look<T>,
) -> Result<T, WaitError> {
    let deadline = Instant::now() + limit;
    loop {
        match look() {
            Look::Ready(value) => return Ok(value),
            Look::NotYet(seen) if Instant::now() >= deadline => {
                return Err(WaitError {
                    what: what.to_owned(),
                    limit,
                    seen,
                    hint: tails(logs),
                });
            }
            Look::NotYet(_) => std::thread::sleep(PERIOD),
        }
    }
}

/// The last lines of logs, each under its path.
pub fn tails(logs: &[PathBuf]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for log in logs {
        let content = std::fs::read(log).unwrap_or_default();
        let content = String::from_utf8_lossy(&content);
        let _ = write!(text, "\n--- {}\n{}", log.display(), last_lines(&content, 12));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Look, wait_for};
    use std::time::Duration;

    #[test]
    fn a_wait_in_vain_says_what_it_saw() {
        let error = wait_for::<()>("rain", Duration::ZERO, &[], || Look::NotYet("sun".into())).unwrap_err();
        assert_eq!(error.to_string(), "waited 0.0 s for rain in vain; last seen: sun");
        let mut looks = 0;
        let value = wait_for("rain", Duration::from_secs(5), &[], || {
            looks += 1;
            if looks < 2 {
                Look::NotYet(String::new())
            } else {
                Look::Ready(looks)
            }
        });
        assert_eq!(value.unwrap(), 2);
    }
}
