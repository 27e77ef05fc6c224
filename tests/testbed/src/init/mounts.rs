//! A node's view of the file system: the machine's, with the node's own folders over those that a node writes to.

use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

use crate::layout::make_folder;
use crate::spec::NodeSpec;

/// Separates further mounts from the machine's, and mounts a `/proc` for this PID namespace.
pub(super) fn leave_machine() -> Result<()> {
    propagation(MsFlags::MS_PRIVATE)?;
    mount(
        Some("proc"),
        "/proc",
        Some("proc"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        None::<&str>,
    )
    .context("failed to mount /proc")
}

pub(super) fn set_up(node: &NodeSpec) -> Result<()> {
    for folder in &node.memory {
        mount(
            Some("tmpfs"),
            folder,
            Some("tmpfs"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            Some("mode=755"),
        )
        .with_context(|| format!("failed to mount a tmpfs on {}", folder.display()))?;
    }
    for (source, target) in &node.binds {
        bind(source, target)?;
    }
    for program in &node.hidden {
        bind(Path::new("/dev/null"), program)?;
    }
    // As on a host with systemd. Not earlier: a folder bound from a shared mount would be in its source's peer group,
    // and each mount below it would appear twice.
    propagation(MsFlags::MS_SHARED)
}

fn propagation(kind: MsFlags) -> Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | kind, None::<&str>)
        .with_context(|| format!("failed to make all mounts {kind:?}"))
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    if source.is_dir() && !target.exists() {
        make_folder(target)?; // it is below one of the node's own folders
    }
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("failed to mount {} on {}", source.display(), target.display()))
}
