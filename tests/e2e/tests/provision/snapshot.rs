//! Snapshots of volumes, by the API and the controller of kubernetes-csi.

use anyhow::{Context, Result, ensure};
use mooring_harness::provisioner::{claim, user_of};
use mooring_harness::snapshots::snapshot_of;
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};

fn field(scope: &Scope, object: &str, path: &str) -> Result<String> {
    scope.kubectl(["get", object, &format!("-o=jsonpath={{{path}}}")])
}

/// Claim `name`, to be made of snapshot `snapshot`.
fn restored(snapshot: &str, name: &str, class: &str, size: &str) -> Value {
    let mut claim = claim(name, class, size);
    claim["spec"]["dataSource"] =
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot});
    claim
}

#[test]
fn a_snapshot_is_taken_restored_kept_and_deleted() {
    in_namespace("snapshot-local", async |scope| {
        let _controller = scope.snapshot_controller()?;
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/provisioner-local:0.1.0")
            .key("backend-volume", "client=pool")
            .key("volume-source", "csi")
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .key("operations", "provision, delete, snapshot, delete-snapshot, restore");
        provisioner.apply().await?;
        let delete = scope.snapshot_class("Delete")?;
        scope.claim("old", &provisioner.class, "64Mi").await?;
        scope.apply(&user_of("writer", "old", "sleep 1000000").to_string())?;
        let writer = scope.pod_ready("writer").await?;
        let node = writer.spec.and_then(|spec| spec.node_name).context("no node")?;
        scope.exec("writer", ["sh", "-euc", "echo monday >/data/file; sync"])?;

        scope.apply(&snapshot_of("old", "monday", &delete).to_string())?;
        scope
            .kubectl_wait([
                "wait",
                "--for=jsonpath={.status.readyToUse}=true",
                "volumesnapshot/monday",
            ])
            .await?;
        assert_eq!(field(&scope, "volumesnapshot/monday", ".status.restoreSize")?, "64Mi");
        let content = field(
            &scope,
            "volumesnapshot/monday",
            ".status.boundVolumeSnapshotContentName",
        )?;
        let content = format!("volumesnapshotcontent/{content}");
        let handle = field(&scope, &content, ".status.snapshotHandle")?;
        ensure!(
            handle.starts_with("mooring-e2e/") && handle.ends_with(&format!("@{node}")),
            "{handle}"
        );

        // What is written later is not in it, and the volume made of it is larger.
        scope.exec("writer", ["sh", "-euc", "echo tuesday >/data/file; sync"])?;
        let uid = scope
            .claim_with(None, &restored("monday", "new", &provisioner.class, "128Mi"))
            .await?;
        let mut reader = user_of("reader", "new", "sleep 1000000");
        reader["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        scope.apply(&reader.to_string())?;
        scope.pod_ready("reader").await?;
        assert_eq!(scope.exec("reader", ["cat", "/data/file"])?, "monday\n");
        assert_eq!(scope.exec("writer", ["cat", "/data/file"])?, "tuesday\n");
        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        let capacity = volume.spec.and_then(|spec| spec.capacity).context("no capacity")?;
        assert_eq!(capacity["storage"].0, "128Mi");
        // It is ext4, which grows before its mount where the machine's containers lack CAP_SYS_RESOURCE.
        scope.exec("reader", ["fallocate", "-l", "90M", "/data/more"])?;

        // Its snapshot goes from the storage with its objects.
        scope.deleted("volumesnapshot/monday").await?;
        scope.kubectl_wait(["wait", "--for=delete", &content]).await?;
        scope.no_run_left("delete-snapshot").await
    });
}
