//! What a person sees: one line a step with the time it took, a moving line on a terminal, plain lines otherwise.
//!
//! The only place of the crate that prints.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// All moving lines, so that they stand below one another, and other lines above them.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

thread_local! {
    /// What stands before each line of this thread.
    static LABEL: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Does something whose lines all begin with `label`: of several things at once, each line says of which it is.
pub fn labelled<T>(label: &str, run: impl FnOnce() -> T) -> T {
    let before = LABEL.replace(label.to_owned());
    let value = run();
    LABEL.set(before);
    value
}

/// Prints one line to standard output. A closed pipe is no reason to stop what is under way.
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

/// How often a step without a terminal says that it still runs, and a wait that it goes on.
pub(crate) const PLAIN_PERIOD: Duration = Duration::from_secs(30);

/// A step under way.
pub struct Step {
    title: String,
    started: Instant,
    bar: Option<ProgressBar>,
    message: Arc<Mutex<String>>,
    /// What says now and then that the step still runs ends with this.
    _heart: Option<Sender<()>>,
}

impl Step {
    /// Begins a step.
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

    /// Says how far the step is.
    pub fn update(&mut self, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(message.to_owned());
        }
        message.clone_into(&mut self.message.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Ends the step well, with something to add.
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

/// Calls `each` every `period`, until what is given back is dropped.
fn beat(period: Duration, each: impl Fn() + Send + 'static) -> Sender<()> {
    let (heart, ended) = channel();
    std::thread::spawn(move || {
        while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            each();
        }
    });
    heart
}

/// What is said of a step that still runs, also if its program prints nothing.
fn still(title: &str, elapsed: Duration, message: &str) -> String {
    let colon = if message.is_empty() { "" } else { ": " };
    format!("  .. {title} ({}){colon}{message}", spoken(elapsed))
}

impl Drop for Step {
    fn drop(&mut self) {
        // An error on its way up must not leave a spinner behind.
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

/// A duration as a person says it: `0.4 s`, `12 s`, `3 min 20 s`.
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
        // The sender goes with the thread.
        while said.recv_timeout(Duration::from_secs(20)).is_ok() {}
        assert!(said.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected));
        assert_eq!(still("a", Duration::from_secs(30), "b"), "  .. a (30 s): b");
    }

    #[test]
    fn times_are_said_as_a_person_says_them() {
        assert_eq!(spoken(Duration::from_millis(420)), "0.4 s");
        assert_eq!(spoken(Duration::from_secs(12)), "12 s");
        assert_eq!(spoken(Duration::from_secs(200)), "3 min 20 s");
    }
}
