//! The kubelet's root directory. This Pod's own directory in it shows where it is. It is mounted here as on the host,
//! so that mounts beneath it reach the host.
//!
//! The Pod has the usual directory as a volume with `Bidirectional` propagation, even where the kubelet uses another
//! one. That volume identifies the processes of this node (`kubelet::shares`), and one of them provides a mount of
//! the right directory.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use mooring_program::error::chain;
use nix::fcntl::AT_FDCWD;
use nix::sched::{CloneFlags, setns};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use tracing::{info, warn};

use crate::node::kubelet::{self, FIRST, KNOWN_ROOTS, ROOT, clean};
use crate::volume::mount_table::Table;

/// What the kubelet mounts into every container out of the Pod's directory.
const OF_THE_POD: &str = "/etc/hosts";

/// Why the mounter can't go on.
#[derive(Debug, thiserror::Error)]
pub enum KubeletRootError {
    #[error("failed to read the mount table: {0}")]
    Table(#[source] io::Error),
    /// The process is in the kubelet's mount namespace for good.
    #[error("failed to return from the kubelet's mount namespace: {0}")]
    Return(#[source] io::Error),
}

/// Where a kubelet may have its root, and a process that sees that directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    root: PathBuf,
    process: PathBuf,
}

impl Candidate {
    fn has_pod(&self, uid: &str) -> bool {
        let relative = self.root.strip_prefix("/").unwrap_or(&self.root);
        self.process.join("root").join(relative).join("pods").join(uid).is_dir()
    }
}

/// The kubelet's root: the given one, or else the one that is found. It is mounted here if it was not. Called before
/// there are threads, since a process that enters another mount namespace has one only.
pub fn settle(given: Option<&Path>) -> Result<PathBuf, KubeletRootError> {
    let table = Table::read().map_err(KubeletRootError::Table)?;
    let candidates = candidates(&table, given);
    let found = match given {
        Some(given) => candidates.first().map(|first| Candidate {
            root: clean(given),
            process: first.process.clone(),
        }),
        None => choose(candidates, own_uid(&table).as_deref()),
    };
    let Some(found) = found else {
        return Ok(given.map_or_else(|| ROOT.into(), clean));
    };
    if !is_had(&table, &found.root) {
        match have(&found)? {
            Ok(()) => info!(
                "the kubelet's root {} is mounted as the host has it",
                found.root.display()
            ),
            Err(error) => warn!(
                "failed to mount the kubelet's root {} as the host has it: {}",
                found.root.display(),
                chain(&error)
            ),
        }
    }
    Ok(found.root)
}

/// Whether a directory lies in a volume of the Pod that shares its mounts with the host.
fn is_had(table: &Table, directory: &Path) -> bool {
    table.holding(directory).is_some_and(|entry| entry.shared.is_some())
}

/// The roots that this node's processes name, and then those of known distributions.
fn candidates(table: &Table, given: Option<&Path>) -> Vec<Candidate> {
    let Some(volume) = given
        .into_iter()
        .chain([Path::new(ROOT)])
        .find(|root| is_had(table, root))
    else {
        return Vec::new();
    };
    let kubelets = kubelet::kubelets_of(table, volume);
    let said = kubelets.iter().filter_map(|process| {
        Some(Candidate {
            root: kubelet::directories(process)?.root,
            process: process.clone(),
        })
    });
    let is_of_node = kubelet::first_shares(table, volume);
    let known = KNOWN_ROOTS.iter().filter(|_| is_of_node).map(|root| Candidate {
        root: root.into(),
        process: FIRST.into(),
    });
    said.chain(known).collect()
}

/// The candidate that has the Pod `uid`, or else the first. Those of a process come before the known ones.
fn choose(candidates: Vec<Candidate>, uid: Option<&str>) -> Option<Candidate> {
    let has = |candidate: &&Candidate| uid.is_some_and(|uid| candidate.has_pod(uid));
    let found = candidates.iter().find(has).cloned();
    found.or_else(|| candidates.into_iter().next())
}

/// The uid of the Pod that this container is of, by the file that it has from the Pod's directory.
fn own_uid(table: &Table) -> Option<String> {
    let root = &table.top(Path::new(OF_THE_POD))?.root;
    let mut names = root.iter().skip_while(|name| *name != "pods").skip(1);
    let uid = names.next()?.to_str()?;
    names.next().is_some().then(|| uid.to_owned())
}

/// Mounts the root here, with all that is mounted in it, as a peer of the host's.
fn have(found: &Candidate) -> Result<io::Result<()>, KubeletRootError> {
    let tree = match lend(found)? {
        Ok(tree) => tree,
        Err(error) => return Ok(Err(error)),
    };
    let put = || {
        std::fs::create_dir_all(&found.root)?;
        move_mount(
            &tree,
            c"",
            AT_FDCWD,
            &found.root,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )?;
        Ok(())
    };
    Ok(put())
}

/// A second mount of the root, not attached anywhere yet. It can be made only in the root's own namespace.
fn lend(found: &Candidate) -> Result<io::Result<OwnedFd>, KubeletRootError> {
    let open = || -> io::Result<_> {
        Ok((
            File::open("/proc/self/ns/mnt")?,
            File::open(found.process.join("ns/mnt"))?,
        ))
    };
    let (ours, theirs) = match open() {
        Ok(both) => both,
        Err(error) => return Ok(Err(error)),
    };
    if let Err(error) = enter(&theirs) {
        return Ok(Err(error));
    }
    let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(AT_FDCWD, &found.root, how).map_err(io::Error::from);
    enter(&ours).map_err(KubeletRootError::Return)?;
    Ok(tree)
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(setns(namespace, CloneFlags::CLONE_NEWNS)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Candidate, choose, own_uid};
    use crate::volume::mount_table::Table;

    fn candidate(process: &Path, root: &str) -> Candidate {
        Candidate {
            root: root.into(),
            process: process.to_owned(),
        }
    }

    #[test]
    fn the_root_is_the_one_that_this_pod_is_in_and_else_what_a_kubelet_says() {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path();
        std::fs::create_dir_all(process.join("root/b/kubelet/pods/u-1")).unwrap();
        let all = ["/a/kubelet", "/b/kubelet"]
            .map(|root| candidate(process, root))
            .to_vec();
        assert_eq!(choose(all.clone(), Some("u-1")), Some(all[1].clone()));
        assert_eq!(choose(all.clone(), Some("u-2")), Some(all[0].clone()));
        assert_eq!(choose(all.clone(), None), Some(all[0].clone()));
        assert_eq!(choose(Vec::new(), Some("u-1")), None);
    }

    #[test]
    fn the_pod_s_uid_is_that_of_its_file_of_hosts() {
        let uid = |root: &str| {
            let line = format!("9 1 8:1 {root} /etc/hosts rw shared:5 - ext4 /dev/root rw\n");
            own_uid(&Table::parse(line.as_bytes()))
        };
        assert_eq!(uid("/var/lib/kubelet/pods/u-1/etc-hosts").as_deref(), Some("u-1"));
        assert_eq!(uid("/pods/u-1/etc-hosts").as_deref(), Some("u-1"));
        assert_eq!(uid("/etc/hosts"), None);
        assert_eq!(uid("/data/pods"), None);
        assert_eq!(own_uid(&Table::default()), None);
    }
}
