//! Runs a program with a time limit, and passes on its lines as it prints them.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{CommandError, LAST_LINES, find_program, line};

/// Longest for any step of the testbed's preparation: building Kubernetes takes minutes on two cores.
const LONGEST: Duration = Duration::from_hours(1);

/// How often to check a silent program.
const POLL: Duration = Duration::from_millis(100);

/// The stream that a line was printed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Output,
    Error,
}

/// Runs a command to its end, for an hour at most, and passes each line that it prints to `each`.
pub fn watched(command: &mut Command, each: impl FnMut(&str)) -> Result<(), CommandError> {
    watched_within(command, LONGEST, each)
}

/// Runs a command to its end, and passes each line that it prints to `each`. After `limit`, the command is killed with
/// its process group.
pub fn watched_within(command: &mut Command, limit: Duration, mut each: impl FnMut(&str)) -> Result<(), CommandError> {
    run(command, limit, |_, text| each(text))
}

/// Runs a command to its end and returns its standard output. After `limit`, the command is killed with its process
/// group.
pub fn output_within(command: &mut Command, limit: Duration) -> Result<String, CommandError> {
    let mut printed = String::new();
    run(command, limit, |stream, text| {
        if stream == Stream::Output {
            printed.push_str(text);
            printed.push('\n');
        }
    })?;
    Ok(printed)
}

fn run(command: &mut Command, limit: Duration, mut each: impl FnMut(Stream, &str)) -> Result<(), CommandError> {
    let mut child = tied(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|source| CommandError::Start {
            line: line(command),
            source,
        })?;
    let (sender, lines) = channel();
    if let Some(stdout) = child.stdout.take() {
        read_lines(stdout, Stream::Output, sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        read_lines(stderr, Stream::Error, sender);
    }
    let mut last = VecDeque::new();
    let status = follow(&mut child, &lines, Instant::now() + limit, |stream, text| {
        each(stream, text);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(text.to_owned());
    })
    .map_err(|source| CommandError::Start {
        line: line(command),
        source,
    })?;
    let last = Vec::from(last).join("\n");
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(CommandError::Failed {
            line: line(command),
            status,
            last,
        }),
        None => Err(CommandError::Late {
            line: line(command),
            limit,
            last,
        }),
    }
}

/// Passes on lines until the child ends; returns none if it had to be killed.
fn follow(
    child: &mut Child,
    lines: &Receiver<(Stream, String)>,
    deadline: Instant,
    mut each: impl FnMut(Stream, &str),
) -> std::io::Result<Option<ExitStatus>> {
    loop {
        match lines.recv_timeout(POLL) {
            Ok((stream, text)) => each(stream, &text),
            // A process that it leaves running may hold its output open forever.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(Some(status));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(Some(status));
                }
                std::thread::sleep(POLL / 10);
            }
        }
        if Instant::now() > deadline {
            if let Ok(group) = i32::try_from(child.id()) {
                // It may be gone already.
                let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
            }
            child.wait()?;
            return Ok(None);
        }
    }
}

fn read_lines(stream: impl Read + Send + 'static, which: Stream, sender: Sender<(Stream, String)>) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut text = Vec::new();
        while stream.read_until(b'\n', &mut text).is_ok_and(|count| count > 0) {
            let said = String::from_utf8_lossy(&text).trim_end_matches('\n').to_owned();
            text.clear();
            if sender.send((which, said)).is_err() {
                return;
            }
        }
    });
}

/// The same command, but the kernel ends it with this program: it is in a process group of its own, which an interrupt
/// at the terminal does not reach.
fn tied(command: &Command) -> Command {
    let mut tied = match find_program("setpriv") {
        Some(setpriv) => {
            let mut tied = Command::new(setpriv);
            tied.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program());
            tied
        }
        None => Command::new(command.get_program()),
    };
    tied.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(name, value),
            None => tied.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        tied.current_dir(folder);
    }
    tied
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::{CommandError, command};
    use super::{output_within, watched, watched_within};

    #[test]
    fn lines_of_both_streams_pass_through() {
        let mut lines = Vec::new();
        let mut both = command("sh", ["-c", "echo one; echo two >&2; printf 'th\\377ree'; exit 3"]);
        let error = watched(&mut both, |line| lines.push(line.to_owned())).unwrap_err();
        let last_words = format!("(exit status: 3):\n{}", lines.join("\n"));
        assert!(error.to_string().ends_with(&last_words), "{error}");
        // Each stream is in order; there is no order between the two.
        let (of_stderr, of_stdout): (Vec<_>, Vec<_>) = lines.iter().partition(|line| *line == "two");
        assert_eq!(of_stderr, ["two"]);
        assert_eq!(of_stdout, ["one", "th\u{fffd}ree"]);
        let mut both = command("sh", ["-c", "echo one; echo two >&2"]);
        assert_eq!(output_within(&mut both, Duration::from_mins(1)).unwrap(), "one\n");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children_and_its_last_lines_are_shown() {
        let began = Instant::now();
        let mut hung = command("sh", ["-c", "sleep 1000 & echo $!; echo almost; wait"]);
        let mut lines = Vec::new();
        let error = watched_within(&mut hung, Duration::from_millis(500), |line| {
            lines.push(line.to_owned());
        })
        .unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(matches!(error, CommandError::Late { .. }), "{error:?}");
        assert!(
            error.to_string().contains("did not end within 0.5 s") && error.to_string().ends_with("almost"),
            "{error}"
        );
        // A killed process may stay for a moment, until its new parent reaps it.
        let sleep = format!("/proc/{}/cmdline", lines[0]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::fs::read(&sleep).is_ok_and(|line| !line.is_empty()) {
            assert!(Instant::now() < deadline, "what it started still runs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn what_a_program_leaves_running_is_not_waited_for() {
        let began = Instant::now();
        let left = output_within(
            &mut command("sh", ["-c", "sleep 40 & echo $!"]),
            Duration::from_secs(30),
        )
        .unwrap();
        assert!(began.elapsed() < Duration::from_secs(20));
        let _ = super::super::output(&mut command("kill", [left.trim()]));
    }
}
