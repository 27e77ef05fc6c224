//! Workers that are stopped, cut off or replaced in the middle of a run, for each operation on a node's pool: no run is
//! begun twice at once, and none is lost. Alone: the workers' metrics are read.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use mooring_contract::names::{CSI_DRIVER, annotations};
use mooring_harness::backend::POOLED;
use mooring_harness::nodes::{POOL, on_two_nodes};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim};
use mooring_harness::snapshots::{group_snapshot_of, snapshot_of};
use mooring_harness::{Scope, skipped_without_all, wait_until};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

use crate::workers::free_worker;

/// Longest wait for a run to begin or to end: a new worker or Pod has to start.
const LIMIT: Duration = Duration::from_mins(2);

/// How long a fault lasts after the run has ended: longer than the controller tries a connection.
const LASTS: Duration = Duration::from_secs(8);

/// Each run says that it begins, goes on and ends, and ends when it is told to.
const SCRIPT: &str = r#"
[ "$PVC_NAME" != first ] || exec pv options client=sshfs source=nobody@192.0.2.1:/x
at="/run/mooring/backend/.$FAULTS"
echo "begin $OPERATION $(hostname)" >>"$at-log"
until [ -e "$at-go-$OPERATION" ]; do
    sleep 0.1
    echo "goes-on $OPERATION $(hostname)" >>"$at-log"
done
echo "end $OPERATION $(hostname)" >>"$at-log"
"#;

const PRINT: &str = "pv options client=sshfs source=nobody@192.0.2.1:/x";

/// What happens to the worker between the beginning of its run and the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Its processes stop, and go on later.
    Stopped,
    /// No packet reaches it for a while.
    CutOff,
    /// Its Pod is deleted.
    Replaced,
}

/// The operations in the order in which the claims below need them.
const OPERATIONS: [&str; 11] = [
    "provision",
    "expand",
    "modify",
    "backup",
    "snapshot-group",
    "delete-group",
    "snapshot",
    "restore",
    "clone",
    "delete-snapshot",
    "delete",
];

struct Trial<'a> {
    scope: &'a Scope,
    node: &'a str,
    provisioner: Provisioner,
    snapshot_class: String,
    backup_class: String,
    group_class: String,
    attributes: String,
}

impl Trial<'_> {
    fn on_pool(&self, script: &str) -> Result<String> {
        let at = format!("{POOL}/.{}", self.scope.namespace);
        self.scope.on_node(1, &script.replace("AT", &at))
    }

    /// What the runs of an operation have said, and where: each first word with the name of the Pod.
    fn log(&self, operation: &str) -> Result<Vec<(String, String)>> {
        let log = self.on_pool("cat AT-log 2>/dev/null || true")?;
        let words = log.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let of_it = words.filter_map(|words| match words[..] {
            [word, of, pod] if of == operation => Some((word.to_owned(), pod.to_owned())),
            _ => None,
        });
        Ok(of_it.collect())
    }

    fn allow(&self, operation: &str) -> Result<()> {
        self.on_pool(&format!("touch AT-go-{operation}")).map(drop)
    }

    /// Asks for an operation, as a user does.
    async fn ask(&self, operation: &str) -> Result<()> {
        let scope = self.scope;
        let class = &self.provisioner.class;
        match operation {
            "provision" => self.claim(claim("data", class, "1Gi")).await,
            "expand" => self.patch("data", &json!({"resources": {"requests": {"storage": "2Gi"}}})),
            "modify" => self.patch("data", &json!({"volumeAttributesClassName": self.attributes})),
            "backup" => scope.apply(&snapshot_of("data", "backup", &self.backup_class).to_string()),
            "snapshot-group" => {
                scope.kubectl(["label", "pvc", "data", "app=db"])?;
                scope.apply(&group_snapshot_of("app", "db", "group", &self.group_class).to_string())
            }
            "delete-group" => scope
                .kubectl(["delete", "volumegroupsnapshot", "group", "--wait=false"])
                .map(drop),
            "snapshot" => scope.apply(&snapshot_of("data", "kept", &self.snapshot_class).to_string()),
            "restore" => {
                let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "kept"});
                self.claim(with_source("restored", class, &source)).await
            }
            "clone" => {
                let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
                self.claim(with_source("copy", class, &source)).await
            }
            "delete-snapshot" => scope
                .kubectl(["delete", "volumesnapshot", "kept", "--wait=false"])
                .map(drop),
            _ => scope.delete("persistentvolumeclaim/data"),
        }
    }

    /// Waits until that is done.
    async fn is_done(&self, operation: &str) -> Result<()> {
        let scope = self.scope;
        let status = |object: &str| -> Result<Value> {
            let text = scope.kubectl(["get", object, "-o", "json"])?;
            Ok(serde_json::from_str::<Value>(&text)?["status"].take())
        };
        wait_until(&format!("{operation} to be done"), LIMIT, async || {
            let is = match operation {
                "provision" => status("pvc/data")?["phase"] == "Bound",
                "expand" => status("pvc/data")?["capacity"]["storage"] == "2Gi",
                "modify" => status("pvc/data")?["currentVolumeAttributesClassName"] == *self.attributes,
                "snapshot" => status("volumesnapshot/kept")?["readyToUse"] == true,
                "restore" => status("pvc/restored")?["phase"] == "Bound",
                "clone" => status("pvc/copy")?["phase"] == "Bound",
                "backup" => status("volumesnapshot/backup")?["readyToUse"] == true,
                "snapshot-group" => status("volumegroupsnapshot/group")?["readyToUse"] == true,
                _ => {
                    let own = scope.namespace.as_str();
                    let (kind, path, gone) = match operation {
                        "delete" => ("persistentvolumes", "claimRef.name", "data"),
                        "delete-group" => ("volumegroupsnapshotcontents", "volumeGroupSnapshotRef.namespace", own),
                        _ => ("volumesnapshotcontents", "volumeSnapshotRef.name", "kept"),
                    };
                    let names = format!("jsonpath={{.items[*].spec.{path}}}");
                    let names = scope.kubectl(["get", kind, "-o", &names])?;
                    !names.split_whitespace().any(|name| name == gone)
                }
            };
            Ok(is.then_some(()))
        })
        .await
    }

    async fn claim(&self, mut claim: Value) -> Result<()> {
        claim["metadata"]["annotations"] = json!({annotations::SELECTED_NODE: self.node});
        self.scope.claim_with(None, &claim).await.map(drop)
    }

    fn patch(&self, claim: &str, spec: &Value) -> Result<()> {
        let patch = json!({ "spec": spec }).to_string();
        self.scope.kubectl(["patch", "pvc", claim, "-p", &patch]).map(drop)
    }

    /// One operation, with a fault in the middle of its run.
    async fn suffers(&self, operation: &str, fault: Fault) -> Result<()> {
        let scope = self.scope;
        let worker = free_worker(scope, &self.provisioner).await?;
        self.ask(operation).await?;
        wait_until(&format!("{operation} to begin in {worker}"), LIMIT, async || {
            let log = self.log(operation)?;
            ensure!(log.iter().all(|(_, pod)| *pod == worker), "{log:?}");
            Ok((!log.is_empty()).then_some(()))
        })
        .await?;
        let admin = scope.elsewhere(CONFIG_NAMESPACE);
        match fault {
            Fault::Stopped => {
                let stopped = admin.stop(&worker).await?;
                self.allow(operation)?;
                tokio::time::sleep(LASTS).await;
                drop(stopped);
            }
            Fault::CutOff => {
                let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
                let status = pods.get(&worker).await?.status;
                let address = status.and_then(|status| status.pod_ip).context("no address")?;
                let cut = Cut::off(scope, &address)?;
                self.allow(operation)?;
                tokio::time::sleep(LASTS).await;
                drop(cut);
            }
            Fault::Replaced => {
                let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
                pods.delete(&worker, &DeleteParams::default()).await?;
                let what = format!("{operation} to begin elsewhere");
                wait_until(&what, LIMIT, async || {
                    let log = self.log(operation)?;
                    Ok((log.iter().filter(|(word, _)| word == "begin").count() > 1).then_some(()))
                })
                .await?;
                self.allow(operation)?;
            }
        }
        self.is_done(operation).await?;
        let mut log = self.log(operation)?;
        log.dedup();
        let said = |word: &str, pod: &str| (word.to_owned(), pod.to_owned());
        let last = log.last().map(|(_, pod)| pod.clone()).unwrap_or_default();
        let mut wanted = ["begin", "goes-on", "end"].map(|word| said(word, &last)).to_vec();
        if fault == Fault::Replaced {
            ensure!(last != worker, "{operation} ended in the worker that was deleted");
            // Nothing of the first is heard after the second has begun.
            wanted.splice(0..0, [said("begin", &worker), said("goes-on", &worker)]);
        }
        ensure!(log == wanted, "{fault:?}, {operation}: {log:?}");
        Ok(())
    }
}

fn with_source(name: &str, class: &str, source: &Value) -> Value {
    let mut claim = claim(name, class, "2Gi");
    claim["spec"]["dataSource"] = source.clone();
    claim
}

/// A Pod that no packet of another reaches until this is dropped.
struct Cut<'a> {
    scope: &'a Scope,
    address: String,
}

impl<'a> Cut<'a> {
    /// On node-1, where the Pod is.
    fn off(scope: &'a Scope, address: &str) -> Result<Self> {
        scope.on_node(1, &format!("ip rule add to {address}/32 blackhole"))?;
        Ok(Self {
            scope,
            address: address.to_owned(),
        })
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        let back = format!("ip rule del to {}/32 blackhole", self.address);
        if let Err(error) = self.scope.on_node(1, &back) {
            note(format!("the rule that cuts a worker off stays: {error:#}"));
        }
    }
}

fn each_operation_with(name: &'static str, fault: Fault) {
    if skipped_without_all() {
        return;
    }
    on_two_nodes(name, async |scope, [node, _]| {
        let _controller = scope.snapshot_controller()?;
        let scripts: BTreeMap<_, _> = OPERATIONS
            .iter()
            .map(|operation| (format!("{operation}-script"), format!("{SCRIPT}{PRINT}")))
            .collect();
        let provisioner = scope
            .provisioner()
            .key("image", POOLED)
            .key("backend-volume", "client=pool")
            .key("volume-source", "csi")
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .key("allow-volume-expansion", "true")
            .key("operations", format!("{}, delete-backup", OPERATIONS.join(", ")))
            .key("delete-backup-script", "exit 0")
            .key("workers", "1")
            .key("faults", &scope.namespace);
        let provisioner = scripts
            .iter()
            .fold(provisioner, |provisioner, (key, script)| provisioner.key(key, script));
        let trial = Trial {
            scope: &scope,
            node: &node,
            snapshot_class: scope.snapshot_class("Delete")?,
            backup_class: scope.backup_class("Delete")?,
            group_class: scope.group_snapshot_class("Delete")?,
            attributes: scope.attributes_class("other", CSI_DRIVER, &json!({"tier": "other"}))?,
            provisioner,
        };
        trial.provisioner.apply().await?;
        // The first run on a node has its worker made.
        trial.claim(claim("first", &trial.provisioner.class, "1Gi")).await?;
        scope.claim_bound("first").await?;
        scope.claim_gone("first").await?;
        scope.volumes_gone().await?;
        let tried = async {
            for operation in OPERATIONS {
                trial.suffers(operation, fault).await?;
            }
            scope.kubectl(["delete", "--timeout=2m", "volumesnapshot/backup"])?;
            for left in ["restored", "copy"] {
                scope.claim_gone(left).await?;
            }
            scope.volumes_gone().await
        };
        let tried = tried.await;
        // What was left in the middle ends before the namespace goes.
        let ended = OPERATIONS.iter().try_for_each(|operation| trial.allow(operation));
        if tried.is_ok() {
            trial.on_pool("rm -f AT-*")?;
        }
        tried.and(ended)
    });
}

/// Proves: P1
#[test]
fn a_run_whose_worker_is_stopped_in_the_middle_is_neither_lost_nor_begun_again() {
    each_operation_with("worker-stopped", Fault::Stopped);
}

/// Proves: P1
#[test]
fn a_run_whose_worker_is_cut_off_in_the_middle_is_neither_lost_nor_begun_again() {
    each_operation_with("worker-cut-off", Fault::CutOff);
}

/// Proves: P1
#[test]
fn a_run_whose_worker_is_replaced_in_the_middle_is_begun_again_when_the_first_has_ended() {
    each_operation_with("worker-replaced", Fault::Replaced);
}
