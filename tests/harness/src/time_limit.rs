//! Every test has a time limit, which is longer on a busy machine. When it is over, the test says what it waited for.
//!
//! The runtime ends a test that awaits. It can't end a test that blocks its thread; a minute later the watchdog, a
//! thread of its own, prints the same and ends the program.

use std::pin::pin;
use std::sync::Once;
use std::sync::mpsc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mooring_testbed::progress::note;

use super::results::Failed;
use super::waiting::{self, Running};

/// Time limit of a test without one of its own.
pub const TEST_LIMIT: Duration = Duration::from_mins(10);

/// How long it may take to write the information after a failure.
pub(super) const SHOW_LIMIT: Duration = Duration::from_mins(4);

/// How long it may take to clean up after a test.
pub(super) const CLEAN_LIMIT: Duration = Duration::from_mins(8);

/// How much later the watchdog acts.
const GRACE: Duration = Duration::from_mins(1);

/// How often the watchdog looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Runs a future for `limit` at most. After that, `expired` gets what it waited for, while everything is still as it
/// was.
pub(super) async fn within<T>(
    doing: &str,
    limit: Duration,
    act: impl Future<Output = Result<T>>,
    expired: impl FnOnce(&anyhow::Error),
) -> Result<T> {
    waiting::begin(doing, limit);
    let mut act = pin!(act);
    tokio::select! {
        biased;
        done = &mut act => done,
        () = over() => {
            let words = anyhow::anyhow!(waiting::of_this());
            expired(&words);
            // What is dropped now may have to restart a node.
            waiting::begin("putting right what a test had broken", CLEAN_LIMIT);
            bail!(words)
        }
    }
}

/// Ends when what the test of this thread does is over its limit.
async fn over() {
    let thread = std::thread::current().id();
    while let Some(running) = waiting::of(thread) {
        let left = running.limit.saturating_sub(running.since.elapsed());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// Watches the test of this thread until the returned value is dropped: the program ends a minute after the limit of
/// what the test does.
pub(super) fn watched(failed: Failed) -> Watched {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(watch);
    });
    let thread = std::thread::current().id();
    tests().push((thread, failed));
    Watched(thread)
}

/// Ends the watch of [`watched`] when dropped.
pub(super) struct Watched(ThreadId);

impl Drop for Watched {
    fn drop(&mut self) {
        tests().retain(|(thread, _)| *thread != self.0);
        waiting::end();
    }
}

fn tests() -> std::sync::MutexGuard<'static, Vec<(ThreadId, Failed)>> {
    static TESTS: std::sync::Mutex<Vec<(ThreadId, Failed)>> = std::sync::Mutex::new(Vec::new());
    TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn watch() {
    loop {
        std::thread::sleep(PERIOD);
        let all = tests().clone();
        let late = all.into_iter().find_map(|(thread, failed)| {
            let running = waiting::of(thread)?;
            is_stuck(&running, Instant::now()).then_some((running, failed))
        });
        if let Some((running, failed)) = late {
            give_up(&running, failed);
        }
    }
}

fn is_stuck(running: &Running, now: Instant) -> bool {
    now.saturating_duration_since(running.since) > running.limit + GRACE
}

/// Reports what a test that blocks its thread waits for, writes all information, and ends the program.
#[allow(clippy::exit)] // nothing else ends a blocked thread
fn give_up(running: &Running, failed: Failed) {
    let words = running.words(Instant::now());
    note(format!("{} is stuck: {words}", failed.test()));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        failed.show(&anyhow::anyhow!(words));
        // Fails if the receiver has given up.
        let _ = tell.send(());
    });
    if told.recv_timeout(SHOW_LIMIT).is_err() {
        note("it took too long to write down what there is");
    }
    // As libtest does where tests failed.
    std::process::exit(101);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::waiting;
    use super::super::waits::wait_until;
    use super::{GRACE, is_stuck, within};

    #[tokio::test]
    async fn a_test_that_waits_too_long_is_ended_and_says_for_what() {
        let mut shown = String::new();
        let never = async { wait_until("a day without rain", Duration::from_hours(24), async || Ok(None::<()>)).await };
        let ended = within("the test", Duration::from_millis(300), never, |error| {
            shown = error.to_string();
        })
        .await;
        let error = ended.unwrap_err().to_string();
        waiting::end();
        assert!(error.starts_with("the test did not end within "), "{error}");
        assert!(error.contains(" s: waited "), "{error}");
        assert!(error.ends_with(" s for a day without rain"), "{error}");
        assert_eq!(shown, error);
    }

    #[test]
    fn a_blocked_thread_has_a_minute_more() {
        waiting::begin("the test", Duration::from_secs(30));
        let running = waiting::of(std::thread::current().id()).unwrap();
        waiting::end();
        let after = |more: Duration| running.since + running.limit + more;
        assert!(!is_stuck(&running, Instant::now()));
        assert!(!is_stuck(&running, after(GRACE)));
        assert!(is_stuck(&running, after(GRACE + Duration::from_secs(1))));
    }
}
