//! Snapshots of groups of volumes, by the API and the controller of kubernetes-csi.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt as _;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL, claim, user_of};
use mooring_harness::snapshots::group_snapshot_of;
use mooring_harness::{Scope, in_namespace, wait_until};
use serde_json::{Value, json};

/// What a content of a group is called.
const CONTENT: &str = "volumegroupsnapshotcontent";

fn field(scope: &Scope, object: &str, path: &str) -> Result<String> {
    scope.kubectl(["get", object, &format!("-o=jsonpath={{{path}}}")])
}

async fn ready(scope: &Scope, object: &str) -> Result<()> {
    scope
        .kubectl_wait(["wait", "--for=jsonpath={.status.readyToUse}=true", object])
        .await
}

/// Creates a claim that is one of the group `db`.
async fn member(scope: &Scope, name: &str, class: &str, size: &str) -> Result<String> {
    let mut wanted = claim(name, class, size);
    wanted["metadata"]["labels"] = json!({"app": "db"});
    scope.claim_with(None, &wanted).await
}

/// Claim `name`, to be made of snapshot `snapshot`.
fn restored(snapshot: &str, name: &str, class: &str, size: &str) -> Value {
    let mut claim = claim(name, class, size);
    claim["spec"]["dataSource"] =
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot});
    claim
}

/// A Pod with the first claim at `/data` and the second at `/more`.
fn user_of_both(name: &str, first: &str, second: &str) -> Value {
    let mut pod = user_of(name, first, "sleep 1000000");
    let mount = json!({"name": "more", "mountPath": "/more"});
    let volume = json!({"name": "more", "persistentVolumeClaim": {"claimName": second}});
    for (path, value) in [("/spec/containers/0/volumeMounts", mount), ("/spec/volumes", volume)] {
        if let Some(list) = pod.pointer_mut(path).and_then(Value::as_array_mut) {
            list.push(value);
        }
    }
    pod
}

/// The snapshots of the namespace, by the claims that they are of.
fn by_claim(scope: &Scope) -> Result<BTreeMap<String, String>> {
    let all = "-o=jsonpath={range .items[*]}{.spec.source.persistentVolumeClaimName} {.metadata.name}{\"\\n\"}{end}";
    let said = scope.kubectl(["get", "volumesnapshots", all])?;
    let pairs = said.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs.map(|(claim, name)| (claim.to_owned(), name.to_owned())).collect())
}

fn content_of(scope: &Scope, group: &str) -> Result<String> {
    let path = ".status.boundVolumeGroupSnapshotContentName";
    Ok(format!("{CONTENT}/{}", field(scope, group, path)?))
}

/// Proves: P1
#[test]
fn one_run_snapshots_the_volumes_of_a_group_and_they_are_restored_and_deleted() {
    in_namespace("group-local", async |scope| {
        let _controller = scope.snapshot_controller()?;
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/provisioner-local:0.1.0")
            .key("backend-volume", "client=pool")
            .key("volume-source", "csi")
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .key("operations", "provision, delete, snapshot-group, delete-group, restore");
        provisioner.apply().await?;
        let groups = scope.group_snapshot_class("Delete")?;
        // A file system other than the image's own choice: it has to be remembered of each volume.
        let class = provisioner.class_of("xfs")?;
        member(&scope, "one", &class, "320Mi").await?;
        member(&scope, "two", &class, "320Mi").await?;
        scope.apply(&user_of_both("writer", "one", "two").to_string())?;
        let writer = scope.pod_ready("writer").await?;
        let node = writer.spec.and_then(|spec| spec.node_name).context("no node")?;
        let write = |word: &str| {
            let script = format!("echo {word} one >/data/file; echo {word} two >/more/file; sync");
            scope.exec("writer", ["sh", "-euc", &script])
        };
        write("monday")?;

        scope.apply(&group_snapshot_of("app", "db", "monday", &groups).to_string())?;
        ready(&scope, "volumegroupsnapshot/monday").await?;
        write("tuesday")?;
        let content = content_of(&scope, "volumegroupsnapshot/monday")?;
        let handle = field(&scope, &content, ".status.volumeGroupSnapshotHandle")?;
        let own = format!("group:{CONFIG_NAMESPACE}/{}/groupsnapshot-", provisioner.name);
        ensure!(
            handle.starts_with(&own) && handle.ends_with(&format!("@{node}")),
            "{handle}"
        );
        scope
            .kubectl_wait([
                "wait",
                "--for=jsonpath={.status.readyToUse}=true",
                "volumesnapshots",
                "--all",
            ])
            .await?;
        let snapshots = by_claim(&scope)?;
        ensure!(snapshots.len() == 2, "{snapshots:?}");

        for (source, name) in [("one", "first"), ("two", "second")] {
            let snapshot = snapshots.get(source).context("no snapshot of the claim")?;
            scope
                .claim_with(None, &restored(snapshot, name, &class, "320Mi"))
                .await?;
        }
        let mut reader = user_of_both("reader", "first", "second");
        reader["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        scope.apply(&reader.to_string())?;
        scope.pod_ready("reader").await?;
        let read = |pod: &str| scope.exec(pod, ["cat", "/data/file", "/more/file"]);
        assert_eq!(read("reader")?, "monday one\nmonday two\n");
        assert_eq!(read("writer")?, "tuesday one\ntuesday two\n");

        // All of it goes with the user's one object.
        let contents = scope.kubectl([
            "get",
            "volumesnapshots",
            "-o=jsonpath={.items[*].status.boundVolumeSnapshotContentName}",
        ])?;
        scope.deleted("volumegroupsnapshot/monday").await?;
        scope.kubectl_wait(["wait", "--for=delete", &content]).await?;
        scope
            .kubectl_wait(["wait", "--for=delete", "volumesnapshots", "--all"])
            .await?;
        for content in contents.split_whitespace() {
            let content = format!("volumesnapshotcontent/{content}");
            scope.kubectl_wait(["wait", "--for=delete", &content]).await?;
        }
        scope.no_run_left("delete-group").await
    });
}

/// Volumes that are never mounted, whose snapshots exist in words only.
fn in_words(scope: &Scope, name: &str) -> Provisioner {
    scope
        .provisioner_named(name)
        .key("volume-source", "csi")
        .on_provision("pv options client=sshfs source=nobody@192.0.2.1:/\"$PV_NAME\"")
        .key("operations", "provision, delete, snapshot-group, delete-group, restore")
}

#[test]
fn a_group_that_no_one_run_can_take_is_refused_with_the_reason() {
    in_namespace("group-refused", async |scope| {
        let _controller = scope.snapshot_controller()?;
        let groups = scope.group_snapshot_class("Delete")?;
        let (here, there) = (in_words(&scope, ""), in_words(&scope, "-more"));
        here.apply().await?;
        there.apply().await?;
        for (name, provisioner) in [("one", &here), ("two", &there)] {
            member(&scope, name, &provisioner.class, "16Mi").await?;
            scope.claim_bound(name).await?;
        }
        scope.apply(&group_snapshot_of("app", "db", "mixed", &groups).to_string())?;
        scope
            .event("mixed", "have the selector choose claims of one ConfigMap only")
            .await?;
        // The snapshot-controller writes errors of its own there too, and takes them away from a status that it had not
        // seen yet.
        let status = "the status to have the reason";
        wait_until(status, Duration::from_mins(3), async || {
            let error = field(&scope, "volumegroupsnapshot/mixed", ".status.error.message")?;
            Ok(error.contains("one ConfigMap only").then_some(()))
        })
        .await?;
        scope.deleted("volumegroupsnapshot/mixed").await?;

        here.key("operations", "provision, delete, snapshot, delete-snapshot")
            .apply()
            .await?;
        scope.kubectl(["label", "persistentvolumeclaim/two", "app-"])?;
        scope.apply(&group_snapshot_of("app", "db", "unable", &groups).to_string())?;
        scope.event("unable", "does not list \"snapshot-group\"").await?;
        scope.deleted("volumegroupsnapshot/unable").await?;
        Ok(())
    });
}

/// Proves: P1
#[test]
fn a_group_is_taken_after_its_image_was_killed_and_stays_with_retain() {
    in_namespace("group-kept", async |scope| {
        let _controller = scope.snapshot_controller()?;
        let groups = scope.group_snapshot_class("Retain")?;
        let provisioner = in_words(&scope, "")
            .key("snapshot-group-script", "until [ -e /tmp/go ]; do sleep 0.1; done")
            // Of what an administrator has named, nothing is known but the names.
            .key(
                "delete-group-script",
                "[ \"$(pv members)\" = '- monday 0' ] || { pv members; exit 78; }",
            );
        provisioner.apply().await?;
        for name in ["one", "two"] {
            member(&scope, name, &provisioner.class, "16Mi").await?;
            scope.claim_bound(name).await?;
        }
        scope.apply(&group_snapshot_of("app", "db", "monday", &groups).to_string())?;
        let bound = "--for=jsonpath={.status.boundVolumeGroupSnapshotContentName}";
        scope
            .kubectl_wait(["wait", bound, "volumegroupsnapshot/monday"])
            .await?;
        let content = content_of(&scope, "volumegroupsnapshot/monday")?;
        let uid = field(&scope, &content, ".metadata.uid")?;
        let killed = scope.runs("snapshot-group", &uid).await?.uid();
        let pod = format!("pod/snapshot-group-{uid}");
        scope.kubectl(["delete", "-n", CONFIG_NAMESPACE, &pod, "--grace-period=0", "--force"])?;
        scope
            .run_until("snapshot-group", &uid, "to be made again", |pod| pod.uid() != killed)
            .await?;
        scope.runs("snapshot-group", &uid).await?;
        scope.let_run_go_on("snapshot-group", &uid)?;
        ready(&scope, "volumegroupsnapshot/monday").await?;

        scope.deleted("volumegroupsnapshot/monday").await?;
        scope
            .kubectl_wait(["wait", "--for=delete", "volumesnapshots", "--all"])
            .await?;
        let handle = field(&scope, &content, ".status.volumeGroupSnapshotHandle")?;
        ensure!(handle.contains("/groupsnapshot-"), "{handle}");
        // What is retained, an administrator removes.
        let volumes = "-o=jsonpath={.status.volumeSnapshotInfoList[*].snapshotHandle}";
        let members = scope.kubectl(["get", &content, volumes])?;
        ensure!(members.split_whitespace().count() == 2, "{members}");
        let all = "-o=jsonpath={range .items[*]}{.status.volumeGroupSnapshotHandle} {.metadata.name}{\"\\n\"}{end}";
        let kept = scope.kubectl(["get", "volumesnapshotcontents", all])?;
        let kept = kept.lines().filter_map(|line| line.split_once(' '));
        let kept: Vec<_> = kept.filter(|(of, _)| *of == handle).map(|(_, name)| name).collect();
        ensure!(kept.len() == 2, "{kept:?}");
        for name in kept {
            scope.deleted(&format!("volumesnapshotcontent/{name}")).await?;
        }
        scope.deleted(&content).await?;

        // A group that he has named, with the policy Delete.
        let name = format!("{}-named", scope.namespace);
        let place = format!("{CONFIG_NAMESPACE}/{}", provisioner.name);
        scope.apply_anywhere(
            &json!({
                "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
                "metadata": {"name": name, "labels": {TEST_LABEL: scope.namespace}},
                "spec": {
                    "driver": "vcs.mooring.dev", "deletionPolicy": "Delete",
                    "source": {"groupSnapshotHandles": {
                        "volumeGroupSnapshotHandle": format!("group:{place}/week"),
                        "volumeSnapshotHandles": [format!("{place}/monday")],
                    }},
                    "volumeGroupSnapshotRef": {"name": "named", "namespace": scope.namespace},
                },
            })
            .to_string(),
        )?;
        scope.apply(
            &json!({
                "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
                "metadata": {"name": "named"},
                "spec": {"source": {"volumeGroupSnapshotContentName": name}},
            })
            .to_string(),
        )?;
        ready(&scope, "volumegroupsnapshot/named").await?;
        scope.deleted("volumegroupsnapshot/named").await?;
        scope
            .kubectl_wait(["wait", "--for=delete", &format!("{CONTENT}/{name}")])
            .await?;
        Ok(())
    });
}
