//! What a person sees: one line per step with the time it took; on a terminal, a moving line, otherwise plain lines.
//!
//! Nothing else in this crate prints.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// All moving lines, so that they stay below one another and below other lines.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

thread_local! {
    /// The prefix of each line of this thread.
    static LABEL: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a function whose lines all begin with `label`, to tell apart several things that run at once.
pub fn labelled<T>(label: &str, run: impl FnOnce() -> T) -> T {
    let before = LABEL.replace(label.to_owned());
    let value = run();
    LABEL.set(before);
    value
}

/// Prints one line to standard output. A closed pipe does not stop the work.
pub fn say(line: impl AsRef<str>) {
    let label = LABEL.with_borrow(String::clone);
    BARS.suspend(|| {
        let _ = writeln!(std::io::stdout(), "{label}{}", line.as_ref());
    });
}

/// Prints one line to standard error.
pub fn note(line: impl AsRef<str>) {
    let label = LABEL.with_borrow(String::clone);
    BARS.suspend(|| {
        let _ = writeln!(std::io::stderr(), "{label}{}", line.as_ref());
    });
}

/// Prints an error with all its causes to standard error.
pub fn fail(error: &anyhow::Error) {
    note(format!("error: {error:#}"));
}

/// How often a step without a terminal, or a wait, says that it is still running.
pub(crate) const PLAIN_PERIOD: Duration = Duration::from_secs(30);

pub struct Step {
    title: String,
    started: Instant,
    bar: Option<ProgressBar>,
    message: Arc<Mutex<String>>,
    /// Dropping this ends the thread that reports that the step still runs.
    _heart: Option<Sender<()>>,
}

impl Step {
    pub fn begin(title: impl Into<String>) -> Self {
        let title = title.into();
        let started = Instant::now();
        let message = Arc::new(Mutex::new(String::new()));
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = BARS.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {prefix} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar.set_prefix(title.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        let heart = bar.is_none().then(|| {
            let (title, message) = (title.clone(), Arc::clone(&message));
            beat(PLAIN_PERIOD, move || {
                let message = message.lock().unwrap_or_else(PoisonError::into_inner);
                note(still(&title, started.elapsed(), &message));
            })
        });
        Self {
            title,
            started,
            bar,
            message,
            _heart: heart,
        }
    }

    pub fn update(&mut self, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(message.to_owned());
        }
        message.clone_into(&mut self.message.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Ends the step successfully, with a remark.
    pub fn done(self, message: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let took = spoken(self.started.elapsed());
        if message.is_empty() {
            say(format!("  ok {} ({took})", self.title));
        } else {
            say(format!("  ok {}: {message} ({took})", self.title));
        }
    }
}

/// Calls `each` every `period`, until the returned value is dropped.
fn beat(period: Duration, each: impl Fn() + Send + 'static) -> Sender<()> {
    let (heart, ended) = channel();
    std::thread::spawn(move || {
        while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            each();
        }
    });
    heart
}

/// The line about a step that still runs, even if its program prints nothing.
fn still(title: &str, elapsed: Duration, message: &str) -> String {
    let colon = if message.is_empty() { "" } else { ": " };
    format!("  .. {title} ({}){colon}{message}", spoken(elapsed))
}

impl Drop for Step {
    fn drop(&mut self) {
        // An error that is returned must not leave a spinner behind.
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Runs a step, showing it while it runs.
pub fn step<T>(title: &str, run: impl FnOnce(&mut Step) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut step = Step::begin(title);
    let value = run(&mut step)?;
    step.done("");
    Ok(value)
}

/// A duration in words: `0.4 s`, `12 s`, `3 min 20 s`.
pub fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        _ => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::{beat, spoken, still};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_step_whose_program_is_silent_says_that_it_still_runs_until_it_ends() {
        let (sender, said) = channel();
        let heart = beat(Duration::from_millis(10), move || {
            let _ = sender.send(still("build the image x", Duration::from_secs(30), ""));
        });
        for _ in 0..2 {
            let line = said.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(line, "  .. build the image x (30 s)");
        }
        drop(heart);
        // The sender is dropped with the thread.
        while said.recv_timeout(Duration::from_secs(20)).is_ok() {}
        assert!(said.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected));
        assert_eq!(still("a", Duration::from_secs(30), "b"), "  .. a (30 s): b");
    }

    #[test]
    fn durations_are_written_as_a_person_writes_them() {
        assert_eq!(spoken(Duration::from_millis(420)), "0.4 s");
        assert_eq!(spoken(Duration::from_secs(12)), "12 s");
        assert_eq!(spoken(Duration::from_secs(200)), "3 min 20 s");
    }
}
