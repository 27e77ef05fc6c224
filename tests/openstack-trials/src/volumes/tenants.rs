//! Two projects on one cluster: each has its ConfigMaps and Secret, and what one claims is in its own project. The
//! second one's volumes go by FlexVolume, and its Keystone has a certificate of an authority of its own.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{CLAIMS, Claim, MOORING, TRIAL, Trial, authority, pod, wait_until};
use crate::use_services;
use mooring_testbed::progress::step;

/// The other project, its user and its Secret. The names of its ConfigMaps begin with this.
const TENANT: &str = "tenant";

/// What it claims.
const ITS_CLAIMS: [Claim; 2] = [
    Claim {
        config: "tenant-cinder",
        class: "tenant-cinder-trial",
        mode: CLAIMS[0].mode,
    },
    Claim {
        config: "tenant-manila",
        class: "tenant-manila-trial-cephfs",
        mode: CLAIMS[1].mode,
    },
];

pub(super) fn run(trial: &Trial<'_>) -> Result<()> {
    let mut login = use_services(trial.target, "project", &[&json!(TENANT)])?;
    let mine = super::login(trial.target)?;
    login["ceph-key"] = mine["ceph-key"].clone();
    let tenant = Tenant { trial };
    let what = "register another project, by FlexVolume, whose Keystone has a certificate of its own authority";
    let ran = step(what, |_| {
        authority::put_before(trial, &mut login)?;
        tenant.register(&login)
    })
    .and_then(|()| {
        ITS_CLAIMS
            .iter()
            .try_for_each(|claim| step(&format!("{} is its own", claim.config), |_| tenant.uses(claim)))
    });
    let removed = tenant.unregister();
    // Another run makes it again.
    use_services(trial.target, "project", &[&json!(format!("-{TENANT}"))])?;
    ran.and(removed)
}

struct Tenant<'a> {
    trial: &'a Trial<'a>,
}

impl Tenant<'_> {
    /// The first project's ConfigMaps under other names, with another Secret.
    fn register(&self, login: &Value) -> Result<()> {
        let mut items = vec![json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": TENANT, "namespace": MOORING},
            "stringData": login,
        })];
        let documents = self.trial.documents()?;
        for (first, own) in CLAIMS.iter().zip(&ITS_CLAIMS) {
            let of_first = documents.iter().find(|one| one["metadata"]["name"] == first.config);
            let mut config = of_first.context("the kustomization has no such ConfigMap")?.clone();
            config["metadata"]["name"] = own.config.into();
            config["metadata"]["labels"] = json!({"type": "provisioner-config", "storage-class": own.config});
            config["data"]["secret-name"] = TENANT.into();
            config["data"]["volume-source"] = "flexVolume".into();
            config["data"]["file-system"] = "xfs".into();
            items.push(config);
        }
        self.trial
            .put(&json!({"apiVersion": "v1", "kind": "List", "items": items}))
    }

    fn unregister(&self) -> Result<()> {
        let delete = |what: &str, name: &str| {
            let args = ["-n", MOORING, "delete", what, name, "--ignore-not-found"];
            self.trial.kubectl(&args).map(drop)
        };
        ITS_CLAIMS
            .iter()
            .try_for_each(|claim| delete("configmap", claim.config))?;
        delete("secret", TENANT)
    }

    fn uses(&self, claim: &Claim) -> Result<()> {
        let trial = self.trial;
        let Claim { config, class, .. } = *claim;
        wait_until(&format!("class {class}"), || {
            trial.kubectl(&["get", "storageclass", class, "-o", "name"]).map(drop)
        })?;
        let others = trial.everything()?;
        trial.put(&claim.named(config, 1))?;
        trial.put(&pod(config, "node-2", "echo written >/data/letter; sync; sleep 100000"))?;
        trial.ready(&format!("{config}-node-2"))?;
        let there = self.volumes()?;
        ensure!(there == 1, "the project has {there} volumes and shares");
        ensure!(trial.everything()? == others, "the other project has something of it");
        trial.delete_pod(&format!("{config}-node-2"))?;
        trial.put(&pod(config, "node-1", "grep written /data/letter && sleep 100000"))?;
        trial.ready(&format!("{config}-node-1"))?;
        trial.delete_pod(&format!("{config}-node-1"))?;
        let volume = trial.field("persistentvolumeclaim", config, "{.spec.volumeName}")?;
        trial.kubectl(&["-n", TRIAL, "delete", "persistentvolumeclaim", config])?;
        // While its ConfigMap is there.
        let volume = format!("persistentvolume/{volume}");
        trial.kubectl(&["wait", "--for=delete", "--timeout=120s", &volume])?;
        ensure!(self.volumes()? == 0, "the project still has the volume");
        Ok(())
    }

    /// How many volumes and shares the project has.
    fn volumes(&self) -> Result<usize> {
        let there = use_services(self.trial.target, "volumes_of", &[&json!(TENANT)])?;
        Ok(there.as_array().context("use.py volumes_of answered no list")?.len())
    }
}
