//! What is deleted or changed while a volume is being provisioned: claims, ConfigMaps, classes. Whenever that happens,
//! nothing is left in the end: no claim, no Pod, no Secret, no PersistentVolume, and no volume on the backend.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, PostParams, ResourceExt};
use mooring_harness::backend::PRINT;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim, until};
use mooring_harness::{Scope, in_namespace};
use serde_json::json;

/// Makes a run wait until it is told to continue.
const WAIT: &str = "until [ -e /tmp/go ]; do sleep 0.1; done";

/// Creates a claim for each of these delays, deletes it after the delay, and checks that nothing is left of any.
async fn deleted_after(scope: &Scope, provisioner: &Provisioner, moments: &[u64]) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = scope.api();
    let mut made = Vec::new();
    let mut deletions = tokio::task::JoinSet::new();
    for (index, &moment) in moments.iter().enumerate() {
        let name = format!("data-{index}");
        let wanted = serde_json::from_value(claim(&name, &provisioner.class, "1Gi")).context("a bad claim")?;
        let created = claims.create(&PostParams::default(), &wanted).await?;
        made.push((name.clone(), created.uid().context("no uid")?));
        let claims = claims.clone();
        deletions.spawn(async move {
            tokio::time::sleep(Duration::from_millis(moment)).await;
            claims.delete(&name, &DeleteParams::default()).await
        });
    }
    while let Some(deleted) = deletions.join_next().await {
        deleted.context("a deletion panicked")??;
    }
    for (name, uid) in &made {
        scope.gone_without_trace(name, uid).await?;
    }
    Ok(())
}

/// Proves: P3
#[test]
fn a_claim_deleted_at_any_moment_leaves_nothing_on_the_backend() {
    in_namespace("deleted-any", async |scope| {
        let provisioner = scope.provisioner().on_pool(PRINT);
        provisioner.apply().await?;
        let moments: Vec<u64> = (0..12).map(|step| step * step * 60).collect();
        deleted_after(&scope, &provisioner, &moments).await
    });
}

/// Proves: P3
#[test]
fn a_claim_whose_image_can_t_be_pulled_goes_at_once_whenever_it_is_deleted() {
    in_namespace("deleted-image", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/there-is-no-such-image:0.1.0");
        provisioner.apply().await?;
        // From before the Pod exists until the kubelet waits before its next try.
        deleted_after(&scope, &provisioner, &[0, 60, 120, 250, 400, 600, 900, 1500, 4000]).await
    });
}

/// Proves: P4
#[test]
fn a_missing_image_is_reported_at_once() {
    in_namespace("deleted-told", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/there-is-no-such-image:0.1.0");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let pod = scope
            .run_until("provision", &uid, "to lack its image", |pod| {
                json!(pod.status).to_string().contains("ErrImagePull")
            })
            .await?;
        let seen = Timestamp::now();
        // The message about a begun run names the image too.
        let event = scope.event("data", "has not started: ErrImagePull").await?;
        let message = event.message.clone().unwrap_or_default();
        assert!(message.contains("there-is-no-such-image"), "{message}");
        let told = event.metadata.creation_timestamp.context("an Event without a time")?.0;
        let late = told.duration_since(seen);
        assert!(
            late.as_secs() < 10,
            "told only {late:#} after {} showed it",
            pod.name_any()
        );
        assert_eq!(event.reason.as_deref(), Some("ProvisioningWaiting"));
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P3
#[test]
fn a_configmap_deleted_while_its_image_runs_delays_only_its_claim_and_says_so() {
    in_namespace("config-midway", async |scope| {
        let provisioner = scope.provisioner().on_pool(&format!("{WAIT}\n{PRINT}"));
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.runs("provision", &uid).await?;
        provisioner.delete()?;
        scope.let_run_go_on("provision", &uid)?;
        let waits_for = format!("mooring-e2e/{}", provisioner.name);
        let event = scope.event("data", &waits_for).await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningWaiting"), "{event:?}");
        // Others continue, and a deleted claim waits for the ConfigMap, without which its volume can't be deleted.
        let other = scope.provisioner_named("-other").printing();
        other.apply().await?;
        scope.claim("other", &other.class, "1Gi").await?;
        scope.claim_bound("other").await?;
        scope.delete("persistentvolumeclaim/data")?;
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        let gone = |pod: Option<&Pod>| pod.is_none();
        let limit = Duration::from_mins(1);
        until(&pods, &format!("provision-{uid}"), "to be gone", limit, gone).await?;
        let held: PersistentVolumeClaim = scope.api().get("data").await?;
        if !held.finalizers().contains(&"mooring.dev/provisioning".to_owned()) {
            bail!(
                "the claim is released although its volume exists: {:?}",
                scope.on_backend(&uid)?
            );
        }
        provisioner.apply().await?;
        scope.gone_without_trace("data", &uid).await
    });
}

#[test]
fn a_configmap_changed_while_its_image_runs_is_for_the_next_run() {
    in_namespace("config-changed", async |scope| {
        let print = "pv options client=sshfs source=nobody@192.0.2.1:/$ZONE";
        let before = scope
            .provisioner()
            .on_pool(&format!("{WAIT}\n{print}"))
            .key("zone", "west");
        before.apply().await?;
        let uid = scope.claim("data", &before.class, "1Gi").await?;
        scope.runs("provision", &uid).await?;
        let after = before.clone().on_pool(print).key("zone", "east");
        after.apply().await?;
        scope.let_run_go_on("provision", &uid)?;
        scope.claim_bound("data").await?;
        let next = scope.claim("next", &after.class, "1Gi").await?;
        scope.claim_bound("next").await?;
        for (uid, zone) in [(&uid, "west"), (&next, "east")] {
            let spec = scope.provisioned(uid).await?.and_then(|volume| volume.spec);
            let options = spec.and_then(|spec| spec.flex_volume?.options).context("no options")?;
            assert_eq!(options["source"], format!("nobody@192.0.2.1:/{zone}"));
        }
        for (name, uid) in [("data", &uid), ("next", &next)] {
            scope.delete(&format!("persistentvolumeclaim/{name}"))?;
            scope.gone_without_trace(name, uid).await?;
        }
        Ok(())
    });
}

#[test]
fn a_class_of_mooring_s_that_is_deleted_while_an_image_runs_is_made_again_and_the_claim_bound() {
    in_namespace("class-midway", async |scope| {
        let provisioner = scope.provisioner().on_pool(&format!("{WAIT}\n{PRINT}"));
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.runs("provision", &uid).await?;
        let classes: Api<StorageClass> = Api::all(scope.client.clone());
        let before = classes.get(&provisioner.class).await?.uid();
        scope.kubectl(["delete", "storageclass", &provisioner.class])?;
        let anew = |class: Option<&StorageClass>| class.is_some_and(|class| class.uid() != before);
        let limit = Duration::from_secs(30);
        until(&classes, &provisioner.class, "to be made again", limit, anew).await?;
        scope.let_run_go_on("provision", &uid)?;
        scope.claim_bound("data").await?;
        scope.delete("persistentvolumeclaim/data")?;
        scope.gone_without_trace("data", &uid).await
    });
}

/// Proves: P3
#[test]
fn a_class_that_is_gone_when_an_attempt_failed_is_asked_for_and_not_needed_to_delete() {
    in_namespace("class-gone", async |scope| {
        let provisioner = scope.provisioner().on_pool(&format!("{WAIT}\nexit 75"));
        provisioner.apply().await?;
        // A class of the administrator, which Mooring does not create again.
        let own = format!("{}-own", scope.namespace);
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": own, "labels": {"testbed.mooring.dev/namespace": scope.namespace}},
            "provisioner": "mooring.dev/flex-provisioner",
            "parameters": {"mooring.dev/config-namespace": "mooring-e2e", "mooring.dev/config-name": provisioner.name},
        });
        scope.apply_anywhere(&class.to_string())?;
        let uid = scope.claim("data", &own, "1Gi").await?;
        scope.runs("provision", &uid).await?;
        scope.kubectl(["delete", "storageclass", &own])?;
        scope.let_run_go_on("provision", &uid)?;
        scope.event("data", "is gone: create it again").await?;
        scope.delete("persistentvolumeclaim/data")?;
        scope.gone_without_trace("data", &uid).await
    });
}
