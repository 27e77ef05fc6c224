//! Runs a test program of Rust's test harness, and reads its output.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_testbed::command::line;
use mooring_testbed::progress::{fail, note, say};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Beginning of the line by which a test says that it is skipped; its name and the reason follow.
const SKIPPED: &str = "testbed-skipped: ";

/// What the test harness puts after the name of a test with `#[should_panic]`, which is the mark of a known failure.
const MARKED: &str = " - should panic";

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Results {
    /// How many passed, without skipped ones and known failures.
    pub(super) passed: usize,
    /// Those that failed, with their output.
    pub(super) failed: BTreeMap<String, String>,
    /// Those that were skipped, with the reason.
    pub(super) skipped: BTreeMap<String, String>,
    /// Those that failed as their mark says.
    pub(super) known_failing: BTreeSet<String>,
    /// How the tests ended that had a line: see [`Results::of`].
    pub(super) ended: Vec<Ended>,
    /// The names of those that passed.
    pub(super) named: BTreeSet<String>,
}

/// How a test ended, for the report of what was proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    /// The folder of its package or group, relative to the repository.
    pub(super) folder: PathBuf,
    /// With its modules.
    pub(super) test: String,
    pub(super) end: End,
}

/// The worst is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Skipped,
    Passed,
    Failed,
}

impl Results {
    /// A program that could not be run counts as one failed test.
    pub(super) fn broken(name: &str, error: &anyhow::Error) -> Self {
        Self {
            failed: BTreeMap::from([(name.to_owned(), format!("{error:#}"))]),
            ..Self::default()
        }
    }

    /// The results of a program. If it could not be run, that is printed at once.
    pub(super) fn told(name: &str, results: Result<Self>) -> Self {
        results.unwrap_or_else(|error| {
            note(format!("{name}:"));
            fail(&error);
            Self::broken(name, &error)
        })
    }

    /// `N passed, N failed, N skipped`.
    pub(super) fn counts(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        )
    }

    /// Whether a test has failed, with or without a mark: such a test may leave things behind.
    pub(super) fn may_leave_things(&self) -> bool {
        !self.failed.is_empty() || !self.known_failing.is_empty()
    }

    /// Notes that these are the results of a program of this package or group.
    pub(super) fn of(mut self, folder: &Path) -> Self {
        let (passed, skipped, failed) = (self.named.iter(), self.skipped.keys(), self.failed.keys());
        let ends = passed
            .map(|test| (test, End::Passed))
            .chain(skipped.map(|test| (test, End::Skipped)))
            .chain(failed.map(|test| (test, End::Failed)));
        self.ended = ends
            .map(|(test, end)| Ended {
                folder: folder.to_owned(),
                test: test.clone(),
                end,
            })
            .collect();
        self
    }

    /// Adds the results of another program; `title` is put before its tests' names.
    pub(super) fn add(&mut self, title: &str, other: Self) {
        let named = |(name, text): (String, String)| (format!("{title}: {name}"), text);
        self.passed += other.passed;
        self.failed.extend(other.failed.into_iter().map(named));
        self.skipped.extend(other.skipped.into_iter().map(named));
        let named = |name: String| format!("{title}: {name}");
        self.known_failing.extend(other.known_failing.into_iter().map(named));
        self.ended.extend(other.ended);
    }
}

enum Line {
    Output(String),
    Error(String),
}

/// The process groups of running test programs, and whether more may start.
static RUNNING: Mutex<Running> = Mutex::new(Running {
    stopped: false,
    groups: BTreeSet::new(),
});

struct Running {
    stopped: bool,
    groups: BTreeSet<i32>,
}

/// Ends all running test programs with their children; no more may start.
pub(super) fn stop() {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.stopped = true;
    for group in &running.groups {
        // It may be gone already.
        let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
    }
}

/// Whether test programs were stopped.
pub(super) fn is_stopped() -> bool {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).stopped
}

/// Starts a program in a process group of its own, unless the suite was stopped.
fn start(command: &mut Command, shown: &str) -> Result<(Child, i32)> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(!running.stopped, "not run: the suite was stopped");
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("failed to run {shown}"))?;
    let group = i32::try_from(child.id()).context("the process id is not valid")?;
    running.groups.insert(group);
    Ok((child, group))
}

/// Runs a test program to its end, and shows each of its lines after `title`. A program that has not ended after
/// `limit` is killed with its children.
pub(super) fn run(command: Command, title: &str, limit: Duration) -> Result<Results> {
    // The summary lines of the test harness are not needed.
    follow(command, title, limit, &|text| {
        text.starts_with("test ") && text.contains(" ... ")
    })
}

fn follow(mut command: Command, title: &str, limit: Duration, is_news: &dyn Fn(&str) -> bool) -> Result<Results> {
    let shown = line(&command);
    let (mut child, group) = start(&mut command, &shown)?;
    let (sender, lines) = channel();
    let stdout = child.stdout.take().context("no standard output")?;
    let stderr = child.stderr.take().context("no standard error")?;
    let deadline = Instant::now() + limit;
    std::thread::scope(|scope| {
        let errors = sender.clone();
        scope.spawn(move || read(stdout, &sender, Line::Output));
        scope.spawn(move || read(stderr, &errors, Line::Error));
        let mut reading = Reading::default();
        let in_time = reading.follow(&lines, title, deadline, is_news);
        if !in_time {
            // It may be gone already.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        await_end(group);
        // The processes that it left running. Its number can't be reused before it is reaped.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        let status = child.wait().with_context(|| format!("failed to wait for {shown}"))?;
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.groups.remove(&group);
        let why = if running.stopped {
            format!("{shown} was ended, since the suite was stopped")
        } else if in_time {
            format!("{shown} ended with {status} before its tests had")
        } else {
            // Most often what it waited for.
            let last = reading.last.as_deref().unwrap_or("none");
            format!(
                "{shown} was not at its end after {} s, and was killed; its last line: {last}",
                limit.as_secs()
            )
        };
        Ok(reading.results(status.success(), &why))
    })
}

/// Waits until a child has ended, without reaping it.
fn await_end(child: i32) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(Pid::from_raw(child)), flags) == Err(Errno::EINTR) {}
}

/// Runs a test program, and shows only failures.
pub(super) fn run_quietly(mut command: Command, title: &str, limit: Duration) -> Result<Results> {
    command.env("RUST_BACKTRACE", "0");
    follow(command, title, limit, &|text| {
        text.contains(" ... FAILED") || text.starts_with("thread '")
    })
}

/// Runs the examples in the documentation: one program per crate, whose names do not matter.
pub(super) fn run_documentation(command: Command, title: &str, limit: Duration) -> Result<Results> {
    follow(command, title, limit, &|text| {
        text.contains("FAILED") || text.starts_with("error")
    })
}

fn read(from: impl Read, to: &Sender<Line>, kind: fn(String) -> Line) {
    let mut reader = BufReader::new(from);
    let mut bytes = Vec::new();
    // Invalid UTF-8 is shown with replacements: a test may print its input.
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
        let text = String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned();
        if to.send(kind(text)).is_err() {
            return;
        }
        bytes.clear();
    }
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    results: Results,
    /// Tests that reported "ok", including skipped ones.
    ok: usize,
    /// The test whose name was read, but not its end.
    open: Option<String>,
    /// The test whose output the harness repeats.
    repeated: Option<String>,
    /// Why a known failure counts as failed, by test.
    unexpected: BTreeMap<String, String>,
    /// The panic that is being read, with the test's name.
    panic: Option<String>,
    panics: BTreeMap<String, String>,
    ended: bool,
    /// The last line on standard error.
    last: Option<String>,
    /// How many tests passed by the program's last line, including skipped ones: what a test prints without a new line
    /// hides the line of another.
    counted: Option<usize>,
}

impl Reading {
    /// Reads until the program has closed both of its outputs; false if it has not before `deadline`.
    fn follow(
        &mut self,
        lines: &Receiver<Line>,
        title: &str,
        deadline: Instant,
        is_news: &dyn Fn(&str) -> bool,
    ) -> bool {
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Line::Output(text)) => {
                    self.output(&text);
                    if is_news(&text) {
                        say(format!("{title}: {text}"));
                    }
                }
                Ok(Line::Error(text)) => {
                    self.error(&text);
                    say(format!("{title}: {text}"));
                    self.last = Some(text);
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return true,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return false,
            }
        }
    }

    fn output(&mut self, text: &str) {
        if let Some((name, ending)) = beginning(text) {
            self.open = Some(name.to_owned());
            self.verdict(ending);
        } else {
            self.verdict(text);
        }
        if let Some(result) = text.strip_prefix("test result: ") {
            self.ended = true;
            let count = result
                .split_once(" passed")
                .and_then(|(before, _)| before.split(' ').next_back());
            self.counted = count.and_then(|count| count.parse().ok());
        }
        self.follow_mark(text);
        // Without a terminal, a panic's message may be on either output.
        self.follow_panic(text);
    }

    /// Reads how the open test ended, if this line says so. If tests run one at a time, a test's own output comes
    /// between its name and its end.
    fn verdict(&mut self, text: &str) {
        let Some(name) = self.open.take() else {
            return;
        };
        let marked = name.strip_suffix(MARKED).map(str::to_owned);
        if text == "ok" {
            self.ok += 1;
            match marked {
                Some(marked) => self.results.known_failing.insert(marked),
                None => self.results.named.insert(name),
            };
        } else if text == "FAILED" {
            self.results.failed.insert(marked.unwrap_or(name), String::new());
        } else if text == "ignored" || text.starts_with("ignored, ") {
            self.results.skipped.insert(name, "ignored".to_owned());
        } else {
            self.open = Some(name);
        }
    }

    fn error(&mut self, text: &str) {
        if let Some((name, reason)) = text.strip_prefix(SKIPPED).and_then(|rest| rest.split_once(": ")) {
            self.results.skipped.insert(name.to_owned(), reason.to_owned());
        }
        self.follow_panic(text);
    }

    /// Reads what the harness says of a test with `#[should_panic]` that failed.
    fn follow_mark(&mut self, text: &str) {
        if let Some(name) = text
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.repeated = Some(name.to_owned());
        } else if let Some(name) = &self.repeated {
            let why = if text.starts_with("note: test did not panic as expected") {
                "it is marked as known failing, and passed: remove the mark"
            } else if text.starts_with("note: panic did not contain expected string") {
                "it is marked as known failing, and failed with other words than the mark's"
            } else {
                return;
            };
            self.unexpected.insert(name.clone(), why.to_owned());
        }
    }

    /// Keeps a panic's message, up to its backtrace.
    fn follow_panic(&mut self, text: &str) {
        let begins = text.starts_with("thread '") && text.contains(" panicked at ");
        if begins {
            let name = text.split('\'').nth(1).unwrap_or_default().to_owned();
            let said = self.panics.entry(name.clone()).or_default();
            if !said.is_empty() {
                said.push('\n');
            }
            said.push_str(text);
            self.panic = Some(name);
        } else if text.is_empty() || text == "stack backtrace:" || text.starts_with("note: ") {
            self.panic = None;
        } else if let Some(said) = self.panic.as_ref().and_then(|name| self.panics.get_mut(name)) {
            said.push('\n');
            said.push_str(text);
        }
    }

    fn results(mut self, success: bool, why: &str) -> Results {
        for (name, said) in &mut self.results.failed {
            let parts: Vec<_> = [self.unexpected.get(name), self.panics.get(name)]
                .into_iter()
                .flatten()
                .map(String::as_str)
                .collect();
            *said = parts.join("\n");
        }
        let skipped = self
            .results
            .skipped
            .values()
            .filter(|reason| *reason != "ignored")
            .count();
        self.results
            .named
            .retain(|name| !self.results.skipped.contains_key(name));
        let not_passed = skipped + self.results.known_failing.len();
        self.results.passed = self.counted.unwrap_or(self.ok).saturating_sub(not_passed);
        // It was killed, or ended itself: tests that had not ended have no line.
        if !self.ended || (!success && self.results.failed.is_empty()) {
            let panics: Vec<_> = self.panics.into_values().collect();
            let said = std::iter::once(why.to_owned())
                .chain(panics)
                .collect::<Vec<_>>()
                .join("\n");
            self.results.failed.insert("the program itself".to_owned(), said);
        }
        self.results
    }
}

/// A test's name and what follows it in its line. What another test has printed without a new line may be before that.
fn beginning(text: &str) -> Option<(&str, &str)> {
    let (name, ending) = text.split_once(" ... ")?;
    let name = name
        .strip_prefix("test ")
        .or_else(|| Some(name.rsplit_once("test ")?.1))?;
    let path = name.strip_suffix(MARKED).unwrap_or(name);
    let is_path = path
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
    is_path.then_some((name, ending))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{End, Reading, run_quietly};

    #[test]
    fn processes_that_a_test_program_leaves_are_ended() {
        let script = "sleep 600 >/dev/null 2>&1 & echo test a::b ... ok; echo test result: ok; echo $! >\"$0\"";
        let file = std::env::temp_dir().join(format!("mooring-left-{}", std::process::id()));
        let mut program = Command::new("sh");
        program.args(["-c", script]).arg(&file);
        let results = run_quietly(program, "left", Duration::from_mins(1)).unwrap();
        assert_eq!((results.passed, results.failed.len()), (1, 0));
        let left = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        // A process that has ended has no command line, even before its new parent reaps it.
        while std::fs::read(format!("/proc/{}/cmdline", left.trim())).is_ok_and(|line| !line.is_empty()) {
            assert!(Instant::now() < deadline, "{left} still runs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_program_that_is_killed_says_what_it_waited_for() {
        let mut program = Command::new("sh");
        program.args([
            "-c",
            "echo test a::b ... ; echo '.. claim data to be bound (30 s)' >&2; exec sleep 600",
        ]);
        let results = run_quietly(program, "late", Duration::from_secs(2)).unwrap();
        let said = &results.failed["the program itself"];
        assert!(
            said.contains("after 2 s") && said.ends_with("claim data to be bound (30 s)"),
            "{said}"
        );
    }

    fn read(output: &[&str], errors: &[&str], success: bool) -> super::Results {
        let mut reading = Reading::default();
        for text in errors {
            reading.error(text);
        }
        for text in output {
            reading.output(text);
        }
        reading.results(success, "it ended")
    }

    #[test]
    fn skipped_is_not_passed() {
        let results = read(
            &[
                "running 2 tests",
                "test a::b ... ok",
                "test a::c ... ok",
                "test a::d ... ignored",
                "test result: ok. 2 passed",
            ],
            &["testbed-skipped: a::c: it works on the nodes: of the testbed"],
            true,
        );
        assert_eq!((results.passed, results.failed.len()), (1, 0));
        assert_eq!(results.skipped["a::c"], "it works on the nodes: of the testbed");
        assert_eq!(results.skipped.len(), 2);
    }

    #[test]
    fn a_known_failure_is_not_passed_and_fails_if_it_passes_or_fails_otherwise() {
        let results = read(
            &[
                "test a::b - should panic ... ok",
                "test a::c - should panic ... FAILED",
                "test a::d - should panic ... FAILED",
                "test a::e ... ok",
                "---- a::c stdout ----",
                "note: test did not panic as expected at lib.rs:7:8",
                "---- a::d stdout ----",
                "",
                "thread 'a::d' (7) panicked at lib.rs:12:9:",
                "other words",
                "note: panic did not contain expected string",
                "test result: FAILED. 2 passed; 2 failed",
            ],
            &[],
            false,
        );
        assert_eq!(results.passed, 1);
        assert_eq!(results.known_failing.iter().collect::<Vec<_>>(), ["a::b"]);
        assert!(results.failed["a::c"].contains("remove the mark"), "{results:?}");
        let said = &results.failed["a::d"];
        assert!(
            said.contains("than the mark's") && said.contains("other words"),
            "{said}"
        );
        assert_eq!(results.counts(), "1 passed, 2 failed, 0 skipped");
    }

    #[test]
    fn a_test_whose_line_is_hidden_counts() {
        let results = read(
            &[
                "test a::b ... ok",
                "noisetest a::c ... ok",
                "test result: ok. 2 passed; 0 failed; 0 ignored",
            ],
            &[],
            true,
        );
        assert_eq!((results.passed, results.failed.len()), (2, 0));
        let ended = results.of(Path::new("mounter")).ended;
        assert_eq!(ended.len(), 2);
        assert_eq!((ended[1].test.as_str(), ended[1].end), ("a::c", End::Passed));
    }

    #[test]
    fn a_failure_says_what_its_panic_said_and_not_its_backtrace() {
        let results = read(
            &["test a::b ... FAILED", "test result: FAILED. 0 passed; 1 failed"],
            &[
                "thread 'a::b' (7) panicked at lib.rs:101:9:",
                "it: waited 60 s in vain",
                "and more",
                "stack backtrace:",
                "   0: __rustc::rust_begin_unwind",
                "thread 'a::b' (7) panicked at in_namespace.rs:79:9:",
                "seed 4",
            ],
            false,
        );
        let said = &results.failed["a::b"];
        assert!(
            said.contains("in vain\nand more\nthread") && said.contains("seed 4") && !said.contains("rust_begin"),
            "{said}"
        );
    }

    #[test]
    fn what_a_test_prints_does_not_hide_how_it_ended() {
        let results = read(
            &[
                "test a::b ...   ok make a machine (2 s)",
                "ok or not",
                "ok",
                "test a::c ... once",
                "FAILED",
                "test result: FAILED. 1 passed; 1 failed",
            ],
            &[],
            false,
        );
        assert_eq!((results.passed, results.failed.len()), (1, 1));
        assert!(results.failed.contains_key("a::c"));
    }

    #[test]
    fn a_program_that_does_not_reach_its_end_has_failed() {
        let cut_short = read(&["test a::b ... ok"], &[], false);
        assert_eq!(
            (cut_short.passed, cut_short.failed["the program itself"].as_str()),
            (1, "it ended")
        );
        let bad_end = read(&["test result: ok. 0 passed"], &[], false);
        assert_eq!(bad_end.failed.len(), 1);
    }
}
