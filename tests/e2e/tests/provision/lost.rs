//! Runs that something other than their image ends: eviction, lack of memory, a time limit. The claim's Events say so,
//! and what the run had created on the backend is removed with the claim.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::EvictParams;
use mooring_harness::backend::PRINT;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner};
use mooring_harness::{Scope, in_namespace};

/// Checks that a claim's volume is on the backend once, whatever happened to its run, and that it is gone after the
/// claim is deleted.
async fn ends(scope: &Scope, uid: &str) -> Result<()> {
    if scope.target.own_cluster().is_some() {
        let made = scope.on_backend(uid)?;
        assert_eq!(made.len(), 1, "on the backend: {made:?}");
    }
    scope.delete("persistentvolumeclaim/data")?;
    scope.gone_without_trace("data", uid).await
}

/// Runs a script after the volume was created on the backend; returns the Event that says how it ended.
async fn said(scope: &Scope, provisioner: &Provisioner, text: &str) -> Result<(String, Event)> {
    provisioner.apply().await?;
    let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
    Ok((uid, scope.event("data", text).await?))
}

#[test]
fn an_evicted_run_is_reported_and_run_again() {
    in_namespace("evicted", async |scope| {
        let provisioner = scope.provisioner().on_pool("sleep 1000");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let pod: Pod = scope.runs("provision", &uid).await?;
        provisioner.clone().on_pool(PRINT).apply().await?;
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        pods.evict(&pod.metadata.name.context("no name")?, &EvictParams::default())
            .await
            .context("failed to evict")?;
        let event = scope.event("data", "EvictionByEvictionAPI").await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningFailed"), "{event:?}");
        assert!(event.message.unwrap_or_default().contains("tried again"));
        scope.claim_bound("data").await?;
        ends(&scope, &uid).await
    });
}

#[test]
fn a_run_that_was_out_of_memory_is_reported() {
    in_namespace("oom", async |scope| {
        // More than the LimitRange of the tests' namespace allows (tests/install/namespaces.yaml).
        let provisioner = scope
            .provisioner()
            .on_pool("dd if=/dev/zero of=/dev/null bs=512M count=1");
        let (uid, event) = said(&scope, &provisioner, "out of memory").await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningFailed"), "{event:?}");
        ends(&scope, &uid).await
    });
}

/// Proves: P4
#[test]
fn a_run_that_hangs_is_reported_and_leaves_nothing() {
    in_namespace("hangs", async |scope| {
        let provisioner = scope.provisioner().on_pool("sleep 1000").key("timeout", "30s");
        let (uid, event) = said(&scope, &provisioner, "ended by the limit \"timeout\"").await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningTimedOut"), "{event:?}");
        ends(&scope, &uid).await
    });
}

#[test]
fn a_run_that_succeeds_without_a_volume_is_reported_and_leaves_nothing() {
    in_namespace("no-pv", async |scope| {
        let provisioner = scope.provisioner().on_pool("echo 'not JSON' >/dev/termination-log");
        let (uid, event) = said(&scope, &provisioner, "termination message").await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningFailed"), "{event:?}");
        ends(&scope, &uid).await
    });
}
