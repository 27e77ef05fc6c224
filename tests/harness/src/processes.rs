//! Stops and kills the processes of a Pod on the testbed's nodes, and continues them whatever happens to the test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::scope::Scope;
use super::waits::Limit;
use mooring_testbed::base_images::SANDBOX_NAP;

/// Longest wait for processes to stop: one that is just being started can't be seen yet.
const STOP_LIMIT: Duration = Duration::from_mins(1);

/// The pause between two looks.
const STOP_PERIOD: Duration = Duration::from_millis(20);

impl Scope {
    /// The processes of a Pod of any namespace, without its sandbox's, with their numbers on this machine.
    pub async fn processes_of(&self, namespace: &str, pod: &str) -> Result<Vec<i32>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let uid = pods.get(pod).await?.metadata.uid.context("a Pod without a uid")?;
        processes(&uid)
    }

    /// Stops all processes of a Pod of this namespace: its sockets stay open, and nothing answers.
    pub async fn stop(&self, pod: &str) -> Result<Stopped> {
        let pids = self.processes_of(&self.namespace, pod).await?;
        ensure!(!pids.is_empty(), "Pod {pod} has no processes");
        let uid = self
            .api::<Pod>()
            .get(pod)
            .await?
            .metadata
            .uid
            .context("a Pod without a uid")?;
        let stopped = Stopped { uid };
        let limit = Limit::of(STOP_LIMIT);
        // One of them may have started another meanwhile.
        loop {
            let running: Vec<_> = processes(&stopped.uid)?
                .into_iter()
                .filter(|&pid| !is_stopped(pid))
                .collect();
            if running.is_empty() {
                return Ok(stopped);
            }
            ensure!(!limit.is_over(), "processes {running:?} of Pod {pod} do not stop");
            for pid in running {
                let _ = kill(Pid::from_raw(pid), Signal::SIGSTOP);
            }
            // One that waits for a disk stops only after that.
            tokio::time::sleep(STOP_PERIOD).await;
        }
    }
}

/// A Pod's stopped processes. They continue when this is dropped.
pub struct Stopped {
    uid: String,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in processes(&self.uid).unwrap_or_default() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        }
    }
}

/// A limit on the number of a container's processes, as the kubelet's `podPidsLimit` sets it. The earlier limit is back
/// when this is dropped.
pub struct Limited {
    file: PathBuf,
    before: String,
}

impl Limited {
    /// Forbids the container of these processes to start any more, even after one of them ended.
    pub fn now(pids: &[i32]) -> Result<Self> {
        let pid = pids.first().context("no process to limit")?;
        let groups =
            std::fs::read_to_string(format!("/proc/{pid}/cgroup")).context("failed to read a control group")?;
        let group = groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let root = match controllers {
                "" => "/sys/fs/cgroup",
                "pids" => "/sys/fs/cgroup/pids",
                _ => return None,
            };
            let folder = Path::new(root).join(path.trim_start_matches('/'));
            folder.join("pids.max").exists().then_some(folder)
        });
        let group = group.with_context(|| format!("no control group limits the processes of {pid}: {groups}"))?;
        let file = group.join("pids.max");
        let before = std::fs::read_to_string(&file)?;
        let limited = Self { file, before };
        std::fs::write(&limited.file, "1").with_context(|| format!("failed to limit {}", group.display()))?;
        Ok(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Fails if the group is gone with its container.
        let _ = std::fs::write(&self.file, self.before.trim());
    }
}

/// Makes the kernel kill a process first when memory is short.
pub fn first_to_go(pid: i32) -> Result<()> {
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000")
        .with_context(|| format!("failed to have the kernel choose {pid} first"))
}

/// How early the kernel kills a process when memory is short: from 1000, first, to -1000, never. Less than nothing
/// takes `CAP_SYS_RESOURCE`, which this machine's container runtime may lack.
pub fn oom_score_adj(pid: i32) -> Result<i16> {
    let value = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
    let value = value.with_context(|| format!("failed to read when the kernel chooses {pid}"))?;
    value.trim().parse().with_context(|| value.clone())
}

/// The name of a process; empty if it has ended.
pub fn name_of(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

/// Whether a process has ended, and released everything it held open. Its parent may not have reaped it yet.
pub fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    state.is_empty() || state.starts_with(['Z', 'X'])
}

/// Whether a process is the first of its container, which ends with it.
pub fn is_first(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    // Its number in each namespace, the container's last.
    numbers.is_some_and(|numbers| numbers.split_whitespace().next_back() == Some("1"))
}

/// Kills processes at once.
pub fn kill_all(pids: &[i32]) {
    for &pid in pids {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// By the control group, whose name contains the Pod's uid.
fn processes(uid: &str) -> Result<Vec<i32>> {
    let underscored = uid.replace('-', "_");
    let in_pod = |pid: &i32| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_sandbox = String::from_utf8_lossy(&command).contains(SANDBOX_NAP);
        (groups.contains(uid) || groups.contains(&underscored)) && !is_sandbox
    };
    let all = std::fs::read_dir("/proc").context("failed to list processes")?;
    let pids = all
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(pids.filter(in_pod).collect())
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    // Gone, ended, or stopped.
    state.is_empty() || state.starts_with(['T', 'Z', 'X'])
}
