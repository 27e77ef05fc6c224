//! Volumes that a server lets one node have at a time, or several: iSCSI targets of tgt, with a list of initiators and
//! a password for each attachment. Alone: the controller is killed, and a node is called lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Secret};
use kube::Api;
use mooring_contract::attachment::{AttachedTo, CONNECTION, secret_name};
use mooring_contract::names::{FLEX_DRIVER, NAMESPACE, OUT_OF_SERVICE, annotations};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, claim, user_of};
use mooring_harness::{Scope, skipped_without_all, wait_until};
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

/// Longest wait for a step: another controller may have to take over.
const LIMIT: Duration = Duration::from_mins(2);

/// The node with the server, which can't be called lost.
const ONE: &str = "node-1";

const TWO: &str = "node-2";

fn user_on(node: &str, name: &str, command: &str) -> Value {
    let mut user = user_of(name, "data", command);
    user["spec"]["nodeName"] = node.into();
    user
}

async fn notes_of(scope: &Scope, uid: &str) -> Result<BTreeMap<String, String>> {
    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    let volume = volumes.get(&format!("pvc-{uid}")).await?;
    Ok(volume.metadata.annotations.unwrap_or_default())
}

/// The node that the PersistentVolume says it is attached to.
async fn attached(scope: &Scope, uid: &str) -> Result<Option<AttachedTo>> {
    let notes = notes_of(scope, uid).await?;
    let text = notes.get(annotations::ATTACHED_TO);
    Ok(text.map(|text| serde_json::from_str(text)).transpose()?)
}

/// Waits until an operation is written down for a volume, or is over already, and kills the controllers.
async fn killed_in(
    scope: &Scope,
    uid: &str,
    operation: &str,
    done: impl Fn(Option<&AttachedTo>) -> bool,
) -> Result<()> {
    wait_until(&format!("{operation} to begin"), LIMIT, async || {
        let notes = notes_of(scope, uid).await?;
        let begun = notes
            .get(annotations::OPERATION)
            .is_some_and(|text| text.contains(&format!("\"{operation}\"")));
        Ok((begun || done(attached(scope, uid).await?.as_ref())).then_some(()))
    })
    .await?;
    let controllers = "app.kubernetes.io/name=flex-provisioner";
    scope.kubectl([
        "-n",
        NAMESPACE,
        "delete",
        "pod",
        "-l",
        controllers,
        "--grace-period=0",
        "--force",
    ])?;
    Ok(())
}

/// The initiators that the server lets have any volume.
fn let_in(scope: &Scope) -> Result<String> {
    scope.exec(
        "tgt",
        [
            "sh",
            "-c",
            "cat /etc/tgt/conf.d/* 2>/dev/null | grep initiator-name; true",
        ],
    )
}

/// Whether a node says that it uses the volume.
async fn says_used(scope: &Scope, node: &str, uid: &str) -> Result<bool> {
    let nodes: Api<Node> = Api::all(scope.client.clone());
    let said = nodes.get(node).await?.metadata.annotations.unwrap_or_default();
    Ok(said.contains_key(&format!("{}pvc-{uid}", annotations::NODE_ATTACHED_PREFIX)))
}

/// Waits until nothing of a volume is left, neither here nor on the server.
async fn ends(scope: &Scope, uid: &str) -> Result<()> {
    scope.claim_gone("data").await?;
    scope.nothing_left(uid).await?;
    let left = scope.exec("tgt", ["sh", "-c", "ls /srv/volumes /etc/tgt/conf.d; tgt-admin --show"])?;
    ensure!(!left.contains(uid), "{left}");
    let secrets: Api<Secret> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
    let name = secret_name(&format!("pvc-{uid}"));
    ensure!(secrets.get_opt(&name).await?.is_none(), "Secret {name} is left");
    for node in [ONE, TWO] {
        ensure!(
            !says_used(scope, node, uid).await?,
            "{node} says still that it uses the volume"
        );
    }
    Ok(())
}

/// A tenant's Pod with an inline volume that is named like the PersistentVolume, and with a Secret that says how the node
/// reaches it, is refused.
async fn a_forged_connection_is_refused(scope: &Scope, uid: &str) -> Result<()> {
    scope.kubectl([
        "annotate",
        "namespace",
        &scope.namespace,
        "mooring.dev/inline-clients=iscsi",
        "mooring.dev/inline-sources=iscsi://**",
    ])?;
    let connection = json!({
        "proof": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "node": TWO,
        "options": {"client": "pool", "source": ""},
    });
    scope.apply(
        &json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "forged"}, "type": FLEX_DRIVER,
            "stringData": {CONNECTION: connection.to_string()},
        })
        .to_string(),
    )?;
    let mut thief = user_on(TWO, "thief", "sleep 1000000");
    thief["spec"]["volumes"] = json!([{"name": format!("pvc-{uid}"), "flexVolume": {
        "driver": FLEX_DRIVER, "secretRef": {"name": "forged"},
        "options": {"client": "iscsi", "source": "iscsi://192.0.2.1/iqn.2000-01.example:x/1"},
    }}]);
    thief["spec"]["containers"][0]["volumeMounts"][0]["name"] = json!(format!("pvc-{uid}"));
    wait_until("the namespace to be allowed inline volumes", LIMIT, async || {
        scope.apply(&thief.to_string()).map(Some)
    })
    .await?;
    scope
        .event("thief", "has the name of a PersistentVolume that has to be attached")
        .await?;
    scope.delete("pod/thief")?;
    scope.pod_gone("thief").await
}

/// Proves: P1, M5
#[test]
fn a_volume_is_attached_to_the_node_of_its_pod_alone_and_follows_it_though_the_controller_is_killed() {
    on_own_nodes("attach", async |scope| {
        let (_, provisioner) = scope.attached_iscsi(ONE).await?;
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
        scope.claim_bound("data").await?;
        assert_eq!(let_in(&scope)?, "", "before any Pod");

        let started = Instant::now();
        scope.apply(&user_on(TWO, "first", "sleep 1000000").to_string())?;
        scope.pod_ready("first").await?;
        note(format!(
            "a Pod has its volume attached after {}",
            spoken(started.elapsed())
        ));
        scope.exec("first", ["sh", "-c", "head -c 8m /dev/urandom >/data/file"])?;
        let sum = scope.exec("first", ["sha256sum", "/data/file"])?;
        let to = attached(&scope, &uid).await?.context("not attached")?;
        assert_eq!(to.node, TWO);
        assert!(let_in(&scope)?.contains(&to.initiator));
        assert!(says_used(&scope, TWO, &uid).await?);
        a_forged_connection_is_refused(&scope, &uid).await?;

        scope.apply(&user_on(ONE, "second", "sleep 1000000").to_string())?;
        let waits = format!("a Pod on node {ONE} waits for the volume, which is attached to node {TWO}");
        scope.event("data", &waits).await?;
        assert_eq!(let_in(&scope)?.lines().count(), 1);

        scope.delete("pod/first")?;
        killed_in(&scope, &uid, "detach", |to| to.is_none_or(|to| to.node == ONE)).await?;
        killed_in(&scope, &uid, "attach", |to| to.is_some_and(|to| to.node == ONE)).await?;
        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/file"])?, sum);
        let to = attached(&scope, &uid).await?.context("not attached")?;
        assert_eq!(to.node, ONE);
        let allowed = let_in(&scope)?;
        assert!(
            allowed.lines().count() == 1 && allowed.contains(&to.initiator),
            "{allowed}"
        );
        assert!(!says_used(&scope, TWO, &uid).await?);

        scope.delete("pod/second")?;
        scope.pod_gone("second").await?;
        ends(&scope, &uid).await
    });
}

/// A node whose kubelet does not act, and that is out of service. Dropping this undoes it.
struct Lost<'a>(&'a Scope);

/// Signals the kubelet of node 2.
fn kubelet(scope: &Scope, signal: &str) -> Result<()> {
    let found = "for process in /proc/[0-9]*; do
            [ \"$(cat $process/comm 2>/dev/null)\" != kubelet ] || echo ${process#/proc/}
        done";
    scope.on_node(2, &format!("kill -{signal} $({found})"))?;
    Ok(())
}

impl<'a> Lost<'a> {
    fn lose(scope: &'a Scope) -> Result<Self> {
        let lost = Self(scope);
        kubelet(scope, "STOP")?;
        // With another effect, it would drive all of Mooring off the node.
        scope.kubectl(["taint", "node", TWO, &format!("{OUT_OF_SERVICE}=lost:NoSchedule")])?;
        Ok(lost)
    }
}

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        let taint = format!("{OUT_OF_SERVICE}-");
        for undone in [
            kubelet(self.0, "CONT"),
            self.0.kubectl(["taint", "node", TWO, &taint]).map(drop),
        ] {
            if let Err(error) = undone {
                note(format!("{TWO} is as if it were lost still: {error:#}"));
            }
        }
    }
}

/// Proves: P1
#[test]
fn a_node_that_is_out_of_service_is_fenced_before_another_gets_its_volume() {
    on_own_nodes("attach-lost", async |scope| {
        let (_, provisioner) = scope.attached_iscsi(ONE).await?;
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
        scope.claim_bound("data").await?;
        // Of this file alone: other file systems of the machine may have a silent server.
        let command = "while :; do date >>/data/dates; sync /data/dates; sleep 0.5; done";
        scope.apply(&user_on(TWO, "writer", command).to_string())?;
        scope.pod_ready("writer").await?;
        wait_until("it to have written for good", LIMIT, async || {
            let second = "[ \"$(wc -l </data/dates)\" -ge 2 ]";
            scope.exec("writer", ["sh", "-c", second]).map(Some)
        })
        .await?;

        let lost = Lost::lose(&scope)?;
        scope.kubectl(["delete", "pod", "writer", "--grace-period=0", "--force"])?;
        scope.apply(&user_on(ONE, "reader", "sleep 1000000").to_string())?;
        scope.pod_ready("reader").await?;
        // The writer is still there, and its node still says that it uses the volume.
        assert!(says_used(&scope, TWO, &uid).await?);
        let to = attached(&scope, &uid).await?.context("not attached")?;
        assert_eq!(to.node, ONE);
        let allowed = let_in(&scope)?;
        assert!(
            allowed.lines().count() == 1 && allowed.contains(&to.initiator),
            "{allowed}"
        );
        let sessions = scope.exec("tgt", ["sh", "-c", "tgt-admin --show | grep Initiator:"])?;
        ensure!(
            sessions.lines().all(|line| line.contains(&to.initiator)),
            "another has a session: {sessions}"
        );
        let written = scope.exec("reader", ["cat", "/data/dates"])?;
        ensure!(!written.is_empty(), "nothing was written");

        drop(lost);
        wait_until("the lost node to have unmounted it", LIMIT, async || {
            Ok((!says_used(&scope, TWO, &uid).await?).then_some(()))
        })
        .await?;
        assert_eq!(scope.exec("reader", ["cat", "/data/dates"])?, written);
        scope.delete("pod/reader")?;
        scope.pod_gone("reader").await?;
        ends(&scope, &uid).await
    });
}

/// A Pod on a node with the volume as a device.
fn device_on(node: &str, name: &str) -> Value {
    let mut user = user_on(node, name, "sleep 1000000");
    let container = &mut user["spec"]["containers"][0];
    container["volumeMounts"] = json!([]);
    container["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/data"}]);
    user
}

/// Writes a block of the device past all caches.
fn write_block(scope: &Scope, pod: &str, word: &str) -> Result<()> {
    let write = format!(
        "printf %-4096s {word} >/tmp/block
        dd if=/tmp/block of=/dev/data bs=4096 count=1 oflag=direct conv=fsync,notrunc"
    );
    scope.exec(pod, ["sh", "-euc", &write]).map(drop)
}

/// What it has there, past all caches.
fn read_block(scope: &Scope, pod: &str) -> Result<String> {
    let read = "dd if=/dev/data bs=4096 count=1 iflag=direct 2>/dev/null";
    Ok(scope.exec(pod, ["sh", "-euc", read])?.trim().to_owned())
}

/// Proves: P1
#[test]
fn two_nodes_have_a_device_at_once_and_each_loses_it_alone() {
    if skipped_without_all() {
        return;
    }
    on_own_nodes("attach-many", async |scope| {
        let (_, provisioner) = scope.attached_iscsi(ONE).await?;
        let provisioner = provisioner.key("multi-attach", "true");
        provisioner.apply().await?;
        let mut wanted = claim("data", &provisioner.class, "16Mi");
        wanted["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        wanted["spec"]["volumeMode"] = json!("Block");
        let uid = scope.claim_with(None, &wanted).await?;
        scope.claim_bound("data").await?;
        scope.apply(&device_on(ONE, "one").to_string())?;
        scope.apply(&device_on(TWO, "two").to_string())?;
        scope.pod_ready("one").await?;
        scope.pod_ready("two").await?;
        assert_eq!(let_in(&scope)?.lines().count(), 2);
        for (writer, reader, word) in [
            ("one", "two", "first"),
            ("two", "one", "second"),
            ("one", "two", "third"),
        ] {
            write_block(&scope, writer, word)?;
            assert_eq!(read_block(&scope, reader)?, word, "{reader} has an old block");
        }

        scope.delete("pod/one")?;
        scope.pod_gone("one").await?;
        wait_until("the server to let one node in", LIMIT, async || {
            Ok((let_in(&scope)?.lines().count() == 1).then_some(()))
        })
        .await?;
        assert!(!says_used(&scope, ONE, &uid).await?);
        write_block(&scope, "two", "fourth")?;
        assert_eq!(read_block(&scope, "two")?, "fourth");
        // And it comes back beside the other.
        scope.apply(&device_on(ONE, "again").to_string())?;
        scope.pod_ready("again").await?;
        assert_eq!(read_block(&scope, "again")?, "fourth");
        for pod in ["again", "two"] {
            scope.delete(&format!("pod/{pod}"))?;
            scope.pod_gone(pod).await?;
        }
        ends(&scope, &uid).await
    });
}
