//! Volumes that grow: with a Pod that uses them and without one, refused by the image and taken back, and where nobody
//! offers it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use mooring_contract::names::PROVISIONER;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL, until, user_of};
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};

/// The doors that volumes come by: `volume-source` of their ConfigMaps.
const DRIVERS: [&str; 2] = ["flexVolume", "csi"];

/// Longest until a claim that grows has its size: the kubelet may have missed the Pod's change.
const LIMIT: Duration = Duration::from_mins(3);

const MIB: u64 = 1 << 20;

/// With volumes that may grow.
fn growing(provisioner: Provisioner, driver: &str) -> Provisioner {
    provisioner
        .key("volume-source", driver)
        .key("operations", "provision, delete, expand")
        .key("allow-volume-expansion", "true")
}

fn ask(scope: &Scope, claim: &str, size: &str) -> Result<String> {
    let change = json!({"spec": {"resources": {"requests": {"storage": size}}}}).to_string();
    scope.kubectl(["patch", "pvc", claim, "-p", &change])
}

async fn status_until(scope: &Scope, claim: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = scope.api();
    until(&claims, claim, what, LIMIT, |seen: Option<&PersistentVolumeClaim>| {
        seen.is_some_and(|claim| wanted(&json!(claim.status)))
    })
    .await?;
    Ok(())
}

/// Waits until a claim has a size, and nothing of its growth is left.
async fn has(scope: &Scope, claim: &str, size: &str) -> Result<()> {
    status_until(scope, claim, &format!("to have {size}"), |status| {
        let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let resizing = |one: &Value| one["type"].as_str().is_some_and(|kind| kind.contains("Resiz"));
        status["capacity"]["storage"] == size
            && status["allocatedResourceStatuses"]["storage"].is_null()
            && !conditions.iter().any(resizing)
    })
    .await
}

/// Size of the file system in the Pod that uses it, in bytes.
fn seen_by(scope: &Scope, pod: &str) -> Result<u64> {
    let said = scope.exec(pod, ["df", "-Pk", "/data"])?;
    let size = said.lines().last().and_then(|line| line.split_whitespace().nth(1));
    let blocks: u64 = size.context("no size")?.parse().context(said.clone())?;
    Ok(blocks * 1024)
}

async fn grows_on_a_node(scope: &Scope, driver: &str) -> Result<()> {
    let provisioner = growing(scope.provisioner_named(&driver.to_lowercase()), driver)
        .key("image", "mooring.dev/provisioner-local:0.1.0")
        .key("backend-volume", "client=pool")
        .key("volume-binding-mode", "WaitForFirstConsumer");
    provisioner.apply().await?;
    let name = driver.to_lowercase();
    // ext4 grows only where the machine lets its containers have CAP_SYS_RESOURCE.
    let class = provisioner.class_of("xfs")?;
    let uid = scope.claim(&name, &class, "320Mi").await?;
    let command = "[ -e /data/file ] || echo kept >/data/file; sleep 1000000";
    scope.apply(&user_of(&name, &name, command).to_string())?;
    scope.pod_ready(&name).await?;
    let before = seen_by(scope, &name)?;

    // Online. The kubelet looks at a Pod's volumes when the Pod changes, and else every minute or so.
    ask(scope, &name, "384Mi")?;
    status_until(scope, &name, "to be the node's turn", |status| {
        let node = status["allocatedResourceStatuses"]["storage"].as_str();
        node.is_some_and(|word| word.starts_with("Node")) || status["capacity"]["storage"] == "384Mi"
    })
    .await?;
    scope.kubectl(["annotate", "pod", &name, "testbed.mooring.dev/look=now"])?;
    has(scope, &name, "384Mi").await?;
    let online = seen_by(scope, &name)?;
    ensure!(online > before + 48 * MIB, "{before} bytes have become {online}");
    assert_eq!(scope.exec(&name, ["cat", "/data/file"])?, "kept\n");
    // Users find the same reasons as with CSI's external-resizer.
    let event = scope.event(&name, "its file system grows where a Pod uses it").await?;
    assert_eq!(event.reason.as_deref(), Some("FileSystemResizeRequired"));

    // Offline: the storage at once, the file system with the next Pod.
    scope.delete(&format!("pod/{name}"))?;
    scope.pod_gone(&name).await?;
    ask(scope, &name, "448Mi")?;
    status_until(scope, &name, "to wait for a node", |status| {
        status["allocatedResourceStatuses"]["storage"] == "NodeResizePending"
            && status["capacity"]["storage"] == "384Mi"
    })
    .await?;
    let volume = json!(scope.provisioned(&uid).await?.context("no volume")?.spec);
    assert_eq!(volume["capacity"]["storage"], "448Mi");
    scope.apply(&user_of(&name, &name, command).to_string())?;
    scope.pod_ready(&name).await?;
    has(scope, &name, "448Mi").await?;
    let offline = seen_by(scope, &name)?;
    ensure!(offline > online + 48 * MIB, "{online} bytes have become {offline}");
    assert_eq!(scope.exec(&name, ["cat", "/data/file"])?, "kept\n");
    scope.delete(&format!("pod/{name}"))?;
    scope.pod_gone(&name).await?;
    scope.claim_gone(&name).await?;
    scope.nothing_left(&uid).await
}

#[test]
fn a_volume_on_a_node_s_disk_grows_with_a_pod_and_without_and_keeps_its_data() {
    in_namespace("expand", async |scope| {
        for driver in DRIVERS {
            grows_on_a_node(&scope, driver).await?;
        }
        Ok(())
    });
}

#[test]
fn an_expansion_that_the_image_refuses_is_taken_back_and_nothing_shrinks() {
    in_namespace("expand-refused", async |scope| {
        let script = "[ \"$SIZE\" -le 3221225472 ] || { echo 'the array has 3 GiB: ask for less'; exit 78; }\n\
                      test \"$(pv get --volume client)\" = sshfs";
        let provisioner = growing(scope.provisioner().printing(), DRIVERS[1]).key("expand-script", script);
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        ask(&scope, "data", "5Gi")?;
        let event = scope.event("data", "the array has 3 GiB: ask for less").await?;
        assert_eq!(event.reason.as_deref(), Some("VolumeResizeFailed"));
        status_until(&scope, "data", "to be infeasible", |status| {
            status["allocatedResourceStatuses"]["storage"] == "ControllerResizeInfeasible"
                && status["allocatedResources"]["storage"] == "5Gi"
        })
        .await?;
        let said = ask(&scope, "data", "512Mi").err().context("it was made smaller")?;
        assert!(format!("{said:#}").contains("can not be less than"), "{said:#}");
        ask(&scope, "data", "2Gi")?;
        // A directory has grown when its server says so: no Pod is needed.
        has(&scope, "data", "2Gi").await?;
        let volume = json!(scope.provisioned(&uid).await?.context("no volume")?.spec);
        assert_eq!(volume["capacity"]["storage"], "2Gi");
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P3
#[test]
fn a_claim_that_is_deleted_while_it_grows_waits_for_that_run_alone() {
    in_namespace("expand-deleted", async |scope| {
        let provisioner = growing(scope.provisioner().printing(), DRIVERS[0]).key("expand-script", "sleep 1000");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        ask(&scope, "data", "2Gi")?;
        scope.runs("expand", &uid).await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_class_whose_configmap_does_not_offer_it_says_so_on_the_claim() {
    in_namespace("expand-not", async |scope| {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        let class = format!("{}-grows", scope.namespace);
        let of_it = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": PROVISIONER,
            "metadata": {"name": class, "labels": {TEST_LABEL: scope.namespace}},
            "allowVolumeExpansion": true,
            "parameters": {
                "mooring.dev/config-namespace": CONFIG_NAMESPACE, "mooring.dev/config-name": provisioner.name,
            },
        });
        scope.apply_anywhere(&of_it.to_string())?;
        let uid = scope.claim("data", &class, "1Gi").await?;
        scope.claim_bound("data").await?;
        ask(&scope, "data", "2Gi")?;
        let words = "does not list \"expand\" in its key \"operations\"";
        let event = scope.event("data", words).await?;
        assert_eq!(event.reason.as_deref(), Some("VolumeResizeFailed"));
        let runs = scope.left_of(std::slice::from_ref(&uid)).await?;
        let expands = runs.iter().any(|run| run.contains(&format!("expand-{uid}")));
        assert!(!expands, "nothing is run: {runs:?}");
        // Offered, it is done without another word of the user's.
        growing(provisioner, DRIVERS[0]).apply().await?;
        has(&scope, "data", "2Gi").await
    });
}
