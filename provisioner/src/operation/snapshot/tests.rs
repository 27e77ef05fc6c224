use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use serde_json::{Value, json};

use super::{form_of, plan_snapshot};
use crate::config::store::NoConfig;
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::operation::decision::{Decision, SnapshotDecision};
use crate::operation::limits::Limits;
use crate::operation::observed::{ObservedSnapshot, ObservedTarget};
use crate::operation::record::Record;
use crate::operation::tests::{ago, config, ended, leaving, no_image, now, record, run, running};
use crate::operation::waits::assert_told;
use crate::process::events::reasons;
use crate::run::Run;
use crate::run::properties::tests::silver;
use crate::volume::acceptance;
use crate::volume::snapshot::tests::content;
use crate::volume::snapshot::{VolumeSnapshotClass, VolumeSnapshotContent};
use crate::volume::topology::Node;

const ALL: (&str, &str) = (
    "operations",
    "provision,delete,snapshot,delete-snapshot,restore,backup,delete-backup",
);

/// The reason of Events about snapshots that can't be taken.
const SNAPSHOT_FAILED: &str = "SnapshotCreationFailed";

/// All that a plan sees of a content, to be changed by each test.
struct World {
    content: Value,
    volume: Value,
    claim: Value,
    config: Result<Arc<ProvisionerConfig>, NoConfig>,
    class: Option<VolumeSnapshotClass>,
    record: Option<Record>,
    snapshot_run: Option<Run>,
    delete_run: Option<Run>,
    restored_by: Option<&'static str>,
}

fn serving(extra: &[(&str, &str)]) -> Arc<ProvisionerConfig> {
    Arc::new(config(extra))
}

fn world() -> World {
    let mut volume = acceptance::tests::volume();
    let mut made_by = silver();
    (made_by.pv_name, made_by.pvc_uid) = ("pvc-u1".into(), "u1".into());
    volume["metadata"] = json!({"name": "pvc-u1", "finalizers": ["mooring.dev/volume"], "annotations": {
        "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
        "mooring.dev/request": json!(made_by).to_string()}});
    World {
        content: content(&json!({})),
        volume,
        claim: json!({"metadata": {"name": "data", "namespace": "default", "uid": "u1"}}),
        config: Ok(serving(&[ALL])),
        class: Some(VolumeSnapshotClass {
            parameters: Some(
                [("tier", "cold"), ("csi.storage.k8s.io/snapshotter-secret-name", "s")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            ),
            ..VolumeSnapshotClass::default()
        }),
        record: None,
        snapshot_run: None,
        delete_run: None,
        restored_by: None,
    }
}

impl World {
    fn plan(&self) -> SnapshotDecision {
        assert_told(|at| self.plan_at(at).silent_wait());
        self.plan_at(now())
    }

    fn plan_at(&self, now: Timestamp) -> SnapshotDecision {
        let content: VolumeSnapshotContent = serde_json::from_value(self.content.clone()).unwrap();
        let content = content.view();
        let target = ObservedTarget {
            handle: content.volumes.first().cloned().unwrap_or_default(),
            volume: serde_json::from_value::<Option<_>>(self.volume.clone())
                .unwrap()
                .map(Arc::new),
            claim: serde_json::from_value::<Option<_>>(self.claim.clone())
                .unwrap()
                .map(Arc::new),
        };
        let seen = ObservedSnapshot {
            content: &content,
            form: form_of(&content, self.record.as_ref(), self.class.as_ref()),
            record: self.record.as_ref(),
            class: self.class.as_ref(),
            targets: &[target],
            group: None,
            config: &self.config,
            snapshot_run: self.snapshot_run.as_ref(),
            delete_run: self.delete_run.as_ref(),
            restored_by: self.restored_by,
            by_host: &|host| {
                (host == "node-a").then(|| Node {
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

    fn going(&mut self) {
        self.content["metadata"]["deletionTimestamp"] = json!(ago(1));
        self.content["metadata"]["annotations"]["snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"] =
            json!("yes");
    }

    /// Says in the class whether to take a backup.
    fn backed_up(&mut self, said: &str) {
        let parameters = self.class.get_or_insert_default().parameters.get_or_insert_default();
        parameters.insert("mooring.dev/backup".to_owned(), said.to_owned());
    }
}

fn word(decision: &SnapshotDecision) -> String {
    match decision {
        Decision::Wait { say: Some(say), .. } => format!("{}: {}", say.reason, say.text),
        Decision::Start(start) => format!("start {}", start.run.name()),
        Decision::Settle(settled) if settled.let_go => format!("let go, {} runs", settled.runs.len()),
        Decision::Settle(settled) => match (&settled.status, &settled.say) {
            (Some(status), Some(say)) => format!("{}: {} {}", say.reason, say.text, status["readyToUse"]),
            (Some(status), None) => format!("ready as {}", status["snapshotHandle"]),
            (None, _) => "release".to_owned(),
        },
        other => format!("{other:?}"),
    }
}

#[test]
fn a_snapshot_is_taken_of_a_volume_that_was_handed_to_another_claim() {
    let mut world = world();
    let mut made_by = silver();
    (made_by.pv_name, made_by.pvc_uid) = ("pvc-first".into(), "first".into());
    world.volume["metadata"]["name"] = json!("pvc-first");
    world.volume["metadata"]["annotations"]["mooring.dev/request"] = json!(json!(made_by).to_string());
    let decision = world.plan();
    let Decision::Start(start) = &decision else {
        panic!("{}", word(&decision))
    };
    let request = &start.request;
    assert_eq!(
        (request.pv_name.as_str(), request.pvc_uid.as_str()),
        ("pvc-first", "u1")
    );
}

#[test]
fn the_image_is_told_of_what_to_take_it_under_which_name() {
    let Decision::Start(start) = world().plan() else {
        panic!()
    };
    assert_eq!(
        (start.run.operation, start.record.operation),
        (Operation::Snapshot, Operation::Snapshot)
    );
    assert_eq!(start.record.source, "admin/custom-isci-provisioner/snapshot-v1");
    let request = start.request;
    assert_eq!(
        (request.operation, request.pv_name.as_str()),
        (Operation::Snapshot, "pvc-u1")
    );
    assert_eq!(request.snapshot.unwrap().name, "snapshot-v1");
    assert_eq!(request.deletion_policy, "Delete");
    assert_eq!(request.parameters["tier"], "cold");
    assert!(!request.parameters.keys().any(|key| key.contains("secret")));
    assert!(!request.volume.is_empty());
}

type Change = Box<dyn Fn(&mut World)>;

#[test]
fn a_snapshot_that_can_t_be_taken_yet_waits_and_one_that_never_can_is_refused_in_event_and_status() {
    let table: Vec<(&str, &str, Change)> = vec![
        (
            SNAPSHOT_FAILED,
            "to take the snapshot of: delete the snapshot false",
            Box::new(|world| world.volume = Value::Null),
        ),
        (
            SNAPSHOT_FAILED,
            "Mooring did not make volume",
            Box::new(|world| world.volume["metadata"]["annotations"] = json!({})),
        ),
        (
            SNAPSHOT_FAILED,
            "has no claim any more",
            Box::new(|world| world.claim = Value::Null),
        ),
        (
            reasons::WAITING,
            "has an operation in progress",
            Box::new(|world| world.claim["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"])),
        ),
        (
            reasons::WAITING,
            "VolumeSnapshotClass \"silver\" does not exist",
            Box::new(|world| world.class = None),
        ),
        (
            SNAPSHOT_FAILED,
            "does not list \"snapshot\"",
            Box::new(|world| world.config = Ok(serving(&[("operations", "provision,delete")]))),
        ),
        (
            SNAPSHOT_FAILED,
            "does not list \"delete-snapshot\"",
            Box::new(|world| world.config = Ok(serving(&[("operations", "provision,delete,snapshot")]))),
        ),
        (
            SNAPSHOT_FAILED,
            "is not the handle of a snapshot",
            Box::new(|world| world.content["spec"]["source"] = json!({"snapshotHandle": "../x"})),
        ),
        (
            SNAPSHOT_FAILED,
            "create the class again with \"true\" or \"false\"",
            Box::new(|world| world.backed_up("yes")),
        ),
        (
            SNAPSHOT_FAILED,
            "does not list \"backup\"",
            Box::new(|world| {
                world.backed_up("true");
                world.config = Ok(serving(&[("operations", "provision,delete,snapshot,delete-snapshot")]));
            }),
        ),
        (
            SNAPSHOT_FAILED,
            "does not list \"delete-backup\"",
            Box::new(|world| {
                world.backed_up("true");
                world.config = Ok(serving(&[("operations", "provision,delete,backup,delete-snapshot")]));
            }),
        ),
    ];
    for (at, (reason, text, change)) in table.iter().enumerate() {
        let mut world = world();
        change(&mut world);
        let said = word(&world.plan());
        assert!(said.starts_with(reason) && said.contains(text), "row {at}: {said}");
    }
    // What would be retained needs no way to delete it.
    let mut world = world();
    world.config = Ok(serving(&[("operations", "provision,delete,snapshot")]));
    world.content["spec"]["deletionPolicy"] = json!("Retain");
    assert_eq!(word(&world.plan()), "start snapshot-s1");
}

#[test]
fn the_content_of_another_driver_or_a_group_is_nothing_of_mooring_s() {
    let mut world = world();
    world.content["spec"]["driver"] = json!("example.com");
    assert!(matches!(world.plan(), Decision::Rest));
    let mut world = self::world();
    world.content["metadata"]["annotations"] = json!({annotations::OF_GROUP: "g"});
    assert!(matches!(world.plan(), Decision::Rest));
}

#[test]
fn a_snapshot_that_an_administrator_has_named_is_ready_without_a_run() {
    let mut world = world();
    world.content["spec"]["source"] = json!({"snapshotHandle": "admin/gold/old@node-a"});
    assert_eq!(word(&world.plan()), "ready as \"admin/gold/old@node-a\"");
    // It can be deleted, though nobody remembers of what it was taken.
    world.going();
    world.config = Ok(serving(&[ALL, ("backend-volume", "client=pool")]));
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(
        (start.run.operation, start.node.as_deref()),
        (Operation::DeleteSnapshot, Some("node-a"))
    );
    assert_eq!(start.request.snapshot.unwrap().name, "old");
    assert_eq!(start.request.pv_name, "");
    world.content["spec"]["deletionPolicy"] = json!("Retain");
    assert_eq!(word(&world.plan()), "let go, 0 runs");
}

#[test]
fn what_is_half_made_goes_whatever_the_policy_and_what_never_ran_needs_no_image() {
    let begun = json!({"operation": "snapshot", "pod": "admin/snapshot-s1", "source": "admin/gold/snapshot-v1"});
    for policy in ["Retain", "Delete"] {
        let mut world = world();
        world.content["spec"]["deletionPolicy"] = json!(policy);
        world.record = Some(record(&begun));
        world.going();
        world.snapshot_run = Some(run("snapshot", 1, 10, &running()));
        assert!(matches!(world.plan(), Decision::Stop(_)), "{policy}");
        world.snapshot_run = None;
        assert_eq!(word(&world.plan()), "start delete-snapshot-s1", "{policy}");

        world.snapshot_run = Some(run("snapshot", 1, 10, &no_image()));
        let Decision::Cancel {
            record: noted,
            run: removed,
        } = world.plan()
        else {
            panic!("{policy}")
        };
        assert!(noted.cancelled);
        assert!(removed.is_exact(), "it may run after all");
        world.record = Some(*noted);
        world.snapshot_run = Some(leaving(run("snapshot", 1, 10, &ended(143, ""))));
        let ran = world.plan();
        assert!(matches!(ran, Decision::Record(noted) if !noted.cancelled), "{policy}");
        world.snapshot_run = None;
        assert_eq!(word(&world.plan()), "let go, 0 runs", "{policy}");

        world.record = Some(Record {
            attempt: 2,
            ..record(&begun)
        });
        world.snapshot_run = Some(run("snapshot", 1, 10, &ended(0, "")));
        let ran = world.plan();
        assert!(matches!(ran, Decision::Record(noted) if noted.may_exist), "{policy}");
    }
}

#[test]
fn a_failure_is_told_and_a_deletion_that_was_done_lets_the_content_go() {
    let mut world = world();
    let begun = json!({"operation": "snapshot", "pod": "admin/snapshot-s1", "source": "admin/gold/snapshot-v1"});
    world.record = Some(record(&begun));
    world.snapshot_run = Some(run("snapshot", 1, 10, &ended(75, "pool full")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert_eq!(failed.say.reason, SNAPSHOT_FAILED);
    assert!(failed.say.text.contains("pool full"), "{}", failed.say.text);

    let mut world = self::world();
    world.content["status"] = json!({"snapshotHandle": "admin/gold/snapshot-v1", "readyToUse": true});
    assert!(matches!(world.plan(), Decision::Rest));
    world.going();
    world.restored_by = Some("default/new");
    assert!(word(&world.plan()).contains("restoring the snapshot for claim default/new"));
    world.restored_by = None;
    let deleting = json!({"operation": "delete-snapshot", "pod": "admin/delete-snapshot-s1"});
    world.record = Some(record(&deleting));
    world.delete_run = Some(run("delete-snapshot", 1, 10, &ended(0, "")));
    assert_eq!(word(&world.plan()), "let go, 1 runs");
}

#[test]
fn a_class_of_backups_has_a_backup_taken_which_lives_on_no_node() {
    let mut world = world();
    world.backed_up("true");
    world.config = Ok(serving(&[ALL, ("backend-volume", "client=pool")]));
    world.volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]}]}]}});
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(
        (start.run.operation, start.node.as_deref()),
        (Operation::Backup, Some("node-a"))
    );
    let handle = "backup:admin/custom-isci-provisioner/backup-v1";
    assert_eq!(start.record.source, handle);
    let backup = start.request.snapshot.unwrap();
    assert!(backup.backup && backup.name == "backup-v1", "{backup:?}");
    assert!(!start.request.parameters.contains_key("mooring.dev/backup"));

    // It stays a backup, whatever becomes of the class.
    world.record = Some(start.record);
    world.backed_up("false");
    world.snapshot_run = Some(run("backup", 1, 10, &ended(0, "")));
    assert_eq!(word(&world.plan()), format!("ready as {handle:?}"));
    (world.record, world.snapshot_run, world.class) = (None, None, None);
    world.content["status"] = json!({"snapshotHandle": handle, "readyToUse": true});
    (world.volume, world.claim) = (Value::Null, Value::Null);
    world.going();
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!((start.run.operation, start.node), (Operation::DeleteBackup, None));
    assert_eq!(start.request.operation, Operation::DeleteBackup);
}

#[test]
fn a_backup_that_an_administrator_has_named_is_one_without_class_volume_or_pv() {
    let mut world = world();
    let handle = "backup:admin/gold/backup-7";
    world.content["spec"]["source"] = json!({"snapshotHandle": handle});
    (world.class, world.volume, world.claim) = (None, Value::Null, Value::Null);
    assert_eq!(word(&world.plan()), format!("ready as {handle:?}"));
    world.going();
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(start.run.name(), "delete-backup-s1");
    let backup = start.request.snapshot.unwrap();
    assert!(backup.backup && backup.name == "backup-7", "{backup:?}");
}

#[test]
fn a_backup_without_a_configmap_waits_and_says_for_what() {
    let missing = || {
        Err(NoConfig::Missing {
            class: "silver".into(),
            reference: ConfigRef::new("admin", "gold"),
        })
    };
    let mut world = world();
    world.content["spec"]["source"] = json!({"snapshotHandle": "backup:admin/gold/backup-7"});
    world.config = missing();
    let cure = "annotate the VolumeSnapshotContent with mooring.dev/config=NAMESPACE/NAME";
    let said = word(&world.plan());
    assert!(said.contains("admin/gold") && said.contains(cure), "{said}");
    // One that exists stays as it is, and is deleted when there is a ConfigMap again.
    world.content["status"] = json!({"snapshotHandle": "backup:admin/gold/backup-7", "readyToUse": true});
    assert!(matches!(world.plan(), Decision::Rest));
    world.going();
    let said = word(&world.plan());
    assert!(said.starts_with(reasons::WAITING) && said.contains(cure), "{said}");
    world.config = Ok(serving(&[ALL]));
    assert_eq!(word(&world.plan()), "start delete-backup-s1");
    // What is to stay needs none.
    world.config = missing();
    world.content["spec"]["deletionPolicy"] = json!("Retain");
    assert_eq!(word(&world.plan()), "let go, 0 runs");
}

#[test]
fn a_content_without_the_uid_of_its_user_s_object_is_refused() {
    for uid in [json!(""), Value::Null] {
        let mut unbound = world();
        unbound.content["spec"]["volumeSnapshotRef"]["uid"] = uid;
        let decision = unbound.plan();
        assert_eq!(
            decision.begins(),
            None,
            "a content without a user's object begins a run"
        );
        let said = word(&decision);
        assert!(
            said.starts_with(SNAPSHOT_FAILED) && said.contains("volumeSnapshotRef.uid"),
            "{said}"
        );
        assert!(said.ends_with("false"), "{said}");
    }
}

#[test]
fn a_run_that_was_left_goes_before_a_content_that_is_retained() {
    for finalizers in [
        json!(["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]),
        json!(["example.com/held"]),
    ] {
        let mut world = world();
        world.content["metadata"]["finalizers"] = finalizers;
        world.content["status"] = json!({"snapshotHandle": "admin/gold/snapshot-v1", "readyToUse": true});
        world.content["spec"]["deletionPolicy"] = json!("Retain");
        world.going();
        let left = run("snapshot", 1, 10, &ended(0, ""));
        world.snapshot_run = Some(left.clone());
        assert!(matches!(world.plan(), Decision::Tidy(_)));
        world.snapshot_run = Some(leaving(left));
        assert!(!matches!(world.plan(), Decision::Tidy(_)), "it was asked already");
    }
}

/// Its Event names that cure.
#[test]
fn a_deletion_that_has_failed_leaves_a_snapshot_that_is_to_stay_since() {
    for (operation, handle) in [
        ("delete-snapshot", "admin/gold/snapshot-v1"),
        ("delete-backup", "backup:admin/gold/backup-v1"),
    ] {
        let going = |change: &Value| {
            let mut world = world();
            world.content["spec"]["deletionPolicy"] = json!("Retain");
            world.going();
            let mut begun = json!({"operation": operation, "attempt": 2, "may-exist": true, "source": handle});
            begun
                .as_object_mut()
                .unwrap()
                .extend(change.as_object().cloned().unwrap_or_default());
            world.record = Some(record(&begun));
            world
        };
        for change in [json!({}), json!({"not-before": ago(-9)})] {
            let mut world = going(&change);
            world.content["status"] = json!({"snapshotHandle": handle, "readyToUse": true});
            assert_eq!(word(&world.plan()), "let go, 0 runs", "{operation} {change}");
            world.delete_run = Some(run(operation, 2, 10, &running()));
            assert!(
                matches!(world.plan(), Decision::Tidy(_)),
                "what was to delete it goes first"
            );
            world.config = Err(NoConfig::Missing {
                class: "silver".into(),
                reference: ConfigRef::new("admin", "gold"),
            });
            world.delete_run = None;
            assert_eq!(word(&world.plan()), "let go, 0 runs", "{operation} without a ConfigMap");
        }
        // Nobody was ever told that it is there.
        let half_made = going(&json!({}));
        assert_eq!(word(&half_made.plan()), format!("start {operation}-s1"));
    }
}
