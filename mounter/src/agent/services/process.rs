//! A process that is known by its pidfd, so that no signal ever goes to another that has got its number since.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpgid, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::sys::raw;

/// How long a process may take to end after SIGTERM. A server that does not take the last writes by then does not take
/// them later.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// How long one that was killed is waited for: it may hang in the kernel.
const REAP: Duration = Duration::from_secs(1);

/// What finds a process again after the agent was started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pid: i32,
    /// When it began, in the kernel's ticks since the machine's start: no two processes have both the same.
    began: u64,
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) identity: Identity,
    handle: OwnedFd,
}

/// A process that lives on after SIGKILL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotEnded;

impl Process {
    /// The process that has this number now.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let handle = pidfd_open(number(pid)?, PidfdFlags::empty())?;
        // What is read here is of the process in hand: its number is not given away before it was waited for.
        let began = began(pid)?;
        Ok(Self {
            identity: Identity { pid, began },
            handle,
        })
    }

    /// The same process as before; none if it has ended.
    pub(super) fn again(identity: Identity) -> Option<Self> {
        Self::of(identity.pid).ok().filter(|found| found.identity == identity)
    }

    /// Whether it runs.
    pub(super) fn is_alive(&self) -> bool {
        let mut watched = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())) == Ok(0)
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> io::Result<()> {
        // Each waits by a handle of his own.
        raw::watched(self.handle.try_clone()?)?.readable().await.map(drop)
    }

    /// Sends a signal to it, and to its process group if it leads one. One that has ended is fine.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.identity.pid);
        let _ = match pid {
            // It keeps the group's number for as long as it runs.
            Some(pid) if self.is_alive() && getpgid(Some(pid)) == Ok(pid) => kill_process_group(pid, signal),
            _ => pidfd_send_signal(&self.handle, signal),
        };
    }

    /// Kills what is left of the process group that it led. Only before it was waited for: until then the group keeps
    /// its number.
    pub(super) fn end_group(&self) {
        if let Some(group) = Pid::from_raw(self.identity.pid) {
            // ESRCH: there was nobody else.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Ends it: by SIGTERM, and by SIGKILL after `grace`.
    pub(super) async fn end(&self, grace: Duration) -> Result<(), NotEnded> {
        for (signal, wait) in [(Signal::TERM, grace), (Signal::KILL, REAP)] {
            if !self.is_alive() {
                return Ok(());
            }
            self.signal(signal);
            let _ = tokio::time::timeout(wait, self.ended()).await;
        }
        if self.is_alive() { Err(NotEnded) } else { Ok(()) }
    }
}

fn number(pid: i32) -> Result<Pid, Errno> {
    (pid > 1).then_some(pid).and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// When a process began: field 22 of its `stat`, the twentieth after its name, which may have blanks and brackets.
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
    async fn a_process_is_found_again_and_none_that_has_its_number_by_chance() {
        let (mut child, process) = sh("exec sleep 70");
        let found = Process::again(process.identity).unwrap();
        assert!(found.is_alive());
        let another = Identity {
            began: process.identity.began - 1,
            ..process.identity
        };
        assert!(Process::again(another).is_none());
        assert_eq!(found.end(GRACE).await, Ok(()));
        assert!(!process.is_alive());
        // A second time is fine.
        assert_eq!(process.end(GRACE).await, Ok(()));
        child.wait().unwrap();
        assert!(Process::again(process.identity).is_none());
        assert!(Process::of(1).is_err() && Process::of(0).is_err() && Process::of(-1).is_err());
    }

    #[tokio::test]
    async fn one_that_ignores_the_request_to_end_is_killed_after_its_time() {
        use std::io::Read as _;
        let (mut child, process) = sh("trap '' TERM; echo; while :; do sleep 0.1; done");
        // From here on it ignores it.
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let start = Instant::now();
        assert_eq!(process.end(Duration::from_millis(300)).await, Ok(()));
        assert!(start.elapsed() >= Duration::from_millis(300));
        child.wait().unwrap();
    }
}
