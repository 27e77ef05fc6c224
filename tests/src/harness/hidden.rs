//! A device of a node out of its mounter's sight, as if the node did not have it.

use std::fs::File;

use anyhow::{Context, Result, bail};
use mooring_contract::names::NAMESPACE;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use super::Scope;
use crate::progress::note;

/// The device is back when this is dropped, or when the mounter's container ends.
pub struct Hidden {
    mounter: i32,
    device: &'static str,
}

impl Scope {
    /// Puts another device over one that a node's mounter sees.
    pub async fn hide_from_mounter(&self, node: &str, device: &'static str) -> Result<Hidden> {
        let pod = self.mounter(node).await?;
        let pids = self.processes_of(NAMESPACE, &pod).await?;
        let mounter = pids.into_iter().min().context("the mounter has no process")?;
        inside(mounter, move || {
            let nothing: Option<&str> = None;
            mount(Some("/dev/null"), device, nothing, MsFlags::MS_BIND, nothing)
        })
        .with_context(|| format!("failed to hide {device}"))?;
        Ok(Hidden { mounter, device })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let device = self.device;
        if let Err(error) = inside(self.mounter, move || umount2(device, MntFlags::MNT_DETACH)) {
            note(format!("{device} stays hidden from the mounter: {error:#}"));
        }
    }
}

/// Does something in the mount namespace of a process.
fn inside(pid: i32, act: impl FnOnce() -> nix::Result<()> + Send + 'static) -> Result<()> {
    let path = format!("/proc/{pid}/ns/mnt");
    let namespace = File::open(&path).with_context(|| format!("failed to open {path}"))?;
    // A thread of its own, since it does not come back from where it goes.
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS)?;
        setns(namespace, CloneFlags::CLONE_NEWNS)?;
        act()
    });
    match thread.join() {
        Ok(result) => result.context("failed to mount or unmount there"),
        Err(_) => bail!("the thread that mounts panicked"),
    }
}
