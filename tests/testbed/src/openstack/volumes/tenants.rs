//! Two projects on one cluster: each has its ConfigMap and Secret, and what one claims is in its own project.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{CLAIMS, Claim, MOORING, TRIAL, Trial, pod, wait_until};
use crate::openstack::use_services;
use crate::progress::step;

/// The other project, its user, its Secret, and its ConfigMap and class.
const TENANT: &str = "tenant";
const CLASS: &str = "tenant-trial";

pub(super) fn run(trial: &Trial<'_>) -> Result<()> {
    let mut login = use_services(trial.target, "project", &[&json!(TENANT)])?;
    let mine = super::login(trial.target)?;
    login["ceph-key"] = mine["ceph-key"].clone();
    let ran = step("another project of OpenStack has volumes of its own", |_| {
        let tenant = Tenant { trial };
        tenant.register(&login)?;
        tenant.use_a_volume()
    });
    // Another run makes it again.
    use_services(trial.target, "project", &[&json!(format!("-{TENANT}"))])?;
    ran
}

struct Tenant<'a> {
    trial: &'a Trial<'a>,
}

impl Tenant<'_> {
    /// The first project's ConfigMap under another name, with another Secret.
    fn register(&self, login: &Value) -> Result<()> {
        let documents = self.trial.documents()?;
        let first = documents
            .into_iter()
            .find(|one| one["metadata"]["name"] == CLAIMS[0].config);
        let mut config = first.context("the kustomization has no such ConfigMap")?;
        config["metadata"]["name"] = TENANT.into();
        config["metadata"]["labels"] = json!({"type": "provisioner-config", "storage-class": TENANT});
        config["data"]["secret-name"] = TENANT.into();
        config["data"]["file-system"] = "xfs".into();
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": TENANT, "namespace": MOORING},
            "stringData": login,
        });
        self.trial
            .put(&json!({"apiVersion": "v1", "kind": "List", "items": [secret, config]}))
    }

    fn use_a_volume(&self) -> Result<()> {
        let trial = self.trial;
        wait_until(&format!("class {CLASS}"), || {
            trial.kubectl(&["get", "storageclass", CLASS, "-o", "name"]).map(drop)
        })?;
        let others = trial.everything()?;
        let claim = Claim {
            class: CLASS,
            config: TENANT,
            mode: CLAIMS[0].mode,
        };
        trial.put(&claim.named(TENANT, 1))?;
        trial.put(&pod(TENANT, "node-2", "echo written >/data/letter; sync; sleep 100000"))?;
        trial.ready(&format!("{TENANT}-node-2"))?;
        ensure!(self.volumes()? == 1, "the project has {} volumes", self.volumes()?);
        ensure!(trial.everything()? == others, "the other project has something of it");
        trial.delete_pod(&format!("{TENANT}-node-2"))?;
        let volume = trial.field("persistentvolumeclaim", TENANT, "{.spec.volumeName}")?;
        trial.kubectl(&["-n", TRIAL, "delete", "persistentvolumeclaim", TENANT])?;
        // While its ConfigMap is there.
        let volume = format!("persistentvolume/{volume}");
        trial.kubectl(&["wait", "--for=delete", "--timeout=120s", &volume])?;
        ensure!(self.volumes()? == 0, "the project still has the volume");
        for what in ["configmap", "secret"] {
            trial.kubectl(&["-n", MOORING, "delete", what, TENANT])?;
        }
        Ok(())
    }

    fn volumes(&self) -> Result<usize> {
        let there = use_services(self.trial.target, "volumes_of", &[&json!(TENANT)])?;
        Ok(there.as_array().context("use.py volumes_of answered no list")?.len())
    }
}
