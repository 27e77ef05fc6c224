//! kubernetes-csi's sidecars on the cluster: built from their Go modules, with a driver that answers at once.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use mooring_harness::Scope;
use mooring_testbed::binaries::ensure_sidecars;
use mooring_testbed::command::{output, output_with_input};
use mooring_testbed::control_plane::ApiLimits;

use super::go_image::image;

/// The image's full name. The version is the driver's own; those of the sidecars are pinned in `tests/go/csi-sidecars`.
const IMAGE: &str = "mooring.dev/testbed-csi-sidecars:0.1.0";

/// The user that all sidecars are to the API server.
pub(super) const ACCOUNT: &str = "csi-sidecars";

/// The programs whose memory counts, which is without the driver's.
pub(super) const PROGRAMS: [&str; 4] = ["csi-attacher", "csi-provisioner", "csi-resizer", "csi-snapshotter"];

/// Requests of each sidecar a second, and at once, as it is shipped.
const SHIPPED: ApiLimits = ApiLimits { qps: 5, burst: 10 };

const MANIFEST: &str = include_str!("../sidecars.yaml");

/// An installation; its objects and its classes are named after the bench's namespace.
pub(super) struct Sidecars<'a> {
    scope: &'a Scope,
    /// Namespace, class of volumes, and class of snapshots.
    pub(super) name: String,
}

impl<'a> Sidecars<'a> {
    pub(super) fn of(scope: &'a Scope) -> Self {
        Self {
            scope,
            name: format!("{}-sidecars", scope.namespace),
        }
    }

    /// Brings the image to all nodes, starts everything, and waits until the kubelets know the drivers.
    pub(super) fn install(&self) -> Result<()> {
        let cluster = self.scope.own_cluster()?;
        let image = image(IMAGE, &ensure_sidecars()?)?;
        (1..=cluster.description.nodes).try_for_each(|index| cluster.import(index, &image))?;
        self.apply(SHIPPED)
    }

    /// Runs them with these limits of their requests to the API server.
    pub(super) fn apply(&self, limits: ApiLimits) -> Result<()> {
        let mut apply = self.scope.target.kubectl(["apply", "-f", "-"]);
        output_with_input(&mut apply, self.manifest(limits).as_bytes())?;
        for workload in ["deployment/controller", "daemonset/node"] {
            let args = ["-n", &self.name, "rollout", "status", workload, "--timeout=120s"];
            let mut wait = self.scope.target.kubectl(args);
            output(&mut wait).with_context(|| format!("{workload} of the sidecars does not start"))?;
        }
        Ok(())
    }

    /// Removes everything, and waits until it is gone.
    pub(super) fn remove(&self) -> Result<()> {
        let args = ["delete", "--ignore-not-found", "--timeout=180s", "-f", "-"];
        output_with_input(&mut self.scope.target.kubectl(args), self.manifest(SHIPPED).as_bytes())?;
        Ok(())
    }

    /// A PersistentVolume that needs no attachment, for the claim `claim`.
    pub(super) fn free_volume(&self, claim: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": self.free_volume_name()},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "64Mi"},
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": self.name,
                "csi": {"driver": format!("free.{}", self.name), "volumeHandle": claim},
                "claimRef": {"namespace": self.scope.namespace, "name": claim},
            },
        })
    }

    pub(super) fn free_volume_name(&self) -> String {
        format!("{}-free", self.name)
    }

    fn manifest(&self, limits: ApiLimits) -> String {
        MANIFEST
            .replace("SIDECARS-LIMITS", &limits.flags().join(", "))
            .replace("SIDECARS-NAME", &self.name)
            .replace("SIDECARS-FOLDER", &format!("/var/lib/mooring/{}", self.name))
            .replace("SIDECARS-IMAGE", IMAGE)
    }
}
