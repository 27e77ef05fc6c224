//! The init process of the control plane or of a node: process 1 of its namespaces. It sets up its environment, keeps
//! its processes running, and ends them when it ends.
//!
//! Its messages are in `init.log`.

mod mounts;
mod root;
mod supervise;

use std::io::BufRead;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};

use crate::layout::Layout;
use crate::network;
use crate::progress::note;
use crate::spec::{InitSpec, NodeSpec};
use crate::virtual_machine::put_before_others;

/// Runs as the init process of `role`; returns when told to end.
pub fn run(layout: &Layout, role: &str) -> Result<()> {
    ensure!(
        std::process::id() == 1,
        "only `cargo testbed up` starts this, in namespaces of its own"
    );
    // So that it does not depend on the terminal or the shell job that `up` ran in.
    nix::unistd::setsid().context("failed to leave the session")?;
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .context("failed to wait for `up`")?;
    ensure!(line == "go\n", "`up` ended before this could begin");
    let mut spec = InitSpec::load(layout, role)?;
    if spec.before_others {
        put_before_others("self");
    }
    mounts::leave_machine()?;
    // Opened now: an immutable node has no such path.
    let logs = std::fs::File::open(&spec.logs).context("failed to open the folder of logs")?;
    spec.logs = format!("/proc/self/fd/{}", logs.as_raw_fd()).into();
    let workbench = spec.node.as_ref().map(set_up_node).transpose()?.flatten();
    note(format!("{role}: starting {} processes", spec.processes.len()));
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?
        .block_on(supervise::run(&spec, || InitSpec::load(layout, role)));
    // Kept open as long as the node exists.
    drop((logs, workbench));
    ended
}

/// Returns the workbench of an immutable node.
fn set_up_node(node: &NodeSpec) -> Result<Option<std::fs::File>> {
    mounts::set_up(node)?;
    // The kernel sets the host name of the writer's UTS namespace.
    std::fs::write("/proc/sys/kernel/hostname", &node.hostname).context("failed to set the host name")?;
    network::configure_node(node.block, node.index, node.nodes).context("failed to set the node's network up")?;
    node.root.as_ref().map(root::enter).transpose()
}
