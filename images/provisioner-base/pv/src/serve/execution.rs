//! One run in a worker: the image's program, with what a Pod of its own would have.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
// What a run prints in a test is nobody's business.
#[cfg(test)]
use std::io::sink as log;
#[cfg(not(test))]
use std::io::stderr as log;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use mooring_contract::names::paths;
use mooring_contract::outcome::EX_TEMPFAIL;
use mooring_contract::property::{env_name, keys};
use mooring_contract::worker::{KEY_VARIABLE, MAX_LOG, MAX_MESSAGE, Order, PORT_VARIABLE, RunEnd};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};

use crate::args::Serve;

/// What is run, and where it finds what it is given.
#[derive(Debug)]
pub(super) struct Program {
    args: Serve,
    run_dir: PathBuf,
}

/// How long the end of what a run printed is waited for: something that it left behind may still hold its output.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The last of what a run printed.
type Tail = Arc<Mutex<VecDeque<u8>>>;

/// A run that was started.
struct Begun {
    child: Child,
    printed: Tail,
    /// Closes when all of its output has been read.
    output: Receiver<()>,
}

impl Program {
    pub(super) fn new(args: Serve, run_dir: &Path) -> Self {
        Self {
            args,
            run_dir: run_dir.to_owned(),
        }
    }

    /// Carries out a run, to its end.
    pub(super) fn execute(&self, order: Order) -> RunEnd {
        let limit = Duration::from_secs(order.timeout);
        let begun = match self.give(&order).and_then(|()| self.start(order)) {
            Ok(begun) => begun,
            Err(error) => {
                return RunEnd {
                    exit_code: EX_TEMPFAIL,
                    message: format!("the worker failed to start the image's program: {error}"),
                    timed_out: false,
                };
            }
        };
        let (status, timed_out) = wait_for(begun.child, limit);
        let _ = begun.output.recv_timeout(LAST_WORDS);
        let exit_code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        let exit_code = exit_code.unwrap_or(1);
        let mut message = message_in(&self.args.message).unwrap_or_default();
        if message.is_empty() && exit_code != 0 {
            let tail: Vec<u8> = lock(&begun.printed).iter().copied().collect();
            message = text(tail);
        }
        self.forget();
        RunEnd {
            exit_code,
            message,
            timed_out,
        }
    }

    /// Writes the files that a run finds.
    fn give(&self, order: &Order) -> io::Result<()> {
        self.forget();
        let folder = self.properties();
        fs::create_dir_all(&folder)?;
        for (name, value) in &order.properties {
            fs::write(folder.join(name), value)?;
        }
        fs::write(self.run_dir.join("request.json"), &order.request)
    }

    fn start(&self, order: Order) -> io::Result<Begun> {
        // One for both, so that what is printed last is last.
        let (from, output) = io::pipe()?;
        let mut command = Command::new(&self.args.command);
        command
            .args(&self.args.args)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .env_remove(KEY_VARIABLE)
            .env_remove(PORT_VARIABLE)
            .env_remove(env_name(keys::OPERATION))
            .process_group(0);
        for (name, value) in order.properties {
            command.env(env_name(&name), value);
        }
        let child = command.spawn()?;
        let printed = Tail::default();
        Ok(Begun {
            child,
            output: pass_on(from, log(), printed.clone()),
            printed,
        })
    }

    /// Removes what a run was given, and what it left in the folder for temporary files.
    fn forget(&self) {
        let _ = fs::remove_dir_all(self.properties());
        let _ = fs::remove_file(self.run_dir.join("request.json"));
        for entry in fs::read_dir(&self.args.tmp).into_iter().flatten().flatten() {
            let path = entry.path();
            let _ = match entry.file_type() {
                Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
                _ => fs::remove_file(path),
            };
        }
        if let Ok(message) = OpenOptions::new().write(true).open(&self.args.message) {
            let _ = message.set_len(0);
        }
    }

    fn properties(&self) -> PathBuf {
        let name = Path::new(paths::PROPERTIES).file_name().unwrap_or_default();
        self.run_dir.join(name)
    }
}

/// Waits for a run; returns when nothing of it runs any more, and whether it had to be ended.
fn wait_for(mut child: Child, limit: Duration) -> (ExitStatus, bool) {
    let group = child.id();
    let (over, is_over) = channel::<()>();
    let watch = thread::spawn(move || {
        let timed_out = is_over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        if timed_out {
            kill(group);
        }
        timed_out
    });
    let status = child.wait().unwrap_or_else(|_| ExitStatus::from_raw(1 << 8));
    drop(over);
    let timed_out = watch.join().unwrap_or(false);
    kill(group);
    if is_first() {
        // What it left behind is this process' now.
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
    }
    (status, timed_out && !status.success())
}

/// Ends all that a run has started. The first process of a container ends every other: a group can be left, a container
/// can't.
fn kill(group: u32) {
    // To the group of the first process is to all that there are but itself.
    let group = if is_first() { 1 } else { group };
    let group = i32::try_from(group).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn is_first() -> bool {
    std::process::id() == 1
}

/// Shows what a run prints as what this process prints, and keeps the last of it.
fn pass_on(mut from: impl Read + Send + 'static, mut to: impl io::Write + Send + 'static, tail: Tail) -> Receiver<()> {
    let (all_read, is_all_read) = channel();
    thread::spawn(move || {
        let _all_read = all_read;
        let mut piece = [0; 4096];
        while let Ok(read) = from.read(&mut piece) {
            let Some(read) = piece.get(..read).filter(|read| !read.is_empty()) else {
                break;
            };
            let _ = to.write_all(read);
            let mut tail = lock(&tail);
            tail.extend(read);
            let too_much = tail.len().saturating_sub(MAX_LOG);
            tail.drain(..too_much);
        }
    });
    is_all_read
}

fn lock(tail: &Tail) -> std::sync::MutexGuard<'_, VecDeque<u8>> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a run left as its message, as much as Kubernetes would take.
fn message_in(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_MESSAGE as u64).read_to_end(&mut bytes)?;
    Ok(text(bytes))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use mooring_contract::worker::{Order, RunEnd};

    use super::Program;
    use crate::args::Serve;

    /// What becomes of a run of this script, with 20 s of time.
    fn run(folder: &Path, number: u64, script: &str) -> RunEnd {
        limited(folder, number, script, 20)
    }

    fn limited(folder: &Path, number: u64, script: &str, timeout: u64) -> RunEnd {
        fs::create_dir_all(folder.join("tmp")).unwrap();
        let message = folder.join("message");
        if !message.exists() {
            fs::write(&message, "").unwrap();
        }
        let args = Serve {
            command: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            tmp: folder.join("tmp"),
            message,
        };
        let properties = [("operation", "provision"), ("size-gi", "5")];
        Program::new(args, folder).execute(Order {
            number,
            timeout,
            properties: properties.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            request: "{}".into(),
        })
    }

    #[test]
    fn a_run_finds_what_it_would_find_in_a_pod_of_its_own_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let script = format!(
            "[ \"$OPERATION $SIZE_GI\" = \"provision 5\" ] && [ \"$(cat {at}/properties/size-gi)\" = 5 ] &&
             [ \"$(cat {at}/request.json)\" = '{{}}' ] && [ -z \"$(ls {at}/tmp)\" ] && [ -z \"$(cat {at}/message)\" ] &&
             mkdir {at}/tmp/left && touch {at}/tmp/left/secret && printf said >{at}/message"
        );
        for number in [1, 2] {
            let end = run(folder.path(), number, &script);
            assert_eq!(
                (end.exit_code, end.message.as_str(), end.timed_out),
                (0, "said", false),
                "{number}"
            );
            assert!(!folder.path().join("properties").exists());
            assert!(!folder.path().join("request.json").exists());
        }
        // Only a run that fails leaves its last words where it has no message.
        assert_eq!(run(folder.path(), 3, "echo done").message, "");
    }

    #[test]
    fn the_last_words_of_a_run_that_fails_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let end = run(
            folder.path(),
            1,
            "head -c 2100 /dev/zero | tr '\\0' x; echo; echo full >&2; exit 75",
        );
        assert_eq!(end.exit_code, 75);
        assert!(
            end.message.ends_with("full\n") && end.message.len() == 2048,
            "{}",
            end.message
        );
        let end = run(folder.path(), 2, "kill -9 $$");
        assert_eq!((end.exit_code, end.message.as_str()), (137, ""));
    }

    #[test]
    fn a_run_that_takes_too_long_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 60 & echo $! >{}; echo waiting; wait", pid.display());
        let end = limited(folder.path(), 1, &script, 3);
        assert_eq!(
            (end.exit_code, end.timed_out, end.message.as_str()),
            (137, true, "waiting\n")
        );
        let pid = fs::read_to_string(pid).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
        assert!(status.is_empty() || status.contains("zombie"), "{status}");
    }

    #[test]
    fn a_program_that_is_not_there_is_an_attempt_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let args = Serve {
            command: "/nowhere".into(),
            args: vec![],
            tmp: folder.path().join("tmp"),
            message: folder.path().join("message"),
        };
        let end = Program::new(args, folder.path()).execute(Order {
            number: 1,
            timeout: 1,
            properties: [].into(),
            request: String::new(),
        });
        assert_eq!(end.exit_code, 75);
        assert!(end.message.contains("failed to start"), "{}", end.message);
    }
}
