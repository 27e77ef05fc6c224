//! A process, held by its pidfd, so that no signal ever goes to another process that got its number later.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgid};
use rustix::process::{self as pidfd, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::sys::raw;

/// How long a process may take to end after SIGTERM. If a server has not accepted the last writes by then, it won't.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// How long to wait for a killed process: it may hang in the kernel.
const REAP: Duration = Duration::from_secs(1);

/// Identifies a process across restarts of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    pid: i32,
    /// Its start time, in the kernel's ticks since boot: no two processes share both number and start time.
    began: u64,
}

/// A process that this agent has started, or found again after a restart.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) identity: ProcessIdentity,
    handle: OwnedFd,
}

/// The process still runs after SIGKILL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotEnded;

impl Process {
    /// The process that has this number now.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let handle = pidfd_open(number(pid)?, PidfdFlags::empty())?;
        // This reads the start time of the same process: its number is not reused before the process is reaped.
        let began = began(pid)?;
        Ok(Self {
            identity: ProcessIdentity { pid, began },
            handle,
        })
    }

    /// The process with this identity; none if it has ended.
    pub(super) fn again(identity: ProcessIdentity) -> Option<Self> {
        Self::of(identity.pid).ok().filter(|found| found.identity == identity)
    }

    pub(super) fn is_alive(&self) -> bool {
        let mut watched = [PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
        poll(&mut watched, PollTimeout::ZERO) == Ok(0)
    }

    pub(super) async fn ended(&self) -> io::Result<()> {
        // Each waiter needs a handle of its own.
        raw::watched(self.handle.try_clone()?)?.readable().await.map(drop)
    }

    /// Sends a signal to it, and to its process group if it leads one. Succeeds if it has ended.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.identity.pid);
        // It keeps the group's number as long as it runs.
        if self.is_alive() && getpgid(Some(pid)) == Ok(pid) {
            let _ = killpg(pid, signal);
        } else if let Some(signal) = pidfd::Signal::from_named_raw(signal as i32) {
            let _ = pidfd_send_signal(&self.handle, signal);
        }
    }

    /// Kills the rest of the process group that it led. Only before it is reaped: until then, the group keeps its
    /// number.
    pub(super) fn end_group(&self) {
        // ESRCH: the group is empty.
        let _ = killpg(Pid::from_raw(self.identity.pid), Signal::SIGKILL);
    }

    /// Ends it with SIGTERM, and with SIGKILL after `grace`.
    pub(super) async fn end(&self, grace: Duration) -> Result<(), NotEnded> {
        for (signal, wait) in [(Signal::SIGTERM, grace), (Signal::SIGKILL, REAP)] {
            if !self.is_alive() {
                return Ok(());
            }
            self.signal(signal);
            let _ = tokio::time::timeout(wait, self.ended()).await;
        }
        if self.is_alive() { Err(NotEnded) } else { Ok(()) }
    }
}

fn number(pid: i32) -> Result<pidfd::Pid, Errno> {
    (pid > 1)
        .then_some(pid)
        .and_then(pidfd::Pid::from_raw)
        .ok_or(Errno::ESRCH)
}

/// The start time of a process: field 22 of its `stat`, the twentieth after its name, which may contain blanks and
/// brackets.
fn began(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    fields
        .and_then(|fields| fields.split_whitespace().nth(19)?.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a process without a start"))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;

    fn sh(script: &str) -> (Child, Process) {
        let mut command = Command::new("/bin/sh");
        let child = command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        (child, process)
    }

    #[tokio::test]
    async fn a_process_is_found_again_but_not_another_with_its_number() {
        let (mut child, process) = sh("exec sleep 70");
        let found = Process::again(process.identity).unwrap();
        assert!(found.is_alive());
        let another = ProcessIdentity {
            began: process.identity.began - 1,
            ..process.identity
        };
        assert!(Process::again(another).is_none());
        assert_eq!(found.end(GRACE).await, Ok(()));
        assert!(!process.is_alive());
        // A second time succeeds as well.
        assert_eq!(process.end(GRACE).await, Ok(()));
        child.wait().unwrap();
        assert!(Process::again(process.identity).is_none());
        assert!(Process::of(1).is_err() && Process::of(0).is_err() && Process::of(-1).is_err());
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed_after_its_grace_period() {
        use std::io::Read as _;
        let (mut child, process) = sh("trap '' TERM; echo; while :; do sleep 0.1; done");
        // From here on, it ignores the signal.
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let start = Instant::now();
        assert_eq!(process.end(Duration::from_millis(300)).await, Ok(()));
        assert!(start.elapsed() >= Duration::from_millis(300));
        child.wait().unwrap();
    }
}
