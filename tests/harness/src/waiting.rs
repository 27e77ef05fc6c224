//! What each running test waits for, so that a test that takes too long can say it.
//!
//! A test is identified by its thread: the runtime polls it there, and the commands that it runs block there. Waits on
//! other threads are not recorded; the test itself waits for those.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::waits::patience;
use mooring_testbed::progress::{note, spoken};

/// Environment variable: say how long each wait took, to find what takes the time of a test.
pub const WAITS_VARIABLE: &str = "MOORING_TESTBED_WAITS";

/// The shortest wait that is worth a line.
const NOTED: Duration = Duration::from_secs(1);

/// How much longer than usual a test may take on a busy machine. A suite has to end too.
const MOST_MORE: Duration = Duration::from_mins(10);

#[derive(Debug, Clone)]
pub(super) struct Running {
    /// What it does now: the test itself, or the cleanup after it.
    pub(super) doing: String,
    /// When that began.
    pub(super) since: Instant,
    usual: Duration,
    /// How long it may take: longer than usual on a busy machine.
    pub(super) limit: Duration,
    waits: Vec<Wait>,
    /// What it waited for before, in case it waits for something without a description.
    before: Option<String>,
    next: u64,
}

/// Something that a test waits for.
#[derive(Debug, Clone)]
struct Wait {
    number: u64,
    what: String,
    since: Instant,
}

static TESTS: Mutex<Option<HashMap<ThreadId, Running>>> = Mutex::new(None);

fn tests() -> MutexGuard<'static, Option<HashMap<ThreadId, Running>>> {
    TESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of_this_thread<T>(act: impl FnOnce(&mut Running) -> T) -> Option<T> {
    tests().as_mut()?.get_mut(&std::thread::current().id()).map(act)
}

/// Notes that the test of this thread begins something with this limit, and forgets its earlier waits.
pub(super) fn begin(doing: &str, limit: Duration) {
    let running = Running::now(doing, limit);
    tests()
        .get_or_insert_default()
        .insert(std::thread::current().id(), running);
}

/// Notes that the test of this thread is over.
pub(super) fn end() {
    if let Some(tests) = tests().as_mut() {
        tests.remove(&std::thread::current().id());
    }
}

/// What the test of a thread does.
pub(super) fn of(thread: ThreadId) -> Option<Running> {
    let mut tests = tests();
    let running = tests.as_mut()?.get_mut(&thread)?;
    if running.since.elapsed() >= running.limit {
        running.lengthen(patience());
    }
    Some(running.clone())
}

/// A description of what the test of this thread waits for.
pub(super) fn of_this() -> String {
    of_this_thread(|running| running.words(Instant::now())).unwrap_or_default()
}

/// Notes a wait, until the returned value is dropped.
pub(super) fn wait_for(what: impl Into<String>) -> Waiting {
    let number = of_this_thread(|running| running.push(what.into()));
    Waiting {
        thread: std::thread::current().id(),
        number,
    }
}

/// Ends the wait of [`wait_for`] when dropped.
pub(super) struct Waiting {
    thread: ThreadId,
    number: Option<u64>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(number) = self.number
            && let Some(running) = tests().as_mut().and_then(|tests| tests.get_mut(&self.thread))
        {
            running.remove(number);
        }
    }
}

impl Running {
    fn now(doing: &str, limit: Duration) -> Self {
        Self {
            doing: doing.to_owned(),
            since: Instant::now(),
            usual: limit,
            limit,
            waits: Vec::new(),
            before: None,
            next: 0,
        }
    }

    /// Lengthens the limit for a machine this busy: waits that end in time may take longer together. Who looks at it
    /// later may see a machine less busy, and the same limit.
    fn lengthen(&mut self, patience: f64) {
        let longest = self.usual.mul_f64(patience).min(self.usual + MOST_MORE);
        self.limit = self.limit.max(longest);
    }

    fn push(&mut self, what: String) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waits.push(Wait {
            number,
            what,
            since: Instant::now(),
        });
        number
    }

    /// Several waits of one test may end in any order.
    fn remove(&mut self, number: u64) {
        if let Some(index) = self.waits.iter().position(|wait| wait.number == number) {
            let wait = self.waits.remove(index);
            if std::env::var_os(WAITS_VARIABLE).is_some() && wait.since.elapsed() >= NOTED {
                note(format!("waited {} for {}", spoken(wait.since.elapsed()), wait.what));
            }
            self.before = Some(wait.what);
        }
    }

    /// A message that it did not end in time, with what it waits for, the innermost first.
    pub(super) fn words(&self, now: Instant) -> String {
        let mut words = format!("{} did not end within {}: ", self.doing, spoken(self.limit));
        let waited = |wait: &Wait| {
            let seconds = now.saturating_duration_since(wait.since).as_secs();
            format!("waited {seconds} s for {}", wait.what)
        };
        let waits: Vec<_> = self.waits.iter().rev().map(waited).collect();
        match (waits.is_empty(), &self.before) {
            (false, _) => words.push_str(&waits.join(", in which it ")),
            (true, Some(before)) => {
                words.push_str("it did not say what it waited for; before, it waited for ");
                words.push_str(before);
            }
            (true, None) => words.push_str("it did not say what it waited for"),
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Running, begin, end, of_this, wait_for};

    #[test]
    fn a_test_that_takes_too_long_says_what_it_waits_for_the_innermost_first() {
        let mut running = Running::now("the test", Duration::from_mins(10));
        let now = running.since + Duration::from_secs(601);
        let limit = mooring_testbed::progress::spoken(Duration::from_mins(10));
        let said = |running: &Running| running.words(now);
        assert_eq!(
            said(&running),
            format!("the test did not end within {limit}: it did not say what it waited for")
        );
        let outer = running.push("Pod a to be gone".into());
        let inner = running.push("kubectl get pod a".into());
        for wait in &mut running.waits {
            wait.since = running.since + Duration::from_secs(600 * wait.number);
        }
        assert_eq!(
            said(&running),
            format!(
                "the test did not end within {limit}: waited 1 s for kubectl get pod a, in which it waited 601 s for \
                 Pod a to be gone"
            )
        );
        // Waits may end in any order.
        running.remove(outer);
        assert!(said(&running).ends_with(": waited 1 s for kubectl get pod a"));
        running.remove(inner);
        assert!(said(&running).ends_with("before, it waited for kubectl get pod a"));
    }

    #[test]
    fn a_test_has_more_time_on_a_busy_machine_but_ten_minutes_at_most() {
        let minutes = Duration::from_mins;
        for (usual, patience, limit) in [(2, 1.0, 2), (2, 4.0, 8), (10, 4.0, 20), (40, 4.0, 50)] {
            let mut running = Running::now("the test", minutes(usual));
            running.lengthen(patience);
            assert_eq!(running.limit, minutes(limit));
            running.lengthen(1.0);
            assert_eq!(running.limit, minutes(limit));
        }
    }

    #[test]
    fn each_thread_has_a_test_of_its_own() {
        begin("this", Duration::from_secs(1));
        let _wait = wait_for("x");
        let other = std::thread::spawn(|| {
            let nothing = wait_for("y");
            begin("that", Duration::from_secs(1));
            drop(nothing);
            of_this()
        });
        assert!(!other.join().unwrap().contains('x'));
        assert!(of_this().contains("s for x"), "{}", of_this());
        end();
        assert_eq!(of_this(), "");
    }
}
