//! A failure that comes back at every try: logged when it begins or changes, and now and then for as long as it lasts.

use std::time::{Duration, Instant};

/// How often a failure that lasts is logged.
const AGAIN: Duration = Duration::from_mins(10);

/// What was last logged of one thing that is tried again and again.
#[derive(Debug, Default)]
pub struct Repeated(Option<(String, Instant)>);

impl Repeated {
    /// Notes a failure. Returns whether to log it.
    pub fn is_due(&mut self, failure: &str) -> bool {
        self.is_due_at(failure, Instant::now())
    }

    /// Notes that a try was a success.
    pub fn end(&mut self) {
        self.0 = None;
    }

    fn is_due_at(&mut self, failure: &str, now: Instant) -> bool {
        let is_logged = matches!(&self.0, Some((last, at)) if last == failure && now.duration_since(*at) < AGAIN);
        if !is_logged {
            self.0 = Some((failure.to_owned(), now));
        }
        !is_logged
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Repeated;

    #[test]
    fn a_failure_is_logged_when_it_begins_or_changes_and_every_ten_minutes() {
        let start = Instant::now();
        let mut logged = Repeated::default();
        let mut is_due = |failure, seconds| logged.is_due_at(failure, start + Duration::from_secs(seconds));
        for (failure, second, want) in [
            ("forbidden", 0, true),
            ("forbidden", 1, false),
            ("forbidden", 599, false),
            ("forbidden", 600, true),
            ("forbidden", 601, false),
            ("no route", 602, true),
            ("no route", 603, false),
            ("forbidden", 604, true),
        ] {
            assert_eq!(is_due(failure, second), want, "{failure} {second}");
        }
        logged.end();
        assert!(logged.is_due_at("forbidden", start + Duration::from_secs(605)));
    }
}
