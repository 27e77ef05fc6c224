use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use serde_json::{Value, json};

use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::operation::decision::{Decision, SnapshotDecision};
use crate::operation::limits::Limits;
use crate::operation::observed::{ObservedSnapshot, ObservedTarget};
use crate::operation::record::Record;
use crate::operation::snapshot::{form_of, plan_snapshot};
use crate::operation::tests::{ago, config, ended, now, run_with};
use crate::operation::waits::assert_told;
use crate::process::events::reasons;
use crate::run::Run;
use crate::run::properties::tests::silver;
use crate::volume::acceptance;
use crate::volume::content_view::ContentView;
use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::group_snapshot::tests::group_content;
use crate::volume::snapshot::tests::content;
use crate::volume::snapshot::{VolumeSnapshotClass, VolumeSnapshotContent};
use crate::volume::topology::Node;

const ALL: (&str, &str) = (
    "operations",
    "provision,delete,snapshot,delete-snapshot,snapshot-group,delete-group,restore",
);

/// The reason of Events about groups that can't be taken.
const GROUP_FAILED: &str = "GroupSnapshotCreationFailed";

/// All that a plan sees of a group, to be changed by each test.
struct World {
    content: Value,
    volumes: [Value; 2],
    claims: [Value; 2],
    config: Result<Arc<ProvisionerConfig>, NoConfig>,
    class: Option<VolumeSnapshotClass>,
    record: Option<Record>,
    take_run: Option<Run>,
}

fn volume(uid: &str) -> Value {
    let mut volume = acceptance::tests::volume();
    let mut made_by = silver();
    (made_by.pv_name, made_by.pvc_uid) = (format!("pvc-{uid}"), uid.into());
    made_by.pvc_name = format!("data-{uid}");
    made_by.parameters.insert("pool".into(), "fast".into());
    volume["metadata"] = json!({"name": made_by.pv_name, "finalizers": ["mooring.dev/volume"], "annotations": {
        "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
        "mooring.dev/config": "admin/custom-isci-provisioner",
        "mooring.dev/request": json!(made_by).to_string()}});
    volume
}

fn claim(uid: &str) -> Value {
    json!({"metadata": {"name": format!("data-{uid}"), "namespace": "default", "uid": uid}})
}

fn world() -> World {
    World {
        content: group_content(&json!({})),
        volumes: ["u1", "u2"].map(volume),
        claims: ["u1", "u2"].map(claim),
        config: Ok(Arc::new(config(&[ALL]))),
        class: Some(VolumeSnapshotClass {
            parameters: Some([("depth".to_owned(), "2".to_owned())].into()),
            ..VolumeSnapshotClass::default()
        }),
        record: None,
        take_run: None,
    }
}

impl World {
    fn plan(&self) -> SnapshotDecision {
        assert_told(|at| self.plan_at(at).silent_wait());
        self.plan_at(now())
    }

    fn plan_at(&self, now: Timestamp) -> SnapshotDecision {
        let content: VolumeGroupSnapshotContent = serde_json::from_value(self.content.clone()).unwrap();
        let content = ContentView::from(&content);
        let volumes = self
            .volumes
            .iter()
            .cloned()
            .map(serde_json::from_value::<Option<PersistentVolume>>);
        let claims = self
            .claims
            .iter()
            .cloned()
            .map(serde_json::from_value::<Option<PersistentVolumeClaim>>);
        let targets: Vec<_> = std::iter::zip(content.volumes, volumes.zip(claims))
            .map(|(handle, (volume, claim))| ObservedTarget {
                handle: handle.clone(),
                volume: volume.unwrap().map(Arc::new),
                claim: claim.unwrap().map(Arc::new),
            })
            .collect();
        let seen = ObservedSnapshot {
            content: &content,
            form: form_of(&content, self.record.as_ref(), self.class.as_ref()),
            record: self.record.as_ref(),
            class: self.class.as_ref(),
            targets: &targets,
            group: None,
            config: &self.config,
            snapshot_run: self.take_run.as_ref(),
            delete_run: None,
            restored_by: None,
            by_host: &|host| {
                Some(Node {
                    name: host.to_owned(),
                    labels: [].into(),
                })
            },
            away_since: None,
            kube_api: "https://k:1",
            limits: &Limits::default(),
        };
        plan_snapshot(&seen, now)
    }

    fn on_node(&mut self, index: usize, node: &str) {
        self.volumes[index]["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}});
    }
}

fn said(decision: &SnapshotDecision) -> String {
    match decision {
        Decision::Wait { say: Some(say), .. } => format!("{}: {}", say.reason, say.text),
        Decision::Settle(settled) => match &settled.say {
            Some(say) => format!("{}: {}", say.reason, say.text),
            None => format!("{:?}", settled.status),
        },
        Decision::Start(start) => format!("start {}", start.run.name()),
        other => format!("{other:?}"),
    }
}

#[test]
fn one_run_is_told_of_all_volumes_and_of_no_single_one() {
    let mut world = world();
    world.config = Ok(Arc::new(config(&[ALL, ("backend-volume", "client=pool")])));
    world.on_node(0, "node-a");
    world.on_node(1, "node-a");
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(start.run.name(), "snapshot-group-s1");
    assert_eq!(start.node.as_deref(), Some("node-a"));
    assert_eq!(
        start.record.source,
        "group:admin/custom-isci-provisioner/groupsnapshot-v1@node-a"
    );
    let request = &start.request;
    assert_eq!(
        (request.operation, request.pv_name.as_str()),
        (Operation::SnapshotGroup, "")
    );
    assert_eq!((request.pvc_namespace.as_str(), request.size), ("default", 2 << 30));
    assert_eq!(request.deletion_policy, "Delete");
    assert_eq!(request.parameters["depth"], "2");
    let names: Vec<_> = request
        .members()
        .iter()
        .map(|member| member.snapshot_name.as_str())
        .collect();
    assert_eq!(names, ["groupsnapshot-v1.pvc-u1", "groupsnapshot-v1.pvc-u2"]);
    let member = &request.members()[1];
    assert_eq!(
        (member.volume_handle.as_str(), member.pvc_name.as_str()),
        ("pvc-u2", "data-u2")
    );
    assert!(!member.volume.is_empty());
    // What the ConfigMap says of all of them is said once.
    assert!(request.parameters.contains_key("use-nfs-server"));
    assert_eq!(member.parameters, [("pool".to_owned(), "fast".to_owned())].into());
    assert!(request.is_about("pvc-u1") && request.is_about("pvc-u2") && !request.is_about("pvc-u3"));
}

/// The reason, a part of the text, and the change that brings it.
type Row = (&'static str, &'static str, fn(&mut World));

#[test]
fn a_group_that_can_t_be_taken_by_one_run_says_why() {
    let table: &[Row] = &[
        (GROUP_FAILED, "of one ConfigMap only", |world| {
            world.volumes[1]["metadata"]["annotations"]["mooring.dev/config"] = json!("admin/gold");
        }),
        (GROUP_FAILED, "are on nodes node-a and node-b", |world| {
            world.config = Ok(Arc::new(config(&[ALL, ("backend-volume", "client=pool")])));
            world.on_node(0, "node-a");
            world.on_node(1, "node-b");
        }),
        (GROUP_FAILED, "groups can't be backed up", |world| {
            let parameters = world.class.get_or_insert_default().parameters.get_or_insert_default();
            parameters.insert("mooring.dev/backup".to_owned(), "true".to_owned());
        }),
        (GROUP_FAILED, "there is no PersistentVolume \"pvc-u2\"", |world| {
            world.volumes[1] = Value::Null;
        }),
        (GROUP_FAILED, "Mooring did not make volume pvc-u2", |world| {
            world.volumes[1]["metadata"]["annotations"] = json!({});
        }),
        (GROUP_FAILED, "has no claim any more", |world| {
            world.claims[0] = Value::Null;
        }),
        (GROUP_FAILED, "does not list \"snapshot-group\"", |world| {
            world.config = Ok(Arc::new(config(&[("operations", "provision,delete,snapshot")])));
        }),
        (GROUP_FAILED, "does not list \"delete-group\"", |world| {
            world.config = Ok(Arc::new(config(&[("operations", "provision,delete,snapshot-group")])));
        }),
        (
            reasons::WAITING,
            "VolumeGroupSnapshotClass \"silver\" does not exist",
            |world| {
                world.class = None;
            },
        ),
        (reasons::WAITING, "has an operation in progress", |world| {
            world.claims[1]["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"]);
        }),
        (GROUP_FAILED, "is not the handle of a snapshot", |world| {
            world.content["spec"]["source"] = json!({"groupSnapshotHandles": {
                "volumeGroupSnapshotHandle": "admin/gold/week", "volumeSnapshotHandles": ["admin/gold/a"]}});
        }),
    ];
    for (reason, text, change) in table {
        let mut world = world();
        change(&mut world);
        let said = said(&world.plan());
        assert!(said.starts_with(reason) && said.contains(text), "{said}");
    }
}

#[test]
fn a_group_that_is_there_lists_its_snapshots_by_their_volumes() {
    let mut world = world();
    let Decision::Start(start) = world.plan() else { panic!() };
    let request = json!(start.request);
    world.record = Some(start.record);
    world.take_run = Some(run_with("snapshot-group", 1, 9, &ended(0, ""), &request));
    let Decision::Settle(settled) = world.plan() else {
        panic!()
    };
    let status = settled.status.unwrap();
    assert_eq!(
        status["volumeGroupSnapshotHandle"],
        "group:admin/custom-isci-provisioner/groupsnapshot-v1"
    );
    let second = &status["volumeSnapshotInfoList"][1];
    assert_eq!(second["volumeHandle"], "pvc-u2");
    assert_eq!(
        second["snapshotHandle"],
        "admin/custom-isci-provisioner/groupsnapshot-v1.pvc-u2"
    );
    assert_eq!(
        (second["readyToUse"].clone(), second["restoreSize"].clone()),
        (json!(true), json!(1_u64 << 30))
    );
    assert!(status["creationTime"].as_str().unwrap().parse::<Timestamp>().is_ok());
}

#[test]
fn a_group_that_an_administrator_has_named_is_ready_and_is_deleted_by_its_names() {
    let mut world = world();
    let place = "admin/custom-isci-provisioner";
    world.content["spec"]["source"] = json!({"groupSnapshotHandles": {
        "volumeGroupSnapshotHandle": format!("group:{place}/week"),
        "volumeSnapshotHandles": [format!("{place}/monday"), format!("{place}/tuesday")]}});
    assert!(said(&world.plan()).contains("\"readyToUse\": Bool(true)"));
    world.content["metadata"]["deletionTimestamp"] = json!(ago(1));
    world.content["metadata"]["annotations"]["groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"] =
        json!("yes");
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(start.run.name(), "delete-group-s1");
    let names: Vec<_> = start
        .request
        .members()
        .iter()
        .map(|member| member.snapshot_name.as_str())
        .collect();
    assert_eq!(names, ["monday", "tuesday"]);
    // They are where the group is.
    world.content["spec"]["source"]["groupSnapshotHandles"]["volumeSnapshotHandles"] = json!(["admin/gold/monday"]);
    assert!(said(&world.plan()).contains("is not the handle of a snapshot"));
}

/// The content of one snapshot of the group, as snapshot-controller makes it.
fn member_content(change: &Value) -> VolumeSnapshotContent {
    let mut content = content(&json!({
        "metadata": {"annotations": {"groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "group:a/b/c"}},
    }));
    content["status"] = json!({
        "snapshotHandle": "admin/custom-isci-provisioner/groupsnapshot-v1.pvc-u2", "readyToUse": true,
        "volumeGroupSnapshotHandle": "group:a/b/c",
    });
    for (key, value) in change.as_object().unwrap() {
        content["metadata"][key] = value.clone();
    }
    serde_json::from_value(content).unwrap()
}

fn plan_member(member: &VolumeSnapshotContent, group: Option<&VolumeGroupSnapshotContent>) -> SnapshotDecision {
    let view = member.view();
    let config = Ok(Arc::new(config(&[ALL])));
    let seen = ObservedSnapshot {
        content: &view,
        form: form_of(&view, None, None),
        record: None,
        class: None,
        targets: &[],
        group,
        config: &config,
        snapshot_run: None,
        delete_run: None,
        restored_by: None,
        by_host: &|_| None,
        away_since: None,
        kube_api: "https://k:1",
        limits: &Limits::default(),
    };
    plan_snapshot(&seen, now())
}

#[test]
fn a_snapshot_of_a_group_is_noted_as_if_it_had_been_taken_alone_and_goes_without_a_run() {
    let Decision::Start(start) = world().plan() else {
        panic!()
    };
    let taken = group_content(&json!({"metadata": {"annotations": {
        "mooring.dev/request": json!(start.request).to_string()}}}));
    let group: VolumeGroupSnapshotContent = serde_json::from_value(taken).unwrap();
    let fresh = member_content(&json!({}));
    let Decision::Settle(settled) = plan_member(&fresh, Some(&group)) else {
        panic!()
    };
    let notes = settled.notes.unwrap();
    assert_eq!(notes["mooring.dev/config"], "admin/custom-isci-provisioner");
    let known = member_content(&json!({"annotations": {
        "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "group:a/b/c",
        "mooring.dev/request": notes["mooring.dev/request"]}}));
    let request = known.view().taken_by().unwrap();
    assert_eq!(
        (request.operation, request.pv_name.as_str()),
        (Operation::Snapshot, "pvc-u2")
    );
    assert_eq!(
        (request.pvc_uid.as_str(), request.size, request.members().len()),
        ("u2", 1 << 30, 0)
    );
    assert_eq!(request.snapshot.unwrap().name, "groupsnapshot-v1.pvc-u2");
    assert!(matches!(plan_member(&known, Some(&group)), Decision::Rest));
    assert!(
        matches!(plan_member(&fresh, None), Decision::Rest),
        "its group is not known yet"
    );

    let gone = member_content(&json!({"deletionTimestamp": ago(1), "annotations": {
        "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "group:a/b/c",
        "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes"}}));
    let Decision::Settle(settled) = plan_member(&gone, None) else {
        panic!()
    };
    assert!(settled.let_go && settled.release);
}

#[test]
fn an_attempt_that_failed_is_told_in_the_words_of_groups() {
    let mut world = world();
    let Decision::Start(start) = world.plan() else { panic!() };
    world.record = Some(start.record);
    world.take_run = Some(run_with(
        "snapshot-group",
        1,
        9,
        &ended(75, "busy"),
        &json!(start.request),
    ));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert_eq!(failed.say.reason, GROUP_FAILED);
    assert!(
        failed.say.text.starts_with("taking the snapshots of the group failed"),
        "{}",
        failed.say.text
    );
}
