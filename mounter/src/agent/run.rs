//! Runs a mount program: in a process group of its own, with a time limit, and keeps its last lines.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tracing::info;

use super::program::{Invocation, MOUNT, WORKING_DIRECTORY};
use crate::sys::nowhere;

/// How many of a program's last lines to keep for the user.
const LAST_LINES: usize = 5;

/// How many of a daemon's last lines to keep for the image's program, which may search them.
pub(super) const DAEMON_LINES: usize = 40;

/// Longest line in bytes; the rest counts as the next line.
const MAX_LINE: u64 = 512;

/// How long to read the output of a program that has ended. A daemon that it left running may hold the pipe open
/// forever, so this does not wait for the end of the output.
pub(super) const OUTPUT_GRACE: Duration = Duration::from_millis(100);

/// How long to wait for a killed program.
pub(super) const REAP: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("failed to start {program} in the client container: does the client image have it?")]
    Start { program: String, source: io::Error },
    /// The kernel can't start another process.
    #[error(
        "failed to start {program}: its client container has as many processes as it may (the kubelet's podPidsLimit), \
         or no memory"
    )]
    NoRoom { program: String, source: io::Error },
    #[error("failed to wait for {program}")]
    Wait { program: String, source: io::Error },
    #[error("{program} failed ({status}): {last_lines}")]
    Failed {
        program: String,
        status: ExitStatus,
        last_lines: OutputLines,
    },
    #[error("{program} took longer than {limit:?} and was ended: {last_lines}")]
    TimedOut {
        program: String,
        limit: Duration,
        last_lines: OutputLines,
    },
}

fn not_started(program: String, source: io::Error) -> ProgramError {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => ProgramError::NoRoom { program, source },
        _ => ProgramError::Start { program, source },
    }
}

/// Starts a program in a process group of its own.
pub(super) fn start(
    invocation: &Invocation,
    stdout: impl Into<Stdio>,
    stderr: impl Into<Stdio>,
) -> Result<Child, ProgramError> {
    let failed = |source| not_started(invocation.program.display().to_string(), source);
    let nowhere = (invocation.program == Path::new(MOUNT)).then(nowhere::open).transpose();
    let nowhere = nowhere.map_err(|error| failed(io::Error::other(error)))?;
    let directory = nowhere
        .as_ref()
        .map(|directory| format!("/proc/self/fd/{}", directory.as_raw_fd()));
    Command::new(&invocation.program)
        .args(&invocation.args)
        .envs(&invocation.env)
        .current_dir(directory.as_deref().unwrap_or(WORKING_DIRECTORY))
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0)
        .spawn()
        .map_err(failed)
}

/// Runs a program to its end, for at most `limit`.
pub async fn run(invocation: &Invocation, limit: Duration) -> Result<(), ProgramError> {
    run_keeping(LAST_LINES, invocation, limit).await
}

/// [`run`], which keeps this many of the program's last lines for its error.
pub(super) async fn run_keeping(lines: usize, invocation: &Invocation, limit: Duration) -> Result<(), ProgramError> {
    let program = invocation.program.display().to_string();
    let mut child = start(invocation, Stdio::piped(), Stdio::piped())?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let last_lines = LastLines::of(lines);
    let mut readers = tokio::task::JoinSet::new();
    if let Some(stdout) = child.stdout.take() {
        readers.spawn(last_lines.clone().keep(program.clone(), stdout));
    }
    if let Some(stderr) = child.stderr.take() {
        readers.spawn(last_lines.clone().keep(program.clone(), stderr));
    }
    let ended = tokio::time::timeout(limit, child.wait()).await;
    if ended.is_err() {
        if let Some(group) = group {
            // ESRCH: it ended just now.
            let _ = killpg(group, Signal::SIGKILL);
        }
        // It may hang in the kernel, waiting for a dead server. Then it is reaped when the kernel lets it end.
        let _ = tokio::time::timeout(REAP, child.wait()).await;
    }
    let _ = tokio::time::timeout(OUTPUT_GRACE, async { while readers.join_next().await.is_some() {} }).await;
    // A pipe that is still open belongs to a daemon: its output goes to the log as long as it lives.
    readers.detach_all();
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(ProgramError::Failed {
            program,
            status,
            last_lines: last_lines.get(),
        }),
        Ok(Err(source)) => Err(ProgramError::Wait { program, source }),
        Err(_) => Err(ProgramError::TimedOut {
            program,
            limit,
            last_lines: last_lines.get(),
        }),
    }
}

/// The last lines of a program's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputLines(Vec<String>);

impl OutputLines {
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for OutputLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("it said nothing");
        }
        f.write_str(&self.0.join("; "))
    }
}

/// The last lines of a program's standard output and standard error, in the order of their arrival.
#[derive(Debug, Clone)]
pub(super) struct LastLines {
    most: usize,
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl LastLines {
    pub(super) fn of(most: usize) -> Self {
        Self {
            most,
            lines: Arc::default(),
        }
    }

    pub(super) async fn keep(self, program: String, output: impl AsyncRead + Unpin) {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match (&mut output).take(MAX_LINE).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let line = String::from_utf8_lossy(&line)
                .trim_end()
                .replace(|c: char| c.is_control(), " ");
            if line.is_empty() {
                continue;
            }
            info!(program, "{line}");
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == self.most {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    }

    pub(super) fn get(&self) -> OutputLines {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        OutputLines(lines.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use nix::sys::signal::kill;

    fn sh(script: &str) -> Invocation {
        Invocation {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: BTreeMap::from([("GREETING".into(), "moor".into())]),
        }
    }

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn a_failing_program_s_last_lines_are_kept() {
        let error = run(&sh("seq 9; echo \"$GREETING\" >&2; exit 3"), LONG)
            .await
            .unwrap_err();
        let ProgramError::Failed { status, last_lines, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(status.code(), Some(3));
        assert!(last_lines.to_string().contains("moor"), "{last_lines}");
        assert!(!last_lines.to_string().contains('1'), "{last_lines}");
    }

    #[tokio::test]
    async fn a_daemon_that_keeps_the_pipes_open_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        // It would be there for longer than the program may take.
        let script = format!("sleep 1000 & echo $! >{}", pid.display());
        run(&sh(&script), LONG).await.unwrap();
        let daemon = std::fs::read_to_string(pid).unwrap().trim().parse().ok();
        let daemon = daemon.map(Pid::from_raw).unwrap();
        kill(daemon, Signal::SIGKILL).expect("the daemon had ended before `run`");
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_ends_with_its_whole_group() {
        let error = run(&sh("echo stuck; sleep 77 & sleep 77"), Duration::from_secs(3))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ProgramError::TimedOut { last_lines, .. } if last_lines.lines() == ["stuck"]),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_missing_program_is_reported() {
        let mut nothing = sh("");
        nothing.program = "/nonexistent/program".into();
        assert!(matches!(run(&nothing, LONG).await, Err(ProgramError::Start { .. })));
    }
}
