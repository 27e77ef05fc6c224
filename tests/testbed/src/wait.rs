//! Waiting with a limit, and an error that says where to look.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::command::last_lines;

/// What was waited for did not come.
#[derive(Debug, thiserror::Error)]
#[error("waited {} for {what} in vain; last seen: {seen}{hint}", crate::progress::spoken(*limit))]
pub struct WaitError {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub limit: Duration,
    /// How it stood last.
    pub seen: String,
    /// Where to look.
    pub hint: String,
}

/// What one look found.
pub enum Look<T> {
    /// It is there.
    Ready(T),
    /// Not yet; how it stands.
    NotYet(String),
}

/// How often to look.
const PERIOD: Duration = Duration::from_millis(100);

/// Looks again and again until it is there or the limit is over. `logs` are shown, their last lines, if it does not come.
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
