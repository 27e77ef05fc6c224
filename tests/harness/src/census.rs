//! All processes of the testbed's cluster, as this machine sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::namespaces::find_inits;

/// Length of a uid as the API server makes them.
const UID_LENGTH: usize = 36;

#[derive(Debug, Clone)]
pub(super) struct Process {
    /// Its number on this machine.
    pub(super) pid: i32,
    parent: i32,
    /// Its name, which it can set itself.
    pub(super) name: String,
    command: String,
    /// Its control groups, one a line.
    groups: String,
    /// The node, or the control plane.
    pub(super) role: String,
    /// The uid of the Pod that its control group belongs to.
    pub(super) pod: Option<String>,
    /// Numbers of its mount and network namespaces.
    pub(super) mounts: u64,
    pub(super) network: u64,
}

/// The processes, and process 1 of each node and of the control plane, by role.
#[derive(Debug, Default)]
pub(super) struct Census {
    pub(super) inits: BTreeMap<String, i32>,
    pub(super) processes: Vec<Process>,
}

impl Census {
    /// The processes of a cluster at this moment: those in its nodes' namespaces and in its control groups.
    pub(super) fn of(cluster: &Cluster) -> Result<Self> {
        let inits: BTreeMap<_, _> = find_inits(&cluster.layout)?.into_iter().collect();
        let roles: BTreeMap<u64, &String> = inits
            .iter()
            .filter_map(|(role, pid)| Some((namespace(*pid, "pid")?, role)))
            .collect();
        let group = format!("/{}/", cluster.layout.cgroup());
        let all = std::fs::read_dir("/proc").context("failed to list processes")?;
        let pids = all
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Processes come and go while being listed.
        let processes = pids.filter_map(|pid| {
            let read = |file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
            let groups = read("cgroup")?;
            let role = match role_in(&groups, &group) {
                Some(role) => role,
                None => (*roles.get(&namespace(pid, "pid")?)?).clone(),
            };
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some(Process {
                pid,
                parent: parent_in(&read("stat")?),
                name: read("comm")?.trim().to_owned(),
                command: String::from_utf8_lossy(&command).replace('\0', " "),
                pod: pod_in(&groups),
                groups,
                role,
                mounts: namespace(pid, "mnt")?,
                network: namespace(pid, "net")?,
            })
        });
        let processes = processes.collect();
        Ok(Self { inits, processes })
    }

    /// The file systems that only the cluster's processes have mounted, by their numbers in mount tables. A loop device
    /// over a file there is the cluster's, whatever path it is known by.
    pub(super) fn file_systems(&self) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let each = self.processes.iter().filter(|process| seen.insert(process.mounts));
        // It may have ended.
        let tables =
            each.filter_map(|process| std::fs::read_to_string(format!("/proc/{}/mountinfo", process.pid)).ok());
        let mut own: BTreeSet<_> = tables.flat_map(|table| mounted_in(&table)).collect();
        let machine = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for shared in mounted_in(&machine) {
            own.remove(&shared);
        }
        own
    }

    /// A table for a person: each process below its parent, with its control group.
    pub(super) fn table(&self) -> String {
        let mut table = String::from("pid  role  command  [control group]\n");
        let is_listed = |pid: i32| self.processes.iter().any(|process| process.pid == pid);
        for process in &self.processes {
            if !is_listed(process.parent) {
                self.branch(process, 0, &mut table);
            }
        }
        table
    }

    fn branch(&self, process: &Process, depth: usize, table: &mut String) {
        let group = process
            .groups
            .lines()
            .map(|line| line.rsplit(':').next().unwrap_or(line));
        // The longest path is the container's.
        let group = group.max_by_key(|path| path.len()).unwrap_or_default();
        let command = if process.command.trim().is_empty() {
            &process.name
        } else {
            process.command.trim_end()
        };
        let _ = writeln!(
            table,
            "{:>7}  {}  {:indent$}{command}  [{group}]",
            process.pid,
            process.role,
            "",
            indent = 2 * depth
        );
        for child in self.processes.iter().filter(|child| child.parent == process.pid) {
            self.branch(child, depth + 1, table);
        }
    }
}

/// The number of a namespace of a process.
fn namespace(pid: i32, kind: &str) -> Option<u64> {
    let path = format!("/proc/{pid}/ns/{kind}");
    std::fs::metadata(Path::new(&path)).ok().map(|file| file.ino())
}

/// The file systems in a mount table.
fn mounted_in(table: &str) -> Vec<String> {
    let number = |line: &str| line.split(' ').nth(2).map(str::to_owned);
    table.lines().filter_map(number).collect()
}

/// The node below whose control group a process is.
fn role_in(groups: &str, group: &str) -> Option<String> {
    let (_, below) = groups.split_once(group)?;
    let end = below.find(['/', '\n']).unwrap_or(below.len());
    Some(below[..end].to_owned())
}

/// The uid in the name of a Pod's control group.
pub(super) fn pod_in(groups: &str) -> Option<String> {
    groups.split(['/', '\n']).find_map(|part| {
        let uid = part.strip_prefix("pod")?;
        (uid.len() == UID_LENGTH).then(|| uid.replace('_', "-"))
    })
}

fn parent_in(stat: &str) -> i32 {
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let parent = behind_name.split_whitespace().nth(1);
    parent.and_then(|word| word.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Census, Process, mounted_in, parent_in, pod_in, role_in};

    const GROUPS: &str =
        "5:pids:/mtb12ab34-testbed/node-1/kubepods/besteffort/pod0a6fbd2e-3b0b-4f0c-9d6f-1f5d6a2b7c8d/8ab\n0::/\n";

    #[test]
    fn a_process_is_known_by_its_control_group() {
        assert_eq!(role_in(GROUPS, "/mtb12ab34-testbed/"), Some("node-1".to_owned()));
        assert_eq!(role_in(GROUPS, "/mooring-testbed/"), None);
        assert_eq!(pod_in(GROUPS), Some("0a6fbd2e-3b0b-4f0c-9d6f-1f5d6a2b7c8d".to_owned()));
        assert_eq!(pod_in("0::/podman/pods"), None);
        assert_eq!(parent_in("12 (a) b) S 7 12 12 0"), 7);
    }

    #[test]
    fn file_systems_are_known_by_their_numbers() {
        let table = "36 35 0:57 / /a rw shared:1 - fuse x rw\n37 35 254:0 / /b rw - xfs /dev/vda rw\n";
        assert_eq!(mounted_in(table), ["0:57", "254:0"]);
    }

    #[test]
    fn the_table_has_each_process_below_its_parent() {
        let process = |pid, parent, command: &str| Process {
            pid,
            parent,
            name: "x".to_owned(),
            command: command.to_owned(),
            groups: GROUPS.to_owned(),
            role: "node-1".to_owned(),
            pod: None,
            mounts: 1,
            network: 1,
        };
        let census = Census {
            processes: vec![process(9, 8, "child "), process(8, 1, "init ")],
            ..Census::default()
        };
        let table = census.table();
        let lines: Vec<_> = table.lines().skip(1).collect();
        assert!(lines[0].starts_with("      8  node-1  init  ["), "{table}");
        assert!(lines[1].starts_with("      9  node-1    child  ["), "{table}");
        assert_eq!(lines.len(), 2);
    }
}
