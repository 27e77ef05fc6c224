//! Running other programs, with errors that say which, with what, and what it said last.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::Context;

use crate::layout::repository;

/// A program that could not be run or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It did not start.
    #[error("failed to run {line}")]
    Start {
        /// Program and arguments.
        line: String,
        /// Why.
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
}

/// How many of a failed program's last lines are shown.
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

/// A call of cargo in the repository, as if it were made from a shell: `cargo run`, by which the testbed is started, leaves its
/// package in the environment, and build scripts that look at that would build their crates anew at each turn.
///
/// # Errors
/// There is no cargo.
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

/// Runs a command to its end and gives its standard output.
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

/// Runs a command to its end, giving it `input` on standard input.
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
    // The programs fed here read all of their input before they print, so that no pipe can fill up.
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

/// Runs a command to its end, handing each line that it prints on standard error to `each`.
pub fn watched(command: &mut Command, mut each: impl FnMut(&str)) -> Result<(), CommandError> {
    let start = |command: &Command, source| CommandError::Start {
        line: line(command),
        source,
    };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| start(command, source))?;
    let mut last = std::collections::VecDeque::new();
    if let Some(stderr) = child.stderr.take() {
        for text in BufReader::new(stderr.take(u64::MAX)).lines().map_while(Result::ok) {
            each(&text);
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(text);
        }
    }
    let status = child.wait().map_err(|source| start(command, source))?;
    if status.success() {
        return Ok(());
    }
    Err(CommandError::Failed {
        line: line(command),
        status,
        last: Vec::from(last).join("\n"),
    })
}

/// Finds a program on the `PATH`, or in the folders that a plain user's `PATH` leaves out.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/go/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::{command, last_lines, output, output_with_input, watched};

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
    fn input_and_lines_pass_through() {
        assert_eq!(
            output_with_input(&mut command("cat", ["-"]), b"hello").unwrap(),
            "hello"
        );
        let mut lines = Vec::new();
        watched(&mut command("ls", ["/no/such/folder"]), |line| {
            lines.push(line.to_owned());
        })
        .unwrap_err();
        assert_eq!(lines.len(), 1);
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
    }
}
