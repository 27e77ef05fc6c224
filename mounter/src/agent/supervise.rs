//! Process 1 of a client container.
//!
//! Its child is the agent; its own job is to stay alive. When process 1 ends, the kernel kills every process of the
//! container, and a FUSE daemon's mounts die with it. So process 1 contains nothing that could fail. If the agent ends,
//! process 1 restarts it, and the agent finds its mounts as they were. If another process ends, which may be such a
//! daemon, process 1 tells the agent ([`DEATH`]): daemons become children of process 1 when the program that started
//! them has ended.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use mooring_program::error::chain;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

/// Delay before an agent that ended is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Environment variable: the path of the kubelet's root.
const KUBELET_ROOT: &str = "MOORING_KUBELET_ROOT";

/// The signal that tells the agent that some process of the container has ended. An agent that does not listen yet
/// ignores it.
pub const DEATH: Signal = Signal::SIGURG;

/// Why process 1 can't do its job.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("failed to start the agent")]
    Start(#[source] io::Error),
    #[error("failed to listen for signals")]
    Signals(#[source] io::Error),
}

/// Starts the agent with this program's own arguments, restarts it when it ends and reaps orphans, until the agent ends
/// after a SIGTERM. The image's programs, which the agent runs, get the path of the kubelet's root in their
/// environment.
pub async fn supervise(kubelet_root: &Path) -> Result<(), SuperviseError> {
    let mut ended = signal(SignalKind::child()).map_err(SuperviseError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(SuperviseError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(SuperviseError::Signals)?;
    let mut stopping = false;
    let mut agent = start(kubelet_root)?;
    loop {
        tokio::select! {
            _ = ended.recv() => {}
            _ = terminate.recv() => stopping = stop(&agent),
            _ = interrupt.recv() => stopping = stop(&agent),
        }
        let reaped = reap(&agent);
        if reaped.others {
            tell(&agent, DEATH);
        }
        if !reaped.agent {
            continue;
        }
        if stopping {
            return Ok(());
        }
        error!("the agent ended and is started again; its mounts stay");
        agent = restart(kubelet_root).await;
    }
}

/// If process 1 ended, all mounts would end, so it keeps trying: the container may have reached its limit of processes
/// for now.
async fn restart(kubelet_root: &Path) -> Child {
    loop {
        tokio::time::sleep(RESTART_DELAY).await;
        match start(kubelet_root) {
            Ok(agent) => return agent,
            Err(error) => error!("{}; trying again", chain(&error)),
        }
    }
}

fn start(kubelet_root: &Path) -> Result<Child, SuperviseError> {
    // By its link, not its name: the file may have been replaced.
    Command::new("/proc/self/exe")
        .arg0("mounter")
        .args(std::env::args_os().skip(1))
        .env(KUBELET_ROOT, kubelet_root)
        .spawn()
        .map_err(SuperviseError::Start)
}

fn pid(agent: &Child) -> Option<Pid> {
    i32::try_from(agent.id()).ok().map(Pid::from_raw)
}

fn stop(agent: &Child) -> bool {
    info!("got SIGTERM: the agent takes no new mounts, and the container ends with its last one");
    tell(agent, Signal::SIGTERM);
    true
}

fn tell(agent: &Child, signal: Signal) {
    if let Some(pid) = pid(agent) {
        // ESRCH: it has ended already.
        let _ = kill(pid, signal);
    }
}

#[derive(Debug, Default)]
struct Reaped {
    agent: bool,
    others: bool,
}

/// Takes the exit status of every child that has ended.
fn reap(agent: &Child) -> Reaped {
    let mut reaped = Reaped::default();
    // Not through nix, which knows no real-time signal by which a child may have ended.
    while let Ok(Some((ended, _))) = wait(WaitOptions::NOHANG) {
        if Some(ended.as_raw_pid()) == pid(agent).map(Pid::as_raw) {
            reaped.agent = true;
        } else {
            reaped.others = true;
        }
    }
    reaped
}
