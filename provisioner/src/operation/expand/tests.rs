use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use mooring_contract::operation::Operation;
use serde_json::{Value, json};

use super::status;
use crate::config::ConfigRef;
use crate::config::store::NoConfig;
use crate::operation::decision::{Altered, ClaimDecision, Decision, Failed, ForClaim, Intent, Start};
use crate::operation::tests::{World, ago, ended, leaving, never_made, no_image, now, run, running, try_config};
use crate::run::Run;
use crate::run::properties::tests::silver;
use crate::time::later;
use crate::volume::acceptance;

const EXPANDS: [(&str, &str); 2] = [
    ("volume-source", "flexVolume"),
    ("operations", "provision,delete,expand"),
];

/// A bound claim that has 1 GiB and asks for so many.
fn asking(gib: u64) -> World {
    let mut world = World::new().with_config(&EXPANDS);
    world.claim["spec"]["volumeName"] = json!("pvc-u1");
    world.claim["spec"]["resources"]["requests"]["storage"] = json!(format!("{gib}Gi"));
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
    world.volumes = vec![volume];
    world
}

/// The same with a record of the expansion to that size.
fn expanding(gib: u64, change: &Value) -> World {
    let mut world = asking(gib);
    let mut record = json!({
        "operation": "expand", "attempt": 1, "pod": "admin/expand-u1", "since": ago(60),
        "config": "admin/custom-isci-provisioner", "config-uid": "c1", "size": gib << 30,
    });
    for (key, new) in change.as_object().unwrap() {
        record[key] = new.clone();
    }
    world.record = Some(serde_json::from_value(record).unwrap());
    world.claim["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"]);
    world.claim["status"]["allocatedResources"] = json!({"storage": format!("{gib}Gi")});
    world.claim["status"]["allocatedResourceStatuses"] = json!({"storage": "ControllerResizeInProgress"});
    world
}

/// A run of the expansion that was asked for so many GiB.
fn asked_for(gib: u64, attempt: u32, status: &Value) -> Run {
    let request = json!({"mooring.dev/request": json!(super::of_size(silver(), gib << 30)).to_string()});
    run("expand", attempt, 10, status)
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
        Decision::Own(ForClaim::Altered(grown)) => *grown,
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
fn a_claim_that_asks_for_more_than_it_has_is_expanded_with_the_options_of_its_volume() {
    let start = started(asking(5).plan());
    assert_eq!(start.intent, Intent::ToRecord);
    assert_eq!(
        (start.run.name(), start.record.run.as_str()),
        ("expand-u1".to_owned(), "admin/expand-u1")
    );
    assert_eq!(
        (start.record.size, start.request.size, start.request.size_gi),
        (Some(5 << 30), 5 << 30, 5)
    );
    assert_eq!(start.request.operation, Operation::Expand);
    assert_eq!(start.request.pv_name, "pvc-u1");
    assert_eq!(start.request.volume["client"], "nfs");
    assert!(start.owner.is_none());
}

/// As data movers and tools that rename claims hand it over.
#[test]
fn a_volume_that_was_handed_to_another_claim_is_expanded_as_the_volume_that_it_is() {
    let mut world = asking(5);
    let mut made_by = silver();
    (made_by.pv_name, made_by.pvc_uid, made_by.size) = ("pvc-first".into(), "first".into(), 1 << 30);
    (made_by.pvc_namespace, made_by.pvc_name) = ("velero".into(), "first".into());
    world.volumes[0]["metadata"]["name"] = json!("pvc-first");
    world.volumes[0]["metadata"]["annotations"]["mooring.dev/request"] = json!(json!(made_by).to_string());
    world.claim["spec"]["volumeName"] = json!("pvc-first");
    let start = started(world.plan());
    assert_eq!(start.request.pv_name, "pvc-first", "what the storage knows it by");
    assert_eq!(start.run.name(), "expand-u1", "the claim that asks is the new one");
    // By these the run is found again, and its end wakes the claim.
    let request = &start.request;
    assert_eq!(
        [&request.pvc_namespace, &request.pvc_name, &request.pvc_uid],
        ["default", "data", "u1"]
    );
    world.record = Some(start.record.clone());
    world.claim["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"]);
    let request = json!({"mooring.dev/request": json!(start.request).to_string()});
    let run = run("expand", 1, 10, &ended(0, ""));
    world.expand_run = Some(run.changed(|carrier| {
        carrier.metadata.annotations = serde_json::from_value(request).unwrap();
    }));
    let patch = over(world.plan()).volume_patch.unwrap();
    let noted = patch["metadata"]["annotations"]["mooring.dev/request"]
        .as_str()
        .unwrap();
    let noted: Value = serde_json::from_str(noted).unwrap();
    assert_eq!(
        (noted["pvc-uid"].as_str(), noted["size-gi"].as_u64()),
        (Some("first"), Some(5))
    );
}

#[test]
fn what_is_not_bound_not_ours_or_large_enough_is_left_alone() {
    let rests = |change: &dyn Fn(&mut World)| {
        let mut world = asking(5);
        change(&mut world);
        matches!(world.plan(), Decision::Rest)
    };
    assert!(!rests(&|_| {}));
    assert!(matches!(asking(1).plan(), Decision::Rest));
    assert!(rests(&|world| world.claim["status"]["phase"] = json!("Lost")));
    assert!(rests(&|world| world.claim["status"] = json!({"phase": "Bound"})));
    assert!(rests(&|world| world.volumes = vec![]));
    assert!(rests(&|world| world.claim["spec"]["volumeName"] = json!("another")));
    assert!(rests(&|world| world.volumes[0]["metadata"]["finalizers"] = json!([])));
    assert!(rests(&|world| world.volumes[0]["spec"]["claimRef"]["uid"] = json!("u2")));
    assert!(rests(&|world| world.config = Err(NoConfig::NotReadYet)));
    // Without a record it can't be deleted half-way: there is nothing to undo.
    assert!(rests(
        &|world| world.claim["metadata"]["deletionTimestamp"] = json!(ago(1))
    ));
    // Of an expansion before.
    assert!(rests(
        &|world| world.expand_run = Some(leaving(asked_for(2, 1, &ended(0, ""))))
    ));
    let mut world = asking(5);
    world.expand_run = Some(asked_for(2, 1, &ended(0, "")));
    assert!(matches!(world.plan(), Decision::Stop(runs) if runs.len() == 1));
}

#[test]
fn a_config_map_that_does_not_offer_it_is_named_and_nothing_is_run() {
    let silent = asking(5).with_config(&[("volume-source", "flexVolume")]).plan();
    let text = said(&silent);
    assert!(
        text.contains(r#"does not list "expand" in its key "operations""#)
            && text.contains("lower the claim's request"),
        "{text}"
    );
    let mut gone = asking(5);
    gone.config = Err(missing());
    assert!(said(&gone.plan()).contains("admin/custom-isci-provisioner"));
    let mut rebound = asking(5);
    rebound.volumes[0]["metadata"]["annotations"]["mooring.dev/request"] = json!(json!(silver()).to_string());
    assert!(said(&rebound.plan()).contains("is a copy of PersistentVolume"));
}

fn missing() -> NoConfig {
    let reference: ConfigRef = "admin/custom-isci-provisioner".parse().unwrap();
    NoConfig::Missing {
        class: "silver".into(),
        reference,
    }
}

/// The rules of external-resizer: what is made of each status, of which the claim's allocated size is 3 GiB.
#[test]
fn an_earlier_expansion_is_finished_first_where_its_end_is_not_known() {
    for (word, volume, size) in [
        ("", 1, Some(5)),
        ("ControllerResizeInfeasible", 1, Some(5)),
        ("ControllerResizeInProgress", 1, Some(3)),
        ("NodeResizeInfeasible", 1, Some(3)),
        ("NodeResizePending", 1, Some(3)),
        ("NodeResizePending", 3, None),
        ("NodeResizeInProgress", 3, None),
        ("NodeResizePending", 5, None),
        ("NodeResizeInfeasible", 5, Some(3)),
        ("ControllerResizeInProgress", 5, Some(3)),
        ("ControllerResizeInfeasible", 5, Some(3)),
        ("", 5, Some(3)),
        ("OfALaterVersion", 1, Some(5)),
    ] {
        let mut world = asking(5);
        world.claim["status"]["allocatedResources"] = json!({"storage": "3Gi"});
        if !word.is_empty() {
            world.claim["status"]["allocatedResourceStatuses"] = json!({"storage": word});
        }
        world.volumes[0]["spec"]["capacity"]["storage"] = json!(format!("{volume}Gi"));
        let decided = match world.plan() {
            Decision::Start(start) => Some(start.record.size.unwrap() >> 30),
            Decision::Rest => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(decided, size, "{word} with a PV of {volume} GiB");
    }
}

/// Where no policy keeps Kubernetes from it.
#[test]
fn a_flexvolume_that_kubernetes_has_only_called_larger_is_made_larger() {
    let mut world = asking(5);
    world.claim["status"]["allocatedResources"] = json!({"storage": "5Gi"});
    world.claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
    world.volumes[0]["spec"]["capacity"]["storage"] = json!("5Gi");
    assert!(matches!(world.plan(), Decision::Rest));
    world.claim["metadata"]["annotations"]["volume.kubernetes.io/storage-resizer"] = json!("mooring.dev/vcs");
    let start = started(world.plan());
    assert_eq!(start.request.size, 5 << 30);
    // Once the image has done it, that is remembered.
    let mut grown = expanding(5, &json!({}));
    grown.volumes = world.volumes.clone();
    grown.expand_run = Some(asked_for(5, 1, &ended(0, "")));
    let patch = over(grown.plan()).volume_patch.unwrap();
    world.volumes[0]["metadata"]["annotations"]["mooring.dev/request"] =
        patch["metadata"]["annotations"]["mooring.dev/request"].clone();
    assert!(matches!(world.plan(), Decision::Rest));
}

#[test]
fn a_run_is_followed_to_its_end() {
    let mut world = expanding(5, &json!({}));
    assert_eq!(started(world.plan()).intent, Intent::Recorded);
    world.expand_run = Some(asked_for(5, 1, &running()));
    assert!(matches!(
        world.plan(),
        Decision::Wait {
            after: Some(_),
            say: None
        }
    ));
    world.expand_run = Some(asked_for(5, 1, &no_image()));
    let Decision::Supply { start, say, .. } = world.plan() else {
        panic!()
    };
    assert!(start.intent == Intent::Recorded && start.request.size == 5 << 30 && say.is_some());
    world.expand_run = Some(leaving(asked_for(5, 1, &running())));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
    let mut second = expanding(5, &json!({"attempt": 2, "may-exist": true}));
    second.expand_run = Some(asked_for(5, 1, &ended(75, "busy")));
    assert!(matches!(second.plan(), Decision::Stop(_)));
}

#[test]
fn a_directory_has_grown_when_its_server_says_so() {
    let mut world = expanding(5, &json!({}));
    world.claim["status"]["conditions"] =
        json!([{"type": "Resizing", "status": "True"}, {"type": "Unused", "status": "False"}]);
    world.expand_run = Some(asked_for(5, 1, &ended(0, "")));
    let grown = over(world.plan());
    let patch = grown.volume_patch.unwrap();
    assert_eq!(patch["spec"]["capacity"]["storage"], "5Gi");
    assert_eq!(patch["metadata"]["resourceVersion"], "9");
    assert!(patch["metadata"]["annotations"]["volume.alpha.kubernetes.io/pre-resize-capacity"].is_null());
    let remembered = patch["metadata"]["annotations"]["mooring.dev/request"]
        .as_str()
        .unwrap();
    assert!(remembered.contains("5368709120"), "{remembered}");
    let status = grown.status.unwrap();
    assert_eq!(status["capacity"]["storage"], "5Gi");
    assert!(status["allocatedResourceStatuses"]["storage"].is_null());
    assert_eq!(
        status["conditions"].as_array().unwrap().len(),
        1,
        "others stay: {status}"
    );
    assert!(grown.release && grown.at_once == Some(true) && grown.runs.len() == 1);
    assert_eq!(grown.say.unwrap().reason, "VolumeResizeSuccessful");
}

#[test]
fn a_device_has_grown_when_a_node_has_enlarged_its_file_system() {
    let mut world = expanding(5, &json!({}));
    world.volumes[0]["spec"]["flexVolume"]["options"] = json!({"client": "local", "source": "pvc-u1.img"});
    world.expand_run = Some(asked_for(5, 1, &ended(0, "")));
    let grown = over(world.plan());
    let patch = grown.volume_patch.unwrap();
    assert_eq!(
        patch["metadata"]["annotations"]["volume.alpha.kubernetes.io/pre-resize-capacity"],
        "1Gi"
    );
    let status = grown.status.unwrap();
    assert!(status["capacity"].is_null());
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizePending");
    let kinds: Vec<_> = status["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["type"])
        .collect();
    assert_eq!(kinds, ["Resizing", "FileSystemResizePending"]);
    assert!(grown.release && grown.at_once == Some(false));
    assert_eq!(grown.say.unwrap().reason, "FileSystemResizeRequired");
    // Killed after the PV was patched.
    world.volumes[0]["spec"]["capacity"]["storage"] = json!("5Gi");
    world.volumes[0]["metadata"]["annotations"]["mooring.dev/request"] =
        patch["metadata"]["annotations"]["mooring.dev/request"].clone();
    assert!(over(world.plan()).volume_patch.is_none());
}

#[test]
fn the_size_is_the_one_that_the_image_was_asked_for() {
    let mut world = expanding(5, &json!({}));
    world.expand_run = Some(asked_for(4, 1, &ended(0, "")));
    assert_eq!(
        over(world.plan()).volume_patch.unwrap()["spec"]["capacity"]["storage"],
        "4Gi"
    );
    // A PV is never made smaller.
    world.volumes[0]["spec"]["capacity"]["storage"] = json!("8Gi");
    assert_eq!(
        over(world.plan()).volume_patch.unwrap()["spec"]["capacity"]["storage"],
        "8Gi"
    );
    world.expand_run = Some(run("expand", 1, 10, &ended(0, "")));
    assert!(failed(world.plan()).say.text.contains("mooring.dev/request"));
}

#[test]
fn an_attempt_that_failed_is_told_and_begun_again_after_a_wait() {
    let mut world = expanding(5, &json!({}));
    world.expand_run = Some(asked_for(5, 1, &ended(75, "the array is busy")));
    let failure = failed(world.plan());
    assert_eq!(failure.say.reason, "VolumeResizeFailed");
    assert!(failure.say.text.contains("the array is busy") && failure.say.text.contains("tried again"));
    assert!(failure.record.attempt == 2 && !failure.record.uncertain && failure.run.is_some());
    world.expand_run = None;
    world.record = Some(failure.record.clone());
    assert!(matches!(
        world.plan(),
        Decision::Wait {
            after: Some(_),
            say: None
        }
    ));
    // A changed request ends the wait, and is what counts.
    world.claim["spec"]["resources"]["requests"]["storage"] = json!("3Gi");
    let start = started(world.plan());
    assert!(start.intent == Intent::ToRecord && start.record.size == Some(3 << 30) && start.request.size == 3 << 30);
    assert!(start.record.last_error.is_empty());
}

#[test]
fn exit_78_ends_it_until_something_changes_and_it_can_be_taken_back() {
    let mut world = expanding(5, &json!({}));
    world.expand_run = Some(asked_for(5, 1, &ended(78, "the array has 4 GiB")));
    let failure = failed(world.plan());
    assert!(failure.record.gave_up && failure.after.is_none());
    assert_eq!(failure.say.reason, "VolumeResizeFailed");
    let text = &failure.say.text;
    assert!(
        text.contains("the array has 4 GiB") && text.contains("lower the claim's request"),
        "{text}"
    );
    world.expand_run = None;
    world.record = Some(failure.record);
    assert_eq!(said(&world.plan()), failure.say.text, "the same words make one Event");
    let unchanged = world.record.clone();
    for (request, size) in [("3Gi", 3 << 30), ("6Gi", 6 << 30)] {
        world.record.clone_from(&unchanged);
        world.claim["spec"]["resources"]["requests"]["storage"] = json!(request);
        assert_eq!(started(world.plan()).request.size, size);
    }
    world.claim["spec"]["resources"]["requests"]["storage"] = json!("5Gi");
    let world = world.with_config(&[EXPANDS[0], EXPANDS[1], ("zone", "east")]);
    assert_eq!(started(world.plan()).request.size, 5 << 30);
    // The API server lets nobody ask for what the claim has; but if it did:
    let mut world = world;
    world.claim["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
    let grown = over(world.plan());
    assert!(grown.release && grown.without.is_some() && grown.volume_patch.is_none());
    assert!(grown.status.unwrap()["allocatedResources"]["storage"].is_null());
}

#[test]
fn an_expansion_that_the_image_refuses_does_not_hold_up_a_modification() {
    let mut world = expanding(5, &json!({}));
    world.expand_run = Some(asked_for(5, 1, &ended(78, "the array has 4 GiB")));
    let failure = failed(world.plan());
    (world.expand_run, world.record) = (None, Some(failure.record));
    world.claim["status"]["allocatedResourceStatuses"] = json!({"storage": "ControllerResizeInfeasible"});
    assert!(said(&world.plan()).contains("the array has 4 GiB"));
    let class = json!({"metadata": {"name": "gold"}, "driverName": "vcs.mooring.dev", "parameters": {"iops": "5"}});
    let by_csi = json!({"driver": "vcs.mooring.dev", "volumeHandle": "pvc-u1", "volumeAttributes": {"client": "nfs"}});
    world.volumes[0]["spec"].as_object_mut().unwrap().remove("flexVolume");
    world.volumes[0]["spec"]["csi"] = by_csi;
    world.attributes = vec![class];
    world = world.with_config(&[
        ("volume-source", "csi"),
        ("operations", "provision,delete,expand,modify"),
    ]);
    world.claim["spec"]["volumeAttributesClassName"] = json!("gold");
    // The claim is another one now, so the expansion is tried again first.
    world.expand_run = None;
    let again = started(world.plan());
    assert_eq!(again.request.size, 5 << 30);
    world.record = Some(again.record);
    world.expand_run = Some(asked_for(
        5,
        world.record.as_ref().unwrap().attempt,
        &ended(78, "the array has 4 GiB"),
    ));
    let failure = failed(world.plan());
    (world.expand_run, world.record) = (None, Some(failure.record));
    let aside = over(world.plan());
    assert!(aside.release && aside.status.is_none());
    world.record = None;
    assert_eq!(started(world.plan()).request.operation, Operation::Modify);
}

#[test]
fn a_run_of_which_the_end_is_not_known_holds_the_size() {
    let lost = json!({"phase": "Failed", "reason": "NodeLost"});
    let late = json!({"phase": "Failed", "reason": "DeadlineExceeded", "startTime": ago(10), "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
         "state": {"terminated": {"exitCode": 137, "startedAt": ago(9)}}}]});
    for status in [&lost, &late] {
        let mut world = expanding(5, &json!({}));
        world.expand_run = Some(asked_for(5, 1, status));
        let failure = failed(world.plan());
        assert!(failure.record.uncertain, "{status}");
        world.expand_run = None;
        world.record = Some(failure.record);
        for request in ["3Gi", "1Gi"] {
            world.claim["spec"]["resources"]["requests"]["storage"] = json!(request);
            assert_eq!(started(world.plan()).request.size, 5 << 30, "{status} {request}");
        }
        // A run that never started says nothing about it.
        world.record.as_mut().unwrap().not_before = None;
        world.expand_run = Some(asked_for(5, 2, &never_made()));
        assert!(failed(world.plan()).record.uncertain, "{status}");
        // Until one ends by itself.
        world.record.as_mut().unwrap().not_before = None;
        world.expand_run = Some(asked_for(5, 2, &ended(1, "no")));
        assert!(!failed(world.plan()).record.uncertain);
    }
    // Begun, and perhaps made by a controller that was killed.
    let mut world = expanding(5, &json!({}));
    world.claim["spec"]["resources"]["requests"]["storage"] = json!("3Gi");
    assert_eq!(started(world.plan()).request.size, 5 << 30);
}

#[test]
fn a_run_that_ran_after_all_holds_the_size_that_it_was_asked_for() {
    // The first attempt did not start in time, and the user asks for less since.
    let lowered = |change: &Value, run: Run| {
        let mut world = expanding(3, change);
        world.expand_run = Some(run);
        world
    };
    let held_back = json!({"attempt": 2, "size": 5_u64 << 30, "not-before": ago(-30)});
    let begun = json!({"attempt": 2, "may-exist": true});
    let killed = leaving(asked_for(5, 1, &ended(143, "")));
    for (change, run) in [
        (&held_back, asked_for(5, 1, &running())),
        (&held_back, killed.clone()),
        (&held_back, leaving(asked_for(5, 1, &ended(0, "")))),
        // A controller that did not know of it has begun the next.
        (&begun, killed),
    ] {
        let mut world = lowered(change, run);
        let Decision::Record(noted) = world.plan() else {
            panic!("{change}")
        };
        assert!(noted.may_exist && noted.uncertain, "{noted:?}");
        assert_eq!(noted.size, Some(5 << 30));
        world.record = Some(*noted);
        assert!(matches!(world.plan(), Decision::Stop(_) | Decision::Wait { .. }));
        world.expand_run = None;
        let due = later(now(), Duration::from_mins(1));
        assert_eq!(started(world.plan_at(due)).request.size, 5 << 30);
    }
    // It says itself that the storage is as it was.
    let world = lowered(&held_back, leaving(asked_for(5, 1, &ended(1, "no"))));
    assert!(matches!(world.plan(), Decision::Record(noted) if noted.may_exist && !noted.uncertain));
    let world = lowered(&begun, leaving(asked_for(5, 1, &ended(1, "no"))));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
}

/// Proves: P3
#[test]
fn a_claim_that_is_deleted_waits_for_the_run_to_be_gone_and_for_nothing_else() {
    let mut world = expanding(5, &json!({})).deleted();
    world.config = Err(missing());
    for status in [running(), ended(0, ""), ended(78, "no"), no_image()] {
        world.expand_run = Some(asked_for(5, 1, &status));
        assert!(matches!(world.plan(), Decision::Stop(_)), "{status}");
        world.expand_run = Some(leaving(asked_for(5, 1, &status)));
        assert!(matches!(world.plan(), Decision::Wait { .. }), "{status}");
    }
    world.expand_run = None;
    let grown = over(world.plan());
    assert!(grown.release && grown.status.is_none() && grown.volume_patch.is_none());
    let (place, id) = grown.without.unwrap();
    assert_eq!((place.as_str(), id.name().as_str()), ("admin/expand-u1", "expand-u1"));
}

/// Proves: P3
#[test]
fn an_expansion_that_can_t_go_on_is_given_up_and_holds_nobody() {
    let mut gone = expanding(5, &json!({}));
    gone.config = Err(missing());
    let grown = over(gone.plan());
    assert!(grown.release && grown.without.is_some() && grown.say.is_some());
    // What has been begun is finished all the same.
    gone.expand_run = Some(asked_for(5, 1, &ended(0, "")));
    assert!(over(gone.plan()).volume_patch.is_some());
    let not_any_more = expanding(5, &json!({})).with_config(&[]);
    assert!(over(not_any_more.plan()).say.unwrap().text.contains("operations"));
    let mut released = expanding(5, &json!({}));
    released.volumes = vec![];
    assert!(over(released.plan()).say.unwrap().text.contains("gone"));
    // A class that is gone does not matter: the volume stays with its ConfigMap.
    let mut unclassed = expanding(5, &json!({}));
    unclassed.class = None;
    assert!(matches!(unclassed.plan(), Decision::Start(_)));
}

#[test]
fn a_volume_does_not_grow_while_a_copy_of_it_is_made() {
    let mut world = asking(5);
    world.copied_by = Some("claim default/copy");
    assert!(said(&world.plan()).contains("Mooring is copying the claim's volume for claim default/copy"));
    world.copied_by = None;
    started(world.plan());
}

#[test]
fn a_volume_on_a_node_is_expanded_there() {
    let local = [
        ("volume-source", "flexVolume"),
        ("operations", "provision,delete,expand"),
        ("backend-volume", "client=pool"),
    ];
    assert!(try_config(&local).is_some());
    let mut world = asking(5).with_config(&local);
    world.volumes[0]["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-b"]}]}]}});
    assert_eq!(started(world.plan()).node.as_deref(), Some("node-b"));
    world.nodes = vec!["node-a"];
    assert!(said(&world.plan()).contains("node node-b"));
}

#[test]
fn what_is_left_of_an_expansion_that_is_over_is_taken_off() {
    // The kubelet has finished it. Of a FlexVolume Kubernetes itself takes the mark off.
    let mut world = asking(1);
    world.volumes[0]["metadata"]["annotations"]["volume.alpha.kubernetes.io/pre-resize-capacity"] = json!("512Mi");
    assert!(matches!(world.plan(), Decision::Rest));
    let spec = &mut world.volumes[0]["spec"];
    spec["csi"] = json!({"driver": "vcs.mooring.dev", "volumeHandle": "pvc-u1", "volumeAttributes": spec["flexVolume"]["options"]});
    spec.as_object_mut().unwrap().remove("flexVolume");
    let grown = over(world.plan());
    assert!(grown.volume_patch.is_some() && grown.status.is_none() && !grown.release);
    world.volumes[0]["spec"]["capacity"]["storage"] = json!("5Gi");
    assert!(matches!(world.plan(), Decision::Rest), "still to be finished");
    let mut left = asking(1);
    left.claim["status"]["allocatedResourceStatuses"] = json!({"storage": "ControllerResizeInfeasible"});
    assert!(over(left.plan()).status.is_some());
    left.claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
    assert!(matches!(left.plan(), Decision::Rest));
}

#[test]
fn the_status_says_what_the_record_does() {
    let shown = |change: &Value| {
        let world = expanding(5, change);
        let claim: PersistentVolumeClaim = serde_json::from_value(world.claim.clone()).unwrap();
        status::of_record(&claim, world.record.as_ref().unwrap(), now())
    };
    let begun = shown(&json!({}));
    assert_eq!(begun["allocatedResources"]["storage"], "5Gi");
    assert_eq!(
        begun["allocatedResourceStatuses"]["storage"],
        "ControllerResizeInProgress"
    );
    assert_eq!(begun["conditions"].as_array().unwrap().len(), 1);
    let infeasible = shown(&json!({"gave-up": true, "last-error": "exit code 78: no"}));
    assert_eq!(
        infeasible["allocatedResourceStatuses"]["storage"],
        "ControllerResizeInfeasible"
    );
    assert_eq!(infeasible["conditions"][1]["type"], "ControllerResizeError");
    assert_eq!(infeasible["conditions"][1]["message"], "exit code 78: no");
    let busy = shown(&json!({"attempt": 2, "last-error": "busy"}));
    assert_eq!(
        busy["allocatedResourceStatuses"]["storage"],
        "ControllerResizeInProgress"
    );
    assert_eq!(busy["conditions"][1]["type"], "ControllerResizeError");
}
