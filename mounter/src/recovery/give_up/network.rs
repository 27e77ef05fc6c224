//! Whether the kernel's own network file systems answer: no one else notices when their server does not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_contract::volume::clients::RECORDS;
use mooring_program::error::chain;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::warn;

use crate::agent::give_up::SILENCE;
use crate::volume::mount_table::{MountEntry, Table};
use crate::volume::target::Target;
use crate::worker::{WorkerError, Workers};

/// How often to ask a mount. A silent one is asked again at once until it has answered twice.
const PERIOD: Duration = Duration::from_mins(1);

/// Most mounts to ask at the same time: each takes a worker, which may hang for [`SILENCE`].
const MOST: usize = 16;

/// Types of the kernel's file systems that have a server, beside those of clients that have a record.
const OTHER_TYPES: [&str; 2] = ["9p", "lustre"];

/// Whether a mount is one of the kernel's own that has a server.
fn is_network(entry: &MountEntry) -> bool {
    let fs_type = entry.fs_type.as_str();
    RECORDS.iter().any(|record| record.kernel_types.contains(&fs_type)) || OTHER_TYPES.contains(&fs_type)
}

/// A mount that is asked periodically.
#[derive(Debug)]
struct Asked {
    fs_type: String,
    at: Instant,
    /// Whether an answer is outstanding.
    waiting: bool,
    silent: bool,
    /// Whether it was silent before the last answer, which may be the error that a forced unmount causes.
    doubted: bool,
}

/// Which volumes of the kernel's network file systems were asked, and which do not answer.
pub(super) struct Network {
    kubelet_root: PathBuf,
    workers: Workers,
    room: Arc<Semaphore>,
    asked: BTreeMap<Target, Asked>,
    /// The outstanding questions; the result says whether the mount is silent.
    asking: JoinSet<(Target, bool)>,
}

impl Network {
    /// Those beneath a kubelet's root.
    pub(super) fn new(kubelet_root: PathBuf, workers: Workers) -> Self {
        Self {
            kubelet_root,
            workers,
            room: Arc::new(Semaphore::new(MOST)),
            asked: BTreeMap::new(),
            asking: JoinSet::new(),
        }
    }

    /// Collects answers, asks the mounts that are due, and forgets those that are unmounted. Does not wait.
    pub(super) fn ask(&mut self) {
        while let Some(answered) = self.asking.try_join_next() {
            // If the task itself failed, its mount is not asked again: a fault of the mounter gives up no volume.
            if let Ok((target, silent)) = answered
                && let Some(asked) = self.asked.get_mut(&target)
            {
                asked.doubted = asked.silent;
                (asked.waiting, asked.silent) = (false, silent);
            }
        }
        let table = match Table::read() {
            Ok(table) => table,
            Err(error) => return warn!("failed to read which volumes to ask: {}", chain(&error)),
        };
        let there = volumes(&table, &self.kubelet_root);
        self.asked.retain(|target, _| there.contains_key(target));
        for (target, fs_type) in there {
            // A new one was just mounted, or the mounter has just started.
            let asked = self.asked.entry(target.clone()).or_insert_with(|| Asked {
                fs_type,
                at: Instant::now(),
                waiting: false,
                silent: false,
                doubted: false,
            });
            if !asked.waiting && (asked.silent || asked.doubted || asked.at.elapsed() >= PERIOD) {
                (asked.at, asked.waiting) = (Instant::now(), true);
                let (workers, room) = (self.workers.clone(), Arc::clone(&self.room));
                self.asking.spawn(async move {
                    let silent = is_silent(&workers, &room, &target).await;
                    (target, silent)
                });
            }
        }
    }

    pub(super) fn has(&self, target: &Target) -> bool {
        self.asked.contains_key(target)
    }

    /// The volumes that did not answer the last question, with the types of their file systems.
    pub(super) fn silent(&self) -> impl Iterator<Item = (&Target, &str)> {
        let silent = self.asked.iter().filter(|(_, asked)| asked.silent);
        silent.map(|(target, asked)| (target, asked.fs_type.as_str()))
    }
}

/// Whether a mount does not answer within [`SILENCE`]. An error is an answer.
async fn is_silent(workers: &Workers, room: &Semaphore, target: &Target) -> bool {
    let _room = room.acquire().await;
    let looked = workers.look(target, SILENCE, SILENCE).await;
    matches!(looked, Err(WorkerError::Late { .. }))
}

/// The volumes of the kernel's network file systems, with their types.
fn volumes(table: &Table, kubelet_root: &Path) -> BTreeMap<Target, String> {
    let volumes = table.known_volumes(kubelet_root).filter(|entry| is_network(entry));
    let parsed = volumes.filter_map(|entry| {
        let target = Target::parse(kubelet_root, entry.mount_point.to_str()?).ok()?;
        Some((target, entry.fs_type.clone()))
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::volumes;
    use crate::volume::mount_table::Table;

    #[test]
    fn only_volumes_of_the_kernel_s_network_file_systems_are_asked() {
        let line = |number: u32, place: &str, fs_type: &str| {
            format!("{number} 1 0:{number} / /k/{place} rw shared:1 - {fs_type} 10.0.0.4:/x rw\n")
        };
        let text = [
            line(30, "pods/u-1/volumes/mooring.dev~vcs/nfs", "nfs4"),
            line(31, "pods/u-1/volumes/mooring.dev~vcs/disk", "ext4"),
            line(32, "pods/u-1/volumes/mooring.dev~vcs/fuse", "fuse.sshfs"),
            line(33, "pods/u-1/volumes/kubernetes.io~nfs/theirs", "nfs4"),
            line(34, "pods/u-2/volumes/mooring.dev~vcs/smb", "cifs"),
        ];
        let found = volumes(&Table::parse(text.concat().as_bytes()), Path::new("/k"));
        let found: Vec<_> = found
            .iter()
            .map(|(target, fs_type)| (target.name(), fs_type.as_str()))
            .collect();
        assert_eq!(found, [("nfs", "nfs4"), ("smb", "cifs")]);
    }
}
