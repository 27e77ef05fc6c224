//! The snapshot API on a cluster: its CRDs, and the controller that a cluster has once for all drivers.

use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result};
use mooring_testbed::binaries::{ensure_snapshot_controller, snapshot_crds};
use serde_json::{Value, json};

use super::children::{start, tied};
use super::provisioner::TEST_LABEL;
use super::scope::{Scope, blocking};
use super::workplace::Workplace;

const GROUP: &str = "snapshot.storage.k8s.io";
/// As `kubectl` knows them.
const KINDS: [&str; 6] = [
    "volumesnapshots.snapshot.storage.k8s.io",
    "volumesnapshotcontents.snapshot.storage.k8s.io",
    "volumesnapshotclasses.snapshot.storage.k8s.io",
    "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
];

/// snapshot-controller at work, for as long as a test has this. Tests that run at once share one, as a cluster has one:
/// two at work on the same objects leave some of them undone.
pub struct SnapshotController(#[expect(dead_code, reason = "it is at work until this is dropped")] Arc<Running>);

/// That of the tests that run now.
static SHARED: Mutex<Weak<Running>> = Mutex::new(Weak::new());

struct Running {
    child: Child,
    /// Its kubeconfig is there.
    _workplace: Workplace,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Scope {
    /// Has the cluster serve the snapshot API. It stays: the test that is over may not be the only one that needs it.
    pub fn snapshot_api(&self) -> Result<()> {
        for file in snapshot_crds()? {
            let manifest =
                std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
            self.apply_anywhere(&manifest)?;
        }
        let kinds = KINDS.map(|kind| format!("crd/{kind}"));
        let wait = ["wait", "--for=condition=Established"].map(str::to_owned);
        blocking(self.kubectl_wait(wait.into_iter().chain(kinds)))
    }

    /// Has the cluster serve the snapshot API, and starts its controller if no other test has.
    pub fn snapshot_controller(&self) -> Result<SnapshotController> {
        self.snapshot_api()?;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return Ok(SnapshotController(running));
        }
        let workplace = self.workplace()?;
        let mut controller = tied(ensure_snapshot_controller()?)?;
        controller
            .arg(workplace.kubeconfig_flag())
            // Its own limit of five requests a second is for clusters that share their API server with others.
            .args(["--kube-api-qps=50", "--kube-api-burst=100"])
            .arg("--feature-gates=CSIVolumeGroupSnapshot=true")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = start(controller).context("failed to start snapshot-controller")?;
        let running = Arc::new(Running {
            child,
            _workplace: workplace,
        });
        *shared = Arc::downgrade(&running);
        Ok(SnapshotController(running))
    }

    /// Removes what the test has outside its namespace by this API, if the cluster serves it.
    pub(super) async fn remove_snapshots(&self) -> Result<()> {
        let groups = self
            .client
            .list_api_groups()
            .await
            .context("failed to list API groups")?;
        if groups.groups.iter().any(|group| group.name == GROUP) {
            let selector = format!("{TEST_LABEL}={}", self.namespace);
            let kinds = "volumesnapshotcontents,volumesnapshotclasses,volumegroupsnapshotcontents,\
                         volumegroupsnapshotclasses";
            self.kubectl_wait(["delete", kinds, "--ignore-not-found", "-l", &selector])
                .await?;
        }
        Ok(())
    }

    /// Creates a class of snapshots of Mooring's CSI volumes; returns its name.
    pub fn snapshot_class(&self, policy: &str) -> Result<String> {
        self.class_of_snapshots("snapshots", policy, &json!({}))
    }

    /// Creates a class of backups of them; returns its name.
    pub fn backup_class(&self, policy: &str) -> Result<String> {
        self.class_of_snapshots("backups", policy, &json!({"mooring.dev/backup": "true"}))
    }

    fn class_of_snapshots(&self, of: &str, policy: &str, parameters: &Value) -> Result<String> {
        let name = format!("{}-{of}-{}", self.namespace, policy.to_lowercase());
        let class = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": name, "labels": {TEST_LABEL: self.namespace}},
            "driver": "vcs.mooring.dev", "deletionPolicy": policy, "parameters": parameters,
        });
        self.apply_anywhere(&class.to_string())?;
        Ok(name)
    }
}

impl Scope {
    /// Creates a class of group snapshots of Mooring's CSI volumes; returns its name.
    pub fn group_snapshot_class(&self, policy: &str) -> Result<String> {
        let name = format!("{}-{}", self.namespace, policy.to_lowercase());
        let class = json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClass",
            "metadata": {"name": name, "labels": {TEST_LABEL: self.namespace}},
            "driver": "vcs.mooring.dev", "deletionPolicy": policy,
        });
        self.apply_anywhere(&class.to_string())?;
        Ok(name)
    }
}

/// A snapshot of all claims that have this label.
pub fn group_snapshot_of(key: &str, value: &str, name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name},
        "spec": {"volumeGroupSnapshotClassName": class, "source": {"selector": {"matchLabels": {key: value}}}},
    })
}

pub fn snapshot_of(claim: &str, name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": claim}},
    })
}
