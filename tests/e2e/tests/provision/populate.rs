//! Claims that another's populator fills (KEP-1495): Mooring leaves them alone, and makes the volumes that a populator
//! hands over to them.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::ResourceExt;
use mooring_contract::names::annotations;
use mooring_harness::provisioner::claim;
use mooring_harness::{Scope, in_namespace};
use serde_json::json;

async fn uid_of(scope: &Scope, name: &str) -> Result<String> {
    let claims: Api<PersistentVolumeClaim> = scope.api();
    claims.get(name).await?.uid().context("no uid")
}

/// As `kubernetes-csi/lib-volume-populator` does it: it fills the volume of a claim of its own, ties that volume to the
/// user's claim, and deletes its own.
#[test]
fn a_claim_of_a_populator_gets_the_volume_that_it_filled_and_takes_it_along() {
    in_namespace("populate", async |scope| {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        let mut wanted = claim("wanted", &provisioner.class, "16Mi");
        wanted["spec"]["dataSourceRef"] = json!({"apiGroup": "example.com", "kind": "Dataset", "name": "photos"});
        scope.apply(&wanted.to_string())?;
        let wanted = uid_of(&scope, "wanted").await?;

        let prime = scope.claim("prime", &provisioner.class, "16Mi").await?;
        scope.claim_bound("prime").await?;
        let volume = scope.provisioned(&prime).await?.context("no volume")?.name_any();
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": scope.namespace, "name": "wanted",
            "uid": wanted, "resourceVersion": null,
        });
        let patch = json!({"spec": {"claimRef": reference}}).to_string();
        scope.kubectl(["patch", "pv", &volume, "--type=merge", "-p", &patch])?;
        scope.claim_bound("wanted").await?;
        scope.claim_gone("prime").await?;

        let claims: Api<PersistentVolumeClaim> = scope.api();
        let bound = claims.get("wanted").await?;
        ensure!(
            !bound.annotations().contains_key(annotations::OPERATION),
            "something was begun for a claim that a populator fills"
        );
        ensure!(scope.provisioned(&wanted).await?.is_none(), "it got a second volume");
        let kept = scope.provisioned(&prime).await?.context("the volume is gone")?;
        ensure!(
            kept.metadata.deletion_timestamp.is_none(),
            "the volume is being deleted"
        );

        scope.claim_gone("wanted").await?;
        scope.nothing_left(&prime).await?;
        scope.nothing_left(&wanted).await
    });
}
