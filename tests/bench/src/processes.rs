//! Processor time and memory of a cluster's processes, as the kernel counts them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result};

use mooring_testbed::layout::Layout;
use mooring_testbed::namespaces::find_inits;

/// `USER_HZ`: the kernel reports processor time in this unit on every architecture that Kubernetes supports.
const TICKS_PER_SECOND: u64 = 100;

/// The controller that leads.
pub(super) const CONTROLLER: &str = "flex-provisioner";
/// The controller on standby.
pub(super) const STANDBY: &str = "flex-provisioner (standby)";
/// The node daemon.
pub(super) const MOUNTER: &str = "mounter";
/// The worker that each node daemon keeps waiting. It runs the same program, so it shares most of its memory with the
/// daemon: only the rest counts.
pub(super) const WORKER: &str = "mounter's waiting worker";
pub(super) const PEER: &str = "local-path-provisioner";

/// Processes that are reported under their programs' names.
const KNOWN: &[&str] = &[
    PEER,
    "containerd",
    "csi-attacher",
    "csi-provisioner",
    "csi-resizer",
    "csi-snapshotter",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
];

/// What one kind of process has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) processes: usize,
    /// Processor time of all of them and of their ended children, in milliseconds.
    pub(super) milliseconds: u64,
    /// Resident memory of the largest in KiB; for [`WORKER`], the part that it shares with no other process.
    pub(super) resident: u64,
}

/// What each kind of process has used so far.
pub(super) type Snapshot = BTreeMap<String, Taken>;

/// A process as the kernel shows it.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    ticks: u64,
}

/// Reads all processes of a cluster. `leader` is the Pod of the controller that leads.
pub(super) fn snapshot(layout: &Layout, leader: &str) -> Result<Snapshot> {
    let inits: Vec<i32> = find_inits(layout)?.into_iter().map(|(_, pid)| pid).collect();
    let mut stats = HashMap::new();
    for entry in std::fs::read_dir("/proc")
        .context("failed to list processes")?
        .flatten()
    {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // A process may end while they are listed.
        if let Some((pid, stat)) = pid.zip(read_stat(&stat)) {
            stats.insert(pid, stat);
        }
    }
    let mut found = Snapshot::new();
    for (&pid, stat) in stats.iter().filter(|(pid, _)| is_below(**pid, &inits, &stats)) {
        let folder = Path::new("/proc").join(pid.to_string());
        let Some(name) = name_of(&folder, leader) else {
            continue;
        };
        let resident = if name == WORKER {
            unshared(&folder)
        } else {
            resident(&folder)
        };
        let Some(resident) = resident else { continue };
        let taken = found.entry(name).or_default();
        taken.processes += 1;
        taken.milliseconds += stat.ticks * 1000 / TICKS_PER_SECOND;
        taken.resident = taken.resident.max(resident);
    }
    Ok(found)
}

/// Milliseconds used between two snapshots.
pub(super) fn between(before: &Snapshot, after: &Snapshot, name: &str) -> u64 {
    let at = |snapshot: &Snapshot| snapshot.get(name).map_or(0, |taken| taken.milliseconds);
    // A process that restarted in between counts from its start.
    at(after).checked_sub(at(before)).unwrap_or_else(|| at(after))
}

fn is_below(pid: i32, ancestors: &[i32], stats: &HashMap<i32, Stat>) -> bool {
    let mut pid = pid;
    while let Some(stat) = stats.get(&pid) {
        if ancestors.contains(&stat.parent) {
            return true;
        }
        pid = stat.parent;
    }
    false
}

fn read_stat(text: &str) -> Option<Stat> {
    // The name before it may contain any characters, even brackets.
    let fields: Vec<_> = text.rsplit(')').next()?.split_whitespace().collect();
    let ticks = (11..15).map(|at| fields.get(at)?.parse::<u64>().ok());
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        ticks: ticks.sum::<Option<u64>>()?,
    })
}

fn resident(folder: &Path) -> Option<u64> {
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn unshared(folder: &Path) -> Option<u64> {
    let all = std::fs::read_to_string(folder.join("smaps_rollup")).ok()?;
    let parts = all.lines().filter_map(|line| line.strip_prefix("Private_"));
    let sizes = parts.map(|part| part.split_whitespace().nth(1)?.parse::<u64>().ok());
    sizes.sum()
}

fn name_of(folder: &Path, leader: &str) -> Option<String> {
    let program = std::fs::read_link(folder.join("exe")).ok()?;
    let program = program.file_name()?.to_str()?;
    if KNOWN.contains(&program) {
        return Some(program.to_owned());
    }
    let words = |file| {
        let bytes = std::fs::read(folder.join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.split('\0').map(str::to_owned).collect::<Vec<_>>()
    };
    match program {
        // Agents run the same program.
        "mounter" => match words("cmdline").get(1)?.as_str() {
            "serve" => Some(MOUNTER.to_owned()),
            "worker" => Some(WORKER.to_owned()),
            _ => None,
        },
        "flex-provisioner" => {
            let leads = words("environ").contains(&format!("MOORING_IDENTITY={leader}"));
            Some(if leads { CONTROLLER } else { STANDBY }.to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Stat, is_below, read_stat};

    #[test]
    fn a_process_is_recognized_by_its_ancestors() {
        let line = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 0 0 10 20 3 4 20 0 1 0 5 6 7";
        let stat = read_stat(line).unwrap();
        assert_eq!(stat, Stat { parent: 3, ticks: 37 });
        assert!(read_stat("").is_none());
        let of = |parent| Stat { parent, ticks: 0 };
        let stats = HashMap::from([(3, of(2)), (7, stat), (2, of(1)), (9, of(1))]);
        assert!(is_below(7, &[2], &stats));
        assert!(!is_below(9, &[2], &stats));
        assert!(!is_below(2, &[2], &stats));
    }
}
