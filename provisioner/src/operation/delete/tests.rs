//! Every branch of the plans for deletions.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use serde_json::{Value, json};

use super::super::tests::{World, ago, config, ended, leaving, never_made, no_image, now, record, run, running};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::operation::decision::{Decision, ForClaim, ForVolume, Intent, VolumeDecision};
use crate::operation::limits::Limits;
use crate::operation::observed::ObservedVolume;
use crate::operation::plan_volume;
use crate::operation::record::Record;
use crate::operation::waits::assert_told;
use crate::run::Run;
use crate::run::departed::Departed;
use crate::run::properties::tests::silver;
use crate::volume::acceptance::tests::volume;
use crate::volume::topology::Node;

/// A claim that is being deleted while its volume was being made.
fn undoing(change: &Value) -> World {
    World::with_record(change).deleted()
}

#[test]
fn nothing_of_ours_is_nothing_to_undo() {
    assert!(matches!(World::new().deleted().plan(), Decision::Rest));
    let mut no_record = undoing(&json!({}));
    no_record.record = None;
    assert!(matches!(no_record.plan(), Decision::Own(ForClaim::Undone(undone)) if undone.next.is_none()));
    no_record.volumes = vec![volume()];
    assert!(matches!(no_record.plan(), Decision::Wait { say: Some(_), .. }));
}

#[test]
fn a_pod_that_never_ran_is_taken_back_and_leaves_nothing_to_delete() {
    let mut world = undoing(&json!({}));
    world.provision_run = Some(run("provision", 1, 10, &no_image()));
    let Decision::Cancel { record, run: removed } = world.plan() else {
        panic!()
    };
    assert!(record.cancelled);
    assert!(removed.is_exact(), "only if it has not begun meanwhile");
    world.record = Some(*record);
    assert!(matches!(world.plan(), Decision::Stop(runs) if runs[0].is_exact()));
    world.provision_run = Some(leaving(run("provision", 1, 10, &no_image())));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
    world.provision_run = None;
    let Decision::Own(ForClaim::Undone(undone)) = world.plan() else {
        panic!()
    };
    assert!(undone.next.is_none() && undone.volumes.is_empty());
    // It ran after all.
    world.provision_run = Some(run("provision", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Record(noted) if !noted.cancelled));
}

#[test]
fn a_pod_that_ended_while_its_image_was_pulled_leaves_nothing_to_delete() {
    let mut world = undoing(&json!({}));
    // Nobody knows yet whether it runs.
    let creating = json!({"phase": "Pending", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
        "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]});
    world.provision_run = Some(run("provision", 1, 10, &creating));
    assert!(matches!(world.plan(), Decision::Stop(runs) if !runs[0].is_exact()));
    // The kubelet says how it ended.
    let end = leaving(run("provision", 1, 10, &never_made()));
    world.provision_run = Some(end.clone());
    let Decision::Record(noted) = world.plan() else {
        panic!()
    };
    assert!(noted.cancelled);
    let undecided = world.record.replace(*noted);
    assert!(matches!(world.plan(), Decision::Wait { .. }));
    world.provision_run = None;
    assert!(matches!(world.plan(), Decision::Own(ForClaim::Undone(undone)) if undone.next.is_none()));
    // Where it went in the same moment, that is known by what it was like then.
    world.record = undecided;
    assert!(matches!(world.plan(), Decision::Start(_)));
    world.departed = Some(Departed::of(&end));
    assert!(matches!(world.plan(), Decision::Own(ForClaim::Undone(undone)) if undone.next.is_none()));
    for (attempt, status) in [(2, never_made()), (1, running()), (1, creating)] {
        world.departed = Some(Departed::of(&leaving(run("provision", attempt, 10, &status))));
        assert!(matches!(world.plan(), Decision::Start(_)), "{attempt} {status}");
    }
    // And so is one that ran after it had been given up for one that did not.
    world.record = Some(record(&json!({"cancelled": true})));
    world.departed = Some(Departed::of(&leaving(run("provision", 1, 10, &ended(0, "")))));
    assert!(matches!(world.plan(), Decision::Start(start) if start.record.may_exist));
}

#[test]
fn an_earlier_pod_that_ran_after_all_has_its_volume_deleted() {
    let mut world = undoing(&json!({"attempt": 2, "not-before": ago(-30)}));
    let end = run("provision", 1, 10, &ended(0, ""));
    world.departed = Some(Departed::of(&end));
    assert!(matches!(world.plan(), Decision::Start(start) if start.record.may_exist));
    world.departed = None;
    world.provision_run = Some(end);
    for cancelled in [false, true] {
        world.record.as_mut().unwrap().cancelled = cancelled;
        let Decision::Record(noted) = world.plan() else {
            panic!()
        };
        assert!(noted.may_exist && !noted.cancelled);
    }
    let Decision::Record(noted) = world.plan() else {
        panic!()
    };
    world.record = Some(*noted);
    assert!(matches!(world.plan(), Decision::Stop(_)));
    world.provision_run = None;
    assert!(matches!(world.plan(), Decision::Start(start) if start.record.may_exist));
}

#[test]
fn what_can_t_be_undone_has_an_event_with_the_way_to_give_it_up() {
    let cure = "give the volume up";
    let mut world = undoing(&json!({}));
    world.config = Err(NoConfig::NotOurs {
        class: "silver".into(),
        provisioner: "x".into(),
    });
    assert!(matches!(world.plan(), Decision::Wait { say: Some(say), .. } if say.text.contains(cure)));
    let mut world = undoing(&json!({"operation": "delete", "pod": "admin/delete-u1", "may-exist": true}));
    world.delete_run = Some(run("delete", 1, 10, &ended(75, "no route to host")));
    assert!(matches!(world.plan(), Decision::Fail(failed) if failed.say.text.contains(cure)));
    // For as long as the image refuses, in the same words.
    world.delete_run = Some(run("delete", 1, 10, &ended(78, "no such pool")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    world.delete_run = None;
    world.record = Some(failed.record);
    assert!(matches!(world.plan(), Decision::Wait { say: Some(say), .. } if say == failed.say));
    let mut released = Released::new();
    released.deletes(owned(run("delete", 1, 10, &ended(75, "no route to host"))));
    assert!(matches!(released.plan(), Decision::Fail(failed) if failed.say.text.contains(cure)));
}

#[test]
fn a_pod_that_runs_is_stopped_and_its_volume_deleted() {
    let mut world = undoing(&json!({}));
    world.provision_run = Some(run("provision", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Stop(runs) if !runs[0].is_exact()));
    world.provision_run = None;
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(start.record.run, "admin/delete-u1");
    assert!(start.intent == Intent::ToRecord && start.record.may_exist && start.owner.is_none());
    assert_eq!(start.request.operation.as_str(), "delete");
    world.record = Some(start.record);
    assert!(matches!(world.plan(), Decision::Start(start) if start.intent == Intent::Recorded));
    world.delete_run = Some(run("delete", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
    world.delete_run = Some(run("delete", 1, 10, &json!({"phase": "Pending"})));
    assert!(matches!(world.plan(), Decision::Supply { .. }));
    world.delete_run = Some(run("delete", 1, 10, &ended(75, "busy")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert_eq!((failed.record.operation.as_str(), failed.record.attempt), ("delete", 2));
    world.delete_run = Some(run("delete", 1, 10, &ended(0, "")));
    world.volumes = vec![volume()];
    let Decision::Own(ForClaim::Undone(undone)) = world.plan() else {
        panic!()
    };
    assert_eq!((undone.volumes.len(), undone.runs.len()), (1, 1));
    assert!(undone.next.is_none() && undone.took.is_some());
}

#[test]
fn between_attempts_that_never_ran_a_claim_is_let_go_at_once() {
    let world = undoing(&json!({"attempt": 3, "not-before": ago(-30)}));
    assert!(matches!(world.plan(), Decision::Own(ForClaim::Undone(_))));
    let world = undoing(&json!({"attempt": 3, "not-before": ago(-30), "may-exist": true}));
    assert!(matches!(world.plan(), Decision::Start(_)));
    let world = undoing(&json!({"attempt": 3, "not-before": ago(5)}));
    assert!(
        matches!(world.plan(), Decision::Own(ForClaim::Undone(_))),
        "it is time, but not begun"
    );
    let mut world = undoing(&json!({"attempt": 3}));
    assert!(
        matches!(world.plan(), Decision::Start(_)),
        "the third may have been begun"
    );
    world.provision_run = Some(run("provision", 2, 10, &no_image()));
    assert!(
        matches!(world.plan(), Decision::Stop(runs) if runs[0].is_exact()),
        "another controller may have begun the third, and the watch does not show that yet"
    );
}

#[test]
fn a_deletion_waits_for_what_it_names() {
    let mut world = undoing(&json!({}));
    world.config = Err(NoConfig::Missing {
        class: "silver".into(),
        reference: "admin/c".parse().unwrap(),
    });
    let Decision::Wait { say: Some(say), .. } = world.plan() else {
        panic!()
    };
    assert!(say.text.contains("admin/c"));
    // Where the image has nothing to run, nothing is run.
    let world = undoing(&json!({})).able_to(&[Operation::Provision]);
    assert!(matches!(world.plan(), Decision::Own(ForClaim::Undone(_))));
    // Where the node is gone, the volume is gone.
    let mut world = undoing(&json!({"node": "node-a"})).with_config(&[("backend-volume", "client=pool")]);
    assert!(matches!(world.plan(), Decision::Start(start) if start.node.as_deref() == Some("node-a")));
    world.nodes = vec!["node-b"];
    let Decision::Own(ForClaim::Undone(undone)) = world.plan() else {
        panic!()
    };
    assert!(undone.say.unwrap().text.contains("node-a has left the cluster"));
    // It must be known where to delete before the Pod that tells goes.
    let mut world = undoing(&json!({})).with_config(&[("backend-volume", "client=pool")]);
    world.provision_run = Some(run("provision", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Record(noted) if noted.node == "node-a"));
}

#[test]
fn a_refused_volume_is_deleted_before_the_next_attempt() {
    let change = json!({"attempt": 2, "refused": true, "may-exist": true});
    let mut world = World::with_record(&change);
    world.volumes = vec![volume()];
    world.provision_run = Some(run("provision", 1, 10, &ended(0, "")));
    assert!(
        matches!(world.plan(), Decision::Own(ForClaim::Refuse(refuse)) if refuse.volumes.len() == 1 && refuse.run.is_some())
    );
    world.volumes = vec![];
    assert!(matches!(world.plan(), Decision::Stop(_)));
    world.provision_run = None;
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(
        (start.request.operation.as_str(), start.record.refused),
        ("delete", true)
    );
    world.delete_run = Some(run("delete", 2, 10, &ended(1, "no")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert!(failed.record.refused && failed.record.operation.as_str() == "provision");
    world.delete_run = Some(run("delete", 2, 10, &ended(0, "")));
    let Decision::Own(ForClaim::Undone(undone)) = world.plan() else {
        panic!()
    };
    let next = undone.next.unwrap();
    assert_eq!(
        (next.attempt, next.refused, next.may_exist, next.not_before.is_some()),
        (3, false, false, true)
    );
    assert!(!undone.reschedule && undone.after.is_some());
    // Deleted by its user meanwhile: the same, and then it is let go.
    let mut world = undoing(&change);
    world.delete_run = Some(run("delete", 2, 10, &ended(0, "")));
    assert!(matches!(world.plan(), Decision::Own(ForClaim::Undone(undone)) if undone.next.is_none()));
    // A node that could not is not asked again.
    let mut world = World::with_record(&json!({"attempt": 4, "refused": true, "node": "node-a"}))
        .with_config(&[("backend-volume", "client=pool")])
        .selected("node-a");
    world.delete_run = Some(run("delete", 4, 10, &ended(0, "")));
    assert!(matches!(world.plan(), Decision::Own(ForClaim::Undone(undone)) if undone.reschedule));
}

type Change = Box<dyn Fn(&mut Released)>;

/// A PV as it was accepted.
struct Released {
    volume: Value,
    record: Option<Record>,
    config: Result<Arc<ProvisionerConfig>, NoConfig>,
    runs: BTreeMap<Operation, Run>,
    claimed: bool,
    has_original: bool,
    copied_by: Option<&'static str>,
    away_since: Option<Timestamp>,
}

impl Released {
    fn new() -> Self {
        let mut volume = volume();
        let mut made_by = silver();
        (made_by.pv_name, made_by.pvc_uid) = ("pvc-u1".into(), "u1".into());
        volume["metadata"]["finalizers"] = json!(["mooring.dev/volume"]);
        volume["metadata"]["uid"] = json!("v1");
        volume["metadata"]["annotations"] = json!({
            "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
            "mooring.dev/config": "admin/custom-isci-provisioner",
            "mooring.dev/request": json!(made_by).to_string(),
        });
        volume["status"] = json!({"phase": "Released"});
        Self {
            volume,
            record: None,
            config: Ok(Arc::new(config(&[]))),
            runs: BTreeMap::new(),
            claimed: false,
            has_original: false,
            copied_by: None,
            away_since: None,
        }
    }

    /// Has this run delete it.
    fn deletes(&mut self, run: Run) {
        self.runs.insert(Operation::Delete, run);
    }

    fn plan(&self) -> VolumeDecision {
        assert_told(|at| self.plan_at(at).silent_wait());
        self.plan_at(now())
    }

    fn plan_at(&self, now: Timestamp) -> VolumeDecision {
        let volume: PersistentVolume = serde_json::from_value(self.volume.clone()).unwrap();
        plan_volume(
            &ObservedVolume {
                volume: &volume,
                record: self.record.as_ref(),
                class: None,
                config: &self.config,
                runs: &self.runs,
                claimed: self.claimed,
                has_original: self.has_original,
                copied_by: self.copied_by,
                by_host: &|host| {
                    (host == "node-a").then(|| Node {
                        name: "node-a".into(),
                        labels: [].into(),
                    })
                },
                away_since: self.away_since,
                kube_api: "https://k:1",
                limits: &Limits::default(),
            },
            now,
        )
    }
}

/// Proves: P1
#[test]
fn a_released_volume_is_not_deleted_beside_a_run_that_changes_it() {
    for operation in ["expand", "modify"] {
        let change = |run| {
            let mut world = Released::new();
            world.runs.insert(operation.parse().unwrap(), run);
            world.plan()
        };
        let running = || run(operation, 1, 10, &running());
        assert!(matches!(change(running()), Decision::Stop(_)));
        assert!(matches!(change(leaving(running())), Decision::Wait { .. }));
    }
}

/// As a volume populator hands it over (KEP-1495).
#[test]
fn a_volume_that_another_claim_had_is_deleted_by_the_name_that_it_was_made_under() {
    let mut world = Released::new();
    world.volume["spec"]["claimRef"]["uid"] = json!("u2");
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(
        (start.run.uid.as_str(), start.request.pv_name.as_str()),
        ("u1", "pvc-u1")
    );
    world.claimed = true;
    assert!(matches!(world.plan(), Decision::Rest));
}

#[test]
fn a_volume_that_no_claim_has_is_deleted_only_if_its_deletion_was_asked_for() {
    let mut world = Released::new();
    for phase in ["Available", "Pending", "Bound"] {
        world.volume["status"]["phase"] = json!(phase);
        assert!(matches!(world.plan(), Decision::Rest), "{phase}");
    }
    world.volume["metadata"]["deletionTimestamp"] = json!(ago(1));
    assert!(matches!(world.plan(), Decision::Rest), "a claim is bound to it");
    world.volume["status"]["phase"] = json!("Available");
    assert!(matches!(world.plan(), Decision::Start(_)));
    world.claimed = true;
    assert!(matches!(world.plan(), Decision::Rest), "it is being made");
}

/// A PV that an administrator made of another one, so that a second namespace has the same volume.
#[test]
fn the_volume_of_a_copy_is_never_deleted() {
    for name in ["pvc-u2", "pvc-u1-for-team-b", "for-team-b"] {
        let mut world = Released::new();
        world.volume["metadata"]["name"] = json!(name);
        let Decision::Wait { say: Some(say), .. } = world.plan() else {
            panic!("{name}")
        };
        assert!(say.text.contains(&format!("kubectl delete pv {name}")), "{}", say.text);
        world.volume["metadata"]["deletionTimestamp"] = json!(ago(1));
        assert!(matches!(world.plan(), Decision::Own(ForVolume::LetGo(go)) if go.took.is_none() && go.say.is_some()));
        world.has_original = true;
        world.volume["metadata"]["deletionTimestamp"] = Value::Null;
        assert!(matches!(world.plan(), Decision::Own(ForVolume::LetGo(go)) if go.delete && go.took.is_none()));
        world.volume["status"]["phase"] = json!("Available");
        assert!(matches!(world.plan(), Decision::Rest));
    }
}

#[test]
fn a_released_volume_is_deleted_with_what_made_it() {
    let mut world = Released::new();
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(start.request.operation.as_str(), "delete");
    assert_eq!(start.request.username, "tom");
    assert_eq!(start.request.volume["source"], "h:/x");
    assert_eq!(start.request.kube_api, "https://k:1");
    assert_eq!(
        (start.intent, start.record.attempt),
        (Intent::Released, 1),
        "nothing to write"
    );
    assert_eq!(start.owner, Some(("pvc-u1".to_owned(), "v1".to_owned())));
    world.deletes(owned(run("delete", 1, 10, &ended(1, "in use"))));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert!(failed.say.text.contains("in use") && failed.record.attempt == 2);
    world.record = Some(failed.record);
    world.runs.clear();
    assert!(matches!(world.plan(), Decision::Wait { after: Some(_), .. }));
    world.record.as_mut().unwrap().not_before = Some(ago(1).parse().unwrap());
    assert!(matches!(world.plan(), Decision::Start(start) if start.intent == Intent::ToRecord));
    world.deletes(owned(run("delete", 2, 10, &ended(0, ""))));
    assert!(matches!(world.plan(), Decision::Own(ForVolume::LetGo(go)) if go.delete && go.took.is_some()));
}

/// Proves: P1
#[test]
fn a_volume_is_not_deleted_while_it_is_copied() {
    let mut world = Released::new();
    world.copied_by = Some("claim default/copy");
    let Decision::Wait {
        after: None,
        say: Some(say),
    } = world.plan()
    else {
        panic!()
    };
    assert!(say.text.contains("default/copy"), "{}", say.text);
    // A deletion that has begun goes on: what would copy the volume sees that its claim is gone.
    world.deletes(owned(run("delete", 1, 10, &running())));
    assert!(matches!(
        world.plan(),
        Decision::Wait {
            after: Some(_),
            say: None
        }
    ));
    world.runs.clear();
    world.copied_by = None;
    assert!(matches!(world.plan(), Decision::Start(_)));
}

#[test]
fn a_volume_that_says_it_is_another_is_not_deleted() {
    for (key, value) in [("pv-name", "pvc-u2"), ("pvc-uid", "u2"), ("pv-name", "../x")] {
        let mut world = Released::new();
        let annotation = &mut world.volume["metadata"]["annotations"]["mooring.dev/request"];
        let mut request: Value = serde_json::from_str(annotation.as_str().unwrap()).unwrap();
        request[key] = json!(value);
        *annotation = json!(request.to_string());
        let Decision::Wait { say: Some(say), .. } = world.plan() else {
            panic!("{key}={value}")
        };
        assert!(say.text.contains("contradicts itself"), "{}", say.text);
    }
}

/// A run that goes with the PV.
fn owned(run: Run) -> Run {
    let owner = json!([{"apiVersion": "v1", "kind": "PersistentVolume", "name": "", "uid": "v1"}]);
    run.changed(|carrier| carrier.metadata.owner_references = serde_json::from_value(owner).unwrap())
}

#[test]
fn a_pod_that_goes_with_its_volume_is_not_removed_besides() {
    let mut world = Released::new();
    world.deletes(owned(run("delete", 1, 10, &ended(0, ""))));
    assert!(matches!(world.plan(), Decision::Own(ForVolume::LetGo(go)) if go.runs.is_empty()));
    world.volume["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection", "mooring.dev/volume"]);
    assert!(matches!(world.plan(), Decision::Own(ForVolume::LetGo(go)) if go.runs.is_empty()));
    // Somebody else holds the PV, for who knows how long.
    world.volume["metadata"]["finalizers"] = json!(["example.com/backup", "mooring.dev/volume"]);
    assert!(matches!(world.plan(), Decision::Own(ForVolume::LetGo(go)) if go.runs.len() == 1));
}

#[test]
fn a_deletion_without_a_record_goes_by_the_pod_that_belongs_to_its_volume() {
    let mut world = Released::new();
    // Of what was undone for the claim before it had this volume.
    world.deletes(run("delete", 3, 10, &ended(0, "")));
    assert!(matches!(world.plan(), Decision::Stop(runs) if runs.len() == 1));
    world.deletes(owned(run("delete", 3, 10, &running())));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
    world.deletes(owned(run("delete", 3, 10, &ended(75, "busy"))));
    assert!(matches!(world.plan(), Decision::Fail(failed) if failed.record.attempt == 4));
}

#[test]
fn only_a_released_volume_of_ours_is_deleted() {
    let table: Vec<Change> = vec![
        Box::new(|w| w.volume["status"]["phase"] = json!("Bound")),
        Box::new(|w| w.volume["status"]["phase"] = json!("Pending")),
        Box::new(|w| w.claimed = true),
        Box::new(|w| w.volume["metadata"]["finalizers"] = json!([])),
        Box::new(|w| w.volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = json!("other")),
        Box::new(|w| w.volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain")),
        Box::new(|w| w.config = Err(NoConfig::NotReadYet)),
    ];
    for (at, change) in table.iter().enumerate() {
        let mut world = Released::new();
        change(&mut world);
        assert!(matches!(world.plan(), Decision::Rest), "row {at}");
    }
    let mut failed = Released::new();
    failed.volume["status"]["phase"] = json!("Failed");
    assert!(matches!(failed.plan(), Decision::Start(_)));
}

#[test]
fn a_retained_volume_is_let_go_when_its_pv_is_deleted_and_nothing_is_run() {
    let mut world = Released::new();
    world.volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    world.volume["metadata"]["deletionTimestamp"] = json!(ago(1));
    assert!(matches!(world.plan(), Decision::Own(ForVolume::LetGo(go)) if !go.delete));
    world.volume["status"]["phase"] = json!("Bound");
    assert!(matches!(world.plan(), Decision::Rest));
}

/// Proves: P3
#[test]
fn a_volume_that_was_deleted_needs_its_config_map_no_more() {
    let gone = || NoConfig::Missing {
        class: "silver".into(),
        reference: "admin/c".parse().unwrap(),
    };
    let mut world = Released::new();
    world.config = Err(gone());
    world.deletes(owned(run("delete", 1, 10, &ended(0, ""))));
    let is_let_go = |decision| matches!(decision, Decision::Own(ForVolume::LetGo(go)) if go.delete);
    assert!(is_let_go(world.plan()), "its ConfigMap is not needed any more");
    world.record = Some(record(&json!({"operation": "delete"})));
    world.deletes(run("delete", 1, 10, &ended(0, "")));
    assert!(is_let_go(world.plan()));
    // Of another deletion, or of one that failed or has not ended.
    for other in [
        run("delete", 2, 10, &ended(0, "")),
        run("delete", 1, 10, &ended(75, "busy")),
        run("delete", 1, 10, &running()),
    ] {
        world.deletes(other);
        assert!(matches!(world.plan(), Decision::Wait { say: Some(_), .. }));
    }
    // The same of a claim that had no volume yet.
    let mut world = undoing(&json!({"operation": "delete", "may-exist": true}));
    world.config = Err(gone());
    world.delete_run = Some(run("delete", 1, 10, &ended(0, "")));
    assert!(matches!(world.plan(), Decision::Own(ForClaim::Undone(_))));
    world.delete_run = Some(run("delete", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Wait { say: Some(_), .. }));
}

#[test]
fn a_deletion_of_a_volume_says_what_it_waits_for() {
    let mut world = Released::new();
    world.config = Err(NoConfig::Missing {
        class: "silver".into(),
        reference: "admin/c".parse().unwrap(),
    });
    assert!(matches!(world.plan(), Decision::Wait { say: Some(say), .. } if say.text.contains("admin/c")));
    let mut world = Released::new();
    world.volume["metadata"]["annotations"]["mooring.dev/request"] = json!("?");
    assert!(matches!(world.plan(), Decision::Wait { say: Some(_), .. }));
    world.record = Some(record(
        &json!({"operation": "delete", "attempt": 2, "not-before": ago(-9)}),
    ));
    let mut world = Released::new();
    world.record = Some(record(
        &json!({"operation": "delete", "attempt": 2, "not-before": ago(-9)}),
    ));
    assert!(matches!(world.plan(), Decision::Wait { after: Some(after), .. } if after.as_secs() == 9));
}

#[test]
fn a_volume_that_lived_on_a_node_goes_with_it() {
    let on = |node: &str| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}})
    };
    let mut world = Released::new();
    world.config = Ok(Arc::new(config(&[("backend-volume", "client=pool")])));
    world.volume["spec"]["nodeAffinity"] = on("node-a");
    assert!(matches!(world.plan(), Decision::Start(start) if start.node.as_deref() == Some("node-a")));
    world.volume["spec"]["nodeAffinity"] = on("gone");
    // Its Node object may be made again, and its disk has the volume.
    let minutes_ago = |minutes: i64| ago(minutes * 60).parse::<Timestamp>().unwrap();
    for since in [None, Some(0), Some(59)] {
        world.away_since = since.map(minutes_ago);
        let Decision::Wait { say: Some(say), .. } = world.plan() else {
            panic!("{since:?}")
        };
        assert!(say.text.contains("is not back within 60 minutes"), "{}", say.text);
    }
    world.away_since = Some(minutes_ago(60));
    let Decision::Own(ForVolume::LetGo(go)) = world.plan() else {
        panic!()
    };
    assert!(go.delete && go.say.unwrap().text.contains("gone"));
}

#[test]
fn another_mooring_s_volume_is_reported_only_when_it_is_forsaken() {
    let mut world = Released::new();
    world.config = Err(NoConfig::Elsewhere {
        is_at_work: true,
        class: "silver".into(),
        reference: "other/c".parse().unwrap(),
    });
    world.volume["status"]["lastPhaseTransitionTime"] = json!(ago(100));
    assert!(matches!(world.plan(), Decision::Wait { after: Some(after), say: None } if after.as_secs() == 200));
    world.volume["status"]["lastPhaseTransitionTime"] = json!(ago(300));
    assert!(matches!(world.plan(), Decision::Wait { say: Some(_), .. }));
}
