//! The snapshot API on a cluster: its CRDs, and the controller that a cluster has once for all drivers.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use mooring_testbed::binaries::{ensure_snapshot_controller, snapshot_crds};
use mooring_testbed::layout::write_file;
use serde_json::{Value, json};

use super::Scope;
use super::children::{start, tied};
use super::provisioner::TEST_LABEL;

/// snapshot-controller at work for a test.
pub struct SnapshotController {
    child: Child,
    kubeconfig: PathBuf,
}

impl Drop for SnapshotController {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

impl Scope {
    /// Has the cluster serve the snapshot API, and starts its controller.
    pub fn snapshot_controller(&self) -> Result<SnapshotController> {
        for file in snapshot_crds()? {
            let manifest =
                std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
            self.apply_anywhere(&manifest)?;
        }
        let kubeconfig = std::env::temp_dir().join(format!("{}-kubeconfig", self.namespace));
        write_file(
            &kubeconfig,
            self.kubectl(["config", "view", "--raw", "--minify", "--flatten"])?,
        )?;
        let mut controller = tied(ensure_snapshot_controller()?)?;
        controller
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = start(controller).context("failed to start snapshot-controller")?;
        Ok(SnapshotController { child, kubeconfig })
    }

    /// Creates a class of snapshots of Mooring's CSI volumes; returns its name.
    pub fn snapshot_class(&self, policy: &str) -> Result<String> {
        let name = format!("{}-{}", self.namespace, policy.to_lowercase());
        let class = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": name, "labels": {TEST_LABEL: self.namespace}},
            "driver": "vcs.mooring.dev", "deletionPolicy": policy,
        });
        self.apply_anywhere(&class.to_string())?;
        Ok(name)
    }
}

/// A snapshot of a claim.
pub fn snapshot_of(claim: &str, name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": claim}},
    })
}
