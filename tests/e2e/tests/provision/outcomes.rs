//! How a run of an image ends, and what its user learns about it.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, ResourceExt};
use kube::{Api, Client};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, MAKER, claim};
use mooring_harness::{Scope, in_namespace, recorded, wait_until};
use serde_json::{Value, json};

/// The record of a claim's operation.
async fn record(scope: &Scope, name: &str) -> Result<Value> {
    let claims: Api<PersistentVolumeClaim> = scope.api();
    let seen = claims.get(name).await?;
    let text = seen
        .annotations()
        .get("mooring.dev/operation")
        .context("no record")?
        .clone();
    serde_json::from_str(&text).context(text)
}

fn ended(pod: &Pod) -> Option<Timestamp> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let terminated = container.state.as_ref()?.terminated.as_ref()?;
    Some(terminated.finished_at.as_ref()?.0)
}

/// Proves: P4
#[test]
fn the_image_s_last_words_reach_the_claim_before_it_is_tried_again() {
    in_namespace("last-words", async |scope| {
        let provisioner = scope
            .provisioner()
            .on_provision("echo starting; echo 'the array is full: ask for less' >&2; exit 75");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let first = scope
            .run_until("provision", &uid, "to end", |pod| ended(pod).is_some())
            .await?;
        let event = scope.event("data", "the array is full: ask for less").await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningFailed"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        let text = event.message.clone().unwrap_or_default();
        assert!(text.contains("exit code 75") && text.contains("tried again"), "{text}");
        let is_second = |pod: &Pod| pod.uid() != first.uid();
        let second = scope
            .run_until("provision", &uid, "to be tried again", is_second)
            .await?;
        let told = recorded(&event).context("an Event without a time")?.as_second();
        let tried = second
            .creation_timestamp()
            .context("a Pod without a time")?
            .0
            .as_second();
        assert!(
            told <= tried,
            "the Event of {told} is later than the next try of {tried}"
        );
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P1
#[test]
fn a_failed_run_is_tried_again_until_it_works_as_the_same_volume() {
    in_namespace("again", async |scope| {
        let provisioner = scope.provisioner().printing().on_provision("echo boom; exit 1");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let text = scope.event("data", "boom").await?.message.unwrap_or_default();
        assert!(text.contains("exit code 1"), "{text}");
        provisioner.printing().apply().await?;
        scope.claim_bound("data").await?;
        let said = scope.event("data", "exists after").await?.message.unwrap_or_default();
        assert!(said.contains("at attempt "), "{said}");
        assert!(scope.provisioned(&uid).await?.is_some());
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn exit_78_is_not_tried_again_until_the_configmap_changes() {
    in_namespace("given-up", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .on_provision("echo 'no such pool: fix the key pool'; exit 78");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let event = scope.event("data", "no such pool: fix the key pool").await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningGivenUp"));
        let before = record(&scope, "data").await?;
        assert_eq!(before["gave-up"], true, "{before}");
        // Longer than the first backoff would be.
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert_eq!(record(&scope, "data").await?, before, "it was tried again");
        provisioner.printing().apply().await?;
        scope.claim_bound("data").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

async fn running(client: &Client, config: &str) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), CONFIG_NAMESPACE);
    let ours = ListParams::default().labels(&format!("mooring.dev/config-name={config}"));
    // A run is over when its container has ended: the kubelet reports that before the Pod itself has succeeded.
    let at_work = |pod: &&Pod| {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let containers = status.and_then(|status| status.container_statuses.as_ref());
        let ended = containers.into_iter().flatten().any(|container| {
            let state = container.state.as_ref();
            state.is_some_and(|state| state.terminated.is_some())
        });
        pod.metadata.deletion_timestamp.is_none() && !ended && matches!(phase, Some("Pending" | "Running"))
    };
    Ok(pods.list(&ours).await?.items.iter().filter(at_work).count())
}

#[test]
fn no_more_than_max_parallel_runs_are_active_at_once() {
    in_namespace("parallel", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .key("max-parallel", "2")
            .on_provision("sleep 1; pv options client=sshfs source=nobody@192.0.2.1:/x");
        provisioner.apply().await?;
        let names = ["a", "b", "c", "d", "e"];
        for name in names {
            scope.claim(name, &provisioner.class, "1Gi").await?;
        }
        let mut most = 0;
        let claims: Api<PersistentVolumeClaim> = scope.api();
        wait_until("all claims to be bound", Duration::from_mins(4), async || {
            most = most.max(running(&scope.client, &provisioner.name).await?);
            let all = claims.list(&ListParams::default()).await?.items;
            let bound = all
                .iter()
                .filter(|claim| claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound"));
            Ok((bound.count() == names.len()).then_some(()))
        })
        .await?;
        assert_eq!(most, 2, "Pods at once");
        Ok(())
    });
}

#[test]
fn an_image_that_can_t_be_pulled_is_reported_on_the_claim() {
    in_namespace("no-image", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/there-is-no-such-image:0.1.0");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        // The run may be late before its node says why.
        let reason = ["has not started", "there-is-no-such-image"];
        scope.event_with_all("data", &reason).await?;
        // Nothing ran, so nothing has to be deleted, which this image could not do either.
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn node_selector_and_tolerations_decide_where_an_image_runs() {
    in_namespace("where", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("node-selector", "kubernetes.io/hostname=node-of-nobody")
            .key("tolerations", "[{key: storage, operator: Exists, effect: NoSchedule}]")
            .printing();
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let pod = scope
            .run_until("provision", &uid, "to be unschedulable", |pod| {
                json!(pod.status).to_string().contains("Unschedulable")
            })
            .await?;
        let tolerations = json!(pod.spec.and_then(|spec| spec.tolerations));
        assert!(tolerations.to_string().contains("\"key\":\"storage\""), "{tolerations}");
        scope.event("data", "has not started").await?;

        let node = scope.kubectl([
            "get",
            "nodes",
            "-o",
            "jsonpath={.items[0].metadata.labels.kubernetes\\.io/hostname}",
        ])?;
        provisioner
            .key("node-selector", format!("kubernetes.io/hostname={node}"))
            .apply()
            .await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_missing_service_account_or_secret_is_reported_on_the_claim() {
    in_namespace("missing", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("service-account-name", "there-is-no-such-account")
            .on_provision("true");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.event("data", "there-is-no-such-account").await?;
        let provisioner = provisioner
            .key("service-account-name", MAKER)
            .key("secret-name", "there-is-no-such-secret");
        provisioner.apply().await?;
        scope.event("data", "there-is-no-such-secret").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_delete_that_fails_is_reported_on_the_volume_and_tried_again() {
    in_namespace("delete-fails", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .on_delete("echo \"$PV_NAME is busy\"; exit 75");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        scope.claim_gone("data").await?;
        let event = scope.event_in("default", &format!("pvc-{uid}"), "is busy").await?;
        assert_eq!(event.reason.as_deref(), Some("VolumeDeletionFailed"));
        assert!(
            scope.provisioned(&uid).await?.is_some(),
            "the volume is kept until it is deleted"
        );
        provisioner
            .on_delete("test \"$OPERATION\" = delete && test \"$(pv get --volume client)\" = sshfs")
            .apply()
            .await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_claim_that_can_t_be_served_says_why_and_runs_nothing() {
    in_namespace("unserved", async |scope| {
        let classes = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": scope.namespace, "labels": {"testbed.mooring.dev/namespace": scope.namespace}},
            "provisioner": "mooring.dev/flex-provisioner",
        });
        scope.apply_anywhere(&classes.to_string())?;
        let uid = scope.claim_with(None, &claim("data", &scope.namespace, "1Gi")).await?;
        let event = scope.event("data", "has no provisioner ConfigMap").await?;
        assert_eq!(event.reason.as_deref(), Some("NoProvisionerConfig"));

        // Once there is one, the claim continues by itself.
        scope.provisioner().printing().write()?;
        scope.claim_bound("data").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}
