//! Volumes that get other attributes by a `VolumeAttributesClass`: while they are in use and when they are made,
//! refused by the image and taken back, and where they can't have any.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use mooring_contract::names::CSI_DRIVER;
use mooring_harness::provisioner::{Provisioner, claim, until, user_of};
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};

/// Longest until a claim has what it asks for.
const LIMIT: Duration = Duration::from_mins(1);

fn modifying(provisioner: Provisioner, driver: &str) -> Provisioner {
    provisioner
        .key("volume-source", driver)
        .key("operations", "provision, delete, modify")
}

fn ask(scope: &Scope, claim: &str, class: &str) -> Result<()> {
    let change = json!({"spec": {"volumeAttributesClassName": class}}).to_string();
    scope.kubectl(["patch", "pvc", claim, "-p", &change])?;
    Ok(())
}

async fn status_until(scope: &Scope, claim: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = scope.api();
    until(&claims, claim, what, LIMIT, |seen: Option<&PersistentVolumeClaim>| {
        seen.is_some_and(|claim| wanted(&json!(claim.status)))
    })
    .await?;
    Ok(())
}

/// Waits until a claim's volume has this class, and nothing is left of how it got it.
async fn has(scope: &Scope, claim: &str, uid: &str, class: &str) -> Result<()> {
    status_until(scope, claim, &format!("to have class {class}"), |status| {
        let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        status["currentVolumeAttributesClassName"] == class
            && status["modifyVolumeStatus"].is_null()
            && !conditions.iter().any(|one| one["type"] == "ModifyingVolume")
    })
    .await?;
    let volume = json!(scope.provisioned(uid).await?.context("no volume")?.spec);
    assert_eq!(volume["volumeAttributesClassName"], class);
    Ok(())
}

fn change_is(status: &Value, class: &str, word: &str) -> bool {
    status["modifyVolumeStatus"] == json!({"targetVolumeAttributesClassName": class, "status": word})
}

/// A Pod that sees the pool of this node.
async fn looker(scope: &Scope, node: &str) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "looker"},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
                "volumeMounts": [{"name": "pool", "mountPath": "/pool"}],
            }],
            "volumes": [{"name": "pool", "hostPath": {"path": "/var/lib/mooring/pool"}}],
        },
    });
    scope.apply(&pod.to_string())?;
    scope.pod_ready("looker").await?;
    Ok(())
}

/// How many bytes of its pool a volume takes.
fn allocated(scope: &Scope, uid: &str) -> Result<u64> {
    let said = scope.exec("looker", ["stat", "-c", "%b", &format!("/pool/pvc-{uid}.img")])?;
    Ok(said.trim().parse::<u64>().context(said.clone())? * 512)
}

#[test]
fn a_volume_on_a_node_s_disk_takes_its_space_while_a_pod_uses_it() {
    in_namespace("modify-local", async |scope| {
        let provisioner = modifying(scope.provisioner(), "csi")
            .key("image", "mooring.dev/provisioner-local:0.1.0")
            .key("backend-volume", "client=pool")
            // Else a volume that is used already loses some of its space again, to the kernel that prepares an ext4 once
            // it is mounted.
            .key("mount-options", "nodiscard,noinit_itable")
            .key("volume-binding-mode", "WaitForFirstConsumer");
        provisioner.apply().await?;
        let thick = scope.attributes_class("thick", CSI_DRIVER, &json!({"preallocate": "true"}))?;
        let odd = scope.attributes_class("odd", CSI_DRIVER, &json!({"colour": "blue"}))?;
        let uid = scope.claim("data", &provisioner.class, "64Mi").await?;
        scope.apply(&user_of("user", "data", "echo kept >/data/file; sleep 1000000").to_string())?;
        let node = scope.pod_ready("user").await?.spec.and_then(|spec| spec.node_name);
        looker(&scope, &node.context("no node")?).await?;
        let size = 64 << 20;
        let before = allocated(&scope, &uid)?;
        ensure!(before < size / 2, "{before} bytes are allocated already");

        ask(&scope, "data", &odd)?;
        let event = scope
            .event("data", "has attribute \"colour\", which the image does not know")
            .await?;
        assert_eq!(event.reason.as_deref(), Some("VolumeModifyFailed"));
        ask(&scope, "data", &thick)?;
        has(&scope, "data", &uid, &thick).await?;
        let after = allocated(&scope, &uid)?;
        ensure!(after >= size, "only {after} bytes are allocated");
        assert_eq!(scope.exec("user", ["cat", "/data/file"])?, "kept\n");
        // Users find the same reasons as with CSI's external-resizer.
        let event = scope.event("data", "the volume got the attributes of").await?;
        assert_eq!(event.reason.as_deref(), Some("VolumeModifySuccessful"));
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_claim_made_with_a_class_has_it_at_once_and_one_that_the_image_refuses_is_taken_back() {
    in_namespace("modify-refused", async |scope| {
        let provisioner = modifying(scope.provisioner().printing(), "csi").key(
            "modify-script",
            "test \"$(pv get --volume client)\" = sshfs\n\
             [ \"$ATTRIBUTE_TIER\" != gold ] || { echo 'there is no gold: ask for silver'; exit 78; }\n\
             [ \"$ATTRIBUTES_CLASS\" != \"${ATTRIBUTES_CLASS%-iron}\" ]",
        );
        let print = provisioner.data["provision-script"].clone();
        let print = format!("[ \"${{ATTRIBUTE_TIER-none}}\" = silver ] || exit 78\n{print}");
        let provisioner = provisioner.on_provision(&print);
        provisioner.apply().await?;
        let tier = |name: &str| scope.attributes_class(name, CSI_DRIVER, &json!({"tier": name}));
        let (silver, gold) = (tier("silver")?, tier("gold")?);
        let mut made = claim("data", &provisioner.class, "1Gi");
        made["spec"]["volumeAttributesClassName"] = json!(silver);
        let uid = scope.claim_with(None, &made).await?;
        scope.claim_bound("data").await?;
        has(&scope, "data", &uid, &silver).await?;

        ask(&scope, "data", &gold)?;
        scope.event("data", "there is no gold: ask for silver").await?;
        status_until(&scope, "data", "to be infeasible", |status| {
            change_is(status, &gold, "Infeasible") && status["currentVolumeAttributesClassName"] == silver
        })
        .await?;
        // One that is not there yet.
        let iron = format!("{}-iron", scope.namespace);
        ask(&scope, "data", &iron)?;
        status_until(&scope, "data", "to wait for its class", |status| {
            change_is(status, &iron, "Pending")
        })
        .await?;
        assert_eq!(tier("iron")?, iron);
        has(&scope, "data", &uid, &iron).await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P3
#[test]
fn a_claim_that_is_deleted_while_its_volume_is_modified_waits_for_that_run_alone() {
    in_namespace("modify-deleted", async |scope| {
        let provisioner = modifying(scope.provisioner().printing(), "csi").key("modify-script", "sleep 1000");
        provisioner.apply().await?;
        let class = scope.attributes_class("gold", CSI_DRIVER, &json!({"tier": "gold"}))?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        ask(&scope, "data", &class)?;
        scope.runs("modify", &uid).await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_volume_by_flex_volume_and_a_class_of_another_driver_are_refused_on_the_claim() {
    in_namespace("modify-not", async |scope| {
        let flex = modifying(scope.provisioner_named("flex").printing(), "flexVolume");
        let csi = modifying(scope.provisioner().printing(), "csi");
        flex.apply().await?;
        csi.apply().await?;
        let ours = scope.attributes_class("gold", CSI_DRIVER, &json!({"tier": "gold"}))?;
        let theirs = scope.attributes_class("theirs", "csi.example.com", &json!({"tier": "gold"}))?;
        for (name, class, attributes, words) in [
            ("flex", &flex.class, &ours, "works with CSI volumes only"),
            ("csi", &csi.class, &theirs, "is of driver \"csi.example.com\""),
        ] {
            let uid = scope.claim(name, class, "1Gi").await?;
            scope.claim_bound(name).await?;
            ask(&scope, name, attributes)?;
            let event = scope.event(name, words).await?;
            assert_eq!(event.reason.as_deref(), Some("VolumeModifyFailed"));
            status_until(&scope, name, "to be pending", |status| {
                change_is(status, attributes, "Pending")
            })
            .await?;
            // And so is a new claim.
            let new = format!("{name}-new");
            let mut made = claim(&new, class, "1Gi");
            made["spec"]["volumeAttributesClassName"] = json!(attributes);
            scope.claim_with(None, &made).await?;
            let event = scope.event(&new, words).await?;
            assert_eq!(event.reason.as_deref(), Some("ClaimRefused"));
            scope.claim_gone(&new).await?;
            scope.claim_gone(name).await?;
            scope.nothing_left(&uid).await?;
        }
        Ok(())
    });
}
