//! What may be copied, and what is decided about a claim that asks for a copy.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use mooring_contract::operation::Operation;
use serde_json::{Value, json};

use crate::operation::content::{Content, ObservedSource, Permission, making};
use crate::operation::decision::{ClaimDecision, Decision, ForClaim};
use crate::operation::tests::{World, ago, ended, run, running};
use crate::process::events::reasons;
use crate::volume::acceptance::tests::volume;
use crate::volume::grant::Version;

const ALL: [Operation; 3] = [Operation::Provision, Operation::Delete, Operation::Clone];

fn content(spec: &Value) -> String {
    let claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": spec});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let content = Content::of(&claim);
    let named = match content {
        Content::Empty => "nothing".to_owned(),
        Content::Claim(source) => format!("claim {source}"),
        Content::Snapshot(source) => format!("snapshot {source}"),
        Content::Populated => "populated".to_owned(),
    };
    let needs = content.needs_grant(&claim).map_or("", |_| " by a grant");
    format!("{named}{needs}: {}", making(&claim).as_str())
}

#[test]
fn both_fields_say_the_same_and_what_they_name_decides() {
    let claim = json!({"kind": "PersistentVolumeClaim", "name": "old"});
    let there = |namespace: &str| json!({"kind": "PersistentVolumeClaim", "name": "old", "namespace": namespace});
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let foreign = json!({"apiGroup": "example.com", "kind": "Disk", "name": "d"});
    let elsewhere = |source: &Value| {
        let mut source = source.clone();
        source["namespace"] = json!("other");
        source
    };
    for (spec, want) in [
        (json!({}), "nothing: provision"),
        (json!({"dataSource": claim}), "claim old: clone"),
        (json!({"dataSourceRef": claim}), "claim old: clone"),
        (json!({"dataSource": claim, "dataSourceRef": claim}), "claim old: clone"),
        (json!({"dataSourceRef": there("")}), "claim old: clone"),
        (json!({"dataSourceRef": there("default")}), "claim old: clone"),
        (
            json!({"dataSourceRef": there("other")}),
            "claim other/old by a grant: clone",
        ),
        (json!({"dataSource": snapshot}), "snapshot s: restore"),
        (
            json!({"dataSourceRef": elsewhere(&snapshot)}),
            "snapshot other/s by a grant: restore",
        ),
        (json!({"dataSourceRef": foreign}), "populated: provision"),
        (json!({"dataSourceRef": elsewhere(&foreign)}), "populated: provision"),
    ] {
        assert_eq!(content(&spec), want, "{spec}");
    }
}

/// A claim that copies claim `old`, whose volume Mooring made.
fn world() -> (World, Value, Value) {
    let mut world = World::new().able_to(&ALL);
    world.claim["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "old"});
    world.claim["spec"]["dataSourceRef"] = json!({"kind": "PersistentVolumeClaim", "name": "old"});
    let claim = json!({"metadata": {"name": "old", "namespace": "default", "uid": "u0"},
                       "spec": {"volumeName": "pvc-u0"}});
    let mut from = volume();
    from["metadata"]["name"] = json!("pvc-u0");
    from["metadata"]["finalizers"] = json!(["mooring.dev/volume"]);
    from["metadata"]["annotations"] = json!({
        "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
        "mooring.dev/config": "admin/custom-isci-provisioner",
    });
    from["spec"]["claimRef"]["uid"] = json!("u0");
    (world, claim, from)
}

fn on_node(from: &mut Value, node: &str) {
    from["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}});
}

fn see(world: &mut World, claim: &Value, from: &Value) {
    world.source = ObservedSource {
        claim: serde_json::from_value(claim.clone()).ok().map(Arc::new),
        volume: serde_json::from_value(from.clone()).ok().map(Arc::new),
        ..ObservedSource::default()
    };
}

fn word(decision: &ClaimDecision) -> String {
    match decision {
        Decision::Wait { say: Some(say), .. } => format!("{}: {}", say.reason, say.text),
        Decision::Start(start) => format!(
            "{} on {:?}",
            start.run.name(),
            start.node.as_deref().unwrap_or_default()
        ),
        Decision::Own(ForClaim::Reschedule(reschedule)) => reschedule.say.text.clone(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_copy_is_made_as_any_volume_and_the_image_is_told_of_what() {
    let (mut world, claim, from) = world();
    see(&mut world, &claim, &from);
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(
        (start.run.operation, start.record.operation),
        (Operation::Clone, Operation::Clone)
    );
    assert_eq!(
        (start.request.operation, start.request.pv_name.as_str()),
        (Operation::Clone, "pvc-u1")
    );
    assert_eq!(start.record.source, "pvc-u0");
    assert!(start.record.copies("pvc-u0") && !start.record.copies("pvc-u1"));
    let source = start.request.source.clone().unwrap();
    assert_eq!((source.pv_name.as_str(), source.pvc_name.as_str()), ("pvc-u0", "old"));
    assert_eq!(
        (source.pvc_uid.as_str(), source.size, source.volume["source"].as_str()),
        ("u0", 1 << 30, "h:/x")
    );
}

type Change = Box<dyn Fn(&mut World, &mut Value, &mut Value)>;

#[test]
fn a_source_that_can_t_be_copied_yet_is_awaited_and_one_that_never_can_is_refused() {
    let table: Vec<(&str, &str, Change)> = vec![
        (
            reasons::WAITING,
            "does not exist yet",
            Box::new(|_, claim, _| *claim = Value::Null),
        ),
        (
            reasons::WAITING,
            "not bound",
            Box::new(|_, _, from| *from = Value::Null),
        ),
        (
            reasons::WAITING,
            "not bound",
            Box::new(|_, _, from| from["spec"]["claimRef"]["uid"] = json!("u9")),
        ),
        (
            reasons::WAITING,
            "operation in progress",
            Box::new(|_, claim, _| claim["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"])),
        ),
        (
            reasons::WAITING,
            "node gone",
            Box::new(|world, _, from| {
                *world = std::mem::replace(world, World::new()).with_config(&[
                    ("backend-volume", "client=pool"),
                    ("operations", "provision,delete,clone"),
                ]);
                on_node(from, "gone");
            }),
        ),
        (
            reasons::BAD_CLAIM,
            "being deleted",
            Box::new(|_, claim, _| claim["metadata"]["deletionTimestamp"] = json!(ago(1))),
        ),
        (
            reasons::BAD_CLAIM,
            "being deleted",
            Box::new(|_, _, from| from["metadata"]["deletionTimestamp"] = json!(ago(1))),
        ),
        (
            reasons::BAD_CLAIM,
            "Mooring did not make source volume",
            Box::new(|_, _, from| from["metadata"]["annotations"] = json!({})),
        ),
        (
            reasons::BAD_CLAIM,
            "ConfigMap admin/other made source volume",
            Box::new(|_, _, from| from["metadata"]["annotations"]["mooring.dev/config"] = json!("admin/other")),
        ),
        (
            reasons::BAD_CLAIM,
            "ask for at least as much",
            Box::new(|_, _, from| from["spec"]["capacity"]["storage"] = json!("2Gi")),
        ),
        (
            reasons::BAD_CLAIM,
            "volumeMode Block",
            Box::new(|_, _, from| from["spec"]["volumeMode"] = json!("Block")),
        ),
        (
            reasons::BAD_CLAIM,
            "claim itself",
            Box::new(|world, _, _| world.claim["metadata"]["name"] = json!("old")),
        ),
        (
            reasons::BAD_CLAIM,
            "does not list \"clone\"",
            Box::new(|world, _, _| {
                *world = std::mem::replace(world, World::new()).able_to(&[Operation::Provision, Operation::Delete]);
            }),
        ),
        (
            reasons::BAD_CLAIM,
            "does not list \"restore\"",
            Box::new(|world, _, _| {
                let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
                world.claim["spec"]["dataSourceRef"] = snapshot;
            }),
        ),
    ];
    for (at, (reason, text, change)) in table.iter().enumerate() {
        let (mut world, mut claim, mut from) = world();
        change(&mut world, &mut claim, &mut from);
        see(&mut world, &claim, &from);
        let said = word(&world.plan());
        let text = text.replace("node gone", "node gone, which is not in the cluster");
        assert!(said.starts_with(reason) && said.contains(&text), "row {at}: {said}");
    }
}

/// The world of [`world`], with the source in namespace `other`.
fn elsewhere(access: Permission) -> World {
    let (mut world, mut claim, mut from) = world();
    let named = world.claim["spec"]["dataSourceRef"].take();
    world.claim["spec"] = json!({"resources": world.claim["spec"]["resources"],
                                 "accessModes": world.claim["spec"]["accessModes"],
                                 "storageClassName": world.claim["spec"]["storageClassName"],
                                 "dataSourceRef": named});
    world.claim["spec"]["dataSourceRef"]["namespace"] = json!("other");
    claim["metadata"]["namespace"] = json!("other");
    from["spec"]["claimRef"]["namespace"] = json!("other");
    see(&mut world, &claim, &from);
    world.source.access = access;
    world
}

#[test]
fn what_is_in_another_namespace_is_copied_by_its_grant_only() {
    let Decision::Start(start) = elsewhere(Permission::Granted).plan() else {
        panic!()
    };
    let source = start.request.source.clone().unwrap();
    assert_eq!(
        (source.pvc_namespace.as_str(), source.pvc_name.as_str()),
        ("other", "old")
    );
    assert_eq!(start.request.pvc_namespace, "default");
    for (access, reason, text) in [
        (
            Permission::Refused(Version::V1Beta1),
            reasons::BAD_CLAIM,
            "no ReferenceGrant in namespace \"other\" lets claims of namespace \"default\" use PersistentVolumeClaim \
             \"old\": have somebody with write access there run kubectl create -f - \
             <<<'{\"apiVersion\":\"gateway.networking.k8s.io/v1beta1\",\"kind\":\"ReferenceGrant\",",
        ),
        (
            Permission::NoApi,
            reasons::BAD_CLAIM,
            "install CustomResourceDefinition referencegrants.gateway.networking.k8s.io",
        ),
        (
            Permission::NotKnown,
            reasons::WAITING,
            "has not read the ReferenceGrants",
        ),
    ] {
        let said = word(&elsewhere(access).plan());
        assert!(said.starts_with(reason) && said.contains(text), "{access:?}: {said}");
        // An Event has no room for more.
        assert!(said.len() < 800, "{said}");
    }
}

#[test]
fn nobody_learns_without_a_grant_what_there_is_in_another_namespace() {
    let there = word(&elsewhere(Permission::Refused(Version::V1)).plan());
    let mut gone = elsewhere(Permission::Refused(Version::V1));
    gone.source = ObservedSource {
        access: gone.source.access,
        ..ObservedSource::default()
    };
    assert_eq!(word(&gone.plan()), there);
}

#[test]
fn a_claim_of_the_same_name_in_another_namespace_is_not_the_claim_itself() {
    let mut world = elsewhere(Permission::Granted);
    world.claim["metadata"]["name"] = json!("old");
    assert_eq!(word(&world.plan()), "clone-u1 on \"\"");
    // What is waited for is named with its namespace.
    world.source.claim = None;
    let said = word(&world.plan());
    assert!(said.contains("source claim \"other/old\" does not exist"), "{said}");
}

#[test]
fn a_grant_that_is_taken_back_counts_for_the_next_attempt() {
    let mut world = elsewhere(Permission::Refused(Version::V1));
    let begun = json!({"operation": "clone", "pod": "admin/clone-u1", "source": "pvc-u0"});
    world.record = Some(crate::operation::tests::record(&begun));
    let Decision::Record(idle) = world.plan() else { panic!() };
    assert!(!idle.copies("pvc-u0") && idle.may_exist);
    world.record = Some(*idle);
    let said = word(&world.plan());
    assert!(
        said.starts_with(reasons::BAD_CLAIM) && said.contains("no ReferenceGrant"),
        "{said}"
    );
}

#[test]
fn what_a_populator_makes_is_left_to_it_without_a_word() {
    let (mut world, ..) = world();
    world.claim["spec"]["dataSourceRef"] = json!({"apiGroup": "example.com", "kind": "Disk", "name": "d"});
    world.claim["spec"]["dataSource"] = Value::Null;
    assert!(matches!(world.plan(), Decision::Rest));
    world.config = Err(crate::config::store::NoConfig::HalfNamed { class: "silver".into() });
    assert!(matches!(world.plan(), Decision::Rest));
}

#[test]
fn a_copy_of_a_node_s_volume_is_made_on_that_node() {
    let local = [
        ("backend-volume", "client=pool"),
        ("operations", "provision,delete,clone"),
    ];
    for (selected, want) in [
        (None, "clone-u1 on \"node-a\""),
        (Some("node-a"), "clone-u1 on \"node-a\""),
        // The scheduler does not know of the source, and goes by the new volume.
        (Some("node-b"), "clone-u1 on \"node-a\""),
    ] {
        let (world, claim, mut from) = world();
        let mut world = world.with_config(&local);
        if let Some(node) = selected {
            world = world.selected(node);
        }
        on_node(&mut from, "node-a");
        see(&mut world, &claim, &from);
        assert!(
            word(&world.plan()).starts_with(want),
            "{selected:?}: {}",
            word(&world.plan())
        );
    }
}

#[test]
fn a_copy_is_tried_again_on_the_node_of_its_source_wherever_its_pod_goes() {
    let local = [
        ("backend-volume", "client=pool"),
        ("operations", "provision,delete,clone"),
    ];
    let (world, claim, mut from) = world();
    let mut world = world.with_config(&local).selected("node-b");
    on_node(&mut from, "node-a");
    see(&mut world, &claim, &from);
    let failed = json!({"operation": "clone", "pod": "admin/clone-u1", "source": "pvc-u0", "node": "node-a",
        "attempt": 1, "may-exist": true});
    world.record = Some(crate::operation::tests::record(&failed));
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(start.node.as_deref(), Some("node-a"));
    let request = [("mooring.dev/request".to_owned(), json!(start.request).to_string())];
    let ended = run("clone", 1, 10, &ended(0, ""));
    world.provision_run = Some(ended.changed(|carrier| carrier.metadata.annotations = Some(request.into())));
    let mut made = volume();
    on_node(&mut made, "node-a");
    world.volumes = vec![made.clone()];
    assert!(
        matches!(world.plan(), Decision::Own(ForClaim::Accept(_))),
        "{:?}",
        world.plan()
    );
    // What is no copy has to be where its Pod waits.
    world.looked_up = true;
    world.record.as_mut().unwrap().source.clear();
    assert!(
        matches!(world.plan(), Decision::Own(ForClaim::Refuse(_))),
        "{:?}",
        world.plan()
    );
}

#[test]
fn a_copy_that_was_begun_goes_on_as_one() {
    let (mut world, claim, from) = world();
    let begun = json!({"operation": "clone", "pod": "admin/clone-u1", "source": "pvc-u0"});
    world.record = Some(crate::operation::tests::record(&begun));
    see(&mut world, &claim, &from);
    assert_eq!(word(&world.plan()), "clone-u1 on \"\"");
    // Of its source nothing is asked while it runs.
    world.source = ObservedSource::default();
    world.provision_run = Some(run("clone", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Wait { say: None, .. }));
    world.provision_run = Some(run("clone", 1, 10, &ended(75, "busy")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert!(
        failed.say.text.starts_with("cloning failed: exit code 75: busy"),
        "{}",
        failed.say.text
    );
    assert!(!failed.record.copies("pvc-u0"), "nothing runs until the next attempt");
    assert_eq!(failed.record.operation, Operation::Clone);
}

#[test]
fn what_can_t_be_begun_any_more_does_not_hold_its_source() {
    let (mut world, mut claim, from) = world();
    let begun = json!({"operation": "clone", "pod": "admin/clone-u1", "source": "pvc-u0"});
    world.record = Some(crate::operation::tests::record(&begun));
    claim["metadata"]["deletionTimestamp"] = json!(ago(1));
    see(&mut world, &claim, &from);
    let Decision::Record(idle) = world.plan() else { panic!() };
    assert!(!idle.copies("pvc-u0") && idle.may_exist);
    world.record = Some(*idle);
    let said = word(&world.plan());
    assert!(said.starts_with(reasons::BAD_CLAIM), "{said}");
    assert!(!matches!(world.try_plan(), Decision::Own(ForClaim::LookUp)));
    // Another of its name is no substitute.
    claim["metadata"] = json!({"name": "old", "namespace": "default", "uid": "u8"});
    let mut other = from.clone();
    other["metadata"]["name"] = json!("pvc-u8");
    other["spec"]["claimRef"]["uid"] = json!("u8");
    see(&mut world, &claim, &other);
    assert!(
        word(&world.plan()).contains("no longer has volume pvc-u0"),
        "{}",
        word(&world.plan())
    );
}

#[test]
fn a_backup_is_restored_on_any_node_by_the_configmap_that_its_content_names() {
    let restored = |handle: &str, annotations: Value| {
        let (world, ..) = world();
        let mut world = world
            .with_config(&[
                ("backend-volume", "client=pool"),
                ("operations", "provision,delete,restore"),
            ])
            .selected("node-b");
        let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        world.claim["spec"]["dataSource"] = source.clone();
        world.claim["spec"]["dataSourceRef"] = source;
        let content = crate::volume::snapshot::tests::content(&json!({
            "metadata": {"annotations": annotations},
            "spec": {"source": {"snapshotHandle": handle}},
            "status": {"snapshotHandle": handle, "readyToUse": true},
        }));
        let snapshot = json!({
            "metadata": {"name": "monday", "namespace": "default", "uid": "v1"},
            "status": {"boundVolumeSnapshotContentName": "snapcontent-s1", "readyToUse": true},
        });
        world.source = ObservedSource {
            snapshot: serde_json::from_value(snapshot).ok().map(Arc::new),
            content: serde_json::from_value(content).ok().map(Arc::new),
            ..ObservedSource::default()
        };
        world.plan()
    };
    // Of another cluster, where the ConfigMap has another name.
    let here = json!({"mooring.dev/config": "admin/custom-isci-provisioner"});
    let Decision::Start(start) = restored("backup:far/away/backup-7", here.clone()) else {
        panic!()
    };
    assert_eq!(
        (start.run.operation, start.node.as_deref()),
        (Operation::Restore, Some("node-b"))
    );
    assert_eq!(start.record.source, "backup:far/away/backup-7");
    let backup = start.request.snapshot.clone().unwrap();
    assert!(backup.backup && backup.name == "backup-7", "{backup:?}");
    let Decision::Start(start) = restored("admin/custom-isci-provisioner/snapshot-7", json!({})) else {
        panic!()
    };
    assert!(!start.request.snapshot.unwrap().backup);
    let said = word(&restored("backup:far/away/backup-7", json!({})));
    let cure = "annotate its content with mooring.dev/config=admin/custom-isci-provisioner";
    assert!(
        said.contains("ConfigMap far/away took") && said.contains(cure),
        "{said}"
    );
}

#[test]
fn a_restore_in_a_cluster_without_snapshots_is_told_what_the_cluster_lacks() {
    let mut world = World::new().able_to(&[Operation::Provision, Operation::Delete, Operation::Restore]);
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"});
    world.claim["spec"]["dataSource"] = snapshot.clone();
    world.claim["spec"]["dataSourceRef"] = snapshot;
    for (has_snapshot_api, want) in [
        (None, "does not exist"),
        (Some(true), "does not exist"),
        (Some(false), "the cluster has no snapshot API"),
    ] {
        world.source = ObservedSource {
            has_snapshot_api,
            ..ObservedSource::default()
        };
        let said = word(&world.plan());
        assert!(said.contains(want) && said.contains("Mooring waits for"), "{said}");
    }
}
