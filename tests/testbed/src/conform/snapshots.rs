//! The snapshot API, for the specs that take snapshots: a cluster has its CRDs and its controller once for all drivers.

use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use crate::binaries::{ensure_snapshot_controller, snapshot_crds};
use crate::command::command;
use crate::install::apply;
use crate::target::Target;

/// snapshot-controller at work. It ends when this is dropped.
pub(super) struct SnapshotController(Child);

impl SnapshotController {
    /// Has the cluster serve the API, and starts its controller.
    pub(super) fn start(target: &Target) -> Result<Self> {
        let program = ensure_snapshot_controller()?;
        for file in snapshot_crds()? {
            let manifest =
                std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
            apply(target, &manifest)?;
        }
        let kubeconfig = target.kubeconfig.clone().context("the cluster has no kubeconfig")?;
        let child = command(program, [format!("--kubeconfig={}", kubeconfig.display())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("failed to start snapshot-controller")?;
        Ok(Self(child))
    }
}

impl Drop for SnapshotController {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
