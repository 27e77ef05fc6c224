//! Volumes that differ from the request, and claims that are deleted at the wrong moment: nothing is ever left over.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::ResourceExt;
use mooring_contract::names::paths;
use mooring_harness::nodes::POOL;
use mooring_harness::provisioner::{MAKER, Provisioner, claim};
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};

/// Starts a provisioning run that waits, and creates a PV in its place as an administrator, to whom no policy applies.
/// So only the controller itself can refuse the PV.
fn refused(name: &str, change: fn(&mut Value), why: &'static str) {
    in_namespace(name, async |scope| {
        let provisioner = waiting(&scope);
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.runs("provision", &uid).await?;
        let mut made = volume(&scope, &provisioner, &uid);
        change(&mut made);
        scope.apply_anywhere(&made.to_string())?;
        let bad = scope.provisioned(&uid).await?.context("no volume")?.uid();
        // The next attempt succeeds.
        provisioner.printing().apply().await?;
        scope.let_run_go_on("provision", &uid)?;
        let event = scope.event("data", why).await?;
        assert_eq!(event.reason.as_deref(), Some("VolumeRefused"), "{event:?}");
        let good = |volume: Option<&PersistentVolume>| volume.is_some_and(|volume| volume.uid() != bad);
        let found = scope.provisioned_until(&uid, "to be created again", good).await?;
        let spec = found.and_then(|volume| volume.spec).context("no spec")?;
        assert_eq!(
            spec.flex_volume
                .and_then(|source| source.options)
                .context("no options")?["client"],
            "sshfs"
        );
        // The next attempt waits for that run, and leaves nothing in the pool itself.
        undone_once(&scope, &uid)?;
        scope.claim_bound("data").await?;
        gone_with_markers(&scope, &uid).await
    });
}

/// A provisioner with volumes in the pool, whose image waits to be told to continue. Each run of `delete` leaves a marker
/// there.
fn waiting(scope: &Scope) -> Provisioner {
    let pool = paths::BACKEND;
    scope
        .provisioner()
        .on_pool("until [ -e /tmp/go ]; do sleep 0.1; done")
        .on_delete(&format!(
            "rm -rf \"{pool}/$PV_NAME\"\nmktemp -d \"{pool}/undone-$PV_NAME.XXXXXX\""
        ))
}

/// Checks that the image has deleted the refused volume from the backend, in one run. Another cluster's nodes can't be
/// looked at.
fn undone_once(scope: &Scope, uid: &str) -> Result<()> {
    if scope.target.own_cluster().is_some() {
        let left = scope.on_backend(uid)?;
        ensure!(
            left.len() == 1 && left[0].contains("/undone-pvc-"),
            "the image has not deleted the refused volume, or more than once: {left:?}"
        );
    }
    Ok(())
}

/// Deletes the claim, and checks that nothing is left of it but the markers, which are removed.
async fn gone_with_markers(scope: &Scope, uid: &str) -> Result<()> {
    scope.claim_gone("data").await?;
    scope.nothing_left(uid).await?;
    let nodes = scope
        .target
        .own_cluster()
        .map_or(0, |cluster| cluster.description.nodes);
    for node in 1..=nodes {
        scope.on_node(node, &format!("rm -rf {POOL}/undone-pvc-{uid}.*"))?;
    }
    scope.gone_without_trace("data", uid).await
}

/// A valid volume.
fn volume(scope: &Scope, provisioner: &Provisioner, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": format!("pvc-{uid}"), "annotations": {"pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner"}},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": provisioner.class,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": scope.namespace, "name": "data", "uid": uid},
            "flexVolume": {"driver": "mooring.dev/vcs", "options": {"client": "sshfs", "source": "nobody@192.0.2.1:/x"}},
        },
    })
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $test:ident, $name:literal, $why:literal, $change:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $test() {
            refused($name, $change, $why);
        }
    )*};
}

refusals! {
    /// Proves: P2
    a_volume_that_is_too_small_is_refused, "refuse-size", "less than the 1073741824 asked for",
        |volume| volume["spec"]["capacity"]["storage"] = json!("1023Mi");
    /// Proves: P2
    a_volume_of_another_class_is_refused, "refuse-class", "its storageClassName is",
        |volume| volume["spec"]["storageClassName"] = json!("gold");
    /// Proves: P2
    a_volume_for_another_claim_is_refused, "refuse-claim", "its claimRef is",
        |volume| volume["spec"]["claimRef"]["name"] = json!("somebody-s");
    /// Proves: P2
    a_volume_of_the_node_s_own_disk_is_refused, "refuse-host", "its source is hostPath",
        |volume| {
            volume["spec"]["flexVolume"] = Value::Null;
            volume["spec"]["hostPath"] = json!({"path": "/"});
        };
    /// Proves: P2
    the_whole_pool_as_a_volume_is_refused, "refuse-pool", "gives out a node itself",
        |volume| volume["spec"]["flexVolume"]["options"] = json!({"client": "pool"});
    /// Proves: P2
    a_secret_of_somebody_else_is_refused, "refuse-secret", "its secretRef names a Secret in namespace \"kube-system\"",
        |volume| volume["spec"]["flexVolume"]["secretRef"] = json!({"name": "x", "namespace": "kube-system"});
}

/// Proves: P2
#[test]
fn a_volume_of_another_name_is_not_taken_and_the_image_is_told_so() {
    in_namespace("refuse-name", async |scope| {
        let provisioner = waiting(&scope);
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.runs("provision", &uid).await?;
        let other = format!("{}-other", scope.namespace);
        let mut made = volume(&scope, &provisioner, &uid);
        made["metadata"]["name"] = json!(other);
        scope.apply_anywhere(&made.to_string())?;
        scope.let_run_go_on("provision", &uid)?;
        let refused = scope.event("data", "use the property pv-name").await;
        scope.delete(&format!("persistentvolume/{other}"))?;
        refused?;
        gone_with_markers(&scope, &uid).await
    });
}

#[test]
fn an_image_that_exits_with_0_without_a_volume_is_reported_with_what_is_missing() {
    in_namespace("no-volume", async |scope| {
        let provisioner = scope.provisioner().on_provision("true");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.event("data", "made no PersistentVolume named").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P2
#[test]
fn a_printed_pool_or_foreign_secret_makes_no_volume() {
    in_namespace("printed-no", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("volume-source", "flexVolume")
            .on_provision("printf '{\"client\": \"pool\"}' >/dev/termination-log");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.event("data", "gives out a node itself").await?;
        assert!(scope.provisioned(&uid).await?.is_none());
        provisioner
            .on_provision("pv options client=sshfs source=u@h:/x --secret x/kube-system")
            .apply()
            .await?;
        scope.event("data", "its secretRef names a Secret in namespace").await?;
        assert!(scope.provisioned(&uid).await?.is_none());
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P3
#[test]
fn a_claim_deleted_before_its_pod_leaves_nothing() {
    in_namespace("deleted-before", async |scope| {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        let mut uids = Vec::new();
        for name in ["a", "b", "c"] {
            uids.push(scope.claim(name, &provisioner.class, "1Gi").await?);
            scope.delete(&format!("persistentvolumeclaim/{name}"))?;
        }
        for (name, uid) in ["a", "b", "c"].iter().zip(&uids) {
            scope.claim_until(name, "to be gone", |seen| seen.is_none()).await?;
            scope.nothing_left(uid).await?;
        }
        Ok(())
    });
}

/// Proves: P3
#[test]
fn a_claim_deleted_while_its_image_runs_ends_the_run_and_undoes_it() {
    in_namespace("deleted-during", async |scope| {
        // The delete run waits for the test, so that it can be observed.
        let provisioner = scope
            .provisioner()
            .on_provision("sleep 1000")
            .on_delete("until [ -e /tmp/go ]; do sleep 0.1; done");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.runs("provision", &uid).await?;
        scope.delete("persistentvolumeclaim/data")?;
        scope.runs("delete", &uid).await?;
        let seen: PersistentVolumeClaim = scope.api().get("data").await?;
        assert!(
            seen.finalizers().contains(&"mooring.dev/provisioning".to_owned()),
            "the claim is held"
        );
        scope.let_run_go_on("delete", &uid)?;
        scope.claim_until("data", "to be gone", |seen| seen.is_none()).await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P3
#[test]
fn a_claim_deleted_after_its_volume_was_made_takes_the_volume_with_it() {
    in_namespace("deleted-after", async |scope| {
        let provisioner = scope.provisioner().key("service-account-name", MAKER).on_provision(
            "pv create --option client=sshfs --option source=nobody@192.0.2.1:/x
                 until [ -e /tmp/go ]; do sleep 0.1; done",
        );
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope
            .provisioned_until(&uid, "to be made", |seen| seen.is_some())
            .await?;
        scope.delete("persistentvolumeclaim/data")?;
        scope.claim_until("data", "to be gone", |seen| seen.is_none()).await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P3
#[test]
fn a_claim_whose_configmap_goes_says_what_it_waits_for_and_goes_on_when_it_is_back() {
    in_namespace("config-gone", async |scope| {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        provisioner.delete()?;
        scope.claim_gone("data").await?;
        let volume = format!("pvc-{uid}");
        scope
            .event_in("default", &volume, &format!("mooring-e2e/{}", provisioner.name))
            .await?;
        if scope.provisioned(&uid).await?.is_none() {
            bail!("the volume was forgotten");
        }
        // Others continue meanwhile.
        let other = scope.provisioner_named("-other").printing();
        other.apply().await?;
        scope.claim("other", &other.class, "1Gi").await?;
        scope.claim_bound("other").await?;

        provisioner.apply().await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P1
#[test]
fn a_provisioning_pod_that_somebody_deletes_is_run_again() {
    in_namespace("pod-deleted", async |scope| {
        let provisioner = scope.provisioner().printing().on_provision("sleep 1000");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let pod: Pod = scope.runs("provision", &uid).await?;
        provisioner.clone().printing().apply().await?;
        let name = pod.metadata.name.context("no name")?;
        scope.kubectl([
            "-n",
            "mooring-e2e",
            "delete",
            "pod",
            &name,
            "--grace-period=0",
            "--force",
        ])?;
        scope.claim_bound("data").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P1
#[test]
fn a_claim_made_again_under_its_name_gets_a_volume_of_its_own() {
    in_namespace("same-name", async |scope| -> Result<()> {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        let first = scope
            .claim_with(None, &claim("data", &provisioner.class, "1Gi"))
            .await?;
        scope.claim_bound("data").await?;
        scope.claim_gone("data").await?;
        let second = scope.claim("data", &provisioner.class, "1Gi").await?;
        assert_ne!(first, second);
        let bound = scope.claim_bound("data").await?;
        assert_eq!(
            bound.spec.and_then(|spec| spec.volume_name),
            Some(format!("pvc-{second}"))
        );
        scope.nothing_left(&first).await
    });
}
