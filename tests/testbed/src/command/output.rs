//! Runs short programs and collects what they print.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

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

/// The stream that something was printed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Output,
    Error,
}

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
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        let input = input.to_vec();
        // On a thread of its own: the program may print before it has read everything, or may never read. It fails if
        // the program ends early, which its exit code tells.
        std::thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
    }
    let (sender, printed) = channel();
    if let Some(stdout) = child.stdout.take() {
        read(stdout, Stream::Output, sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        read(stderr, Stream::Error, sender);
    }
    let (mut output, mut error) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + limit;
    let mut pause = PAUSE;
    let status = loop {
        match printed.recv_timeout(POLL) {
            Ok((Stream::Output, bytes)) => output.extend(bytes),
            Ok((Stream::Error, bytes)) => error.extend(bytes),
            Err(why) => {
                // A process that it leaves running may hold its outputs open for ever.
                if let Some(status) = child.try_wait()? {
                    break Some(status);
                }
                if why == RecvTimeoutError::Disconnected {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        if Instant::now() > deadline {
            killed(&mut child)?;
            break None;
        }
    };
    // What it printed just before its end.
    while let Ok((stream, bytes)) = printed.recv_timeout(REST) {
        match stream {
            Stream::Output => output.extend(bytes),
            Stream::Error => error.extend(bytes),
        }
    }
    Ok(Ended { status, output, error })
}

/// Such programs start no others, so the program alone is killed. It stays in this program's process group, which an
/// interrupt at the terminal reaches.
fn killed(child: &mut Child) -> std::io::Result<()> {
    child.kill()?;
    child.wait().map(drop)
}

fn read(mut stream: impl Read + Send + 'static, which: Stream, sender: Sender<(Stream, Vec<u8>)>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 1 << 14];
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 || sender.send((which, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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
        let began = Instant::now();
        let mut hung = command("sh", ["-c", "echo almost; exec sleep 1000"]);
        let error = collected(&mut hung, Some(&vec![0; 1 << 20]), Duration::from_millis(300)).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(matches!(error, CommandError::Late { .. }), "{error:?}");
        assert!(error.to_string().ends_with("almost"), "{error}");
    }

    #[test]
    fn what_a_program_leaves_running_is_not_waited_for() {
        let began = Instant::now();
        let left = output(&mut command("sh", ["-c", "sleep 40 & echo $!"])).unwrap();
        assert!(began.elapsed() < Duration::from_secs(20));
        let _ = output(&mut command("kill", [left.trim()]));
    }
}
