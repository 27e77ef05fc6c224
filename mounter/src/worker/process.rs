//! The daemon's side of a worker: start it, wait for it, end it when its time is over.

use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tracing::{Instrument as _, Span, debug_span, info, warn};

use super::pod_group::GiveTask;
use super::task::{END, Task, WorkerReport};
use super::turns::Turns;
use super::usage::Usage;
use crate::sys::look::LookedAt;
use crate::sys::ownership::Walked;
use crate::volume::cause::Cause;
use crate::volume::job::MountError;
use crate::volume::target::Target;

/// How long a killed worker is waited for before it is left behind.
pub const REAP: Duration = Duration::from_secs(1);

/// Longest report in bytes.
const MAX_REPORT: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The system did not let the daemon start it or talk to it.
    #[error("failed to {attempted} a worker: {source}")]
    Process {
        attempted: &'static str,
        source: std::io::Error,
    },
    #[error("the worker ended without a report ({status}): {last_lines}")]
    Silent {
        status: ExitStatus,
        /// What it said on standard error.
        last_lines: String,
    },
    #[error("the worker was ended after {limit:?}")]
    Late { limit: Duration },
    /// It reported on another task than its own.
    #[error("the worker's report does not fit its task")]
    OtherReport,
    #[error(transparent)]
    Failed(#[from] MountError),
}

impl WorkerError {
    /// As the user reads it. `attempted` is a noun, such as `the mount of X`; `server` is what the worker waited for.
    pub fn into_mount_error(self, attempted: &str, server: &str) -> MountError {
        match self {
            Self::Failed(error) => error,
            Self::Late { limit } => MountError::Timeout {
                attempted: attempted.to_owned(),
                seconds: limit.as_secs(),
                server: server.to_owned(),
            },
            other => MountError::failed(format!("finish {attempted}"), Cause::of(other)),
        }
    }
}

/// The span of what a worker does for its caller.
fn span(task: &Task) -> Span {
    debug_span!("worker", worker.task = task.name())
}

/// Starts workers. One is started before it is needed, since that takes longer than to mount a volume.
#[derive(Debug, Clone, Default)]
pub struct Workers {
    left_behind: Arc<AtomicUsize>,
    ahead: Arc<Mutex<Option<Child>>>,
    turns: Turns,
}

impl Workers {
    /// How many workers hang in the kernel after they were killed.
    pub fn left_behind(&self) -> usize {
        self.left_behind.load(Ordering::Relaxed)
    }

    /// Has a worker do a task, until `deadline` at the latest.
    pub async fn run(&self, task: &Task, deadline: Instant) -> Result<(), WorkerError> {
        self.report(task, deadline).await.map(drop)
    }

    /// Has a worker look at what is mounted on a target, for `limit` at most. One worker at a time asks about a target:
    /// an earlier one is waited for as long as `patience`, and [`WorkerError::Late`] is the result if it goes on.
    pub async fn look(&self, target: &Target, patience: Duration, limit: Duration) -> Result<LookedAt, WorkerError> {
        let task = Task::Look { target: target.clone() };
        match self.report_in_turn(&task, target, patience, limit).await? {
            WorkerReport::Found(found) => Ok(found),
            _ => Err(WorkerError::OtherReport),
        }
    }

    /// Has a worker ask what is mounted on a target how full it is, until `deadline` at the latest. Takes turns with
    /// [`Self::look`].
    pub async fn usage(&self, target: &Target, deadline: Instant) -> Result<Usage, WorkerError> {
        let task = Task::Usage { target: target.clone() };
        let limit = deadline.saturating_duration_since(Instant::now());
        match self.report_in_turn(&task, target, limit, limit).await? {
            WorkerReport::Usage(usage) => Ok(usage),
            _ => Err(WorkerError::OtherReport),
        }
    }

    /// Has a worker give the files of a volume to a group, until `deadline` at the latest.
    pub async fn give(&self, task: GiveTask, deadline: Instant) -> Result<Walked, WorkerError> {
        match self.report(&Task::Give(task), deadline).await? {
            WorkerReport::Walked(walked) => Ok(walked),
            _ => Err(WorkerError::OtherReport),
        }
    }

    /// The turn ends when the worker has answered or ended. A killed worker may hang in the kernel long after this has
    /// returned [`WorkerError::Late`].
    async fn report_in_turn(
        &self,
        task: &Task,
        target: &Target,
        patience: Duration,
        limit: Duration,
    ) -> Result<WorkerReport, WorkerError> {
        let turn = self.turns.take(target, patience).await;
        let turn = turn.ok_or(WorkerError::Late { limit: patience })?;
        self.report_holding(task, Instant::now() + limit, turn).await
    }

    async fn report(&self, task: &Task, deadline: Instant) -> Result<WorkerReport, WorkerError> {
        self.report_holding(task, deadline, ()).await
    }

    async fn report_holding(
        &self,
        task: &Task,
        deadline: Instant,
        held: impl Send + 'static,
    ) -> Result<WorkerReport, WorkerError> {
        let limit = deadline.saturating_duration_since(Instant::now());
        let text = serde_json::to_vec(task).map_err(|e| failed("instruct")(e.into()))?;
        let mut child = self.take().map_err(failed("start"))?;
        let group = child.id().map(|id| Pid::from_raw(id.cast_signed()));
        match tokio::time::timeout(limit, converse(&mut child, &text).instrument(span(task))).await {
            Ok(Ok(report)) => {
                // The worker only has to end, but for a last user. The next one is started after the answer is passed
                // on.
                let workers = self.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(REAP, child.wait()).await;
                    workers.start_ahead();
                    let _ = child.wait().await;
                });
                match report {
                    WorkerReport::Failed(error) => Err(error.into()),
                    report => Ok(report),
                }
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                self.end(child, group, held).await;
                Err(WorkerError::Late { limit })
            }
        }
    }

    /// Has a worker wait for the next task, if none does.
    pub fn start_ahead(&self) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.is_none() {
            // If this fails, the task that needs a worker starts one, and gets the error.
            *ahead = start().ok();
        }
    }

    /// The worker that waits, or else a new one.
    fn take(&self) -> std::io::Result<Child> {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut child) = ahead
            && matches!(child.try_wait(), Ok(None))
        {
            return Ok(child);
        }
        start()
    }

    /// Kills a worker and what it has started. One that hangs in the kernel is reaped later.
    async fn end(&self, mut child: Child, group: Option<Pid>, held: impl Send + 'static) {
        if let Some(group) = group {
            // It fails only if the group is gone already.
            let _ = killpg(group, Signal::SIGKILL);
        }
        if tokio::time::timeout(REAP, child.wait()).await.is_err() {
            let pid = group.map(Pid::as_raw);
            warn!(worker.pid = pid, "worker hangs in the kernel and is left behind");
            self.left_behind.fetch_add(1, Ordering::Relaxed);
            let left_behind = Arc::clone(&self.left_behind);
            tokio::spawn(async move {
                let _ = child.wait().await;
                drop(held);
                left_behind.fetch_sub(1, Ordering::Relaxed);
                info!(worker.pid = pid, "worker that was left behind has ended");
            });
        }
    }
}

fn start() -> std::io::Result<Child> {
    // Without a working directory: with one, the standard library forks, and the kernel copies the daemon's page
    // tables.
    Command::new("/proc/self/exe")
        .arg0("mounter")
        .arg("worker")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

async fn converse(child: &mut Child, task: &[u8]) -> Result<WorkerReport, WorkerError> {
    if let Some(mut stdin) = child.stdin.take() {
        // A worker that has ended says why on standard error.
        let _ = stdin.write_all(task).await;
    }
    let last_lines = tokio::spawn(standard_error(child.stderr.take()));
    let mut report = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout.take(MAX_REPORT));
        stdout
            .read_until(END, &mut report)
            .await
            .map_err(failed("read the report of"))?;
    }
    if report.last() == Some(&END)
        && let Ok(report) = serde_json::from_slice(&report)
    {
        return Ok(report);
    }
    Err(WorkerError::Silent {
        status: child.wait().await.map_err(failed("wait for"))?,
        last_lines: last_lines.await.unwrap_or_default(),
    })
}

/// All that it says on standard error.
async fn standard_error(stderr: Option<ChildStderr>) -> String {
    let mut last_lines = Vec::new();
    if let Some(stderr) = stderr {
        // What was read before an error counts.
        let _ = stderr.take(MAX_REPORT).read_to_end(&mut last_lines).await;
    }
    String::from_utf8_lossy(&last_lines).trim().to_owned()
}

fn failed(attempted: &'static str) -> impl FnOnce(std::io::Error) -> WorkerError {
    move |source| WorkerError::Process { attempted, source }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{WorkerError, Workers};
    use crate::sys::fake::target;

    /// Without a turn no worker is started: here, that would be this test program.
    #[tokio::test]
    async fn what_an_earlier_one_still_asks_is_asked_by_no_other() {
        let workers = Workers::default();
        let _earlier = workers.turns.take(&target(), Duration::ZERO).await.unwrap();
        let soon = Duration::from_millis(20);
        let asked = workers.clone().usage(&target(), Instant::now() + soon).await;
        assert!(matches!(asked, Err(WorkerError::Late { .. })), "{asked:?}");
        let looked = workers.look(&target(), soon, soon).await;
        assert!(matches!(looked, Err(WorkerError::Late { .. })), "{looked:?}");
    }
}
