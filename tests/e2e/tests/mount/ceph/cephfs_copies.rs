//! Snapshots and copies of directories of a Ceph file system, which the cluster itself makes.

use anyhow::{Context, Result, ensure};
use mooring_harness::Scope;
use mooring_harness::provisioner::claim;
use mooring_harness::server::Server;
use serde_json::{Value, json};

use super::{made_of, monday, take_on_monday, user_on};

const LIST: &str = "ceph fs subvolume ls cephfs --group_name mooring";

/// Makes a claim of a source's content, and reads on a node what is in it.
async fn has(scope: &Scope, node: &str, mut wanted: Value, day: &str) -> Result<String> {
    wanted["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    let name = wanted["metadata"]["name"].as_str().context("no name")?.to_owned();
    let uid = scope.claim_with(None, &wanted).await?;
    scope.claim_bound(&name).await?;
    scope.pod(&name, node, &name, Value::Null)?;
    scope.pod_ready(&name).await?;
    let said = scope.exec(&name, ["cat", "/data/day"])?;
    ensure!(said == day, "{name} has {said}");
    Ok(uid)
}

pub(super) async fn are_made_while_a_volume_is_written_and_outlive_it(
    scope: &Scope,
    server: &Server,
    nodes: [&str; 2],
) -> Result<()> {
    let _controller = scope.snapshot_controller()?;
    let operations = "provision, delete, expand, clone, snapshot, delete-snapshot, restore";
    let provisioner = scope
        .ceph_example("cephfs", server)?
        .key("volume-source", "csi")
        .key("operations", operations);
    provisioner.apply().await?;
    let class = &provisioner.class;
    let snapshots = scope.snapshot_class("Delete")?;
    let mut wanted = claim("data", class, "16Mi");
    wanted["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    let uid = scope.claim_with(None, &wanted).await?;
    scope.apply(&user_on(nodes[0], "first").to_string())?;
    scope.pod_ready("first").await?;
    take_on_monday(scope, &snapshots).await?;
    let seen = scope.exec("first", ["sh", "-c", "cat /data/.snap/*/day"])?;
    ensure!(seen == "monday\n", "{seen}");

    let restored = has(
        scope,
        nodes[1],
        made_of("restored", class, "32Mi", monday()),
        "monday\n",
    )
    .await?;
    let info = scope.on_ceph(&format!(
        "ceph fs subvolume info cephfs pvc-{restored} --group_name mooring"
    ))?;
    ensure!(info.contains("\"bytes_quota\": 33554432"), "{info}");
    let data = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    let copy = has(scope, nodes[1], made_of("copy", class, "16Mi", data), "tuesday\n").await?;
    let taken = scope.on_ceph(&format!(
        "ceph fs subvolume snapshot ls cephfs pvc-{uid} --group_name mooring"
    ))?;
    ensure!(
        taken.matches("name").count() == 1,
        "the copy left its snapshot: {taken}"
    );

    // It goes before what was made of it, and before what is made of its snapshot.
    scope.delete("pod/first")?;
    scope.pod_gone("first").await?;
    scope.claim_gone("data").await?;
    scope.nothing_left(&uid).await?;
    let late = has(scope, nodes[0], made_of("late", class, "16Mi", monday()), "monday\n").await?;
    scope.deleted("volumesnapshot/monday").await?;
    for (name, uid, day) in [
        ("restored", restored, "monday\n"),
        ("copy", copy, "tuesday\n"),
        ("late", late, "monday\n"),
    ] {
        ensure!(scope.exec(name, ["cat", "/data/day"])? == day, "{name}");
        scope.delete(&format!("pod/{name}"))?;
        scope.pod_gone(name).await?;
        scope.claim_gone(name).await?;
        scope.nothing_left(&uid).await?;
    }
    let left = scope.on_ceph(LIST)?;
    ensure!(left.trim() == "[]", "{left}");
    Ok(())
}
