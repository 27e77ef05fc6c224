//! The image of an earlier commit and this one, in turns, for the same volumes: what one has made, the other attaches,
//! enlarges and deletes.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{CLAIMS, Claim, MOORING, SECRET, TRIAL, Trial, pod, wait_until};
use mooring_testbed::base_images::Archive;
use mooring_testbed::earlier;
use mooring_testbed::images::{Built, HOST, TAG};
use mooring_testbed::manifests::documents;
use mooring_testbed::oci::{Runs, write_archive};
use mooring_testbed::progress::{note, step};

const CINDER: Claim = Claim {
    config: "versions-cinder",
    class: "versions-cinder-trial",
    mode: CLAIMS[0].mode,
};

const MANILA: Claim = Claim {
    config: "versions-manila",
    class: "versions-manila-trial-cephfs",
    mode: CLAIMS[1].mode,
};

pub(super) fn run(trial: &Trial<'_>) -> Result<()> {
    if let Some(reason) = earlier::openstack_missing() {
        note(format!("  .. no earlier version of the image: {reason}"));
        return Ok(());
    }
    let earlier = earlier::openstack()?;
    let versions = Versions {
        trial,
        image: deliver(trial, &earlier.program)?,
        of_before: documents(&trial.target.with_image_names(&earlier.manila))?,
    };
    let before = trial.everything()?;
    let ran = versions.run(&before);
    let removed = versions.remove();
    ran.and(removed)
}

/// An image with that program alone.
fn deliver(trial: &Trial<'_>, program: &Path) -> Result<String> {
    let folder = program.parent().context("a program is in a folder")?;
    let layer = folder.join("layer.tar");
    let mut tar = tar::Builder::new(File::create(&layer).context("failed to make a layer")?);
    tar.append_path_with_name(program, "provision")?;
    tar.into_inner()?;
    let archive = Archive {
        name: format!("{HOST}/earlier-provisioner-openstack:{TAG}"),
        path: folder.join("image.tar"),
    };
    let runs = Runs {
        entrypoint: &["/provision"],
        user: "65534:65534",
        ..Runs::default()
    };
    write_archive(&archive.path, &layer, &runs)?;
    let name = archive.name.clone();
    // It has the commit in its name.
    let hash = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    trial.target.deliver(&[Built { archive, hash }])?;
    Ok(name)
}

struct Versions<'a> {
    trial: &'a Trial<'a>,
    /// The earlier image.
    image: String,
    /// How Manila was offered then.
    of_before: Vec<Value>,
}

impl Versions<'_> {
    fn run(&self, before: &[Value]) -> Result<()> {
        let trial = self.trial;
        step(
            "volumes of Cinder and Manila by an earlier version of the image",
            |_| {
                self.put(&self.cinder(Some(&self.image))?)?;
                for object in self.manila_before() {
                    self.put(&object)?;
                }
                for claim in [CINDER, MANILA] {
                    self.claim(&claim, claim.config)?;
                    self.write(claim.config, "node-1")?;
                }
                Ok(())
            },
        )?;
        step("this version has them on another node, and enlarges them", |_| {
            self.put(&self.cinder(None)?)?;
            self.put(&self.manila_now()?)?;
            for claim in [CINDER, MANILA] {
                self.moved(claim.config, "node-1", "node-2")?;
                self.grow(&claim, claim.config)?;
            }
            Ok(())
        })?;
        let second = |claim: &Claim| format!("{}-2", claim.config);
        step("this version makes others, and the share is gone again", |_| {
            for claim in [CINDER, MANILA] {
                self.claim(&claim, &second(&claim))?;
                self.write(&second(&claim), "node-1")?;
            }
            // A share whose nodes are let in one by one is nothing for the earlier version.
            trial.delete_pod(&format!("{}-node-1", second(&MANILA)))?;
            self.delete(&second(&MANILA))
        })?;
        step(
            "the earlier version has this one's volume on another node, and enlarges it",
            |_| {
                self.put(&self.cinder(Some(&self.image))?)?;
                for object in self.manila_before() {
                    self.put(&object)?;
                }
                self.moved(&second(&CINDER), "node-1", "node-2")?;
                self.grow(&CINDER, &second(&CINDER))
            },
        )?;
        step("the earlier version deletes both versions' volumes", |_| {
            for name in [CINDER.config.to_owned(), MANILA.config.to_owned(), second(&CINDER)] {
                trial.delete_pod(&format!("{name}-node-2"))?;
                self.delete(&name)?;
            }
            wait_until("nothing of them to be left", || {
                let there = trial.everything()?;
                ensure!(
                    there == before,
                    "OpenStack has {} things, not {}",
                    there.len(),
                    before.len()
                );
                let secrets = trial.kubectl(&["-n", MOORING, "get", "secrets", "-o", "name"])?;
                ensure!(!secrets.contains("share-pvc-"), "{secrets}");
                Ok(())
            })
        })
    }

    fn put(&self, object: &Value) -> Result<()> {
        self.trial.put(object)
    }

    /// Cinder's ConfigMap, with this image or that of this version.
    fn cinder(&self, image: Option<&str>) -> Result<Value> {
        let mut config = self.config_now(&CLAIMS[0])?;
        named(&mut config, &CINDER);
        config["data"]["file-system"] = "xfs".into();
        if let Some(image) = image {
            config["data"]["image"] = image.into();
        }
        Ok(config)
    }

    fn config_now(&self, claim: &Claim) -> Result<Value> {
        let documents = self.trial.documents()?;
        let found = documents
            .into_iter()
            .find(|one| one["metadata"]["name"] == claim.config && one["kind"] == "ConfigMap");
        found.context("the kustomization has no such ConfigMap")
    }

    /// What was applied for Manila then, with the earlier image.
    fn manila_before(&self) -> Vec<Value> {
        let mut documents = self.of_before.clone();
        for config in documents.iter_mut().filter(|one| one["kind"] == "ConfigMap") {
            named(config, &MANILA);
            config["data"]["image"] = self.image.as_str().into();
        }
        documents
    }

    /// What an administrator makes of it who follows `docs/openstack-volumes.md`: older shares have their Secrets
    /// deleted.
    fn manila_now(&self) -> Result<Value> {
        let mut config = self.config_now(&CLAIMS[1])?;
        named(&mut config, &MANILA);
        let of_before = self.of_before.iter().find(|one| one["kind"] == "ConfigMap");
        let of_before = of_before.context("there was no ConfigMap")?;
        for key in ["keys-namespace", "service-account-name"] {
            config["data"][key] = of_before["data"][key].clone();
        }
        if let Some(data) = config["data"].as_object_mut() {
            data.remove("workers");
        }
        Ok(config)
    }

    fn claim(&self, claim: &Claim, name: &str) -> Result<()> {
        let class = claim.class;
        wait_until(&format!("class {class}"), || {
            self.trial
                .kubectl(&["get", "storageclass", class, "-o", "name"])
                .map(drop)
        })?;
        self.put(&claim.named(name, 1))
    }

    fn write(&self, name: &str, node: &str) -> Result<()> {
        self.put(&pod(name, node, "echo written >/data/letter; sync; sleep 100000"))?;
        self.trial.ready(&format!("{name}-{node}"))
    }

    fn moved(&self, name: &str, from: &str, to: &str) -> Result<()> {
        self.trial.delete_pod(&format!("{name}-{from}"))?;
        self.put(&pod(name, to, "grep written /data/letter && sleep 100000"))?;
        self.trial.ready(&format!("{name}-{to}"))
    }

    fn grow(&self, claim: &Claim, name: &str) -> Result<()> {
        self.put(&claim.named(name, 2))?;
        wait_until("2Gi in the claim's status", || {
            let has = self
                .trial
                .field("persistentvolumeclaim", name, "{.status.capacity.storage}")?;
            ensure!(has == "2Gi", "the claim has {has}");
            Ok(())
        })
    }

    fn delete(&self, name: &str) -> Result<()> {
        let volume = self.trial.field("persistentvolumeclaim", name, "{.spec.volumeName}")?;
        self.trial
            .kubectl(&["-n", TRIAL, "delete", "persistentvolumeclaim", name])?;
        let volume = format!("persistentvolume/{volume}");
        self.trial
            .kubectl(&["wait", "--for=delete", "--timeout=240s", &volume])
            .map(drop)
    }

    /// The ConfigMaps, and what only the earlier one of Manila had.
    fn remove(&self) -> Result<()> {
        let configs = [CINDER.config, MANILA.config].map(|name| ("configmap", name));
        let others = self.of_before.iter().filter(|one| one["kind"] != "ConfigMap");
        let others = others.filter_map(|one| Some((one["kind"].as_str()?, one["metadata"]["name"].as_str()?)));
        for (kind, name) in configs.into_iter().chain(others) {
            self.trial
                .kubectl(&["-n", MOORING, "delete", kind, name, "--ignore-not-found"])?;
        }
        Ok(())
    }
}

/// A ConfigMap that is beside the one of the kustomization.
fn named(config: &mut Value, claim: &Claim) {
    config["metadata"]["name"] = claim.config.into();
    config["metadata"]["labels"] = json!({"type": "provisioner-config", "storage-class": claim.config});
    config["data"]["secret-name"] = SECRET.into();
}
