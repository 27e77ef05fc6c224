//! Claims that are made of what is in another namespace.

use anyhow::{Context, Result, ensure};
use mooring_harness::provisioner::{TEST_LABEL, claim};
use mooring_harness::snapshots::snapshot_of;
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};

/// A namespace beside the test's own. It goes with the test.
fn beside(scope: &Scope) -> Result<Scope> {
    let name = format!("{}-prod", scope.namespace);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
                           "metadata": {"name": name, "labels": {TEST_LABEL: scope.namespace}}});
    scope.apply_anywhere(&namespace.to_string())?;
    Ok(scope.elsewhere(&name))
}

/// Claim `name`, to be made of an object of another namespace.
fn made_of(there: &Scope, group: &str, kind: &str, source: &str, name: &str, class: &str) -> Value {
    let mut claim = claim(name, class, "16Mi");
    claim["spec"]["dataSourceRef"] =
        json!({"apiGroup": group, "kind": kind, "name": source, "namespace": there.namespace});
    if group.is_empty() {
        claim["spec"]["dataSourceRef"]["apiGroup"] = Value::Null;
    }
    claim
}

/// Waits until the claim is refused for want of a grant, and does what the Event says.
async fn granted(scope: &Scope, there: &Scope, claim: &str) -> Result<()> {
    let lacks = format!("no ReferenceGrant in namespace {:?}", there.namespace);
    let refused = scope.event(claim, &lacks).await?;
    assert_eq!(refused.reason.as_deref(), Some("ClaimRefused"));
    let text = refused.message.context("an Event without a message")?;
    let grant = text.split('\'').nth(1).context(text.clone())?;
    let mut grant: Value = serde_json::from_str(grant).with_context(|| text.clone())?;
    ensure!(text.contains("kubectl create -f - <<<'"), "{text}");
    // The test applies, and an object that is applied has a name.
    let kind = grant["spec"]["to"][0]["kind"]
        .as_str()
        .unwrap_or_default()
        .to_lowercase();
    grant["metadata"] = json!({"name": kind, "namespace": grant["metadata"]["namespace"]});
    there.apply(&grant.to_string())
}

/// Where a volume comes from, as its image said.
async fn source_of(scope: &Scope, uid: &str) -> Result<String> {
    let volume = json!(scope.provisioned(uid).await?.context("no volume")?.spec);
    let source = volume["csi"]["volumeAttributes"]["source"].as_str();
    source.map(str::to_owned).context("no source")
}

#[test]
fn a_claim_is_made_of_what_another_namespace_lets_it_use_and_of_nothing_else() {
    in_namespace("grant", async |scope| {
        scope.grants_api()?;
        let there = beside(&scope)?;
        let provisioner = scope
            .provisioner()
            .key("volume-source", "csi")
            .key("operations", "provision, delete, clone")
            .on_provision("pv options client=sshfs source=nobody@192.0.2.1:/x")
            .key(
                "clone-script",
                "pv options client=sshfs source=nobody@192.0.2.1:/\"$SOURCE_PV_NAME\"",
            );
        provisioner.apply().await?;
        let class = &provisioner.class;

        // Whether there is such a claim is nobody's business before there is a grant.
        let copy = made_of(&there, "", "PersistentVolumeClaim", "old", "copy", class);
        let uid = scope.claim_with(None, &copy).await?;
        granted(&scope, &there, "copy").await?;
        scope
            .event("copy", &format!("claim \"{}/old\"", there.namespace))
            .await?;
        let old = there.claim("old", class, "16Mi").await?;
        scope.claim_bound("copy").await?;
        assert_eq!(source_of(&scope, &uid).await?, format!("nobody@192.0.2.1:/pvc-{old}"));

        // What is taken back counts for what comes next.
        there.kubectl_wait(["delete", "referencegrants", "--all"]).await?;
        let late = made_of(&there, "", "PersistentVolumeClaim", "old", "late", class);
        scope.claim_with(None, &late).await?;
        scope.event("late", "no ReferenceGrant in namespace").await?;

        there.claim_gone("old").await?;
        there.nothing_left(&old).await
    });
}

#[test]
fn a_snapshot_of_another_namespace_is_restored_by_a_grant_for_snapshots() {
    in_namespace("grant-snapshot", async |scope| {
        scope.grants_api()?;
        let _controller = scope.snapshot_controller()?;
        let there = beside(&scope)?;
        let provisioner = scope
            .provisioner()
            .key("volume-source", "csi")
            .key("operations", "provision, delete, snapshot, delete-snapshot, restore")
            .on_provision("pv options client=sshfs source=nobody@192.0.2.1:/x")
            .key(
                "restore-script",
                "pv options client=sshfs source=nobody@192.0.2.1:/\"$SNAPSHOT_NAME\"",
            );
        provisioner.apply().await?;
        let class = &provisioner.class;
        let old = there.claim("old", class, "16Mi").await?;
        there.claim_bound("old").await?;
        let snapshots = scope.snapshot_class("Delete")?;
        there.apply(&snapshot_of("old", "monday", &snapshots).to_string())?;
        let ready = "--for=jsonpath={.status.readyToUse}=true";
        there.kubectl_wait(["wait", ready, "volumesnapshot/monday"]).await?;

        let group = "snapshot.storage.k8s.io";
        let restored = made_of(&there, group, "VolumeSnapshot", "monday", "restored", class);
        let uid = scope.claim_with(None, &restored).await?;
        granted(&scope, &there, "restored").await?;
        scope.claim_bound("restored").await?;
        let source = source_of(&scope, &uid).await?;
        ensure!(source.starts_with("nobody@192.0.2.1:/snapshot-"), "{source}");

        there.deleted("volumesnapshot/monday").await?;
        there.claim_gone("old").await?;
        there.nothing_left(&old).await
    });
}
