//! The errors of other programs, and how commands are shown.

use std::ffi::OsStr;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::progress::spoken;

/// A program that could not be run, or that failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("failed to run {line}")]
    Start {
        /// Program and arguments.
        line: String,
        source: std::io::Error,
    },
    #[error("{line} failed ({status}){}{last}", if last.is_empty() { "" } else { ":\n" })]
    Failed {
        /// Program and arguments.
        line: String,
        status: ExitStatus,
        /// The last lines that it printed.
        last: String,
    },
    #[error(
        "{line} did not end within {}, and was killed with all that it had started{}",
        spoken(*limit),
        if last.is_empty() { "; it had printed nothing".into() } else { format!("; the last that it printed:\n{last}") }
    )]
    Late {
        /// Program and arguments.
        line: String,
        limit: Duration,
        /// The last lines that it printed.
        last: String,
    },
    /// It did not start or was ended, since this program was told to stop.
    #[error("{line} was not run to its end: this command was told to stop")]
    Stopped {
        /// Program and arguments.
        line: String,
    },
}

/// How many of a failed program's last lines to show.
pub(super) const LAST_LINES: usize = 20;

/// A command as a person would type it.
pub fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn last_lines_are_the_last() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }
}
