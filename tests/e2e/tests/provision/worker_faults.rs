//! Workers that are stopped, cut off or replaced in the middle of a run, for each operation: no run is begun twice at
//! once, and none is lost. Alone: the workers' metrics are read.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use mooring_contract::names::{CSI_DRIVER, annotations};
use mooring_harness::backend::POOLED;
use mooring_harness::nodes::{POOL, on_two_nodes};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim, user_of};
use mooring_harness::snapshots::{group_snapshot_of, snapshot_of};
use mooring_harness::{Scope, skipped_without_all, wait_until};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

use crate::workers::{free_worker, workers_gone};

/// Longest wait for a run to begin or to end: a new worker or Pod has to start.
const LIMIT: Duration = Duration::from_mins(2);

/// How long a fault lasts after the run has ended: longer than the controller tries a connection.
const LASTS: Duration = Duration::from_secs(8);

/// Each run says that it begins, goes on and ends, and ends when it is told to.
const SCRIPT: &str = r#"
[ "${PVC_NAME-}" != first ] || exec pv options client=sshfs source=nobody@192.0.2.1:/x
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

/// What a node is told when it gets a volume.
const CONNECT: &str = "
cd /run/mooring/properties
pv options --seal ssh-privatekey=ssh-privatekey --seal known_hosts=known_hosts
";

/// A discovery comes by the clock: one that the test does not wait for is over at once.
const UNASKED: &str = r#"
[ -e "/run/mooring/backend/.$FAULTS-go-later" ] || { echo soon | pv classes --parameter pool; exit; }
"#;

const LIST: &str = "echo later | pv classes --parameter pool";

/// The operations on a node's pool, in the order in which the claims below need them.
const ON_POOL: [&str; 11] = [
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

/// Those that no run on a node's pool has, since a worker of a node's pool carries out only what has to be on its node.
const ON_SERVER: [&str; 3] = ["attach", "detach", "discover"];

/// The runs' `backend-volume`, as a test sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    /// The pool of node 1.
    Pool,
    /// A directory of the server of Pod `ssh`.
    Server,
}

/// Names of the classes that operations other than `provision` need.
#[derive(Default)]
struct Classes {
    snapshot: String,
    backup: String,
    group: String,
    attributes: String,
}

struct Trial<'a> {
    scope: &'a Scope,
    node: &'a str,
    provisioner: Provisioner,
    backend: Backend,
    classes: Classes,
}

impl Trial<'_> {
    fn on_backend(&self, script: &str) -> Result<String> {
        let own = &self.scope.namespace;
        match self.backend {
            Backend::Pool => self.scope.on_node(1, &script.replace("AT", &format!("{POOL}/.{own}"))),
            Backend::Server => {
                let script = script.replace("AT", &format!("/srv/volumes/runs/.{own}"));
                self.scope.exec("ssh", ["sh", "-euc", &script])
            }
        }
    }

    /// What the runs of an operation have said, and where: each first word with the name of the Pod, once where it is
    /// repeated.
    fn log(&self, operation: &str) -> Result<Vec<(String, String)>> {
        let log = self.on_backend("cat AT-log 2>/dev/null || true")?;
        let words = log.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let of_it = words.filter_map(|words| match words[..] {
            [word, of, pod] if of == operation => Some((word.to_owned(), pod.to_owned())),
            _ => None,
        });
        let mut said: Vec<_> = of_it.collect();
        said.dedup();
        Ok(said)
    }

    fn allow(&self, operation: &str) -> Result<()> {
        self.on_backend(&format!("touch AT-go-{operation}")).map(drop)
    }

    /// Asks for an operation, as a user does.
    async fn ask(&self, operation: &str) -> Result<()> {
        let scope = self.scope;
        let class = &self.provisioner.class;
        match operation {
            "provision" => self.claim(claim("data", class, "1Gi")).await,
            "expand" => self.patch("data", &json!({"resources": {"requests": {"storage": "2Gi"}}})),
            "modify" => self.patch("data", &json!({"volumeAttributesClassName": self.classes.attributes})),
            "backup" => scope.apply(&snapshot_of("data", "backup", &self.classes.backup).to_string()),
            "snapshot-group" => {
                scope.kubectl(["label", "pvc", "data", "app=db"])?;
                scope.apply(&group_snapshot_of("app", "db", "group", &self.classes.group).to_string())
            }
            "delete-group" => scope
                .kubectl(["delete", "volumegroupsnapshot", "group", "--wait=false"])
                .map(drop),
            "snapshot" => scope.apply(&snapshot_of("data", "kept", &self.classes.snapshot).to_string()),
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
            "attach" => {
                let mut user = user_of("user", "data", "cat /data/file; sleep 1000000");
                user["spec"]["nodeName"] = self.node.into();
                scope.apply(&user.to_string())
            }
            "detach" => scope.delete("pod/user"),
            "discover" => self.allow("later"),
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
                "modify" => status("pvc/data")?["currentVolumeAttributesClassName"] == *self.classes.attributes,
                "snapshot" => status("volumesnapshot/kept")?["readyToUse"] == true,
                "restore" => status("pvc/restored")?["phase"] == "Bound",
                "clone" => status("pvc/copy")?["phase"] == "Bound",
                "backup" => status("volumesnapshot/backup")?["readyToUse"] == true,
                "snapshot-group" => status("volumegroupsnapshot/group")?["readyToUse"] == true,
                "attach" => status("pod/user")?["phase"] == "Running",
                "detach" => !self.is_attached()?,
                "discover" => {
                    let class = format!("{}-later", self.provisioner.class);
                    let found = scope.kubectl(["get", "storageclass", &class, "--ignore-not-found", "-o", "name"])?;
                    !found.is_empty()
                }
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

    /// Whether the claim's volume is attached, or something is to be done about that.
    fn is_attached(&self) -> Result<bool> {
        let all: Value = serde_json::from_str(&self.scope.kubectl(["get", "persistentvolumes", "-o", "json"])?)?;
        let mut all = all["items"].as_array().into_iter().flatten();
        let own = all.find(|volume| volume["spec"]["claimRef"]["namespace"] == *self.scope.namespace);
        let notes = &own.context("no volume")?["metadata"]["annotations"];
        Ok([annotations::ATTACHED_TO, annotations::OPERATION]
            .iter()
            .any(|note| !notes[note].is_null()))
    }

    /// Has the first run make a worker.
    async fn warm(&self) -> Result<()> {
        self.claim(claim("first", &self.provisioner.class, "1Gi")).await?;
        self.scope.claim_bound("first").await?;
        self.scope.claim_gone("first").await
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
            Ok((log.len() > 1).then_some(()))
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
                wait_until(
                    &what,
                    LIMIT,
                    async || Ok((self.log(operation)?.len() > 3).then_some(())),
                )
                .await?;
                self.allow(operation)?;
            }
        }
        self.is_done(operation).await?;
        let log = self.log(operation)?;
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

/// Adds to a provisioner what each trial needs, and these operations with their scripts.
fn with_scripts(provisioner: Provisioner, scope: &Scope, scripts: &BTreeMap<&str, String>) -> Provisioner {
    let operations: Vec<_> = scripts.keys().copied().collect();
    let provisioner = provisioner
        .key("image", POOLED)
        .key("volume-source", "csi")
        .key("volume-binding-mode", "WaitForFirstConsumer")
        .key("operations", operations.join(", "))
        .key("workers", "1")
        .key("faults", &scope.namespace);
    scripts.iter().fold(provisioner, |provisioner, (operation, script)| {
        provisioner.key(&format!("{operation}-script"), script)
    })
}

async fn on_pool(scope: &Scope, node: &str, fault: Fault) -> Result<()> {
    let _controller = scope.snapshot_controller()?;
    let mut scripts: BTreeMap<_, _> = ON_POOL.map(|operation| (operation, format!("{SCRIPT}{PRINT}"))).into();
    scripts.insert("delete-backup", "exit 0".to_owned());
    let provisioner = scope
        .provisioner()
        .key("backend-volume", "client=pool")
        .key("allow-volume-expansion", "true");
    let trial = Trial {
        scope,
        node,
        backend: Backend::Pool,
        classes: Classes {
            snapshot: scope.snapshot_class("Delete")?,
            backup: scope.backup_class("Delete")?,
            group: scope.group_snapshot_class("Delete")?,
            attributes: scope.attributes_class("other", CSI_DRIVER, &json!({"tier": "other"}))?,
        },
        provisioner: with_scripts(provisioner, scope, &scripts),
    };
    trial.provisioner.apply().await?;
    trial.warm().await?;
    scope.volumes_gone().await?;
    let tried = async {
        for operation in ON_POOL {
            trial.suffers(operation, fault).await?;
        }
        scope.deleted("volumesnapshot/backup").await?;
        for left in ["restored", "copy"] {
            scope.claim_gone(left).await?;
        }
        scope.volumes_gone().await
    };
    let tried = tried.await;
    // What was left in the middle ends before the namespace goes.
    let ended = ON_POOL.iter().try_for_each(|operation| trial.allow(operation));
    if tried.is_ok() {
        trial.on_backend("rm -f AT-*")?;
    }
    tried.and(ended)
}

async fn on_server(scope: &Scope, node: &str, fault: Fault) -> Result<()> {
    let server = scope.ssh_server(node, &["runs", "data"]).await?;
    scope.exec("ssh", ["sh", "-c", "echo kept >/srv/volumes/data/file"])?;
    let provisioner = scope
        .provisioner()
        .key(
            "backend-volume",
            format!("client=sshfs,source={}", server.source("runs")),
        )
        .key("secret-name", scope.ssh_secret_for_runs(&server)?)
        .key("from", server.source("data"))
        .key("node-selector", format!("kubernetes.io/hostname={node}"));
    let mut scripts = BTreeMap::from([
        ("provision", "pv options client=sshfs source=\"$FROM\"".to_owned()),
        ("delete", "exit 0".to_owned()),
        ("attach", format!("{SCRIPT}{CONNECT}")),
        ("detach", SCRIPT.to_owned()),
    ]);
    let mut trial = Trial {
        scope,
        node,
        backend: Backend::Server,
        classes: Classes::default(),
        provisioner: with_scripts(provisioner.clone(), scope, &scripts),
    };
    trial.provisioner.apply().await?;
    trial.claim(claim("data", &trial.provisioner.class, "1Gi")).await?;
    scope.claim_bound("data").await?;
    let tried = async {
        trial.suffers("attach", fault).await?;
        trial.suffers("detach", fault).await?;
        scope.claim_gone("data").await?;
        // The change of the ConfigMap has another worker made, and the first discovery has a Pod of its own.
        scripts.insert("discover", format!("{UNASKED}{SCRIPT}{LIST}"));
        trial.provisioner = with_scripts(provisioner.key("discover-interval", "30s"), scope, &scripts);
        trial.provisioner.apply().await?;
        trial.warm().await?;
        trial.suffers("discover", fault).await
    };
    let tried = tried.await;
    let ended = ON_SERVER.iter().try_for_each(|operation| trial.allow(operation));
    // The worker has a directory of the server mounted.
    trial.provisioner.delete()?;
    let gone = workers_gone(scope, &trial.provisioner).await;
    let discovered = ["soon", "later"].map(|name| format!("storageclass/{}-{name}", trial.provisioner.class));
    scope
        .kubectl_wait(["wait", "--for=delete", &discovered[0], &discovered[1]])
        .await?;
    tried.and(ended).and(gone)
}

/// On node 1.
fn with_fault(name: &'static str, fault: Fault, trial: impl AsyncFnOnce(&Scope, &str, Fault) -> Result<()>) {
    if skipped_without_all() {
        return;
    }
    on_two_nodes(name, async |scope, [node, _]| trial(&scope, &node, fault).await);
}

/// Proves: P1
#[test]
fn a_run_whose_worker_is_stopped_in_the_middle_is_neither_lost_nor_begun_again() {
    with_fault("worker-stopped", Fault::Stopped, on_pool);
}

/// Proves: P1
#[test]
fn a_run_whose_worker_is_cut_off_in_the_middle_is_neither_lost_nor_begun_again() {
    with_fault("worker-cut-off", Fault::CutOff, on_pool);
}

/// Proves: P1
#[test]
fn a_run_whose_worker_is_replaced_in_the_middle_is_begun_again_when_the_first_has_ended() {
    with_fault("worker-replaced", Fault::Replaced, on_pool);
}

/// Proves: P1
#[test]
fn an_attachment_whose_worker_is_stopped_in_the_middle_is_neither_lost_nor_begun_again() {
    with_fault("attacher-stopped", Fault::Stopped, on_server);
}

/// Proves: P1
#[test]
fn an_attachment_whose_worker_is_cut_off_in_the_middle_is_neither_lost_nor_begun_again() {
    with_fault("attacher-cut-off", Fault::CutOff, on_server);
}

/// Proves: P1
#[test]
fn an_attachment_whose_worker_is_replaced_in_the_middle_is_begun_again_when_the_first_has_ended() {
    with_fault("attacher-replaced", Fault::Replaced, on_server);
}
