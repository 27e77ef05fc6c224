use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use mooring_contract::operation::Operation;
use mooring_contract::request::Attributes;
use serde_json::{Value, json};

use super::{is_asked, names, status};
use crate::config::ConfigRef;
use crate::config::store::NoConfig;
use crate::operation::decision::{Altered, ClaimDecision, Decision, Failed, ForClaim, Intent, Start};
use crate::operation::tests::{World, ago, ended, leaving, now, run, running, try_config};
use crate::run::Run;
use crate::run::properties::tests::silver;
use crate::time::later;
use crate::volume::acceptance;

const MODIFIES: [(&str, &str); 2] = [
    ("volume-source", "csi"),
    ("operations", "provision,delete,expand,modify"),
];

fn class(name: &str, driver: &str, parameters: &Value) -> Value {
    json!({"metadata": {"name": name}, "driverName": driver, "parameters": parameters})
}

/// A bound claim without attributes that names this class.
fn asking(named: &str) -> World {
    let mut world = World::new().with_config(&MODIFIES);
    world.claim["spec"]["volumeName"] = json!("pvc-u1");
    world.claim["spec"]["volumeAttributesClassName"] = json!(named);
    world.claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    let mut volume = acceptance::tests::volume();
    let mut made_by = silver();
    (made_by.pv_name, made_by.pvc_uid, made_by.size) = ("pvc-u1".into(), "u1".into(), 1 << 30);
    volume["metadata"]["finalizers"] = json!(["mooring.dev/volume"]);
    volume["metadata"]["annotations"] = json!({
        "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
        "mooring.dev/config": "admin/custom-isci-provisioner",
        "mooring.dev/request": json!(made_by).to_string(),
    });
    volume["spec"].as_object_mut().unwrap().remove("flexVolume");
    volume["spec"]["csi"] = json!({
        "driver": "vcs.mooring.dev", "volumeHandle": "pvc-u1",
        "volumeAttributes": {"client": "nfs", "source": "h:/x"},
    });
    world.volumes = vec![volume];
    world.attributes = vec![
        class(
            "gold",
            "vcs.mooring.dev",
            &json!({"iops": "5000", "mooring.dev/note": "x"}),
        ),
        class("iron", "vcs.mooring.dev", &json!({"iops": "10"})),
        class("theirs", "csi.example.com", &json!({"iops": "1"})),
    ];
    world
}

/// The same with a record of the modification to class gold.
fn modifying(named: &str, change: &Value) -> World {
    let mut world = asking(named);
    let mut record = json!({
        "operation": "modify", "attempt": 1, "pod": "admin/modify-u1", "since": ago(60),
        "config": "admin/custom-isci-provisioner", "config-uid": "c1", "attributes": "gold",
    });
    for (key, new) in change.as_object().unwrap() {
        record[key] = new.clone();
    }
    world.record = Some(serde_json::from_value(record).unwrap());
    world.claim["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"]);
    let claim: PersistentVolumeClaim = serde_json::from_value(world.claim.clone()).unwrap();
    let status = status::of_record(&claim, world.record.as_ref().unwrap(), now());
    world.claim["status"]["modifyVolumeStatus"] = status["modifyVolumeStatus"].clone();
    world.claim["status"]["conditions"] = status["conditions"].clone();
    world
}

fn gold() -> Attributes {
    Attributes {
        class: "gold".into(),
        parameters: [("iops".to_owned(), "5000".to_owned())].into(),
    }
}

/// A run of the modification to class gold.
fn to_gold(attempt: u32, status: &Value) -> Run {
    let mut request = silver();
    request.attributes = Some(gold());
    let request = json!({"mooring.dev/request": json!(request).to_string()});
    run("modify", attempt, 10, status)
        .changed(|carrier| carrier.metadata.annotations = serde_json::from_value(request).unwrap())
}

fn started(decision: ClaimDecision) -> Start {
    match decision {
        Decision::Start(start) => *start,
        other => panic!("{other:?}"),
    }
}

fn over(decision: ClaimDecision) -> Altered {
    match decision {
        Decision::Own(ForClaim::Altered(altered)) => *altered,
        other => panic!("{other:?}"),
    }
}

fn failed(decision: ClaimDecision) -> Failed {
    match decision {
        Decision::Fail(failed) => *failed,
        other => panic!("{other:?}"),
    }
}

fn said(decision: &ClaimDecision) -> String {
    match decision {
        Decision::Wait { say: Some(say), .. } => say.text.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_that_names_another_class_is_modified_with_its_parameters() {
    let start = started(asking("gold").plan());
    assert_eq!(start.intent, Intent::ToRecord);
    assert_eq!(
        (start.run.name(), start.record.run.as_str()),
        ("modify-u1".to_owned(), "admin/modify-u1")
    );
    assert_eq!(start.record.attributes, "gold");
    assert_eq!(start.request.operation, Operation::Modify);
    // What is Mooring's own is not for the image.
    assert_eq!(start.request.attributes, Some(gold()));
    assert_eq!(
        (start.request.pv_name.as_str(), start.request.size),
        ("pvc-u1", 1 << 30)
    );
    assert_eq!(start.request.volume["client"], "nfs");
}

#[test]
fn what_has_its_class_or_is_not_bound_or_not_ours_is_left_alone() {
    let rests = |change: &dyn Fn(&mut World)| {
        let mut world = asking("gold");
        change(&mut world);
        matches!(world.plan(), Decision::Rest)
    };
    assert!(!rests(&|_| {}));
    assert!(rests(&|world| {
        world.claim["status"]["currentVolumeAttributesClassName"] = json!("gold");
    }));
    assert!(rests(
        &|world| world.claim["spec"]["volumeAttributesClassName"] = json!("")
    ));
    assert!(rests(&|world| world.claim["status"]["phase"] = json!("Lost")));
    assert!(rests(&|world| world.volumes = vec![]));
    assert!(rests(&|world| world.modify_run = Some(leaving(to_gold(1, &running())))));
    assert!(rests(&|world| {
        world.expand_run = Some(leaving(run("expand", 1, 10, &running())));
    }));
    let elsewhere = NoConfig::NotReadYet;
    let mut world = asking("gold");
    world.config = Err(elsewhere);
    assert!(matches!(world.plan(), Decision::Rest));
}

#[test]
fn what_can_t_be_had_is_pending_in_the_status_and_its_events_say_why() {
    type Change = dyn Fn(&mut World);
    let cases: [(&str, &Change, &str); 4] = [
        ("lead", &|_| {}, "\"lead\" does not exist"),
        ("theirs", &|_| {}, "is of driver \"csi.example.com\""),
        (
            "gold",
            &|world| {
                let offered = [MODIFIES[0], ("operations", "provision,delete")];
                world.config = Ok(std::sync::Arc::new(try_config(&offered).unwrap()));
            },
            "does not list \"modify\" in its key \"operations\"",
        ),
        (
            "gold",
            &|world| {
                let spec = world.volumes[0]["spec"].as_object_mut().unwrap();
                spec.remove("csi");
                spec.insert("flexVolume".to_owned(), json!({"driver": "mooring.dev/vcs"}));
            },
            "works with CSI volumes only",
        ),
    ];
    for (named, change, words) in cases {
        let mut world = asking(named);
        change(&mut world);
        let pending = over(world.plan());
        assert!(!pending.release && pending.volume_patch.is_none(), "{words}");
        let status = pending.status.unwrap();
        assert_eq!(
            status,
            json!({"modifyVolumeStatus": {"targetVolumeAttributesClassName": named, "status": "Pending"}})
        );
        world.claim["status"]["modifyVolumeStatus"] = status["modifyVolumeStatus"].clone();
        let text = said(&world.plan());
        assert!(text.contains(words) && text.contains("stays as it is"), "{text}");
    }
    // It is begun as soon as it can be.
    let mut world = asking("gold");
    world.claim["status"]["modifyVolumeStatus"] =
        json!({"targetVolumeAttributesClassName": "lead", "status": "Pending"});
    assert_eq!(started(world.plan()).record.attributes, "gold");
}

#[test]
fn size_and_attributes_change_one_after_the_other_and_neither_holds_up_the_other() {
    let mut world = asking("gold");
    world.claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    assert_eq!(started(world.plan()).request.operation, Operation::Expand);
    // An expansion that nobody offers.
    let offered = [MODIFIES[0], ("operations", "provision,delete,modify")];
    world.config = Ok(std::sync::Arc::new(try_config(&offered).unwrap()));
    assert_eq!(started(world.plan()).request.operation, Operation::Modify);
    // And two that nobody offers.
    world.claim["spec"]["volumeAttributesClassName"] = json!("theirs");
    world.claim["status"]["modifyVolumeStatus"] =
        json!({"targetVolumeAttributesClassName": "theirs", "status": "Pending"});
    assert!(said(&world.plan()).contains("expand"));
}

#[test]
fn a_change_that_the_image_refuses_does_not_hold_up_the_other() {
    let tried = |world: &mut World, status: &Value| {
        world.modify_run = Some(to_gold(1, status));
        let failed = failed(world.plan());
        (world.modify_run, world.record) = (None, Some(failed.record));
    };
    let larger = json!("2Gi");
    let mut world = modifying("gold", &json!({}));
    world.claim["spec"]["resources"]["requests"]["storage"] = larger.clone();
    tried(&mut world, &ended(78, "no gold here"));
    world.claim["status"]["modifyVolumeStatus"]["status"] = json!("Infeasible");
    let aside = over(world.plan());
    assert!(aside.release && aside.without.is_some() && aside.status.is_none() && aside.say.is_none());
    world.record = None;
    assert_eq!(started(world.plan()).request.operation, Operation::Expand);
    // The expansion is refused too: neither is tried again and again.
    world.claim["status"]["allocatedResourceStatuses"] = json!({"storage": "ControllerResizeInfeasible"});
    assert_eq!(started(world.plan()).request.operation, Operation::Modify);
    world.record = modifying("gold", &json!({})).record;
    tried(&mut world, &ended(78, "no gold here"));
    assert!(said(&world.plan()).contains("no gold here"));
    // One that may be tried again, or may have come about, holds up the other.
    for status in [ended(75, "busy"), ended(137, "")] {
        let mut world = modifying("gold", &json!({}));
        world.claim["spec"]["resources"]["requests"]["storage"] = larger.clone();
        tried(&mut world, &status);
        assert!(!matches!(world.plan(), Decision::Own(_)), "{status}");
    }
}

#[test]
fn a_modification_waits_for_what_copies_the_volume() {
    let mut world = asking("gold");
    world.copied_by = Some("claim default/copy");
    assert!(said(&world.plan()).contains("claim default/copy"));
}

#[test]
fn done_is_written_down_in_the_volume_and_then_in_the_claim() {
    let mut world = modifying("gold", &json!({}));
    world.modify_run = Some(to_gold(1, &ended(0, "")));
    world.claim["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "Other", "status": "True"}));
    let done = over(world.plan());
    let patch = done.volume_patch.unwrap();
    assert_eq!(patch["spec"], json!({"volumeAttributesClassName": "gold"}));
    let noted = patch["metadata"]["annotations"]["mooring.dev/request"]
        .as_str()
        .unwrap();
    let noted: Value = serde_json::from_str(noted).unwrap();
    assert_eq!(
        noted["attributes"],
        json!({"class": "gold", "parameters": {"iops": "5000"}})
    );
    let status = done.status.unwrap();
    assert_eq!(status["currentVolumeAttributesClassName"], "gold");
    assert!(status["modifyVolumeStatus"].is_null());
    assert_eq!(status["conditions"].as_array().unwrap().len(), 1);
    assert!(done.release && done.took.is_some() && done.at_once.is_none());
    assert_eq!(done.runs.len(), 1);
    // Where the controller was stopped in between, the volume has it already.
    world.volumes[0]["spec"]["volumeAttributesClassName"] = json!("gold");
    world.volumes[0]["metadata"]["annotations"]["mooring.dev/request"] = json!(noted.to_string());
    assert!(over(world.plan()).volume_patch.is_none());
}

#[test]
fn another_class_counts_only_after_a_run_that_is_known_to_have_ended() {
    // It is being done, or may be.
    for change in [json!({}), json!({"uncertain": true, "not-before": ago(5)})] {
        let world = modifying("iron", &change);
        assert_eq!(started(world.plan()).record.attributes, "gold", "{change}");
    }
    for change in [
        json!({"not-before": ago(5), "last-error": "busy"}),
        json!({"gave-up": true, "tried": "x"}),
    ] {
        let start = started(modifying("iron", &change).plan());
        assert_eq!(start.record.attributes, "iron", "{change}");
        assert_eq!(start.request.attributes.unwrap().parameters["iops"], "10");
        assert!(start.record.last_error.is_empty());
    }
}

#[test]
fn a_run_that_ran_after_all_holds_the_class_that_it_was_asked_for() {
    for change in [
        json!({"attempt": 2, "not-before": ago(-30)}),
        json!({"attempt": 2, "attributes": "iron"}),
    ] {
        let mut world = modifying("iron", &change);
        world.modify_run = Some(leaving(to_gold(1, &ended(143, ""))));
        let Decision::Record(noted) = world.plan() else {
            panic!("{change}")
        };
        assert!(noted.may_exist && noted.uncertain, "{noted:?}");
        assert_eq!(noted.attributes, "gold");
        world.record = Some(*noted);
        world.modify_run = None;
        let due = later(now(), Duration::from_mins(1));
        assert_eq!(started(world.plan_at(due)).record.attributes, "gold");
    }
}

#[test]
fn what_the_image_refuses_is_infeasible_until_another_class_or_none_is_asked_for() {
    let mut world = modifying("gold", &json!({}));
    world.modify_run = Some(to_gold(1, &ended(78, "no gold here")));
    let failed = failed(world.plan());
    assert!(failed.record.gave_up && !failed.record.uncertain);
    assert_eq!(failed.say.reason, "VolumeModifyFailed");
    assert!(failed.say.text.contains("no gold here") && failed.say.text.contains("or another"));
    let tried = failed.record.tried.clone();
    let given_up = json!({"attempt": 2, "gave-up": true, "last-error": "no gold here", "tried": tried});
    world = modifying("gold", &given_up);
    assert_eq!(
        world.claim["status"]["modifyVolumeStatus"],
        json!({"targetVolumeAttributesClassName": "gold", "status": "Infeasible"})
    );
    let conditions = world.claim["status"]["conditions"].as_array().unwrap();
    let kinds: Vec<_> = conditions.iter().map(|one| one["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ModifyingVolume", "ModifyVolumeError"]);
    assert!(said(&world.plan()).contains("no gold here"));
    // None, where the volume has none.
    world.claim["spec"]["volumeAttributesClassName"] = Value::Null;
    let back = over(world.plan());
    assert!(back.release && back.without.is_some() && back.volume_patch.is_none());
    assert_eq!(back.status, Some(json!({"conditions": []})));
    assert_eq!(back.say.unwrap().reason, "VolumeModifyCanceled");
    // Then it is at rest, though its status still says what could not be done.
    world.record = None;
    world.claim["status"]["conditions"] = json!([]);
    assert!(matches!(world.plan(), Decision::Rest));
}

#[test]
fn a_failed_run_is_tried_again_with_the_same_class_even_if_none_is_asked_for() {
    for (status, uncertain) in [
        (ended(75, "busy"), false),
        (ended(1, "what"), false),
        (ended(137, ""), false),
    ] {
        let mut world = modifying("gold", &json!({}));
        world.modify_run = Some(to_gold(1, &status));
        let failed = failed(world.plan());
        assert_eq!(failed.record.uncertain, uncertain, "{status}");
        assert!(!failed.record.gave_up);
    }
    let mut world = modifying("", &json!({"attempt": 2, "not-before": ago(5), "last-error": "busy"}));
    assert_eq!(started(world.plan()).record.attributes, "gold");
    // Nor is it forgotten when the record is.
    world.record = None;
    assert_eq!(started(world.plan()).record.attributes, "gold");
}

#[test]
fn a_class_that_is_missing_for_the_next_attempt_is_waited_for_without_a_record() {
    let world = modifying("lead", &json!({"attempt": 2, "gave-up": true, "tried": "x"}));
    let pending = over(world.plan());
    assert!(pending.release && pending.without.is_some());
    assert_eq!(pending.status.unwrap()["modifyVolumeStatus"]["status"], "Pending");
    // One that may be half done is not left.
    let mut world = modifying("gold", &json!({"attempt": 2, "uncertain": true, "not-before": ago(5)}));
    world.attributes = vec![];
    assert!(said(&world.plan()).contains("does not exist"));
}

#[test]
fn it_is_given_up_with_its_run_when_the_claim_or_its_volume_goes() {
    for change in [
        |world: &mut World| world.claim["metadata"]["deletionTimestamp"] = json!(ago(1)),
        |world: &mut World| world.volumes = vec![],
    ] {
        let mut world = modifying("gold", &json!({}));
        change(&mut world);
        let released = over(world.plan());
        assert!(released.release && released.without.is_some() && released.status.is_none());
        world.modify_run = Some(to_gold(1, &running()));
        assert!(matches!(world.plan(), Decision::Stop(_) | Decision::Wait { .. }));
    }
    let mut world = modifying("gold", &json!({}));
    world.config = Err(NoConfig::Missing {
        class: "silver".into(),
        reference: ConfigRef {
            namespace: "admin".into(),
            name: "gone".into(),
        },
    });
    assert!(over(world.plan()).release);
}

#[test]
fn a_claim_made_with_a_class_gets_a_volume_with_its_attributes_or_is_told_why_not() {
    let made = |named: &str| {
        let mut world = World::new().with_config(&MODIFIES);
        world.claim["spec"]["volumeAttributesClassName"] = json!(named);
        world.attributes = asking("").attributes;
        world.plan()
    };
    let start = started(made("gold"));
    assert_eq!(start.request.operation, Operation::Provision);
    assert_eq!(start.request.attributes, Some(gold()));
    assert!(said(&made("lead")).contains("does not exist"));
    assert!(said(&made("theirs")).contains("csi.example.com"));
    assert_eq!(started(made("")).request.attributes, None);
}

#[test]
fn a_claim_is_woken_by_the_classes_that_decide_about_it() {
    let world = modifying("iron", &json!({}));
    let claim: PersistentVolumeClaim = serde_json::from_value(world.claim).unwrap();
    assert!(is_asked(&claim));
    let by: Vec<_> = ["gold", "iron", "lead"].map(|class| names(&claim, class)).into();
    assert_eq!(by, [true, true, false]);
}
