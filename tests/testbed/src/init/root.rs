//! The view that an immutable node's programs have: a read-only root of its own instead of the machine's.
//!
//! The earlier view stays, in a mount namespace that none of the node's processes uses: the workbench, where the
//! testbed and its tests run the machine's programs on the node's folders. Mounts in the folders that the two share
//! appear in both.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, pivot_root};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::spec::RootSpec;

/// Moves this process to a new mount namespace with the given root; returns the earlier one as the workbench.
pub(super) fn enter(root: &RootSpec) -> Result<File> {
    let workbench = File::open("/proc/self/ns/mnt").context("failed to open the mount namespace")?;
    unshare(CloneFlags::CLONE_NEWNS).context("failed to make a mount namespace")?;
    // Further mounts in the same peer groups.
    let shared = root
        .shared
        .iter()
        .map(|path| Ok((second_mount(path)?, beneath(root, path))))
        .collect::<Result<Vec<_>>>()?;
    // Changes to the other mounts must not reach the workbench.
    propagation("/", MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
    bind(&root.folder, &root.folder)?;
    for (source, target) in &root.binds {
        bind(source, &beneath(root, target))?;
    }
    for folder in &root.memory {
        let target = beneath(root, folder);
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tmpfs"), &target, Some("tmpfs"), flags, Some("mode=1777"))
            .with_context(|| format!("failed to mount a tmpfs on {}", target.display()))?;
    }
    for (tree, target) in shared {
        move_mount(tree, c"", CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .with_context(|| format!("failed to mount {}", target.display()))?;
    }
    chdir(&root.folder).context("failed to enter the node's root")?;
    // The old root is stacked on the new one, and then unmounted.
    pivot_root(".", ".").context("failed to change the root")?;
    umount2(".", MntFlags::MNT_DETACH).context("failed to leave the machine's root")?;
    chdir("/").context("failed to enter the node's root")?;
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, "/", None::<&str>, read_only, None::<&str>).context("failed to make the root read-only")?;
    propagation("/", MsFlags::MS_REC | MsFlags::MS_SHARED)?;
    Ok(workbench)
}

fn beneath(root: &RootSpec, path: &Path) -> PathBuf {
    root.folder.join(path.strip_prefix("/").unwrap_or(path))
}

fn second_mount(path: &Path) -> Result<OwnedFd> {
    let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, how).with_context(|| format!("failed to make a second mount of {}", path.display()))
}

fn propagation(path: &str, kind: MsFlags) -> Result<()> {
    mount(None::<&str>, path, None::<&str>, kind, None::<&str>)
        .with_context(|| format!("failed to make {path} {kind:?}"))
}

/// A further mount without propagation in either direction.
fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .and_then(|()| mount(None::<&str>, target, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>))
        .with_context(|| format!("failed to mount {} on {}", source.display(), target.display()))
}
