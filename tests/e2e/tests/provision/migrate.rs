//! Volumes that move between FlexVolume and CSI: between two Pods, cut off and taken up or back, and never under a Pod.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use kube::Api;
use kube::api::ResourceExt;
use mooring_contract::names::NAMESPACE;
use mooring_harness::migrate::Migration;
use mooring_harness::provisioner::user_of;
use mooring_harness::{Scope, in_namespace, wait_until};
use serde_json::{Value, json};

/// Longest until a Pod has ended, a volume has moved and the next Pod runs.
const LIMIT: Duration = Duration::from_mins(2);

/// The grace of a Pod that is to end only once the test says so, in seconds.
const LONG: u8 = 90;

/// Prints what it finds written. When it has to end, it waits until the test says so, for as long as it may.
const COMMAND: &str = "cat /data/letter || true
trap 'until [ -e /tmp/end ]; do sleep 0.2; done; exit 0' TERM
while true; do sleep 1; done";

/// One Pod after another, as a user's controller makes them.
fn set(scope: &Scope, replicas: u8) -> Result<()> {
    let pod = user_of("web-0", "data", COMMAND);
    let mut spec = pod["spec"].clone();
    spec["restartPolicy"] = json!("Always");
    scope.apply(
        &json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec},
            },
        })
        .to_string(),
    )
}

/// Source and uid of a claim's PersistentVolume.
async fn volume(scope: &Scope, uid: &str) -> Result<Option<(String, String)>> {
    let volume = scope.provisioned(uid).await?;
    Ok(volume.map(|volume| {
        let spec = json!(volume.spec);
        let source = ["csi", "flexVolume"]
            .into_iter()
            .find(|source| spec[*source].is_object());
        (source.unwrap_or("none").to_owned(), volume.uid().unwrap_or_default())
    }))
}

async fn source(scope: &Scope, uid: &str) -> Result<String> {
    Ok(volume(scope, uid).await?.context("no volume")?.0)
}

async fn has_record(scope: &Scope, uid: &str) -> Result<bool> {
    let maps: Api<ConfigMap> = Api::namespaced(scope.client.clone(), NAMESPACE);
    Ok(maps.get_metadata_opt(&format!("migration-{uid}")).await?.is_some())
}

/// Begins to move the volume, and waits until that waits for the Pod.
async fn waiting(scope: &Scope, to: &str) -> Result<Migration> {
    let moving = scope.migration(&[to, "--wait=5m"])?;
    wait_until("the migration to wait for the Pod", LIMIT, async || {
        Ok(moving.said()?.contains("used by Pod web-0").then_some(()))
    })
    .await?;
    Ok(moving)
}

/// Restarts the Pod, which has so many seconds to end.
fn restart(scope: &Scope, seconds: u8) -> Result<()> {
    let grace = format!("--grace-period={seconds}");
    scope.kubectl(["delete", "pod", "web-0", "--wait=false", &grace])?;
    Ok(())
}

/// Lets the Pod end that has to.
fn let_end(scope: &Scope) -> Result<()> {
    scope.exec("web-0", ["touch", "/tmp/end"])?;
    Ok(())
}

async fn until_source(scope: &Scope, uid: &str, wanted: Option<&str>) -> Result<()> {
    wait_until(&format!("the volume to be by {wanted:?}"), LIMIT, async || {
        let found = volume(scope, uid).await?.map(|(source, _)| source);
        Ok((found.as_deref() == wanted).then_some(()))
    })
    .await
}

/// Waits for the Pod that comes after the one with this uid, and checks that it has its predecessor's bytes.
async fn next_pod(scope: &Scope, before: &str) -> Result<String> {
    let uid = wait_until("the next Pod", LIMIT, async || {
        let uid = scope.kubectl([
            "get",
            "pod",
            "web-0",
            "--ignore-not-found",
            "-o",
            "jsonpath={.metadata.uid}",
        ])?;
        Ok((!uid.is_empty() && uid != before).then_some(uid))
    })
    .await?;
    scope.pod_ready("web-0").await?;
    if !before.is_empty() {
        assert_eq!(scope.exec("web-0", ["cat", "/data/letter"])?, "kept\n");
    }
    Ok(uid)
}

/// Proves: P1
#[test]
fn a_volume_moves_between_two_pods_and_is_taken_up_and_back_when_cut_off() {
    in_namespace("migrate", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/provisioner-local:0.1.0")
            .key("backend-volume", "client=pool")
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .key("volume-source", "flexVolume");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "64Mi").await?;
        set(&scope, 1)?;
        let first = next_pod(&scope, "").await?;
        scope.exec("web-0", ["sh", "-c", "echo kept >/data/letter"])?;

        // Not under a Pod.
        let before = volume(&scope, &uid).await?;
        let (code, said) = scope.migrate(&["--to=csi", "--dry-run"]).await?;
        ensure!(code == 1 && said.contains("used by Pod web-0"), "{code}: {said}");
        let (code, said) = scope.migrate(&["--to=csi"]).await?;
        ensure!(code == 1 && said.contains("used by Pod web-0"), "{code}: {said}");
        assert_eq!(volume(&scope, &uid).await?, before);

        // Between two Pods.
        let moving = waiting(&scope, "--to=csi").await?;
        restart(&scope, 1)?;
        let (code, said) = moving.end(LIMIT).await?;
        ensure!(code == 0 && said.contains("1 moved"), "{code}: {said}");
        let second = next_pod(&scope, &first).await?;
        assert_eq!(source(&scope, &uid).await?, "csi");
        let mounted = scope.kubectl(["get", "pvc", "data", "-o", "jsonpath={.metadata.uid} {.status.phase}"])?;
        assert_eq!(mounted, format!("{uid} Bound"));

        // Killed while the Pod ends, and taken back.
        let moving = waiting(&scope, "--to=flexVolume").await?;
        restart(&scope, LONG)?;
        until_source(&scope, &uid, None).await?;
        moving.kill()?;
        ensure!(has_record(&scope, &uid).await?, "no record");
        assert_eq!(
            scope.exec("web-0", ["cat", "/data/letter"])?,
            "kept\n",
            "the Pod has it to its end"
        );
        let (code, said) = scope.migrate(&["--back"]).await?;
        ensure!(code == 0 && said.contains("1 back"), "{code}: {said}");
        assert_eq!(source(&scope, &uid).await?, "csi");
        ensure!(!has_record(&scope, &uid).await?, "the record is left");
        let_end(&scope)?;
        let third = next_pod(&scope, &second).await?;

        // Killed again, and taken up when the Pod has ended.
        let moving = waiting(&scope, "--to=flexVolume").await?;
        restart(&scope, LONG)?;
        until_source(&scope, &uid, None).await?;
        moving.kill()?;
        let_end(&scope)?;
        // The next Pod waits for its volume.
        wait_until("the Pod to have ended", LIMIT, async || {
            let now = scope.kubectl([
                "get",
                "pod",
                "web-0",
                "--ignore-not-found",
                "-o",
                "jsonpath={.metadata.uid}",
            ])?;
            Ok((now != third).then_some(()))
        })
        .await?;
        let (code, said) = scope.migrate(&["--to=flexVolume"]).await?;
        ensure!(code == 0 && said.contains("1 moved"), "{code}: {said}");
        assert_eq!(source(&scope, &uid).await?, "flexVolume");
        next_pod(&scope, &third).await?;

        let_end(&scope)?;
        set(&scope, 0)?;
        scope.pod_gone("web-0").await?;
        let (code, said) = scope.migrate(&["--to=csi"]).await?;
        ensure!(code == 0 && said.contains("1 moved"), "{code}: {said}");
        let (code, said) = scope.migrate(&["--to=csi"]).await?;
        ensure!(code == 0 && said.contains("1 there already"), "{code}: {said}");
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

async fn claim_bound(scope: &Scope, name: &str) -> Result<Value> {
    let claims: Api<PersistentVolumeClaim> = scope.api();
    wait_until("the claim to be bound", LIMIT, async || {
        let claim = json!(claims.get(name).await?);
        Ok((claim["status"]["phase"] == "Bound").then_some(claim))
    })
    .await
}

#[test]
fn volumes_of_an_administrator_move_too_and_one_that_can_t_says_why() {
    in_namespace("migrate-own", async |scope| {
        scope.volume(
            "files",
            &json!({"client": "nfs", "source": "10.0.0.1:/x", "mount-options": "noatime"}),
        )?;
        scope.csi_volume(
            "disk",
            &json!({"client": "local", "source": "disk"}),
            &json!({"volumeMode": "Block"}),
        )?;
        claim_bound(&scope, "disk").await?;
        let claim = claim_bound(&scope, "files").await?;
        let spec = |name: &str| -> Result<Value> {
            let json = scope.kubectl(["get", "pv", &scope.volume_name(name), "-o", "json"])?;
            let volume: Value = serde_json::from_str(&json)?;
            Ok(volume["spec"].clone())
        };
        let before = (spec("files")?, spec("disk")?);
        let (code, said) = scope.migrate(&["--to=csi"]).await?;
        ensure!(code == 0 && said.contains("1 moved, 1 there already"), "{code}: {said}");
        let options = spec("files")?["csi"]["volumeAttributes"].clone();
        assert_eq!(options, before.0["flexVolume"]["options"]);
        let (code, said) = scope.migrate(&["--to=flexVolume"]).await?;
        ensure!(
            code == 0 && said.contains("1 moved, 1 stays") && said.contains("raw block"),
            "{code}: {said}"
        );
        let mut after = (spec("files")?, spec("disk")?);
        let old = before.0["claimRef"]["resourceVersion"].clone();
        after.0["claimRef"]["resourceVersion"] = old;
        assert_eq!(before, after);
        assert_eq!(
            claim_bound(&scope, "files").await?["metadata"]["uid"],
            claim["metadata"]["uid"]
        );
        Ok(())
    });
}
