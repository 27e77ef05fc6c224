//! Hides a node's device from its mounter, as if the node lacked it, and makes a node look as if it ran a daemon of its
//! own.

use std::fs::File;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context, Result, bail};
use mooring_contract::names::NAMESPACE;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use super::scope::Scope;
use mooring_testbed::namespaces::find_init;
use mooring_testbed::progress::note;

/// iscsiadm finds the iscsid of its network by this name.
const ISCSID: &str = "ISCSIADM_ABSTRACT_NAMESPACE";

/// A hidden device. The mounter sees it again when this is dropped, or when the mounter's container ends.
pub struct Hidden {
    mounter: i32,
    device: &'static str,
}

impl Scope {
    /// Makes a node look as if it ran an iscsid of its own, or as if systemd would start one, until the returned
    /// listener is dropped.
    pub fn iscsid_on(&self, node: &str) -> Result<UnixListener> {
        let init = find_init(&self.own_cluster()?.layout, node)?.with_context(|| format!("{node} does not run"))?;
        let namespace = File::open(format!("/proc/{init}/ns/net")).context("failed to open a node's network")?;
        let thread = std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            anyhow::Ok(UnixListener::bind_addr(&SocketAddr::from_abstract_name(ISCSID)?)?)
        });
        match thread.join() {
            Ok(listener) => listener.context("failed to take the name of iscsid's socket"),
            Err(_) => bail!("the thread that listens panicked"),
        }
    }

    /// Mounts another device over one that a node's mounter sees.
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

/// Runs a function in the mount namespace of a process.
fn inside(pid: i32, act: impl FnOnce() -> nix::Result<()> + Send + 'static) -> Result<()> {
    let path = format!("/proc/{pid}/ns/mnt");
    let namespace = File::open(&path).with_context(|| format!("failed to open {path}"))?;
    // A thread of its own, since it can't return from that namespace.
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
