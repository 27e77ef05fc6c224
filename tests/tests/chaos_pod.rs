//! Provisioning Pods whose node loses power. One at a time: all Pods of the node feel it.

use std::time::Duration;

use anyhow::{Result, ensure};
use mooring_contract::names::annotations;
use mooring_testbed::harness::backend::PRINT;
use mooring_testbed::harness::nodes::on_own_nodes;
use mooring_testbed::harness::provisioner::Provisioner;
use mooring_testbed::harness::{Scope, wait_until};

/// A node takes its time to come back, and a controller on it is replaced by another.
const LIMIT: Duration = Duration::from_mins(4);

/// Has Pods run on a node.
fn on(provisioner: Provisioner, index: u8) -> Provisioner {
    provisioner.key("node-selector", format!("kubernetes.io/hostname=node-{index}"))
}

/// Waits until a claim's Pod works on, its volume is on the backend, and the claim says on which node.
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

/// The mounter of a node serves again: whoever comes next finds the cluster as it was.
async fn served_again(scope: &Scope, index: u8) -> Result<()> {
    let node = format!("node-{index}");
    wait_until(&format!("the mounter of {node} to be ready"), LIMIT, async || {
        Ok((scope.mounter_status(&node).await?["ready"] == true).then_some(()))
    })
    .await
}

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
        // Without the selector, and still it is tried again where it was begun.
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
