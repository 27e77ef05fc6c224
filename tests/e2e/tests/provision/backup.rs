//! Backups of volumes: snapshots of a class that says so, kept on another storage.

use anyhow::{Context, Result, ensure};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL, claim, user_of};
use mooring_harness::snapshots::snapshot_of;
use mooring_harness::ssh::SshServer;
use mooring_harness::{Scope, in_namespace};
use serde_json::json;

/// Class `local` with CSI, whose backups are kept on an ssh server.
fn provisioner(scope: &Scope, name: &str, server: &SshServer) -> Result<Provisioner> {
    Ok(scope
        .provisioner_named(name)
        .key("image", "mooring.dev/provisioner-local:0.1.0")
        .key("backend-volume", "client=pool")
        .key(
            "backup-volume",
            format!("client=sshfs,source={}", server.source("backups")),
        )
        .key("secret-name", scope.ssh_secret_for_runs(server)?)
        .key("volume-source", "csi")
        .key("volume-binding-mode", "WaitForFirstConsumer")
        .key("operations", "provision, delete, backup, delete-backup, restore"))
}

fn field(scope: &Scope, object: &str, path: &str) -> Result<String> {
    scope.kubectl(["get", object, &format!("-o=jsonpath={{{path}}}")])
}

async fn ready(scope: &Scope, snapshot: &str) -> Result<()> {
    let object = format!("volumesnapshot/{snapshot}");
    scope
        .kubectl_wait(["wait", "--for=jsonpath={.status.readyToUse}=true", &object])
        .await
}

/// A Pod on a node with claim `name`, whose volume is made of a snapshot; returns the claim's uid.
async fn restored(scope: &Scope, snapshot: &str, name: &str, class: &str, node: &str) -> Result<String> {
    let mut wanted = claim(name, class, "384Mi");
    wanted["spec"]["dataSource"] =
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot});
    let uid = scope.claim_with(None, &wanted).await?;
    let mut reader = user_of(name, name, "sleep 1000000");
    reader["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    scope.apply(&reader.to_string())?;
    Ok(uid)
}

/// The objects by which an administrator of another cluster, whose ConfigMap has another name, names a backup.
fn as_elsewhere(scope: &Scope, backup: &str, config: &str) -> Result<()> {
    let name = format!("{}-elsewhere", scope.namespace);
    scope.apply_anywhere(
        &json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": name, "labels": {TEST_LABEL: scope.namespace},
                "annotations": {"mooring.dev/config": format!("{CONFIG_NAMESPACE}/{config}")},
            },
            "spec": {
                "driver": "vcs.mooring.dev", "deletionPolicy": "Retain",
                "source": {"snapshotHandle": format!("backup:far/away/{backup}")},
                "volumeSnapshotRef": {"name": "elsewhere", "namespace": scope.namespace},
            },
        })
        .to_string(),
    )?;
    scope.apply(
        &json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "elsewhere"},
            "spec": {"source": {"volumeSnapshotContentName": name}},
        })
        .to_string(),
    )
}

async fn without(scope: &Scope, claim: &str, uid: &str) -> Result<()> {
    scope.delete(&format!("pod/{claim}"))?;
    scope.pod_gone(claim).await?;
    scope.claim_gone(claim).await?;
    scope.nothing_left(uid).await
}

/// Proves: P1
#[test]
fn a_backup_outlives_volume_and_configmap_and_is_restored_elsewhere_and_deleted() {
    in_namespace("backup", async |scope| {
        let _controller = scope.snapshot_controller()?;
        let (here, there) = (scope.node(1).await?, scope.node(2).await?);
        let server = scope.ssh_server(&here, &["backups"]).await?;
        let kept = || scope.exec("ssh", ["ls", "-A", "/srv/volumes/backups"]);
        let local = provisioner(&scope, "", &server)?;
        local.apply().await?;
        // ext4 grows only where the machine lets its containers have CAP_SYS_RESOURCE.
        let class = local.class_of("xfs")?;
        let uid = scope.claim("old", &class, "320Mi").await?;
        let mut writer = user_of("old", "old", "sleep 1000000");
        writer["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": here});
        scope.apply(&writer.to_string())?;
        scope.pod_ready("old").await?;
        let sum = "head -c 4m /dev/urandom >/data/file; sync; sha256sum </data/file";
        let sum = scope.exec("old", ["sh", "-euc", sum])?;

        let backups = scope.backup_class("Delete")?;
        scope.apply(&snapshot_of("old", "monday", &backups).to_string())?;
        ready(&scope, "monday").await?;
        let path = ".status.boundVolumeSnapshotContentName";
        let content = format!(
            "volumesnapshotcontent/{}",
            field(&scope, "volumesnapshot/monday", path)?
        );
        let handle = field(&scope, &content, ".status.snapshotHandle")?;
        let own = format!("backup:{CONFIG_NAMESPACE}/{}/", local.name);
        let backup = handle.strip_prefix(&own).with_context(|| handle.clone())?.to_owned();
        ensure!(kept()? == format!("{backup}.xfs.img\n"), "{}", kept()?);

        // Volume and ConfigMap go; another ConfigMap has the same storage.
        without(&scope, "old", &uid).await?;
        local.delete()?;
        ensure!(kept()? == format!("{backup}.xfs.img\n"), "{}", kept()?);
        let other = provisioner(&scope, "-other", &server)?;
        other.apply().await?;
        let class = other.class_of("xfs")?;
        as_elsewhere(&scope, &backup, &other.name)?;
        ready(&scope, "elsewhere").await?;
        let uid = restored(&scope, "elsewhere", "new", &class, &there).await?;
        let waits = restored(&scope, "monday", "again", &class, &here).await?;
        scope
            .event("again", "annotate its content with mooring.dev/config")
            .await?;
        let annotation = format!("mooring.dev/config={CONFIG_NAMESPACE}/{}", other.name);
        scope.kubectl(["annotate", "--overwrite", &content, &annotation])?;
        for reader in ["new", "again"] {
            scope.pod_ready(reader).await?;
            assert_eq!(
                scope.exec(reader, ["sh", "-c", "sha256sum </data/file"])?,
                sum,
                "{reader}"
            );
        }
        without(&scope, "new", &uid).await?;
        without(&scope, "again", &waits).await?;

        // It is deleted once there is a ConfigMap for its storage again.
        other.delete()?;
        scope.kubectl(["delete", "--wait=false", "volumesnapshot/monday"])?;
        scope.event("monday", "annotate the VolumeSnapshotContent with").await?;
        ensure!(kept()? == format!("{backup}.xfs.img\n"), "{}", kept()?);
        other.apply().await?;
        scope.kubectl_wait(["wait", "--for=delete", &content]).await?;
        scope.no_run_left("delete-backup").await?;
        assert_eq!(kept()?, "");
        // With Retain only the objects go.
        scope.deleted("volumesnapshot/elsewhere").await?;
        Ok(())
    });
}
