//! Provisioning Pods whose node loses power, for a while or for good. One at a time: all Pods of the node are affected.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ResourceExt};
use mooring_contract::names::{FLEX_DRIVER, annotations, labels, paths};
use mooring_harness::backend::{POOLED, PRINT};
use mooring_harness::nodes::{POOL, PowerCut, on_own_nodes};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL, claim};
use mooring_harness::ssh::SshServer;
use mooring_harness::{Scope, wait_until};
use serde_json::json;

/// A node takes a while to come back, and another controller replaces one that ran on it.
const LIMIT: Duration = Duration::from_mins(4);

/// Makes Pods run on a node.
fn on(provisioner: Provisioner, index: u8) -> Provisioner {
    provisioner.key("node-selector", format!("kubernetes.io/hostname=node-{index}"))
}

/// Waits until a claim's Pod runs, its volume is on the backend, and the claim records the node.
async fn begun(scope: &Scope, claim: &str, uid: &str, index: u8) -> Result<()> {
    scope.runs("provision", uid).await?;
    wait_until("the volume to be on the backend", LIMIT, async || {
        Ok((!scope.on_backend(uid)?.is_empty()).then_some(()))
    })
    .await?;
    let node = format!("\"node\":\"node-{index}\"");
    scope
        .claim_until(claim, "to have its node on record", |claim| {
            let all = claim.and_then(|claim| claim.metadata.annotations.as_ref());
            let record = all.and_then(|all| all.get(annotations::OPERATION));
            record.is_some_and(|record| record.contains(&node))
        })
        .await
}

/// Waits for an Event longer than usual.
async fn told(scope: &Scope, claim: &str, text: &str) -> Result<String> {
    let event = wait_until(&format!("an Event on {claim} with {text:?}"), LIMIT, async || {
        scope.event(claim, text).await.map(Some)
    })
    .await?;
    Ok(event.reason.unwrap_or_default())
}

async fn is_bound(scope: &Scope, claim: &str) -> Result<()> {
    wait_until(&format!("claim {claim} to be bound"), LIMIT, async || {
        scope.claim_bound(claim).await.map(|_| Some(()))
    })
    .await
}

/// Waits until the mounter of a node serves again: the next test needs the cluster as it was.
async fn served_again(scope: &Scope, index: u8) -> Result<()> {
    let node = format!("node-{index}");
    wait_until(&format!("the mounter of {node} to be ready"), LIMIT, async || {
        Ok((scope.mounter_status(&node).await?["ready"] == true).then_some(()))
    })
    .await
}

/// Proves: P1
#[test]
fn a_run_whose_node_is_started_again_is_run_again_there_with_one_volume() {
    on_own_nodes("chaos-reboot-run", async |scope| {
        scope.require_mooring().await?;
        let cluster = scope.own_cluster()?.clone();
        let index = cluster.description.nodes;
        let provisioner = scope.provisioner().on_pool("sleep 1000");
        on(provisioner.clone(), index).apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        begun(&scope, "data", &uid, index).await?;
        // Without the selector, it is still tried again on the node where it began.
        provisioner.on_pool(PRINT).apply().await?;

        cluster.power_cycle(index)?;
        is_bound(&scope, "data").await?;
        let reason = told(&scope, "data", "provisioning failed: ").await?;
        ensure!(reason == "ProvisioningFailed", "{reason}");
        let made = scope.on_backend(&uid)?;
        ensure!(
            made.len() == 1 && made[0].starts_with(&format!("node-{index}:")),
            "{made:?}"
        );
        scope.delete("persistentvolumeclaim/data")?;
        scope.gone_without_trace("data", &uid).await?;
        served_again(&scope, index).await
    });
}

/// With volumes on a server: `provision` creates the volume's directory there and then runs `script`.
fn on_server(provisioner: Provisioner, server: &SshServer, secret: &str, script: &str) -> Provisioner {
    let volume = format!("{}/$PV_NAME", paths::BACKEND);
    provisioner
        .key("image", POOLED)
        .key(
            "backend-volume",
            format!("client=sshfs,source={}", server.source("all")),
        )
        .key("secret-name", secret)
        .key("volume-source", "flexVolume")
        .on_provision(&format!("mkdir -p \"{volume}\"\n{script}"))
        .on_delete(&format!("rm -rf \"{volume}\""))
}

/// A claim's only PersistentVolume.
async fn only_volume(scope: &Scope, uid: &str) -> Result<PersistentVolume> {
    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    let mut all = volumes.list(&ListParams::default()).await?.items;
    all.retain(|volume| {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim.is_some_and(|claim| claim.uid.as_deref() == Some(uid))
    });
    ensure!(all.len() == 1, "{} volumes of one claim", all.len());
    all.pop().context("no volume")
}

/// Proves: P1, P3
#[test]
fn a_run_whose_node_leaves_the_cluster_for_good_is_run_again_on_another_with_one_volume() {
    on_own_nodes("chaos-lost-node", async |scope| {
        scope.require_mooring().await?;
        let cluster = scope.own_cluster()?.clone();
        let index = cluster.description.nodes;
        ensure!(
            index > 1,
            "one node is lost and another stays: bring the cluster up with --nodes 2"
        );
        let lost = format!("node-{index}");

        // Volumes on a server, and volumes on the node's own disk.
        let server = scope.ssh_server("node-1", &["all"]).await?;
        let secret = scope.namespace.clone();
        let key = json!({
            "apiVersion": "v1", "kind": "Secret", "type": FLEX_DRIVER,
            "metadata": {"name": secret, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: scope.namespace}},
            "stringData": server.secret(),
        });
        scope.apply_anywhere(&key.to_string())?;
        let shared = on_server(scope.provisioner(), &server, &secret, "sleep 1000");
        let local = scope.provisioner_named("-local").on_pool("sleep 1000");
        on(shared.clone(), index).apply().await?;
        on(local.clone(), index).apply().await?;
        let shared_uid = scope.claim("shared", &shared.class, "1Gi").await?;
        let local_uid = scope.claim("local", &local.class, "1Gi").await?;
        begun(&scope, "local", &local_uid, index).await?;
        scope.runs("provision", &shared_uid).await?;
        let on_the_server = || scope.exec("ssh", ["ls", "/srv/volumes/all"]);
        let wanted = format!("pvc-{shared_uid}\n");
        wait_until("the volume to be on the server", LIMIT, async || {
            Ok((on_the_server()? == wanted).then_some(()))
        })
        .await?;
        on_server(shared, &server, &secret, PRINT).apply().await?;
        local.on_pool(PRINT).apply().await?;

        let cut = PowerCut::of(&cluster, index)?;
        let nodes: Api<Node> = Api::all(scope.client.clone());
        nodes.delete(&lost, &DeleteParams::default()).await?;
        for claim in ["shared", "local"] {
            is_bound(&scope, claim).await?;
            let reason = told(&scope, claim, "provisioning failed: ").await?;
            ensure!(reason == "ProvisioningFailed", "{reason}");
        }
        only_volume(&scope, &shared_uid).await?;
        ensure!(on_the_server()? == wanted, "{}", on_the_server()?);
        let local_volume = only_volume(&scope, &local_uid).await?;
        let affinity = json!(local_volume.spec.and_then(|spec| spec.node_affinity)).to_string();
        ensure!(affinity.contains("node-1") && !affinity.contains(&lost), "{affinity}");

        // The machine comes back as a new node; it has the old disk only because of how the testbed works.
        cut.end()?;
        scope.on_node(index, &format!("rmdir {POOL}/pvc-{local_uid}"))?;
        let made = scope.on_backend(&local_uid)?;
        ensure!(made.len() == 1 && made[0].starts_with("node-1:"), "{made:?}");
        for (claim, uid) in [("shared", &shared_uid), ("local", &local_uid)] {
            scope.delete(&format!("persistentvolumeclaim/{claim}"))?;
            scope.gone_without_trace(claim, uid).await?;
        }
        ensure!(on_the_server()?.is_empty(), "{}", on_the_server()?);
        served_again(&scope, index).await
    });
}

/// Proves: P1, P3
#[test]
fn a_worker_goes_with_its_node_and_its_run_is_begun_again_on_another() {
    on_own_nodes("chaos-lost-worker", async |scope| {
        scope.require_mooring().await?;
        let cluster = scope.own_cluster()?.clone();
        let index = cluster.description.nodes;
        ensure!(
            index > 1,
            "one node is lost and another stays: bring the cluster up with --nodes 2"
        );
        let lost = format!("node-{index}");
        let stops = format!("[ \"$PVC_NAME@$NODE_NAME\" != slow@{lost} ] || sleep 1000\n{PRINT}");
        let provisioner = scope
            .provisioner()
            .on_pool(&stops)
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .key("workers", "1");
        provisioner.apply().await?;
        let mut on_lost = claim("first", &provisioner.class, "1Gi");
        on_lost["metadata"]["annotations"] = json!({annotations::SELECTED_NODE: lost});
        let first_uid = scope.claim_with(None, &on_lost).await?;
        scope.claim_bound("first").await?;
        let of_it = format!("{}=true,{}={}", labels::WORKER, labels::CONFIG_NAME, provisioner.name);
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        let workers = async || Ok::<_, anyhow::Error>(pods.list(&ListParams::default().labels(&of_it)).await?.items);
        let named = wait_until("a worker on the node", LIMIT, async || {
            let all = workers().await?;
            let is_there = |pod: &Pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.as_ref() == Some(&lost))
            };
            Ok(all.into_iter().find(is_there).map(|pod| pod.name_any()))
        })
        .await?;
        scope.elsewhere(CONFIG_NAMESPACE).pod_ready(&named).await?;
        // Its last run is one that the worker was given, so that is in touch with the controller.
        scope.delete("persistentvolumeclaim/first")?;
        scope.gone_without_trace("first", &first_uid).await?;

        on_lost["metadata"]["name"] = json!("slow");
        let uid = scope.claim_with(None, &on_lost).await?;
        scope
            .event("slow", &format!("Pod {CONFIG_NAMESPACE}/{named} makes the volume"))
            .await?;
        wait_until("the volume to be on the backend", LIMIT, async || {
            Ok((!scope.on_backend(&uid)?.is_empty()).then_some(()))
        })
        .await?;
        let cut = PowerCut::of(&cluster, index)?;
        let nodes: Api<Node> = Api::all(scope.client.clone());
        nodes.delete(&lost, &DeleteParams::default()).await?;
        // The test is the scheduler: no Pod uses the claim.
        scope
            .claim_until("slow", "to have no node", |claim| {
                claim.is_some_and(|claim| !claim.annotations().contains_key(annotations::SELECTED_NODE))
            })
            .await?;
        let elsewhere = format!("{}=node-1", annotations::SELECTED_NODE);
        scope.kubectl(["annotate", "persistentvolumeclaim", "slow", &elsewhere])?;
        is_bound(&scope, "slow").await?;
        let volume = only_volume(&scope, &uid).await?;
        let affinity = json!(volume.spec.and_then(|spec| spec.node_affinity)).to_string();
        ensure!(affinity.contains("node-1") && !affinity.contains(&lost), "{affinity}");
        wait_until("the worker to go with its node", LIMIT, async || {
            Ok(workers().await?.iter().all(|pod| pod.name_any() != named).then_some(()))
        })
        .await?;

        // The machine comes back as a new node; it has the old disk only because of how the testbed works.
        cut.end()?;
        scope.on_node(index, &format!("rmdir {POOL}/pvc-{uid}"))?;
        scope.delete("persistentvolumeclaim/slow")?;
        scope.gone_without_trace("slow", &uid).await?;
        served_again(&scope, index).await
    });
}
