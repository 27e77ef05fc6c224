//! The mount namespaces of this node, by the processes in them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use nix::errno::Errno;

use crate::sys::errno_of;
use crate::volume::mount_table::Table;
use crate::volume::pod_cgroup::PodCgroups;
use crate::worker::graft::Owner;

#[derive(Debug, Clone)]
pub struct Namespace {
    /// A process in it: the one with the lowest number, which is least likely to be confined to a part of it.
    pub pid: i32,
    /// Its own number.
    pub id: u64,
    pub owner: Owner,
    pub table: Table,
}

/// The mount namespaces of Pods whose tables are wanted, after this process' own: what is replaced there may be replaced
/// in others by that. A namespace of no Pod is left out.
pub fn namespaces(proc: &Path, is_wanted: impl Fn(&Owner, &Table) -> bool) -> io::Result<Vec<Namespace>> {
    let own = namespace_of(&proc.join("self"));
    let groups = PodCgroups::seen_by(&std::fs::read(proc.join("self/cgroup"))?);
    let mut pids = BTreeMap::new();
    for process in std::fs::read_dir(proc)?.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        // A process that ends meanwhile, or that may not be looked at, is left out.
        if let (Some(pid), Some(id)) = (pid, namespace_of(&process.path())) {
            let lowest = pids.entry((Some(id) != own, id)).or_insert(pid);
            *lowest = pid.min(*lowest);
        }
    }
    let mut found = Vec::new();
    for ((is_other, id), pid) in pids {
        let process = proc.join(pid.to_string());
        let owner = if is_other {
            let cgroup = read(&process.join("cgroup"))?;
            cgroup.and_then(|cgroup| groups.pod(&cgroup)).map(Owner::Pod)
        } else {
            Some(Owner::Node)
        };
        let Some(owner) = owner else { continue };
        if let Some(table) = read(&process.join("mountinfo"))? {
            let table = Table::try_parse(&table)?;
            if is_wanted(&owner, &table) {
                found.push(Namespace { pid, id, owner, table });
            }
        }
    }
    Ok(found)
}

/// A file of a process; nothing if the process has ended.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(text) => Ok(Some(text)),
        // INVAL: it has left its mount namespace already.
        Err(error) => match errno_of(&error) {
            Some(Errno::ENOENT | Errno::ESRCH | Errno::EINVAL) => Ok(None),
            _ => Err(error),
        },
    }
}

/// The namespace's number, from a link such as `mnt:[4026531841]`.
fn namespace_of(process: &Path) -> Option<u64> {
    let link = std::fs::read_link(process.join("ns/mnt")).ok()?;
    let id = link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?;
    id.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::mount_table::DeviceNumber;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    fn has(device: DeviceNumber) -> impl Fn(&Owner, &Table) -> bool {
        move |_, table| table.0.iter().any(|entry| entry.device == device)
    }

    #[test]
    fn each_namespace_is_found_once_by_its_first_process_and_our_own_comes_first() {
        let proc = tempfile::tempdir().unwrap();
        let process = |name: &str, namespace: u64, device: &str, cgroup: &str| {
            let dir = proc.path().join(name);
            create_dir_all(dir.join("ns")).unwrap();
            symlink(format!("mnt:[{namespace}]"), dir.join("ns/mnt")).unwrap();
            write(
                dir.join("mountinfo"),
                format!("9 1 {device} / /data rw - fuse.x y rw\n"),
            )
            .unwrap();
            write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        };
        process("self", 500, "0:7", "/kubepods/podmounter/c");
        process("50", 500, "0:7", "/kubepods/podmounter/c");
        process("7", 100, "0:7", "/kubepods/podu/c");
        process("40", 100, "0:1", "/");
        process("60", 600, "0:8", "/kubepods/podu/c");
        process("1", 700, "0:7", "/init.scope");
        create_dir_all(proc.path().join("8")).unwrap();
        let found = namespaces(proc.path(), has(DeviceNumber { major: 0, minor: 7 })).unwrap();
        let found: Vec<_> = found.iter().map(|found| (found.pid, found.id, &found.owner)).collect();
        assert_eq!(found, [(50, 500, &Owner::Node), (7, 100, &Owner::Pod("u".to_owned()))]);
    }

    /// Or the agent would be told that nobody has one any more.
    #[test]
    fn a_namespace_whose_table_can_t_be_read_may_have_a_dead_mount() {
        let proc = tempfile::tempdir().unwrap();
        let process = proc.path().join("7");
        create_dir_all(process.join("ns")).unwrap();
        create_dir_all(proc.path().join("self")).unwrap();
        symlink("mnt:[100]", process.join("ns/mnt")).unwrap();
        write(process.join("cgroup"), "0::/kubepods/podu/c\n").unwrap();
        write(proc.path().join("self/cgroup"), "0::/\n").unwrap();
        let found = || namespaces(proc.path(), |_, _| true);
        // The process has ended meanwhile.
        assert!(found().unwrap().is_empty());
        write(process.join("mountinfo"), "9 1 0:7 / /data rw\n").unwrap();
        assert!(found().is_err(), "a line may be about a dead mount");
        std::fs::remove_file(process.join("mountinfo")).unwrap();
        std::fs::create_dir(process.join("mountinfo")).unwrap();
        assert!(found().is_err(), "it may have a dead mount");
    }

    #[test]
    fn this_process_is_in_one() {
        let device = Table::read().unwrap().0[0].device;
        let found = namespaces(Path::new("/proc"), has(device)).unwrap();
        assert_eq!(Some(found[0].id), namespace_of(Path::new("/proc/self")));
    }
}
