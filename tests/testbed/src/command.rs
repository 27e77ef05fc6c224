//! Runs other programs. Errors have the command line and the program's last lines.

mod watch;

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;

pub use watch::{output_within, watched, watched_within};

use crate::layout::repository;
use crate::progress::spoken;

/// A program that could not be run, or that failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It did not start.
    #[error("failed to run {line}")]
    Start {
        /// Program and arguments.
        line: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It started and failed.
    #[error("{line} failed ({status}){}{last}", if last.is_empty() { "" } else { ":\n" })]
    Failed {
        /// Program and arguments.
        line: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines that it printed.
        last: String,
    },
    /// It did not end in time.
    #[error(
        "{line} did not end within {}, and was killed with all that it had started{}",
        spoken(*limit),
        if last.is_empty() { "; it had printed nothing".into() } else { format!("; the last that it printed:\n{last}") }
    )]
    Late {
        /// Program and arguments.
        line: String,
        /// Its time limit.
        limit: Duration,
        /// The last lines that it printed.
        last: String,
    },
}

/// How many of a failed program's last lines to show.
const LAST_LINES: usize = 20;

/// A command as a person would type it.
pub fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The last lines of a text.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// A command from its words.
pub fn command<I, S>(program: impl AsRef<OsStr>, args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// A call of cargo in the repository, as if from a shell. The testbed is started by `cargo run`, which leaves its
/// package in the environment. Build scripts that look at that would build their crates again each time.
///
/// # Errors
/// If there is no cargo.
pub fn cargo<I, S>(args: I) -> anyhow::Result<Command>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let program = find_program("cargo").context("cargo is not on the PATH: install Rust from https://rustup.rs/")?;
    let mut cargo = command(program, args);
    cargo.current_dir(repository());
    for (name, _) in std::env::vars_os() {
        if is_of_the_caller_s_package(&name) {
            cargo.env_remove(name);
        }
    }
    Ok(cargo)
}

fn is_of_the_caller_s_package(variable: &OsStr) -> bool {
    let variable = variable.to_string_lossy();
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Runs a command to its end and returns its standard output.
pub fn output(command: &mut Command) -> Result<String, CommandError> {
    let result = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| CommandError::Start {
            line: line(command),
            source,
        })?;
    if result.status.success() {
        return Ok(String::from_utf8_lossy(&result.stdout).into_owned());
    }
    let said = [result.stdout, result.stderr].concat();
    Err(CommandError::Failed {
        line: line(command),
        status: result.status,
        last: last_lines(&String::from_utf8_lossy(&said), LAST_LINES),
    })
}

/// Runs a command to its end, with `input` on its standard input.
pub fn output_with_input(command: &mut Command, input: &[u8]) -> Result<String, CommandError> {
    let start = |command: &Command, source| CommandError::Start {
        line: line(command),
        source,
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| start(command, source))?;
    // These programs read all of their input before they print, so no pipe can fill up.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input);
    }
    let result = child.wait_with_output().map_err(|source| start(command, source))?;
    if result.status.success() {
        return Ok(String::from_utf8_lossy(&result.stdout).into_owned());
    }
    Err(CommandError::Failed {
        line: line(command),
        status: result.status,
        last: last_lines(&String::from_utf8_lossy(&result.stderr), LAST_LINES),
    })
}

/// Finds a program on the `PATH`, or in folders that a plain user's `PATH` lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/go/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::{command, last_lines, output, output_with_input};

    #[test]
    fn a_failure_says_the_command_and_its_last_words() {
        let error = output(&mut command("ls", ["/no/such/folder"])).unwrap_err().to_string();
        assert!(
            error.starts_with("ls /no/such/folder failed (exit status: 2)"),
            "{error}"
        );
        assert!(error.contains("No such file"), "{error}");
        let error = output(&mut command("/no/such/program", ["x"])).unwrap_err().to_string();
        assert_eq!(error, "failed to run /no/such/program x");
    }

    #[test]
    fn input_passes_through_and_last_lines_are_the_last() {
        assert_eq!(
            output_with_input(&mut command("cat", ["-"]), b"hello").unwrap(),
            "hello"
        );
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
    }
}
