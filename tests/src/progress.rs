//! What a person sees: one line a step with the time it took, a moving line on a terminal, plain lines otherwise.
//!
//! The only place of the crate that prints.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Prints one line to standard output. A closed pipe is no reason to stop what is under way.
pub fn say(line: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout(), "{}", line.as_ref());
}

/// Prints one line to standard error.
pub fn note(line: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr(), "{}", line.as_ref());
}

/// Prints an error with all its causes to standard error.
pub fn fail(error: &anyhow::Error) {
    note(format!("error: {error:#}"));
}

/// How often a step without a terminal says that it still runs.
const PLAIN_PERIOD: Duration = Duration::from_secs(30);

/// A step under way.
pub struct Step {
    title: String,
    started: Instant,
    bar: Option<ProgressBar>,
    last_plain: Instant,
}

impl Step {
    /// Begins a step.
    pub fn begin(title: impl Into<String>) -> Self {
        let title = title.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {prefix} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar.set_prefix(title.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        let now = Instant::now();
        Self {
            title,
            started: now,
            bar,
            last_plain: now,
        }
    }

    /// Says how far the step is.
    pub fn update(&mut self, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(message.to_owned());
        } else if self.last_plain.elapsed() >= PLAIN_PERIOD {
            self.last_plain = Instant::now();
            note(format!(
                "  .. {} ({}): {message}",
                self.title,
                spoken(self.started.elapsed())
            ));
        }
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
    use super::spoken;
    use std::time::Duration;

    #[test]
    fn times_are_said_as_a_person_says_them() {
        assert_eq!(spoken(Duration::from_millis(420)), "0.4 s");
        assert_eq!(spoken(Duration::from_secs(12)), "12 s");
        assert_eq!(spoken(Duration::from_secs(200)), "3 min 20 s");
    }
}
