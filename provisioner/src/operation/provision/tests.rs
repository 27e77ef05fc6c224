//! Every branch of the plan for an existing claim.

use std::time::Duration;

use mooring_contract::operation::Operation;
use serde_json::{Value, json};

use super::super::tests::{World, ago, class, config, ended, leaving, never_made, no_image, now, run, running};
use crate::config::store::NoConfig;
use crate::operation::decision::{Accept, ClaimDecision, Decision, ForAccepted, ForClaim, Intent};
use crate::process::events::reasons;
use crate::run::Run;
use crate::run::departed::Departed;
use crate::run::outcome::Category;
use crate::time::later;
use crate::volume::acceptance::tests::volume;

type Change = Box<dyn Fn(&mut World)>;
/// Number, age in seconds, status.
type Attempt = (u32, i64, Value);
type Keys<'a> = &'a [(&'a str, &'a str)];

/// A short word for a decision, so that tables can be read.
fn word(decision: &ClaimDecision) -> String {
    match decision {
        Decision::Own(ForClaim::LookUp) => "look up".into(),
        Decision::Rest => "rest".into(),
        Decision::Wait { after, say } => {
            let after = after.map_or_else(String::new, |after| format!(" {}", after.as_secs()));
            format!(
                "wait{after}{}",
                say.as_ref().map_or_else(String::new, |say| format!(" {}", say.reason))
            )
        }
        Decision::Start(start) => format!(
            "start {} {}{}",
            start.record.attempt,
            if start.intent == Intent::ToRecord {
                "written"
            } else {
                "known"
            },
            start
                .node
                .as_ref()
                .map_or_else(String::new, |node| format!(" on {node}"))
        ),
        Decision::Supply { after, say, .. } => format!(
            "supply{}{}",
            after.map_or_else(String::new, |after| format!(" {}", after.as_secs())),
            say.as_ref()
                .map_or_else(String::new, |say| format!(" {}", say.note.reason))
        ),
        Decision::Record(record) => format!("note {}", record.node),
        Decision::Fail(failed) => format!("fail {} {}", failed.category.as_str(), failed.record.attempt),
        Decision::Stop(_) => "stop".into(),
        Decision::Cancel { .. } => "cancel".into(),
        Decision::Tidy(runs) => format!("tidy {}", runs.len()),
        Decision::Settle(_) => "settle".into(),
        Decision::Own(ForClaim::Accept(accept)) => match accept.volume {
            ForAccepted::Make(_) => "make volume".into(),
            ForAccepted::Patch(_) => "accept patched".into(),
            ForAccepted::Nothing => "accept".into(),
        },
        Decision::Own(ForClaim::Refuse(refuse)) => format!("refuse {}", refuse.volumes.len()),
        Decision::Own(ForClaim::Reschedule(_)) => "reschedule".into(),
        Decision::Own(ForClaim::Undone(_)) => "undone".into(),
        Decision::Own(ForClaim::Altered(_)) => "altered".into(),
    }
}

fn planned(world: &World) -> String {
    word(&world.try_plan())
}

/// What is patched on the PV.
fn patch_of(accept: Accept) -> Value {
    match accept.volume {
        ForAccepted::Patch(patch) => patch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_smaller_than_its_file_system_is_begun_since_its_image_may_make_a_larger_volume() {
    for (fs_type, size) in [("ext4", "8191Ki"), ("xfs", "64Mi"), ("", "1")] {
        let mut world = World::new();
        world.class = Some(class(&json!({"parameters": {"fs-type": fs_type}})));
        world.claim["spec"]["resources"]["requests"]["storage"] = json!(size);
        assert_eq!(planned(&world), "start 1 written", "{fs_type} of {size}");
    }
}

#[test]
fn a_fresh_claim_is_begun_once_it_is_wanted() {
    assert_eq!(planned(&World::new()), "start 1 written");
    let table: Vec<(&str, Change)> = vec![
        ("rest", Box::new(|w| w.claim["metadata"]["annotations"] = json!({}))),
        (
            "rest",
            Box::new(|w| {
                w.claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/storage-provisioner": "other/x"});
            }),
        ),
        ("rest", Box::new(|w| w.claim["spec"]["volumeName"] = json!("static"))),
        ("rest", Box::new(|w| w.class = None)),
        ("rest", Box::new(|w| w.config = Err(NoConfig::NotReadYet))),
        (
            "wait NoProvisionerConfig",
            Box::new(|w| {
                w.config = Err(NoConfig::HalfNamed { class: "silver".into() });
            }),
        ),
        (
            "wait ClaimRefused",
            Box::new(|w| w.claim["spec"]["selector"] = json!({"matchLabels": {"a": "b"}})),
        ),
        (
            "wait ClaimRefused",
            Box::new(|w| w.claim["spec"]["resources"]["requests"]["storage"] = json!("much")),
        ),
        (
            "stop",
            Box::new(|w| w.provision_run = Some(run("provision", 1, 10, &running()))),
        ),
        (
            "stop",
            Box::new(|w| {
                w.claim["spec"]["volumeName"] = json!("pvc-u1");
                w.provision_run = Some(run("provision", 1, 10, &ended(0, "")));
            }),
        ),
        (
            "rest",
            Box::new(|w| {
                w.claim["spec"]["volumeName"] = json!("pvc-u1");
                w.provision_run = Some(leaving(run("provision", 1, 10, &ended(0, ""))));
            }),
        ),
    ];
    for (at, (want, change)) in table.iter().enumerate() {
        let mut world = World::new();
        change(&mut world);
        assert_eq!(&planned(&world), want, "row {at}");
    }
    let no_provision = World::new().able_to(&[Operation::Delete]);
    assert_eq!(planned(&no_provision), "wait ClaimRefused");
}

#[test]
fn with_wait_for_first_consumer_the_node_comes_first() {
    assert_eq!(planned(&World::new().selected("")), "rest");
    assert_eq!(planned(&World::new().selected("gone")), "reschedule");
    let world = World::new().selected("node-a");
    let Decision::Start(start) = world.plan() else { panic!() };
    assert_eq!(
        (start.request.node_name.as_str(), start.node.as_deref()),
        ("node-a", None)
    );
    // Only a volume that lives on the node is made there.
    let pool = World::new()
        .selected("node-a")
        .with_config(&[("backend-volume", "client=pool")]);
    assert_eq!(planned(&pool), "start 1 written on node-a");
}

#[test]
fn a_run_is_waited_for_and_its_end_judged() {
    let flex = &[("volume-source", "flexVolume")][..];
    let none = &[][..];
    let printed = r#"{"client":"nfs","source":"h:/x"}"#;
    let table: Vec<(&str, Option<Attempt>, Keys<'_>)> = vec![
        ("start 1 written", None, none),
        ("supply 20", Some((1, 10, json!({"phase": "Pending"}))), none),
        (
            "supply 260 ProvisioningWaiting",
            Some((1, 40, json!({"phase": "Pending"}))),
            none,
        ),
        ("fail timeout 2", Some((1, 301, json!({"phase": "Pending"}))), none),
        ("wait 350", Some((1, 20, running())), none),
        ("fail failed 2", Some((1, 20, ended(1, "no"))), none),
        ("fail temporary 2", Some((1, 20, ended(75, "busy"))), none),
        ("fail config 2", Some((1, 20, ended(78, "bad"))), none),
        ("look up", Some((1, 20, ended(0, ""))), none),
        ("look up", Some((1, 20, ended(0, printed))), flex),
        ("stop", Some((0, 20, no_image())), none),
    ];
    for (at, (want, there, config)) in table.into_iter().enumerate() {
        let mut world = World::with_record(&json!({})).with_config(config);
        world.provision_run = there.map(|(attempt, age, status)| {
            let request = json!(crate::run::properties::tests::silver());
            asked(run("provision", attempt, age, &status), &request)
        });
        assert_eq!(planned(&world), want, "row {at}");
    }
}

#[test]
fn a_run_that_is_newer_than_the_claim_is_left_to_the_watch_of_the_claim() {
    let mut world = World::with_record(&json!({}));
    world.provision_run = Some(run("provision", 2, 20, &ended(0, "")));
    // The watch is late by a moment, and nobody is told of that.
    let decision = world.plan_at(now());
    assert!(
        matches!(
            decision,
            Decision::Wait {
                after: Some(_),
                say: None
            }
        ),
        "{decision:?}"
    );
}

/// A world in which the image has ended well, and says that it was asked what the claim asks.
fn done(message: &str, config: &[(&str, &str)]) -> World {
    let mut world = World::with_record(&json!({"attempt": 1})).with_config(config);
    let Decision::Start(start) = world.plan() else { panic!() };
    let run = run("provision", 1, 20, &ended(0, message));
    world.provision_run = Some(asked(run, &json!(start.request)));
    world
}

/// The run with this request.
fn asked(run: Run, request: &Value) -> Run {
    let request = [("mooring.dev/request".to_owned(), request.to_string())];
    run.changed(|carrier| carrier.metadata.annotations = Some(request.into()))
}

#[test]
fn the_volume_is_made_of_what_was_printed_and_only_if_it_may_be() {
    let flex = &[("volume-source", "flexVolume")];
    let table = [
        (r#"{"client":"nfs","source":"h:/x"}"#, "make volume"),
        (r#"{"client":"pool"}"#, "fail refused 2"),
        (r#"{"client":"nfs"}"#, "fail refused 2"),
        (
            r#"{"client":"nfs","source":"h:/x","secret-name":"s","secret-namespace":"kube-system"}"#,
            "fail refused 2",
        ),
        (
            r#"{"client":"nfs","source":"h:/x","secret-name":"s","secret-namespace":"admin"}"#,
            "make volume",
        ),
        ("done", "fail refused 2"),
        ("", "fail refused 2"),
    ];
    for (message, want) in table {
        let mut world = done(message, flex);
        // The image may have made one instead.
        let first = if want == "make volume" { want } else { "look up" };
        assert_eq!(planned(&world), first, "{message}");
        world.looked_up = true;
        assert_eq!(planned(&world), want, "{message}");
    }
    let mut silent = done("", &[]);
    silent.looked_up = true;
    let Decision::Fail(failed) = silent.plan() else {
        panic!()
    };
    assert!(
        failed.say.text.contains("made no PersistentVolume named pvc-u1"),
        "{}",
        failed.say.text
    );
    assert!(failed.record.may_exist);
}

#[test]
fn a_volume_that_can_t_have_its_file_system_is_given_up_with_the_cure() {
    let local = r#"{"client":"local","source":"pvc-u1.img"}"#;
    let printed = r#"{"client":"iscsi","source":"iscsi://h/t/1","fs-type":"btrfs"}"#;
    let nfs = r#"{"client":"nfs","source":"h:/x"}"#;
    for (message, fs_type, size, cure) in [
        (local, "zfs", "1Gi", "use ext4 or xfs, or leave it out"),
        (local, "XFS", "1Gi", "use ext4 or xfs, or leave it out"),
        (printed, "", "1Gi", "use ext4, xfs or raw, or leave it out"),
        (nfs, "ext4", "1Gi", "use nfs or nfs4, or leave it out"),
        (local, "xfs", "64Mi", "needs 300Mi at least"),
    ] {
        let mut world = World::with_record(&json!({"attempt": 1})).with_config(&[("volume-source", "csi")]);
        world.class = Some(class(&json!({"parameters": {"fs-type": fs_type}})));
        world.claim["spec"]["resources"]["requests"]["storage"] = json!(size);
        let Decision::Start(start) = world.plan() else { panic!() };
        let run = run("provision", 1, 20, &ended(0, message));
        world.provision_run = Some(asked(run, &json!(start.request)));
        world.looked_up = true;
        let Decision::Fail(failed) = world.plan() else { panic!() };
        assert_eq!(failed.category, Category::Refused);
        assert_eq!(failed.say.reason, reasons::GIVEN_UP, "{message} {fs_type}");
        assert!(failed.say.text.contains(cure), "{}", failed.say.text);
        // What it has made is deleted with the claim.
        assert!(failed.record.gave_up && failed.record.may_exist && failed.after.is_none());
    }
}

#[test]
fn a_claim_is_served_by_either_name_of_the_provisioner() {
    for (by, is_served) in [
        ("mooring.dev/flex-provisioner", true),
        ("vcs.mooring.dev", true),
        ("ebs.csi.aws.com", false),
    ] {
        let mut world = World::new();
        world.claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = json!(by);
        let decision = world.plan();
        assert_eq!(!matches!(decision, Decision::Rest), is_served, "{by}: {decision:?}");
    }
}

#[test]
fn a_volume_keeps_the_name_of_the_provisioner_that_it_was_made_by() {
    for (noted, expected) in [
        ("vcs.mooring.dev", "vcs.mooring.dev"),
        ("example.com/x", "mooring.dev/flex-provisioner"),
    ] {
        let mut world = done("", &[]);
        let mut made = volume();
        made["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": noted});
        world.volumes = vec![made];
        let Decision::Own(ForClaim::Accept(accept)) = world.plan() else {
            panic!()
        };
        let patch = patch_of(*accept.clone());
        assert_eq!(
            patch["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"],
            expected
        );
    }
}

#[test]
fn a_good_volume_is_accepted_with_both_sides_bound() {
    let mut world = done("", &[]);
    world.volumes = vec![volume()];
    let Decision::Own(ForClaim::Accept(accept)) = world.plan() else {
        panic!()
    };
    let patch = patch_of(*accept.clone());
    assert_eq!(patch["metadata"]["resourceVersion"], "9");
    assert_eq!(patch["metadata"]["finalizers"], json!(["mooring.dev/volume"]));
    assert_eq!(
        patch["metadata"]["annotations"]["mooring.dev/config"],
        "admin/custom-isci-provisioner"
    );
    assert_eq!(
        patch["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"],
        "mooring.dev/flex-provisioner"
    );
    assert!(
        !patch.to_string().contains("23092390532lksf90kwelklfw"),
        "no secret on the PV"
    );
    let affinity = patch["spec"]["nodeAffinity"].to_string();
    assert!(
        affinity.contains("client.mooring.dev/nfs") && affinity.contains("NotIn"),
        "{affinity}"
    );
    let expected = json!([
        {"op": "test", "path": "/metadata/uid", "value": "u1"},
        {"op": "test", "path": "/metadata/annotations/mooring.dev~1operation", "value": null},
        {"op": "remove", "path": "/metadata/annotations/mooring.dev~1operation"},
        {"op": "test", "path": "/metadata/finalizers/0", "value": "mooring.dev/provisioning"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]);
    assert_eq!(accept.claim_patch, expected);
    assert_eq!((accept.runs.len(), accept.say.unwrap().reason), (1, "Provisioned"));

    // What the first try wrote is not written again.
    for (key, value) in patch["metadata"]["annotations"].as_object().unwrap() {
        world.volumes[0]["metadata"]["annotations"][key] = value.clone();
    }
    world.volumes[0]["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection", "mooring.dev/volume"]);
    world.volumes[0]["spec"]["nodeAffinity"] = patch["spec"]["nodeAffinity"].clone();
    world.claim["spec"]["volumeName"] = json!("pvc-u1");
    let Decision::Own(ForClaim::Accept(accept)) = world.plan() else {
        panic!()
    };
    assert!(matches!(accept.volume, ForAccepted::Nothing));
    assert_eq!(accept.claim_patch, expected, "whether the binder was quicker or not");

    // The controller was stopped in between. By now the user asks for more, the ConfigMap names another image, and
    // somebody wants the data to be kept.
    world.claim["spec"]["resources"]["requests"]["storage"] = json!("1Ti");
    world.config = Ok(config(&[("client-image", "other")]).into());
    world.volumes[0]["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    assert_eq!(planned(&world), "accept");
}

/// The volume as it was accepted.
fn accepted() -> Value {
    let mut accepted = volume();
    accepted["metadata"]["finalizers"] = json!(["mooring.dev/volume"]);
    accepted["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner"});
    accepted
}

/// Proves: P1, P3
#[test]
fn an_accepted_volume_is_not_judged_made_or_undone_again_whatever_has_become_of_its_run_and_of_the_rest() {
    let missing = || NoConfig::Missing {
        class: "silver".into(),
        reference: "admin/c".parse().unwrap(),
    };
    let changes: [Change; 9] = [
        Box::new(|_| {}),
        Box::new(|w| w.class = None),
        Box::new(move |w| w.config = Err(missing())),
        Box::new(|w| *w = std::mem::replace(w, World::new()).selected("gone")),
        Box::new(|w| w.claim["metadata"]["deletionTimestamp"] = json!(ago(1))),
        Box::new(|w| w.claim["spec"]["volumeName"] = json!("another")),
        Box::new(|w| w.claim["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "gone"})),
        Box::new(|w| w.volumes[0]["spec"]["claimRef"] = json!({"namespace": "b", "name": "c", "uid": "u2"})),
        Box::new(|w| w.volumes[0]["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain")),
    ];
    let records = [
        json!({}),
        json!({"attempt": 2, "may-exist": true, "not-before": ago(-30)}),
        json!({"operation": "delete", "may-exist": true}),
    ];
    for (at, change) in changes.iter().enumerate() {
        for record in &records {
            let mut world = World::with_record(record);
            world.volumes = vec![accepted()];
            world.claim["spec"]["volumeName"] = json!("pvc-u1");
            change(&mut world);
            assert_eq!(planned(&world), "accept", "row {at}, {record}");
            // One that was begun again is of no use, and goes first.
            world.provision_run = Some(run("provision", 1, 20, &running()));
            assert_eq!(planned(&world), "stop", "row {at}, {record}");
            world.provision_run = Some(run("provision", 1, 20, &ended(75, "busy")));
            assert_eq!(planned(&world), "accept", "row {at}, {record}");
        }
    }
    // What was refused is not bound, unless another claim has it.
    let mut refused = World::with_record(&json!({"attempt": 2, "may-exist": true, "refused": true}));
    refused.volumes = vec![accepted()];
    assert_eq!(planned(&refused), "refuse 1");
    refused.volumes[0]["spec"]["claimRef"]["uid"] = json!("u2");
    assert_eq!(planned(&refused), "accept");
}

#[test]
fn a_claim_whose_volume_another_claim_has_is_told_so() {
    let mut world = World::new();
    world.volumes = vec![accepted()];
    world.volumes[0]["spec"]["claimRef"] = json!({"namespace": "b", "name": "c", "uid": "u2"});
    let decision = world.plan();
    let Decision::Wait { say: Some(say), .. } = decision else {
        panic!("{decision:?}")
    };
    assert!(
        say.text.contains("claim b/c") && say.text.contains("create it again"),
        "{}",
        say.text
    );
}

#[test]
fn a_claim_whose_volume_is_ready_waits_for_kube_controller_manager_to_bind_it() {
    let mut world = World::new();
    let mut ready = accepted();
    ready["metadata"]["creationTimestamp"] = json!(ago(10));
    world.volumes = vec![ready];
    assert!(matches!(
        world.plan(),
        Decision::Wait {
            after: Some(_),
            say: None
        }
    ));
    world.volumes[0]["metadata"]["creationTimestamp"] = json!(ago(600));
    let Decision::Wait { say: Some(say), .. } = world.plan() else {
        panic!()
    };
    assert!(
        say.text.contains("kube-controller-manager has not bound"),
        "{}",
        say.text
    );
    // Somebody deletes it: the claim gets another when it is gone.
    world.volumes[0]["metadata"]["deletionTimestamp"] = json!(ago(1));
    assert!(matches!(world.plan(), Decision::Wait { say: Some(say), .. } if say.text.contains("is being deleted")));
    world.volumes.clear();
    assert!(matches!(world.plan(), Decision::Start(_)));
}

/// kube-controller-manager may bind a claim before its record is gone. A Pod may write to the volume from then on.
///
/// Proves: P1
#[test]
fn a_volume_that_the_claim_is_bound_to_is_not_undone_with_the_claim() {
    let bound = |mut world: World, change: &dyn Fn(&mut Value)| {
        let mut volume = volume();
        change(&mut volume);
        world.volumes = vec![volume];
        world.claim["spec"]["volumeName"] = json!("pvc-u1");
        world.deleted()
    };
    let retained = |volume: &mut Value| volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    // The run has ended well: what it made is judged, and the claim let go.
    assert_eq!(planned(&bound(done("", &[]), &|_| {})), "accept patched");
    // The run is gone.
    let undone = |world: &World| match world.plan() {
        Decision::Own(ForClaim::Undone(undone)) => undone.volumes,
        other => panic!("{other:?}"),
    };
    let begun = || World::with_record(&json!({"attempt": 2, "may-exist": true, "not-before": ago(1)}));
    assert_eq!(undone(&bound(begun(), &retained)), []);
    // Nobody was given this one.
    let mut unbound = bound(begun(), &retained);
    unbound.claim["spec"].as_object_mut().unwrap().remove("volumeName");
    assert_eq!(planned(&unbound), "start 1 written");
}

#[test]
fn a_claim_that_is_bound_is_not_moved_to_another_node_when_its_image_fails() {
    let mut world = World::with_record(&json!({"node": "node-a", "attempt": 3}))
        .with_config(&[("backend-volume", "client=pool")])
        .selected("node-a");
    world.provision_run = Some(run("provision", 3, 20, &ended(75, "no space")));
    world.volumes = vec![volume()];
    world.claim["spec"]["volumeName"] = json!("pvc-u1");
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert!(!failed.record.refused, "its data would be deleted");
}

#[test]
fn the_run_that_deletes_a_volume_before_it_is_bound_is_left_to_the_volume() {
    let mut world = World::new();
    let mut ready = accepted();
    ready["metadata"]["uid"] = json!("v1");
    ready["metadata"]["deletionTimestamp"] = json!(ago(1));
    world.volumes = vec![ready];
    let own = json!([{"apiVersion": "v1", "kind": "PersistentVolume", "name": "pvc-u1", "uid": "v1"}]);
    let deletes = run("delete", 1, 5, &running());
    let own = deletes.changed(|carrier| carrier.metadata.owner_references = serde_json::from_value(own).unwrap());
    world.delete_run = Some(own);
    assert_eq!(planned(&world), "wait ProvisioningWaiting");
    // That of an earlier attempt is nobody's any more.
    world.delete_run = Some(run("delete", 1, 5, &running()));
    assert_eq!(planned(&world), "stop");
}

/// As external-provisioner has it for drivers that know of topology.
#[test]
fn a_volume_is_used_where_its_class_allows_it() {
    let mut world = done("", &[]);
    world.volumes = vec![volume()];
    world.class = Some(class(&json!({"allowedTopologies": [
        {"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]},
        {"matchLabelExpressions": [{"key": "zone", "values": ["c"]}, {"key": "rack", "values": ["1"]}]},
    ]})));
    let Decision::Own(ForClaim::Accept(accept)) = world.plan() else {
        panic!()
    };
    let patch = patch_of(*accept.clone());
    let terms = patch["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        .as_array()
        .unwrap();
    assert_eq!(terms.len(), 2);
    for (term, zones) in terms.iter().zip([json!(["a", "b"]), json!(["c"])]) {
        assert_eq!(term["matchExpressions"][0]["values"], zones);
        assert!(term.to_string().contains("client.mooring.dev/nfs"), "{term}");
    }
}

#[test]
fn a_volume_of_a_node_is_tied_to_it() {
    let mut world = done("", &[("backend-volume", "client=pool")]);
    world.volumes = vec![volume()];
    let Decision::Own(ForClaim::Accept(accept)) = world.plan() else {
        panic!()
    };
    let patch = patch_of(*accept.clone());
    assert!(patch["spec"]["nodeAffinity"].to_string().contains("node-a"), "{patch}");
    // An image's own can't be changed.
    world.volumes[0]["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]}]}]}});
    let Decision::Own(ForClaim::Accept(accept)) = world.plan() else {
        panic!()
    };
    assert!(patch_of(*accept.clone())["spec"]["nodeAffinity"].is_null());
}

#[test]
fn a_bad_volume_is_removed_and_its_record_says_so() {
    for (change, words) in [
        (json!({"storageClassName": "gold"}), "gold"),
        (json!({"hostPath": {"path": "/"}, "flexVolume": null}), "hostPath"),
        (json!({"capacity": {"storage": "1Mi"}}), "less than"),
    ] {
        let mut world = done("", &[]);
        let mut bad = volume();
        for (key, value) in change.as_object().unwrap() {
            bad["spec"][key] = value.clone();
        }
        world.volumes = vec![bad];
        assert_eq!(planned(&world), "look up", "what was watched may be old");
        world.looked_up = true;
        let Decision::Own(ForClaim::Refuse(refuse)) = world.plan() else {
            panic!()
        };
        assert_eq!(refuse.volumes, [("pvc-u1".to_owned(), "v1".to_owned())]);
        assert!(refuse.record.refused && refuse.record.may_exist && refuse.record.attempt == 2);
        assert!(refuse.say.unwrap().text.contains(words));
    }
    // A second one, of another name, makes both suspect.
    let mut world = done("", &[]);
    let mut other = volume();
    other["metadata"]["name"] = json!("mine");
    world.volumes = vec![volume(), other];
    world.looked_up = true;
    assert_eq!(planned(&world), "refuse 2");
}

#[test]
fn failures_back_off_and_giving_up_lasts_until_something_changes() {
    let later = World::with_record(&json!({"attempt": 2, "not-before": ago(-30)}));
    assert_eq!(planned(&later), "wait 30");
    let mut changed = World::with_record(&json!({"attempt": 2, "not-before": ago(-30), "tried": "old"}));
    assert_eq!(
        planned(&changed),
        "start 2 written",
        "what was at fault has been changed"
    );
    let Decision::Start(start) = changed.plan() else {
        panic!()
    };
    assert!(start.record.not_before.is_none(), "begun before its time, and it shows");
    changed.record = Some(super::super::tests::record(
        &json!({"attempt": 2, "not-before": ago(-30), "tried": start.state}),
    ));
    assert_eq!(planned(&changed), "wait 30");
    let due = World::with_record(&json!({"attempt": 2, "not-before": ago(1)}));
    assert_eq!(planned(&due), "start 2 written");

    let mut world = World::with_record(&json!({}));
    world.provision_run = Some(run("provision", 1, 20, &ended(78, "no such pool")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert_eq!(
        (failed.category, failed.after, failed.say.reason),
        (Category::Config, None, reasons::GIVEN_UP)
    );
    assert!(failed.say.text.contains("no such pool"), "{}", failed.say.text);
    assert!(failed.record.gave_up && failed.record.not_before.is_none());
    world.provision_run = None;
    world.record = Some(failed.record);
    let Decision::Wait { say: Some(again), .. } = world.plan() else {
        panic!()
    };
    assert_eq!(again, failed.say, "the same words make one Event");
    world.claim["metadata"]["annotations"]["mooring.dev/operation"] = json!("{}");
    let waits = "wait ProvisioningGivenUp";
    assert_eq!(planned(&world), waits, "Mooring's own record is no change");
    world.claim["metadata"]["annotations"]["note"] = json!("try again");
    assert_eq!(planned(&world), "start 2 written");
    world.claim["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove("note");
    let changed = world.with_config(&[("pool", "silver")]);
    assert_eq!(planned(&changed), "start 2 written");
}

#[test]
fn what_goes_away_meanwhile_is_named_and_waited_for() {
    let mut world = World::with_record(&json!({"attempt": 2}));
    world.class = None;
    assert_eq!(planned(&world), "wait ProvisioningWaiting");
    world.provision_run = Some(run("provision", 2, 20, &running()));
    assert_eq!(planned(&world), "wait 350", "what runs is not disturbed");
    let mut world = World::with_record(&json!({"attempt": 2}));
    world.config = Err(NoConfig::Missing {
        class: "silver".into(),
        reference: "admin/c".parse().unwrap(),
    });
    let Decision::Wait { say: Some(say), .. } = world.plan() else {
        panic!()
    };
    assert!(say.text.contains("admin/c"));
    // Bound to something else by its user: what is being made is undone.
    let mut world = World::with_record(&json!({}));
    world.claim["spec"]["volumeName"] = json!("static");
    world.provision_run = Some(run("provision", 1, 20, &running()));
    assert_eq!(planned(&world), "stop");
}

#[test]
fn a_volume_that_lives_on_a_node_stays_with_it_or_leaves_nothing_behind() {
    let pool = &[("backend-volume", "client=pool")];
    // Where it was begun is written down before it is over.
    let mut world = World::with_record(&json!({})).with_config(pool);
    world.provision_run = Some(run("provision", 1, 10, &running()));
    assert_eq!(planned(&world), "note node-a");
    world.record = Some(super::super::tests::record(&json!({"node": "node-a"})));
    assert_eq!(planned(&world), "wait 350");
    // A retry goes where the first attempt was, unless that node is gone.
    world.provision_run = None;
    assert_eq!(planned(&world), "start 1 written on node-a");
    world.nodes = vec!["node-b"];
    assert_eq!(planned(&world), "start 1 written");
    // The scheduler changed its mind after an attempt that may have made something.
    let mut world = World::with_record(&json!({"node": "node-a", "attempt": 2, "may-exist": true}))
        .with_config(pool)
        .selected("node-b");
    assert_eq!(planned(&world), "refuse 0");
    // One that has begun may have made something, though its run is gone.
    let begun = json!({"node": "node-a", "attempt": 2});
    world.record = Some(super::super::tests::record(&begun));
    assert_eq!(planned(&world), "refuse 0");
    let waiting = json!({"node": "node-a", "attempt": 2, "not-before": ago(1)});
    world.record = Some(super::super::tests::record(&waiting));
    assert_eq!(planned(&world), "start 2 written on node-b");
    // A node that fails again and again is cleaned and given up.
    let mut world = World::with_record(&json!({"node": "node-a", "attempt": 3}))
        .with_config(pool)
        .selected("node-a");
    world.provision_run = Some(run("provision", 3, 20, &ended(75, "no space")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert!(failed.record.refused);
    // Its node is gone.
    world.nodes = vec!["node-b"];
    assert_eq!(planned(&world), "reschedule");
}

/// Proves: P1, P3
#[test]
fn what_a_run_may_have_made_is_not_forgotten_with_the_selected_node() {
    let rescheduled = |world: &World| match world.plan() {
        Decision::Own(ForClaim::Reschedule(reschedule)) => reschedule.record.unwrap(),
        other => panic!("{other:?}"),
    };
    let mut world = World::with_record(&json!({})).selected("gone");
    world.provision_run = Some(run("provision", 1, 10, &ended(75, "busy")));
    assert!(rescheduled(&world).may_exist, "the run may have made a volume");
    // One that was never begun made none.
    world.provision_run = Some(run("provision", 1, 10, &never_made()));
    assert!(!rescheduled(&world).may_exist);
    // One that did not begin in time may begin in this moment: it is removed only as it was seen.
    let overdue = later(now(), Duration::from_hours(1));
    for (status, is_exact) in [(no_image(), true), (running(), false)] {
        world.provision_run = Some(run("provision", 1, 10, &status));
        let Decision::Own(ForClaim::Reschedule(reschedule)) = world.plan_at(overdue) else {
            panic!("{status}")
        };
        assert_eq!(reschedule.record.unwrap().may_exist, !is_exact, "{status}");
        assert_eq!(reschedule.run.unwrap().is_exact(), is_exact, "{status}");
    }
    // What is on a node goes with that node, and only with that one.
    let mut local = World::with_record(&json!({"node": "node-a"}))
        .with_config(&[("backend-volume", "client=pool")])
        .selected("gone");
    local.provision_run = Some(run("provision", 1, 10, &ended(75, "busy")));
    let record = rescheduled(&local);
    assert!(record.may_exist && record.node == "node-a", "{record:?}");
}

/// Its node went, and with it the Pod that nobody looked at any more.
///
/// Proves: P1, P3
#[test]
fn what_a_run_that_is_gone_may_have_made_is_not_forgotten_when_the_claim_moves() {
    let moved = |mut world: World| {
        world.nodes = vec!["node-b"];
        match world.plan() {
            Decision::Own(ForClaim::Reschedule(reschedule)) => reschedule.record.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let begun = json!({"node": "node-a"});
    let record = moved(World::with_record(&begun).selected("node-a"));
    assert!(record.may_exist, "the run may have made a volume");
    let mut deleted = World::with_record(&begun).deleted();
    deleted.record = Some(record);
    assert_eq!(planned(&deleted), "start 1 written", "it is forgotten");
    // An attempt that has not begun made nothing, and what was on a node's disk went with the node.
    let waiting = json!({"node": "node-a", "attempt": 2, "not-before": ago(1)});
    assert!(!moved(World::with_record(&waiting).selected("node-a")).may_exist);
    let local = || World::with_record(&begun).with_config(&[("backend-volume", "client=pool")]);
    assert!(!moved(local().selected("node-a")).may_exist);
    // Another node is gone.
    let mut elsewhere = World::with_record(&json!({"node": "node-b"}));
    elsewhere.config = local().config;
    let record = moved(elsewhere.selected("node-a"));
    assert!(record.may_exist && record.node == "node-b", "{record:?}");
}

#[test]
fn an_attempt_that_waits_for_another_node_has_not_begun() {
    let mut world = World::with_record(&json!({})).selected("gone");
    world.provision_run = Some(run("provision", 1, 10, &never_made()));
    let Decision::Own(ForClaim::Reschedule(reschedule)) = world.plan() else {
        panic!()
    };
    let mut world = World::with_record(&json!({})).selected("node-a");
    world.record = reschedule.record;
    assert_eq!(planned(&world), "start 2 written");
    assert_eq!(planned(&world.deleted()), "undone", "nothing is to be undone of it");
}

#[test]
fn no_volume_is_begun_on_a_node_that_could_not_mount_it() {
    let pool: Keys = &[("backend-volume", "client=pool")];
    let mut world = World::new().with_config(pool).selected("node-a");
    assert_eq!(planned(&world), "start 1 written on node-a");
    world.unable = "node-a";
    let Decision::Own(ForClaim::Reschedule(reschedule)) = world.plan() else {
        panic!()
    };
    assert_eq!(reschedule.say.reason, reasons::NODE_UNABLE);
    assert!(reschedule.say.text.contains("node node-a can't mount volumes of local"));
    // What may have been begun there is not left behind.
    for (change, want) in [
        (json!({"not-before": ago(1)}), "reschedule"),
        (json!({}), "start 2 written on node-a"),
        (json!({"may-exist": true}), "start 2 known on node-a"),
    ] {
        let mut record = json!({"node": "node-a", "attempt": 2});
        record
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let mut again = World::with_record(&record).with_config(pool).selected("node-a");
        again.unable = "node-a";
        assert_eq!(planned(&again), want);
    }
    // One that lives elsewhere is used elsewhere.
    let mut remote = World::new().selected("node-a");
    remote.unable = "node-a";
    assert_eq!(planned(&remote), "start 1 written");
}

#[test]
fn a_pod_on_a_lost_node_is_ended_and_then_waited_for() {
    let mut world = World::with_record(&json!({}));
    let mut status = running();
    status["startTime"] = json!(ago(400));
    world.provision_run = Some(run("provision", 1, 401, &status));
    assert_eq!(planned(&world), "fail timeout 2");
    world.record = Some(super::super::tests::record(&json!({"attempt": 2})));
    world.provision_run = Some(leaving(run("provision", 1, 401, &status)));
    assert_eq!(planned(&world), "wait 60");
    world.provision_run = world.provision_run.map(|run| {
        run.changed(|carrier| carrier.metadata.deletion_timestamp = serde_json::from_value(json!(ago(100))).unwrap())
    });
    let Decision::Wait { say: Some(say), .. } = world.plan() else {
        panic!()
    };
    assert!(say.text.contains("node node-a does not answer"), "{}", say.text);
}

#[test]
fn an_image_that_does_not_exist_is_reported_at_once() {
    let mut world = World::with_record(&json!({}));
    world.provision_run = Some(run("provision", 1, 1, &no_image()));
    let Decision::Wait { say: Some(say), .. } = world.plan() else {
        panic!()
    };
    assert!(say.text.contains("ImagePullBackOff: no such image"));
}

#[test]
fn a_pod_that_somebody_took_away_is_a_failed_attempt() {
    let mut world = World::with_record(&json!({"attempt": 2}));
    let departed = |attempt, status: &Value| Some(Departed::of(&leaving(run("provision", attempt, 10, status))));
    world.departed = departed(2, &ended(143, ""));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert!(failed.record.may_exist && failed.run.is_none());
    assert!(failed.say.text.contains("its Pod was deleted"), "{}", failed.say.text);
    for (attempt, status, want) in [
        (2, running(), "fail node 3"),
        (2, ended(0, ""), "start 2 written"),
        (1, no_image(), "start 2 written"),
    ] {
        world.departed = departed(attempt, &status);
        assert_eq!(planned(&world), want, "{attempt} {status}");
    }
    // It was taken for one that never ran.
    world.departed = departed(1, &ended(143, ""));
    let Decision::Record(noted) = world.plan() else {
        panic!()
    };
    assert!(noted.may_exist);
    world.record = Some(*noted);
    assert_eq!(planned(&world), "start 2 known");
    // It is noted once.
    world.record = Some(failed.record);
    world.departed = departed(2, &ended(143, ""));
    assert!(planned(&world).starts_with("wait"), "{}", planned(&world));
}

#[test]
fn a_claim_that_another_mooring_may_serve_is_not_reported_in_haste() {
    // However old the claim is: it may have waited for its Pod until now.
    let mut world = World::new();
    world.claim["metadata"]["creationTimestamp"] = json!(ago(1000));
    let since = |seconds: i64| ago(seconds).parse().unwrap();
    // One whose class says that it is another's.
    world.config = Err(NoConfig::Elsewhere {
        is_at_work: true,
        class: "silver".into(),
        reference: "other/c".parse().unwrap(),
    });
    world.unserved_since = since(1);
    assert_eq!(planned(&world), "wait 299");
    world.unserved_since = since(301);
    let Decision::Wait { say: Some(say), .. } = world.plan() else {
        panic!()
    };
    assert!(
        say.text.contains("honours no ConfigMaps of that namespace"),
        "{}",
        say.text
    );
    // One whose class names a ConfigMap that nobody is known to go by: it may be a slip.
    world.config = Err(NoConfig::Elsewhere {
        is_at_work: false,
        class: "silver".into(),
        reference: "other/c".parse().unwrap(),
    });
    world.unserved_since = since(1);
    assert_eq!(planned(&world), "wait 4");
    world.unserved_since = since(6);
    assert_eq!(planned(&world), "wait NoProvisionerConfig");
    // One that it may have by its label.
    world.config = Err(NoConfig::Unclaimed {
        class: "silver".into(),
        label: "silver".into(),
    });
    world.unserved_since = since(1);
    assert_eq!(planned(&world), "wait 4");
    world.unserved_since = since(6);
    assert_eq!(planned(&world), "wait NoProvisionerConfig");
    // A class that a Mooring made, which may be this one while it honoured the namespace.
    world.config = Err(NoConfig::Elsewhere {
        is_at_work: false,
        class: "silver".into(),
        reference: "other/c".parse().unwrap(),
    });
    let made = json!({"metadata": {"name": "silver", "annotations": {"mooring.dev/config-uid": "1"}, "labels": {
        "app.kubernetes.io/managed-by": "mooring", "storage-class": "silver"}}});
    world.class = Some(class(&made));
    world.unserved_since = since(6);
    assert_eq!(planned(&world), "wait 294");
    world.unserved_since = since(301);
    assert_eq!(planned(&world), "wait NoProvisionerConfig");
}

#[test]
fn a_class_says_where_a_volume_on_a_node_s_disk_is_made_unless_a_node_is_chosen() {
    let class = class(&json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}));
    let terms = |backend: &str, pinned| {
        let config = config(&[("backend-volume", backend)]);
        super::allowed(Some(&class), &config, pinned).len()
    };
    assert_eq!(terms("client=pool", false), 1);
    assert_eq!(terms("client=pool", true), 0);
    assert_eq!(terms("client=nfs,source=h:/x", false), 0);
}
