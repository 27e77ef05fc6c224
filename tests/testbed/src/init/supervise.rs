//! Keeps processes running and reaps orphans.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use crate::progress::note;
use crate::spec::{InitSpec, ProcessSpec};

/// Delay before a process that ended is restarted, unless it ended soon after its start.
const RESTART: Duration = Duration::from_secs(1);
/// Longest such delay.
const LONGEST_RESTART: Duration = Duration::from_secs(15);
/// Pause between looks for what a process needs.
const LOOK: Duration = Duration::from_millis(20);
/// A process that ran for this long has the shortest delay again.
const STEADY: Duration = Duration::from_secs(30);

struct Kept {
    spec: ProcessSpec,
    pid: Option<Pid>,
    started: Instant,
    delay: Duration,
    due: Option<Instant>,
}

/// Runs until SIGTERM or SIGINT. When process 1 of a PID namespace ends, the kernel ends all other processes in it. A
/// process that is started again is started as `written` says by then, where that can still be read.
pub(super) async fn run(spec: &InitSpec, written: impl Fn() -> Result<InitSpec>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let mut children = signal(SignalKind::child()).context("failed to listen for SIGCHLD")?;
    let mut kept: BTreeMap<&str, Kept> = BTreeMap::new();
    for process in &spec.processes {
        let mut entry = Kept {
            spec: process.clone(),
            pid: None,
            started: Instant::now(),
            delay: RESTART,
            due: None,
        };
        entry.start(spec);
        kept.insert(&process.name, entry);
    }
    loop {
        let next = kept.values().filter_map(|entry| entry.due).min();
        let nap = next.map_or(Duration::from_hours(1), |due| {
            due.saturating_duration_since(Instant::now())
        });
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = children.recv() => reap(&mut kept),
            () = tokio::time::sleep(nap) => {}
        }
        let now = Instant::now();
        for entry in kept
            .values_mut()
            .filter(|entry| entry.due.is_some_and(|due| due <= now))
        {
            let processes = written().map(|spec| spec.processes).unwrap_or_default();
            if let Some(process) = processes.into_iter().find(|process| process.name == entry.spec.name) {
                entry.spec = process;
            }
            entry.start(spec);
        }
    }
    note("told to end: all processes end with this one");
    Ok(())
}

impl Kept {
    fn start(&mut self, spec: &InitSpec) {
        self.due = None;
        if self.spec.needs.as_ref().is_some_and(|socket| !socket.exists()) {
            self.due = Some(Instant::now() + LOOK);
            return;
        }
        self.started = Instant::now();
        match spawn(&self.spec, spec) {
            Ok(pid) => {
                note(format!("{} runs as process {pid}", self.spec.name));
                self.pid = Some(pid);
            }
            Err(error) => {
                note(format!("error: {error:#}"));
                self.schedule();
            }
        }
    }

    /// A process that was killed from outside did not fail, so its delay does not grow.
    fn ended(&mut self, how: &str, killed: bool) {
        if killed {
            self.delay = RESTART;
        }
        note(format!(
            "{} ended after {} s ({how}); starting it again",
            self.spec.name,
            self.started.elapsed().as_secs()
        ));
        self.pid = None;
        self.schedule();
    }

    fn schedule(&mut self) {
        if self.started.elapsed() >= STEADY {
            self.delay = RESTART;
        }
        self.due = Some(Instant::now() + self.delay);
        self.delay = (self.delay * 2).min(LONGEST_RESTART);
    }
}

fn spawn(process: &ProcessSpec, spec: &InitSpec) -> Result<Pid> {
    let path = spec.logs.join(format!("{}.log", process.name));
    let log = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("failed to open {}", path.display()))?;
    let child = Command::new(&process.program)
        .args(&process.args)
        .env_clear()
        .envs(&spec.environment)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("failed to share the log")?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("failed to start {}", process.program.display()))?;
    // `reap` waits for it as for all others, so the handle is not needed.
    Ok(Pid::from_raw(
        i32::try_from(child.id()).context("the process id is not valid")?,
    ))
}

/// Reaps all processes that ended: our own, and orphans, such as containers' shims.
fn reap(kept: &mut BTreeMap<&str, Kept>) {
    loop {
        let (pid, how, killed) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, format!("exit code {code}"), false),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, format!("signal {signal}"), signal == Signal::SIGKILL),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
            Ok(_) => continue,
            Err(error) => {
                note(format!("error: failed to wait for a process: {error}"));
                return;
            }
        };
        if let Some(entry) = kept.values_mut().find(|entry| entry.pid == Some(pid)) {
            entry.ended(&how, killed);
        }
    }
}
