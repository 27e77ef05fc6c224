//! `cargo testbed openstack --volumes`: Pods use volumes of Cinder and shares of Manila, as a user would. Afterwards
//! nothing of them is left, neither in Kubernetes nor in OpenStack.

mod authority;
pub(super) mod back_ends;
mod fence;
mod in_use;
mod moments;
pub(super) mod nova;
mod shared;
mod tenants;
mod times;
mod versions;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::NAMESPACE as MOORING;
use serde_json::{Value, json};

use super::{NAMESPACE, login, share_type, use_services};
use mooring_testbed::command::{output, output_with_input};
use mooring_testbed::install::{apply, render};
use mooring_testbed::manifests::documents;
use mooring_testbed::progress::{note, step};
use mooring_testbed::target::Target;
use mooring_testbed::wait::{Look, wait_for};

pub(super) use fence::spare;
pub(super) use in_use::InUse;

/// Where the claims and Pods are.
const TRIAL: &str = "openstack-trial";

/// A volume type of Cinder's and a share type of Manila's, made for this.
const TYPE: &str = "trial";

/// The kustomization that an administrator applies, and the ConfigMap in it that has the status of all.
const FOLDER: &str = "configmaps/openstack";
const STATUS: &str = "openstack";

/// The Secret that it expects.
const SECRET: &str = "openstack";

/// How long runs go on, in milliseconds, before they get a second to end in: they are killed at the login, at the calls
/// that make something, and while the service is at work.
const KILLED_AFTER: [u64; 3] = [0, 400, 1200];

/// Longest wait for one thing.
const LIMIT: Duration = Duration::from_mins(4);

/// A claim for each of the services.
const CLAIMS: [Claim; 2] = [
    Claim {
        config: "cinder",
        class: "cinder-trial",
        mode: "ReadWriteOnce",
    },
    Claim {
        config: "manila",
        class: "manila-trial-cephfs",
        mode: "ReadWriteMany",
    },
];

struct Claim {
    /// Name of the ConfigMap, the claim, and the Pods' first part.
    config: &'static str,
    /// The class of a type that the image has discovered.
    class: &'static str,
    mode: &'static str,
}

pub(super) fn run(target: &Target) -> Result<()> {
    let trial = Trial { target };
    let before = trial.left()?;
    trial.types(TYPE)?;
    shared::make_type(&trial)?;
    let ran = trial
        .register()
        .and_then(|()| CLAIMS.iter().try_for_each(|claim| trial.try_out(claim)))
        .and_then(|()| shared::run(&trial))
        .and_then(|()| tenants::run(&trial))
        .and_then(|()| versions::run(&trial))
        .and_then(|()| times::run(&trial))
        .and_then(|()| fence::run(&trial))
        .and_then(|()| moments::run(&trial))
        .and_then(|()| trial.lose_keystone());
    let ran = ran.inspect_err(|_| trial.explain());
    step("remove claims, Pods and classes", |_| trial.remove())?;
    trial.types(&format!("-{TYPE}"))?;
    shared::remove_type(&trial)?;
    ran?;
    trial.nothing_is_left(&before)
}

struct Trial<'a> {
    target: &'a Target,
}

impl Trial<'_> {
    fn kubectl(&self, args: &[&str]) -> Result<String> {
        Ok(output(&mut self.target.kubectl(args))?)
    }

    fn types(&self, name: &str) -> Result<()> {
        use_services(self.target, "types", &[&json!([name])])?;
        share_type(self.target, name)
    }

    fn try_out(&self, claim: &Claim) -> Result<()> {
        let Claim { config, class, .. } = *claim;
        step(&format!("class {class} is discovered"), |_| self.discovered(class))?;
        step(
            &format!("a claim of it, and a Pod on node-1 that writes to {config}"),
            |_| {
                self.put(&claim.to_claim(1))?;
                self.put(&pod(config, "node-1", "echo written >/data/letter; sync; sleep 100000"))?;
                self.ready(&format!("{config}-node-1"))
            },
        )?;
        step(&format!("{config} grows to 2 GiB while it is used"), |_| {
            self.put(&claim.to_claim(2))?;
            self.volume_has_2_gib(config)
        })?;
        if claim.mode == "ReadWriteOnce" {
            self.delete_pod(&format!("{config}-node-1"))?;
        }
        step(&format!("a Pod on node-2 reads from {config}"), |_| {
            self.put(&pod(config, "node-2", "grep written /data/letter && sleep 100000"))?;
            self.ready(&format!("{config}-node-2"))?;
            self.finds_2_gib(&format!("{config}-node-2"))?;
            self.claim_has_2_gib(config)
        })?;
        step(
            &format!("a claim whose first runs are killed has one {config} in the end"),
            |_| self.survive(claim),
        )?;
        // Here all nodes have one kernel: it has both.
        let what = format!("a Pod on node-1 reads from a copy of {config}, which is used meanwhile");
        step(&what, |_| {
            let name = format!("{config}-copy");
            self.put(&claim.to_copy(&name))?;
            self.put(&pod(&name, "node-1", "grep written /data/letter && sleep 100000"))?;
            self.ready(&format!("{name}-node-1"))
        })
    }

    /// Waits until the volume of a claim is said to have 2 GiB.
    fn volume_has_2_gib(&self, claim: &str) -> Result<()> {
        let volume = self.field("persistentvolumeclaim", claim, "{.spec.volumeName}")?;
        wait_until("2Gi of storage", || {
            let has = self.field("persistentvolume", &volume, "{.spec.capacity.storage}")?;
            ensure!(has == "2Gi", "the volume has {has}");
            Ok(())
        })
    }

    /// Waits until the claim says that its Pods have 2 GiB.
    fn claim_has_2_gib(&self, claim: &str) -> Result<()> {
        wait_until("2Gi in the claim's status", || {
            let has = self.field("persistentvolumeclaim", claim, "{.status.capacity.storage}")?;
            ensure!(has == "2Gi", "the claim has {has}");
            Ok(())
        })
    }

    fn finds_2_gib(&self, pod: &str) -> Result<()> {
        let size = self.exec(pod, "df -P -m /data | tail -n 1")?;
        let mib = size.split_whitespace().find_map(|word| word.parse::<u64>().ok());
        ensure!(
            mib.is_some_and(|mib| mib > 1500),
            "it does not have 2 GiB there: {size}"
        );
        Ok(())
    }

    /// Waits for an Event of a claim with these words.
    fn is_told(&self, claim: &str, words: &str) -> Result<()> {
        wait_until(&format!("an Event of {claim}: {words}"), || {
            let of = format!("involvedObject.kind=PersistentVolumeClaim,involvedObject.name={claim}");
            let path = "jsonpath={.items[*].message}";
            let told = self.kubectl(&["-n", TRIAL, "get", "events", "--field-selector", &of, "-o", path])?;
            ensure!(told.contains(words), "it was told: {told}");
            Ok(())
        })
    }

    /// Kills the Pods that make a volume, one after the other, and counts what there is more when it is made.
    fn survive(&self, claim: &Claim) -> Result<()> {
        let before = self.everything()?.len();
        let name = format!("{}-killed", claim.class);
        self.put(&claim.named(&name, 1))?;
        let uid = self.field("persistentvolumeclaim", &name, "{.metadata.uid}")?;
        // The ConfigMap of Cinder has a worker, whose runs have no Pod of their own.
        let runs = [format!("pod/provision-{uid}"), format!("pod/worker-{}-", claim.config)];
        let mut killed = 0;
        for after in KILLED_AFTER {
            let Some(pod) = self.run_of(&name, &runs)? else { break };
            std::thread::sleep(Duration::from_millis(after));
            // A second later it is killed, and gone when this returns: no other run begins before.
            self.kubectl(&["-n", MOORING, "delete", &pod, "--now", "--ignore-not-found"])?;
            killed += 1;
        }
        ensure!(killed > 0, "the claim was bound before a run could be killed");
        wait_until("the claim to be bound", || {
            let phase = self.field("persistentvolumeclaim", &name, "{.status.phase}")?;
            ensure!(phase == "Bound", "the claim is {phase}");
            Ok(())
        })?;
        let there = self.everything()?.len();
        ensure!(there == before + 1, "OpenStack has {there} things, not {}", before + 1);
        Ok(())
    }

    /// The Pod that a claim's run is in, whose name begins with one of these; none when the claim is bound.
    fn run_of(&self, claim: &str, runs: &[String]) -> Result<Option<String>> {
        let mut found = None;
        wait_until("a run of the image", || {
            found = None;
            if self.field("persistentvolumeclaim", claim, "{.status.phase}")? == "Bound" {
                return Ok(());
            }
            let running = "--field-selector=status.phase=Running";
            let pods = self.kubectl(&["-n", MOORING, "get", "pods", running, "-o", "name"])?;
            let mut pods = pods.lines();
            found = pods
                .find(|pod| runs.iter().any(|run| pod.starts_with(run)))
                .map(str::to_owned);
            ensure!(found.is_some(), "no Pod of it runs");
            Ok(())
        })?;
        Ok(found)
    }

    /// What there is in OpenStack.
    fn everything(&self) -> Result<Vec<Value>> {
        let there = use_services(self.target, "everything", &[])?;
        there.as_array().cloned().context("use.py everything answered no list")
    }

    /// Applies the kustomization as an administrator would who forgets the Secret at first.
    fn register(&self) -> Result<()> {
        step(&format!("apply {FOLDER}, whose status asks for the Secret"), |_| {
            let mut documents = self.documents()?;
            for config in documents.iter_mut().filter(|one| one["metadata"]["name"] == "cinder") {
                // ext4 grows only where the machine lets its containers have CAP_SYS_RESOURCE.
                config["data"]["file-system"] = "xfs".into();
            }
            self.put(&json!({"apiVersion": "v1", "kind": "List", "items": documents}))?;
            wait_until("the status to ask for it", || {
                self.status_is("available", "False")?;
                let conditions = self.status("conditions")?;
                let asks = format!("secret \"{SECRET}\" (key \"secret-name\" of the ConfigMap) is not in namespace");
                ensure!(conditions.matches(&asks).count() >= 2, "{conditions}");
                Ok(())
            })
        })?;
        step("create the Secret, and both services are available", |_| {
            self.put(&json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": SECRET, "namespace": MOORING},
                "stringData": login(self.target)?,
            }))?;
            self.all_is_well()
        })
    }

    /// Its status says so, its classes stay, and it heals.
    fn lose_keystone(&self) -> Result<()> {
        let scale = |replicas: &str| {
            let count = format!("--replicas={replicas}");
            self.kubectl(&["-n", NAMESPACE, "scale", "deployment/keystone", &count])
        };
        let count = "jsonpath={.spec.replicas}";
        let replicas = self.kubectl(&["-n", NAMESPACE, "get", "deployment/keystone", "-o", count])?;
        step("Keystone is gone, and the status says so", |_| {
            scale("0")?;
            self.kubectl(&[
                "-n",
                NAMESPACE,
                "wait",
                "--for=delete",
                "pods",
                "-l=app.kubernetes.io/name=keystone",
                "--timeout=120s",
            ])?;
            // Another version of the ConfigMap is asked about at once.
            let patch = json!({"data": {"discover-interval": "6m"}}).to_string();
            self.kubectl(&["-n", MOORING, "patch", "configmap/cinder", "--type=merge", "-p", &patch])?;
            wait_until("the status to say so", || {
                self.status_is("degraded", "True")?;
                self.status_is("available", "True")?;
                let conditions = self.status("conditions")?;
                ensure!(conditions.contains("DiscoveryFailed"), "{conditions}");
                Ok(())
            })
        })?;
        step("Keystone is back, and so is all", |_| {
            scale(&replicas)?;
            self.all_is_well()
        })
    }

    fn all_is_well(&self) -> Result<()> {
        wait_until("the status to be as expected", || {
            for (condition, wanted) in [
                ("available", "True"),
                ("degraded", "False"),
                ("progressing", "False"),
                ("upgradeable", "True"),
            ] {
                self.status_is(condition, wanted)?;
            }
            Ok(())
        })
    }

    fn status_is(&self, condition: &str, wanted: &str) -> Result<()> {
        let there = self.status(condition)?;
        ensure!(
            there == wanted,
            "{condition} is {there:?}: {}",
            self.status("conditions")?
        );
        Ok(())
    }

    fn status(&self, key: &str) -> Result<String> {
        let path = format!("jsonpath={{.data.{key}}}");
        self.kubectl(&["-n", MOORING, "get", "configmap", STATUS, "-o", &path])
    }

    fn documents(&self) -> Result<Vec<Value>> {
        documents(&render(FOLDER, self.target)?)
    }

    fn field(&self, kind: &str, name: &str, path: &str) -> Result<String> {
        self.kubectl(&["-n", TRIAL, "get", kind, name, "-o", &format!("jsonpath={path}")])
    }

    fn put(&self, object: &Value) -> Result<()> {
        apply(self.target, &self.target.with_image_names(&object.to_string()))
    }

    fn ready(&self, pod: &str) -> Result<()> {
        let limit = format!("--timeout={}s", LIMIT.as_secs());
        self.kubectl(&[
            "-n",
            TRIAL,
            "wait",
            "--for=condition=Ready",
            &limit,
            &format!("pod/{pod}"),
        ])
        .map(drop)
    }

    fn exec(&self, pod: &str, script: &str) -> Result<String> {
        self.kubectl(&["-n", TRIAL, "exec", pod, "--", "sh", "-c", script])
    }

    fn delete_pod(&self, pod: &str) -> Result<()> {
        self.kubectl(&["-n", TRIAL, "delete", "pod", pod, "--timeout=120s"])
            .map(drop)
    }

    /// The claims go first, while what deletes their volumes is there.
    fn remove(&self) -> Result<()> {
        let limit = format!("--timeout={}s", LIMIT.as_secs());
        self.kubectl(&["delete", "namespace", TRIAL, "--ignore-not-found", &limit])?;
        wait_until("the volumes to be gone", || {
            let left = self.volumes()?;
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })?;
        let mut delete = self.target.kubectl(["delete", "--ignore-not-found", &limit, "-f", "-"]);
        output_with_input(&mut delete, render(FOLDER, self.target)?.as_bytes())?;
        self.kubectl(&["-n", MOORING, "delete", "secret", SECRET, "--ignore-not-found", &limit])?;
        Ok(())
    }

    /// The volumes of OpenStack's classes, as Kubernetes has them. The services themselves have others.
    fn volumes(&self) -> Result<Vec<String>> {
        let path = "jsonpath={range .items[*]}{.spec.storageClassName} {.metadata.name}{\"\\n\"}{end}";
        let all = self.kubectl(&["get", "persistentvolumes", "-o", path])?;
        let ours = |line: &&str| {
            ["cinder-", "manila-", "tenant-"]
                .iter()
                .any(|class| line.starts_with(class))
        };
        Ok(all.lines().filter(ours).map(str::to_owned).collect())
    }

    /// Waits until there is as much as before.
    fn nothing_is_left(&self, before: &BTreeSet<String>) -> Result<()> {
        step("nothing is left on either side", |_| {
            wait_for("what was made to be gone", LIMIT, &[], || match self.left() {
                Ok(left) if left == *before => Look::Ready(()),
                Ok(left) => Look::NotYet(format!("{:?}", left.symmetric_difference(before).collect::<Vec<_>>())),
                Err(error) => Look::NotYet(format!("{error:#}")),
            })?;
            Ok(())
        })
    }

    fn discovered(&self, class: &str) -> Result<()> {
        wait_until(&format!("class {class}"), || {
            self.kubectl(&["get", "storageclass", class, "-o", "name"]).map(drop)
        })
    }

    /// Everything that could be left over: in OpenStack, and of Mooring.
    fn left(&self) -> Result<BTreeSet<String>> {
        let mut left: BTreeSet<_> = self.everything()?.iter().map(ToString::to_string).collect();
        left.extend(self.volumes()?);
        let secrets = self.kubectl(&["-n", MOORING, "get", "secrets,pods", "-o", "name"])?;
        let of_volumes = |line: &&str| {
            ["/attachment-pvc-", "/share-pvc-"]
                .iter()
                .any(|part| line.contains(part))
        };
        left.extend(secrets.lines().filter(of_volumes).map(str::to_owned));
        Ok(left)
    }

    fn explain(&self) {
        for args in [
            &["-n", TRIAL, "get", "pvc,pods", "-o", "wide"][..],
            &["-n", TRIAL, "get", "events", "--sort-by=.lastTimestamp"],
            &["-n", MOORING, "get", "pods"],
            &[
                "-n",
                MOORING,
                "get",
                "configmaps",
                "-o",
                "yaml",
                "cinder",
                "manila",
                STATUS,
                "--ignore-not-found",
            ],
        ] {
            note(self.kubectl(args).unwrap_or_else(|error| format!("{error:#}")));
        }
    }
}

impl Claim {
    fn to_claim(&self, gib: u32) -> Value {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TRIAL}});
        let claim = self.named(self.config, gib);
        json!({"apiVersion": "v1", "kind": "List", "items": [namespace, claim]})
    }

    fn to_copy(&self, name: &str) -> Value {
        let mut copy = self.named(name, 2);
        copy["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": self.config});
        copy
    }

    fn named(&self, name: &str, gib: u32) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": TRIAL},
            "spec": {
                "storageClassName": self.class,
                "accessModes": [self.mode],
                "resources": {"requests": {"storage": format!("{gib}Gi")}},
            },
        })
    }
}

fn wait_until(what: &str, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    Ok(wait_for(what, LIMIT, &[], || match look() {
        Ok(()) => Look::Ready(()),
        Err(error) => Look::NotYet(format!("{error:#}")),
    })?)
}

fn pod(claim: &str, node: &str, command: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("{claim}-{node}"), "namespace": TRIAL},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "user",
                "image": "busybox:1",
                "command": ["sh", "-c", command],
                // No readiness probe: it would start a program every second, which is slow in a virtual machine.
                "startupProbe": {
                    "exec": {"command": ["test", "-s", "/data/letter"]}, "periodSeconds": 1, "failureThreshold": 600,
                },
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}
