//! Volumes that are still mounted although no process of their Pod is left: the kubelet may be unable to unmount
//! them. It looks at a directory first, and takes it for missing if it was deleted on the server and the client's FUSE
//! program says so.
//!
//! - It does not unmount such a part of a volume (`subPath`), nor a part in which a container left a mount (mount
//!   propagation `Bidirectional`). It unmounts the volume only after its parts.
//! - With `FlexVolume`, it does not ask for the unmount of a volume that is missing itself.
//!
//! The Pod then stays `Terminating`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mooring_program::error::chain;
use tracing::warn;

use crate::sys::thread;
use crate::volume::mount_table::Table;
use crate::volume::pod_cgroup::PodCgroups;
use crate::volume::target::Target;

/// How often to look for them. What is found twice is neither being mounted nor being unmounted just now.
const PERIOD: Duration = Duration::from_secs(30);

/// The volumes of Pods without a process.
pub(super) struct Leftovers {
    kubelet_root: PathBuf,
    looked: Option<Instant>,
    last: BTreeSet<Target>,
    found: BTreeSet<Target>,
}

impl Leftovers {
    /// Those beneath a kubelet's root.
    pub(super) fn new(kubelet_root: PathBuf) -> Self {
        Self {
            kubelet_root,
            looked: None,
            last: BTreeSet::new(),
            found: BTreeSet::new(),
        }
    }

    /// Looks for them, if that is due. Asks no server.
    pub(super) async fn look(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        let root = self.kubelet_root.clone();
        let found = thread::run(move || without_a_process(Path::new("/proc"), &Table::read()?, &root)).await;
        match found.and_then(|found| found) {
            Ok(found) => {
                self.found = found.intersection(&self.last).cloned().collect();
                self.last = found;
            }
            Err(error) => warn!(error = %chain(&error), "failed to look for volumes that are left mounted"),
        }
    }

    /// Those that were found the last two times.
    pub(super) fn found(&self) -> impl Iterator<Item = &Target> {
        self.found.iter()
    }

    /// What could be done about a volume is done, until it is found again.
    pub(super) fn forget(&mut self, target: &Target) {
        self.found.remove(target);
    }
}

fn without_a_process(proc: &Path, table: &Table, kubelet_root: &Path) -> io::Result<BTreeSet<Target>> {
    let volumes = table.known_volumes(kubelet_root);
    let targets = volumes.filter_map(|entry| Target::parse(kubelet_root, entry.mount_point.to_str()?).ok());
    let mut found: BTreeSet<_> = targets.collect();
    if !found.is_empty() {
        let running = running(proc)?;
        found.retain(|target| !running.contains(target.pod_uid()));
    }
    Ok(found)
}

/// The uids of the Pods that have a process.
fn running(proc: &Path) -> io::Result<BTreeSet<String>> {
    let groups = PodCgroups::seen_by(&std::fs::read(proc.join("self/cgroup"))?);
    let processes = std::fs::read_dir(proc)?.flatten();
    // What can't be read is no process, or has ended meanwhile.
    let uids = processes.filter_map(|process| groups.pod(&std::fs::read(process.path().join("cgroup")).ok()?));
    Ok(uids.collect())
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::path::Path;

    use super::without_a_process;
    use crate::volume::mount_table::Table;

    #[test]
    fn a_volume_is_left_when_no_process_of_its_pod_is() {
        let proc = tempfile::tempdir().unwrap();
        for (process, cgroup) in [
            ("self", "/kubepods/podmounter/c"),
            ("7", "/kubepods/podruns/c"),
            ("8", "/init.scope"),
        ] {
            let directory = proc.path().join(process);
            create_dir_all(&directory).unwrap();
            write(directory.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        }
        write(proc.path().join("uptime"), "1").unwrap();
        let text = [
            "runs/volumes/mooring.dev~vcs/v",
            "ended/volumes/mooring.dev~vcs/v",
            "ended/volume-subpaths/v/main/0",
            "ended/volumes/kubernetes.io~nfs/theirs",
        ]
        .map(|place| format!("30 22 0:25 / /k/pods/{place} rw shared:9 - fuse.davfs x rw\n"));
        let table = Table::parse(text.concat().as_bytes());
        let found = without_a_process(proc.path(), &table, Path::new("/k")).unwrap();
        let found: Vec<_> = found.iter().map(|target| (target.pod_uid(), target.name())).collect();
        assert_eq!(found, [("ended", "v")]);
    }
}
