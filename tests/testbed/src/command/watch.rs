//! Runs a program with a time limit, and passes on its lines as it prints them.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::error::{CommandError, LAST_LINES, line};
use super::find::find_program;

/// Longest for any step of the testbed's preparation: building Kubernetes takes minutes on two cores.
const LONGEST: Duration = Duration::from_hours(1);

/// How often to check a silent program.
const POLL: Duration = Duration::from_millis(100);

/// How long its outputs may be silent after its end, if something else holds them open.
const REST: Duration = Duration::from_millis(500);

/// The process groups of the running programs, and whether more may start.
struct Running {
    stopped: bool,
    groups: BTreeSet<i32>,
}

static RUNNING: Mutex<Running> = Mutex::new(Running {
    stopped: false,
    groups: BTreeSet::new(),
});

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all running programs of this module with their children; no more may start. Programs that [`super::output`]
/// runs may: something has to clean up.
pub fn stop() {
    let mut running = running();
    running.stopped = true;
    for group in &running.groups {
        end_group(*group);
    }
}

/// Whether [`stop`] was called.
pub(crate) fn is_stopped() -> bool {
    running().stopped
}

fn end_group(group: i32) {
    // It may be gone already.
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
}

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

/// Runs a command to its end; it prints where this program does. After `limit`, the command is killed with its process
/// group.
pub fn shown_within(command: &mut Command, limit: Duration) -> Result<(), CommandError> {
    let mut child = start(tied(command).stdin(Stdio::null()), command)?;
    // It prints nothing here: only its end is waited for.
    let (_, nothing) = channel();
    let ended = follow(&mut child, &nothing, Instant::now() + limit, |_, _| ());
    verdict(command, limit, ended, String::new())
}

fn run(command: &mut Command, limit: Duration, mut each: impl FnMut(Stream, &str)) -> Result<(), CommandError> {
    let mut tied = tied(command);
    tied.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = start(&mut tied, command)?;
    let (sender, lines) = channel();
    if let Some(stdout) = child.stdout.take() {
        read_lines(stdout, Stream::Output, sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        read_lines(stderr, Stream::Error, sender);
    }
    let mut last = VecDeque::new();
    let ended = follow(&mut child, &lines, Instant::now() + limit, |stream, text| {
        each(stream, text);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(text.to_owned());
    });
    verdict(command, limit, ended, Vec::from(last).join("\n"))
}

/// Starts a program in a process group of its own, unless this program was told to stop.
fn start(tied: &mut Command, shown: &Command) -> Result<Child, CommandError> {
    let mut running = running();
    if running.stopped {
        return Err(CommandError::Stopped { line: line(shown) });
    }
    let started = tied.process_group(0).spawn();
    let child = started.map_err(|source| CommandError::Start {
        line: line(shown),
        source,
    })?;
    running.groups.extend(group_of(&child));
    Ok(child)
}

fn group_of(child: &Child) -> Option<i32> {
    i32::try_from(child.id()).ok()
}

/// What became of a program that has ended, with the last lines that it printed.
fn verdict(
    command: &Command,
    limit: Duration,
    ended: std::io::Result<Option<ExitStatus>>,
    last: String,
) -> Result<(), CommandError> {
    let line = line(command);
    match ended {
        Ok(Some(status)) if status.success() => Ok(()),
        _ if running().stopped => Err(CommandError::Stopped { line }),
        Ok(Some(status)) => Err(CommandError::Failed { line, status, last }),
        Ok(None) => Err(CommandError::Late { line, limit, last }),
        Err(source) => Err(CommandError::Start { line, source }),
    }
}

/// Passes on lines until the child ends; returns none if it had to be killed.
fn follow(
    child: &mut Child,
    lines: &Receiver<(Stream, String)>,
    deadline: Instant,
    mut each: impl FnMut(Stream, &str),
) -> std::io::Result<Option<ExitStatus>> {
    let group = group_of(child);
    let status = loop {
        let ended = match lines.recv_timeout(POLL) {
            Ok((stream, text)) => {
                each(stream, &text);
                None
            }
            // A process that it leaves running may hold its output open forever.
            Err(RecvTimeoutError::Timeout) => child.try_wait()?,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(POLL / 10);
                child.try_wait()?
            }
        };
        if ended.is_some() {
            break ended;
        }
        if Instant::now() > deadline {
            group.into_iter().for_each(end_group);
            child.wait()?;
            break None;
        }
    };
    if let Some(group) = group {
        running().groups.remove(&group);
    }
    // What it printed just before its end.
    while let Ok((stream, text)) = lines.recv_timeout(REST) {
        each(stream, &text);
    }
    Ok(status)
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

    use super::super::{CommandError, command, output};
    use super::{output_within, shown_within, watched, watched_within};

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
        let mut hung = command("sh", ["-c", "sleep 1000 & echo $!; echo almost; wait"]);
        let mut lines = Vec::new();
        let error = watched_within(&mut hung, Duration::from_secs(3), |line| {
            lines.push(line.to_owned());
        })
        .unwrap_err();
        assert!(matches!(error, CommandError::Late { .. }), "{error:?}");
        assert!(
            error.to_string().contains("did not end within 3") && error.to_string().ends_with("almost"),
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
        let left = output_within(
            &mut command("sh", ["-c", "sleep 1000 & echo $!"]),
            Duration::from_mins(1),
        )
        .unwrap();
        // It still ran.
        output(&mut command("kill", [left.trim()])).unwrap();
    }

    #[test]
    fn a_program_that_prints_here_has_a_limit_too() {
        let limit = Duration::from_millis(200);
        assert!(shown_within(&mut command("true", [""; 0]), limit * 100).is_ok());
        let failed = shown_within(&mut command("false", [""; 0]), limit * 100).unwrap_err();
        assert!(matches!(failed, CommandError::Failed { .. }), "{failed:?}");
        let late = shown_within(&mut command("sleep", ["1000"]), limit).unwrap_err();
        assert!(matches!(late, CommandError::Late { .. }), "{late:?}");
    }
}
