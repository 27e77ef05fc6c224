//! A node that can't mount a client's volumes says so in the API, with the cure, until it can. Alone, since other tests
//! need their nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, ListParams, ResourceExt};
use mooring_contract::names::{NAMESPACE, annotations, labels};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::provisioner::user_of;
use mooring_harness::rollout::Installed;
use mooring_harness::{Scope, wait_until};
use mooring_program::reasons;
use mooring_testbed::command::output_with_input;
use mooring_testbed::progress::note;
use serde_json::{Value, json};

/// Longest wait for a node to be marked: its mounter checks every 5 s.
const LIMIT: Duration = Duration::from_mins(2);

fn key(client: &str) -> String {
    format!("{}{client}", labels::NODE_CLIENT_PREFIX)
}

async fn node(scope: &Scope, name: &str) -> Result<Node> {
    Ok(Api::<Node>::all(scope.client.clone()).get(name).await?)
}

/// The value of a node's label for a client; empty if there is none.
fn says(node: &Node, client: &str) -> String {
    node.labels().get(&key(client)).cloned().unwrap_or_default()
}

async fn until_node_says(scope: &Scope, name: &str, client: &str, word: &str) -> Result<Node> {
    wait_until(&format!("{name} to be {word:?} for {client}"), LIMIT, async || {
        let node = node(scope, name).await?;
        Ok((says(&node, client) == word).then_some(node))
    })
    .await
}

/// Waits for an Event about a node that is no older than `since`.
async fn told(scope: &Scope, name: &str, reason: &str, since: Timestamp) -> Result<String> {
    let events: Api<Event> = Api::namespaced(scope.client.clone(), "default");
    let selector = ListParams::default().fields(&format!("involvedObject.name={name},reason={reason}"));
    wait_until(&format!("an Event {reason} on {name}"), LIMIT, async || {
        let all = events.list(&selector).await?.items;
        let new = all
            .into_iter()
            .find(|event| event.creation_timestamp().is_some_and(|time| time.0 >= since));
        Ok(new.map(|event| event.message.unwrap_or_default()))
    })
    .await
}

#[test]
fn a_node_that_can_t_mount_a_client_s_volumes_says_so_with_the_cure_until_it_can() {
    on_own_nodes("readiness", async |scope| {
        scope.require_mooring().await?;
        let ready = labels::READY;
        let node = until_node_says(&scope, "node-1", "sshfs", ready).await?;
        for client in ["local", "pool", "s3", "glusterfs", "cephfs", "block", "rbd"] {
            ensure!(says(&node, client) == ready, "{client}: {:?}", node.labels());
        }
        // Objects have their age in whole seconds.
        let began = Timestamp::from_second(Timestamp::now().as_second())?;
        let hidden = scope.hide_from_mounter("node-1", "/dev/fuse").await?;
        let node = until_node_says(&scope, "node-1", "sshfs", labels::NOT_READY).await?;
        let cure = node.annotations().get(&key("sshfs")).context("no annotation")?;
        ensure!(cure.contains("load the kernel module fuse"), "{cure}");
        // Clients without FUSE are not affected, nor is another node.
        ensure!(says(&node, "s3") == labels::NOT_READY && says(&node, "local") == ready);
        ensure!(
            node.labels()
                .get(labels::NODE_MOUNTER)
                .is_some_and(|word| word == ready)
        );
        until_node_says(&scope, "node-2", "sshfs", ready).await?;
        // One Event per reason, and it has the whole cure.
        let words = told(&scope, "node-1", reasons::CLIENT_NOT_READY, began).await?;
        ensure!(
            words.contains("block, cephfs, glusterfs, rbd, s3, sshfs") && words.contains("module fuse"),
            "{words}"
        );
        let described = scope.kubectl(["describe", "node", "node-1"])?;
        ensure!(
            described.contains(reasons::CLIENT_NOT_READY) && described.contains(cure),
            "{described}"
        );
        let status = scope.mounter_status("node-1").await?;
        ensure!(status["unable"]["sshfs"] == cure.as_str(), "{status}");

        drop(hidden);
        let node = until_node_says(&scope, "node-1", "sshfs", ready).await?;
        ensure!(
            !node.annotations().contains_key(&key("sshfs")),
            "{:?}",
            node.annotations()
        );
        told(&scope, "node-1", reasons::CLIENT_READY, began).await?;
        Ok(())
    });
}

/// Waits until an annotation of a node contains these words.
async fn until_said(scope: &Scope, name: &str, key: &str, words: &str) -> Result<String> {
    wait_until(&format!("{name} to say {words:?} at {key}"), LIMIT, async || {
        let said = node(scope, name).await?.annotations().get(key).cloned();
        Ok(said.filter(|said| said.contains(words)))
    })
    .await
}

/// Fails if `kubectl describe` does not show an annotation of a node; it cuts off long ones.
fn is_described(scope: &Scope, name: &str, cure: &str) -> Result<()> {
    let described = scope.kubectl(["describe", "node", name])?;
    let begin: String = cure.chars().take(100).collect();
    ensure!(described.contains(&begin), "{begin:?} is not in {described}");
    Ok(())
}

#[test]
fn a_conflicting_daemon_of_the_node_is_reported_with_the_cure_while_it_runs() {
    on_own_nodes("readiness-daemon", async |scope| {
        scope.require_mooring().await?;
        let check = async |name: &str| {
            let status = scope.mounter_status("node-1").await?;
            let mut checks = status["checks"].as_array().into_iter().flatten();
            let check = checks.find(|check| check["name"] == name).cloned();
            check.with_context(|| format!("no check {name} in {status}"))
        };
        ensure!(check("iscsid").await?["ok"] == true);
        let iscsid = scope.iscsid_on("node-1")?;
        let key = key("iscsi");
        let cure = until_said(&scope, "node-1", &key, "an iscsid of its own").await?;
        ensure!(cure.contains("systemctl disable --now iscsid.socket"), "{cure}");
        ensure!(says(&node(&scope, "node-1").await?, "iscsi") == labels::NOT_READY);
        ensure!(check("iscsid").await?["message"] == cure.as_str());
        is_described(&scope, "node-1", &cure)?;

        drop(iscsid);
        wait_until("node-1 to say no more that it is in the way", LIMIT, async || {
            let node = node(&scope, "node-1").await?;
            let cure = node.annotations().get(&key).cloned().unwrap_or_default();
            Ok((!cure.contains("iscsid")).then_some(()))
        })
        .await?;
        ensure!(check("iscsid").await?["ok"] == true);
        Ok(())
    });
}

#[test]
fn a_mounter_that_was_given_another_root_than_the_kubelet_s_says_what_to_change() {
    on_own_nodes("readiness-root", async |scope| {
        scope.require_mooring().await?;
        let installed = Installed::now(&scope).await?;
        // A directory that exists on the host, as if the kubelet's root were not in its usual place.
        scope.kubectl([
            "-n",
            NAMESPACE,
            "set",
            "env",
            "daemonset/mounter",
            "MOORING_KUBELET_ROOT=/var/lib/mooring",
        ])?;
        let key = labels::NODE_MOUNTER;
        let names = (1..=scope.own_cluster()?.description.nodes).map(|number| format!("node-{number}"));
        let said = wait_until("a node to say that it is not the kubelet's root", LIMIT, async || {
            for name in names.clone() {
                let node = node(&scope, &name).await?;
                if let Some(said) = node
                    .annotations()
                    .get(key)
                    .filter(|said| said.contains("is /var/lib/kubelet and not /var/lib/mooring"))
                {
                    return Ok(Some((name, said.clone())));
                }
            }
            Ok(None)
        });
        let (name, cure) = said.await?;
        ensure!(
            cure.contains("see that DaemonSet mounter has no env MOORING_KUBELET_ROOT"),
            "{cure}"
        );
        let there = node(&scope, &name).await?;
        ensure!(there.labels()[key] == labels::NOT_READY && says(&there, "local") == labels::NOT_READY);
        is_described(&scope, &name, &cure)?;

        installed.roll_back().await?;
        for name in names {
            until_node_says(&scope, &name, "local", labels::READY).await?;
        }
        Ok(())
    });
}

/// The mounters' DaemonSet, deleted. Dropping this restores it.
struct Away<'a> {
    scope: &'a Scope,
    manifest: String,
}

impl<'a> Away<'a> {
    async fn new(scope: &'a Scope) -> Result<Self> {
        let api: Api<DaemonSet> = Api::namespaced(scope.client.clone(), NAMESPACE);
        let there = api.get("mounter").await?;
        let manifest = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {
                "name": "mounter", "namespace": NAMESPACE, "labels": there.metadata.labels,
                "annotations": there.metadata.annotations,
            },
            "spec": there.spec,
        });
        api.delete("mounter", &DeleteParams::background()).await?;
        let manifest = manifest.to_string();
        Ok(Self { scope, manifest })
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let mut create = self.scope.target.kubectl(["create", "-f", "-"]);
        if let Err(error) = output_with_input(&mut create, self.manifest.as_bytes()) {
            note(format!("the mounters stay away, install Mooring again: {error:#}"));
        }
    }
}

#[test]
fn what_a_node_says_goes_with_the_mounters_and_comes_back_with_them() {
    on_own_nodes("readiness-gone", async |scope| {
        scope.require_mooring().await?;
        let names: Vec<_> = (1..=scope.own_cluster()?.description.nodes)
            .map(|number| format!("node-{number}"))
            .collect();
        for name in &names {
            until_node_says(&scope, name, "pool", labels::READY).await?;
        }
        let away = Away::new(&scope).await?;
        for name in &names {
            wait_until(&format!("{name} to say nothing"), LIMIT, async || {
                let node = node(&scope, name).await?;
                let own = [
                    labels::NODE_MOUNTER,
                    labels::NODE_OLD_CLIENT_PODS,
                    annotations::NODE_POOL,
                ];
                let ours = |key: &&String| key.starts_with(labels::NODE_CLIENT_PREFIX) || own.contains(&key.as_str());
                let left: Vec<_> = node
                    .labels()
                    .keys()
                    .chain(node.annotations().keys())
                    .filter(ours)
                    .collect();
                ensure!(left.is_empty(), "{left:?}");
                Ok(Some(()))
            })
            .await?;
        }
        drop(away);
        for name in &names {
            until_node_says(&scope, name, "pool", labels::READY).await?;
        }
        Ok(())
    });
}

/// A Pod with a claim, wherever the scheduler puts it, or on a given node.
fn user(name: &str, node: Option<&str>) -> Value {
    let mut pod = user_of(name, "data", "echo well >/data/f; sleep 1000000");
    pod["spec"]["nodeSelector"] = match node {
        Some(node) => json!({"kubernetes.io/hostname": node}),
        None => json!({}),
    };
    pod
}

fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

#[test]
fn pods_stay_off_a_node_that_can_t_mount_their_volume_and_come_when_it_can() {
    on_own_nodes("readiness-pods", async |scope| {
        scope.require_mooring().await?;
        for name in ["node-1", "node-2"] {
            until_node_says(&scope, name, "sshfs", labels::READY).await?;
        }
        let server = scope.ssh_server("node-2", &["data"]).await?;
        let hidden = scope.hide_from_mounter("node-1", "/dev/fuse").await?;
        until_node_says(&scope, "node-1", "sshfs", labels::NOT_READY).await?;

        // The scheduler chooses the node before there is a volume, and finds only then that the volume does not fit it.
        let script = format!(
            "pv options client=sshfs source={} secret-name=ssh secret-namespace=$PVC_NAMESPACE",
            server.source("data")
        );
        let provisioner = scope
            .provisioner()
            .key("volume-source", "flexVolume")
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .on_provision(&script);
        provisioner.apply().await?;
        scope.claim("data", &provisioner.class, "1Mi").await?;
        scope.apply(&user("late", Some("node-1")).to_string())?;
        let words = scope
            .event("late", "didn't match PersistentVolume's node affinity")
            .await?;
        ensure!(words.reason.as_deref() == Some("FailedScheduling"), "{words:?}");
        // If there is another node, it goes there.
        for name in ["one", "two", "three"] {
            scope.apply(&user(name, None).to_string())?;
            let pod = scope.pod_ready(name).await?;
            ensure!(node_of(&pod) == "node-2", "{name} is on {}", node_of(&pod));
        }
        let late: Pod = scope.api::<Pod>().get("late").await?;
        ensure!(node_of(&late).is_empty(), "it is on {}", node_of(&late));

        drop(hidden);
        let pod = scope.pod_ready("late").await?;
        ensure!(node_of(&pod) == "node-1", "it is on {}", node_of(&pod));
        Ok(())
    });
}

#[test]
fn no_local_volume_is_made_on_a_node_that_could_not_mount_it() {
    on_own_nodes("readiness-local", async |scope| {
        scope.require_mooring().await?;
        let hidden = scope.hide_from_mounter("node-1", "/dev/loop-control").await?;
        until_node_says(&scope, "node-1", "local", labels::NOT_READY).await?;
        let provisioner = scope.provisioner().example("local.yaml")?;
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "32Mi").await?;
        scope.apply(&user("user", Some("node-1")).to_string())?;
        let event = scope.event("data", "node node-1 can't mount volumes of local").await?;
        ensure!(event.reason.as_deref() == Some("NodeCannotMount"), "{event:?}");
        ensure!(scope.provisioned(&uid).await?.is_none());

        drop(hidden);
        let pod = scope.pod_ready("user").await?;
        ensure!(node_of(&pod) == "node-1", "it is on {}", node_of(&pod));
        Ok(())
    });
}
