//! What is deleted or changed while a volume is being provisioned: claims, ConfigMaps, classes. Whenever that happens,
//! nothing is left in the end: no claim, no Pod, no Secret, no PersistentVolume, and no volume on the backend.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams, ResourceExt};
use mooring_harness::backend::PRINT;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim, until};
use mooring_harness::{Scope, in_namespace};
use serde_json::json;

/// Makes a run wait until it is told to continue.
const WAIT: &str = "until [ -e /tmp/go ]; do sleep 0.1; done";

/// When a claim is deleted.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// This many milliseconds after the claim was made.
    After(u64),
    /// Once the Pod of its run exists.
    RunMade,
    /// Once the kubelet has said this of the Pod.
    RunSays(&'static str),
    /// Once its `PersistentVolume` exists.
    VolumeMade,
    Bound,
}

impl Moment {
    async fn reached(self, scope: &Scope, claim: &str, uid: &str) -> Result<()> {
        match self {
            Self::After(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
            Self::RunMade => drop(scope.run_until("provision", uid, "to be made", |_| true).await?),
            Self::RunSays(words) => {
                let says = |pod: &Pod| json!(pod.status).to_string().contains(words);
                scope
                    .run_until("provision", uid, &format!("to say {words}"), says)
                    .await?;
            }
            Self::VolumeMade => drop(
                scope
                    .provisioned_until(uid, "to be made", |seen| seen.is_some())
                    .await?,
            ),
            Self::Bound => drop(scope.claim_bound(claim).await?),
        }
        Ok(())
    }
}

/// Creates a claim for each of these moments, deletes it then, and checks that nothing is left of any.
async fn deleted_at(scope: &Scope, provisioner: &Provisioner, moments: &[Moment]) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = scope.api();
    let deleted = moments.iter().enumerate().map(async |(index, moment)| {
        let name = format!("data-{index}");
        let wanted = serde_json::from_value(claim(&name, &provisioner.class, "1Gi")).context("a bad claim")?;
        let created = claims.create(&PostParams::default(), &wanted).await?;
        let uid = created.uid().context("no uid")?;
        moment.reached(scope, &name, &uid).await?;
        claims.delete(&name, &DeleteParams::default()).await?;
        anyhow::Ok((name, uid))
    });
    for (name, uid) in try_join_all(deleted).await? {
        scope.gone_without_trace(&name, &uid).await?;
    }
    Ok(())
}

/// Proves: P3
#[test]
fn a_claim_deleted_at_any_moment_leaves_nothing_on_the_backend() {
    in_namespace("deleted-any", async |scope| {
        let provisioner = scope.provisioner().on_pool(PRINT);
        provisioner.apply().await?;
        // With and without a run and a volume, and at moments in between that nobody chooses.
        let mut moments = vec![Moment::RunMade, Moment::VolumeMade, Moment::Bound];
        moments.extend((0..12).map(|step| Moment::After(step * step * 60)));
        deleted_at(&scope, &provisioner, &moments).await
    });
}

/// A namespace is deleted with all that is in it, by Kubernetes: its claims in no order, and nobody waits for one.
///
/// Proves: P1, P3
#[test]
fn a_namespace_that_kubernetes_deletes_with_bound_and_begun_claims_leaves_nothing_anywhere() {
    in_namespace("deleted-namespace", async |scope| {
        let bound = scope.provisioner().on_pool(PRINT);
        let begun = scope.provisioner_named("-begun").on_pool(&format!("sleep 5\n{PRINT}"));
        bound.apply().await?;
        begun.apply().await?;
        let mut uids = vec![scope.claim("bound", &bound.class, "1Gi").await?];
        scope.claim_bound("bound").await?;
        uids.push(scope.claim("begun", &begun.class, "1Gi").await?);
        scope.runs("provision", &uids[1]).await?;
        // Of this one nobody knows how far it is.
        uids.push(scope.claim("new", &bound.class, "1Gi").await?);
        scope.end_by_kubernetes().await?;
        for (name, uid) in ["bound", "begun", "new"].into_iter().zip(&uids) {
            scope.gone_without_trace(name, uid).await?;
        }
        Ok(())
    });
}

/// Proves: P3
#[test]
fn a_claim_whose_image_can_t_be_pulled_does_not_wait_for_the_time_limit_of_its_run() {
    in_namespace("deleted-image", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/there-is-no-such-image:0.1.0")
            .key("timeout", "1h");
        provisioner.apply().await?;
        let moments = [
            Moment::After(0),
            Moment::RunMade,
            Moment::RunSays("ErrImagePull"),
            Moment::RunSays("ImagePullBackOff"),
        ];
        deleted_at(&scope, &provisioner, &moments).await
    });
}

/// Proves: P4
#[test]
fn a_missing_image_is_reported_while_the_first_run_waits_for_it() {
    in_namespace("deleted-told", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/there-is-no-such-image:0.1.0")
            .key("timeout", "1h");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let lacks = |pod: &Pod| json!(pod.status).to_string().contains("ErrImagePull");
        let first = scope.run_until("provision", &uid, "to lack its image", lacks).await?;
        // The message about a begun run names the image too, and that of one that is late does not.
        let reason = ["has not started: ", "there-is-no-such-image"];
        let event = scope.event_with_all("data", &reason).await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningWaiting"));
        let now = scope.run_until("provision", &uid, "to be there", |_| true).await?;
        assert_eq!(now.uid(), first.uid(), "another run was made before the Event");
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Waits until the controller has seen each change of ConfigMaps and classes so far: it makes a volume of newer ones.
async fn all_so_far_is_seen(scope: &Scope) -> Result<()> {
    let other = scope.provisioner_named("-other").printing();
    other.apply().await?;
    scope.claim("other", &other.class, "1Gi").await?;
    scope.claim_bound("other").await.map(drop)
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
        // Others continue.
        all_so_far_is_seen(&scope).await?;
        scope.let_run_go_on("provision", &uid)?;
        let waits_for = format!("mooring-e2e/{}", provisioner.name);
        let event = scope.event("data", &waits_for).await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningWaiting"), "{event:?}");
        // A deleted claim waits for the ConfigMap, without which its volume can't be deleted.
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
        all_so_far_is_seen(&scope).await?;
        scope.let_run_go_on("provision", &uid)?;
        scope.event("data", "is gone: create it again").await?;
        scope.delete("persistentvolumeclaim/data")?;
        scope.gone_without_trace("data", &uid).await
    });
}
