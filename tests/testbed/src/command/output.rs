//! Runs short programs and collects what they print.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::error::{CommandError, LAST_LINES, last_lines, line};

/// Longest for such a program. None takes minutes; what does is run by [`super::watched_within`].
const LONGEST: Duration = Duration::from_mins(10);

/// How often to check a silent program.
const POLL: Duration = Duration::from_millis(100);

/// The pauses between looks at a program that has closed its outputs: the first, which usually is enough, and the
/// longest.
const PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// How long its outputs may be silent after its end, if something else holds them open.
const REST: Duration = Duration::from_millis(500);

/// What a pipe that is ready takes without a wait (`pipe(7)`), in bytes.
const PIPE_BUF: usize = 4096;

/// How a program ended, and what it had printed.
struct Ended {
    /// None if it was killed at its time limit.
    status: Option<ExitStatus>,
    output: Vec<u8>,
    error: Vec<u8>,
}

/// Runs a command to its end and returns its standard output. After ten minutes, it is killed.
pub fn output(command: &mut Command) -> Result<String, CommandError> {
    collected(command, None, LONGEST)
}

/// Runs a command to its end, with `input` on its standard input. After ten minutes, it is killed.
pub fn output_with_input(command: &mut Command, input: &[u8]) -> Result<String, CommandError> {
    collected(command, Some(input), LONGEST)
}

fn collected(command: &mut Command, input: Option<&[u8]>, limit: Duration) -> Result<String, CommandError> {
    let ended = run(command, input, limit).map_err(|source| CommandError::Start {
        line: line(command),
        source,
    })?;
    match ended.status {
        Some(status) if status.success() => Ok(String::from_utf8_lossy(&ended.output).into_owned()),
        status => {
            let said = [ended.output, ended.error].concat();
            let (line, last) = (line(command), last_lines(&String::from_utf8_lossy(&said), LAST_LINES));
            Err(match status {
                Some(status) => CommandError::Failed { line, status, last },
                None => CommandError::Late { line, limit, last },
            })
        }
    }
}

fn run(command: &mut Command, input: Option<&[u8]>, limit: Duration) -> std::io::Result<Ended> {
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut pipes = Pipes::of(&mut child, input.unwrap_or_default());
    let deadline = Instant::now() + limit;
    let mut pause = PAUSE;
    let status = loop {
        let passed = pipes.pass(POLL)?;
        if passed != Passed::Something {
            // A process that it leaves running may hold its outputs open for ever.
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if passed == Passed::Closed {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        if Instant::now() > deadline {
            killed(&mut child)?;
            break None;
        }
    };
    // What it printed just before its end.
    while pipes.pass(REST)? == Passed::Something {}
    Ok(Ended {
        status,
        output: pipes.output.read,
        error: pipes.error.read,
    })
}

/// Such programs start no others, so the program alone is killed. It stays in this program's process group, which an
/// interrupt at the terminal reaches.
fn killed(child: &mut Child) -> std::io::Result<()> {
    child.kill()?;
    child.wait().map(drop)
}

/// What passed through a program's pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passed {
    Something,
    Nothing,
    /// Nothing more will: the program has closed them all.
    Closed,
}

/// A pipe that a program prints on, and what it printed.
struct Printed<R> {
    pipe: Option<R>,
    read: Vec<u8>,
}

/// A program's pipes. They are served without a thread: the bench runs programs from a thread that has entered a PID
/// namespace, and such a thread can start no other (`clone(2)`, EINVAL).
struct Pipes<'i> {
    input: Option<ChildStdin>,
    unwritten: &'i [u8],
    output: Printed<ChildStdout>,
    error: Printed<ChildStderr>,
}

impl<'i> Pipes<'i> {
    fn of(child: &mut Child, input: &'i [u8]) -> Self {
        Self {
            // Dropped at once if there is nothing to write: the program then sees its end.
            input: child.stdin.take().filter(|_| !input.is_empty()),
            unwritten: input,
            output: Printed::of(child.stdout.take()),
            error: Printed::of(child.stderr.take()),
        }
    }

    /// Writes and reads what can be at once; waits no longer than `wait` for that.
    fn pass(&mut self, wait: Duration) -> std::io::Result<Passed> {
        let ready = self.ready(wait)?;
        let Some([input, output, error]) = ready else {
            return Ok(Passed::Closed);
        };
        if input {
            self.write();
        }
        if output {
            self.output.read()?;
        }
        if error {
            self.error.read()?;
        }
        Ok(if input || output || error {
            Passed::Something
        } else {
            Passed::Nothing
        })
    }

    /// Which pipes are ready; none if all are closed.
    fn ready(&self, wait: Duration) -> std::io::Result<Option<[bool; 3]>> {
        let input = self
            .input
            .as_ref()
            .map(|pipe| (0, PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)));
        let output = self
            .output
            .pipe
            .as_ref()
            .map(|pipe| (1, PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        let error = self
            .error
            .pipe
            .as_ref()
            .map(|pipe| (2, PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        let (places, mut polled): (Vec<usize>, Vec<PollFd<'_>>) = [input, output, error].into_iter().flatten().unzip();
        if polled.is_empty() {
            return Ok(None);
        }
        match poll(&mut polled, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Some([false; 3])),
            Err(errno) => return Err(errno.into()),
        }
        let mut ready = [false; 3];
        for (place, one) in places.into_iter().zip(&polled) {
            ready[place] = one.any().unwrap_or(false);
        }
        Ok(Some(ready))
    }

    /// A program that ends early closes its input, which its exit code tells.
    fn write(&mut self) {
        let Some(input) = &mut self.input else { return };
        let most = self.unwritten.len().min(PIPE_BUF);
        let written = input.write(&self.unwritten[..most]).unwrap_or(self.unwritten.len());
        self.unwritten = &self.unwritten[written..];
        if self.unwritten.is_empty() {
            self.input = None;
        }
    }
}

impl<R: Read> Printed<R> {
    fn of(pipe: Option<R>) -> Self {
        Self { pipe, read: Vec::new() }
    }

    /// Reads what is there; at the end of the pipe, closes it.
    fn read(&mut self) -> std::io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut buffer = [0; 1 << 14];
        match pipe.read(&mut buffer) {
            Ok(0) => self.pipe = None,
            Ok(count) => self.read.extend(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{CommandError, command};
    use super::{collected, output, output_with_input};

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
    fn input_passes_through_whatever_its_size_and_output_stays_as_it_is() {
        let long = "hello".repeat(100_000);
        let cat = || command("cat", ["-"]);
        assert_eq!(output_with_input(&mut cat(), long.as_bytes()).unwrap(), long);
        assert_eq!(output(&mut command("printf", ["a\\n\\nb"])).unwrap(), "a\n\nb");
        assert_eq!(output(&mut command("true", [""; 0])).unwrap(), "");
    }

    #[test]
    fn a_program_that_hangs_is_killed_at_its_limit_with_its_input_unread() {
        let mut hung = command("sh", ["-c", "echo almost; exec sleep 1000"]);
        let error = collected(&mut hung, Some(&vec![0; 1 << 20]), Duration::from_secs(3)).unwrap_err();
        assert!(matches!(error, CommandError::Late { .. }), "{error:?}");
        assert!(error.to_string().ends_with("almost"), "{error}");
    }

    #[test]
    fn what_a_program_leaves_running_is_not_waited_for() {
        let left = output(&mut command("sh", ["-c", "sleep 1000 & echo $!"])).unwrap();
        // It still ran.
        output(&mut command("kill", [left.trim()])).unwrap();
    }
}
