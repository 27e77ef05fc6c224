//! What real services do only now and then, by a server that answers from a list.

use serde_json::{Value, json};

use crate::test_run::{self, Ran, done, gone};
use crate::test_server::{Reply, reply};

const CLIENT: (&str, &str) = ("client", "rbd");

fn volume(status: &str) -> Value {
    json!({"id": "v1", "name": "pvc-u1", "status": status, "size": 1, "volume_type": "ssd",
           "metadata": {"mooring-pv-name": "pvc-u1"}, "attachments": [], "created_at": "2026-01-01"})
}

fn with(mut volume: Value, key: &str, value: Value) -> Value {
    volume[key] = value;
    volume
}

fn listed(volumes: &[Value]) -> Reply {
    reply(200, &json!({"volumes": volumes}).to_string())
}

fn one(volume: &Value) -> Reply {
    reply(200, &json!({"volume": volume}).to_string())
}

fn snapshots(count: usize) -> Reply {
    let all: Vec<_> = (0..count).map(|n| json!({"id": format!("s{n}")})).collect();
    reply(200, &json!({"snapshots": all}).to_string())
}

fn ran(changes: &Value, properties: &[(&str, &str)], replies: Vec<Reply>) -> Ran {
    test_run::ran("cinder", changes, properties, replies)
}

#[test]
fn a_volume_is_asked_for_once_and_waited_for() {
    let properties = [
        CLIENT,
        ("volume-type", "ssd"),
        ("availability-zone", "west"),
        ("file-system", "xfs"),
    ];
    let replies = vec![
        listed(&[]),
        reply(202, "{}"),
        listed(&[volume("creating")]),
        listed(&[volume("available")]),
    ];
    let run = ran(&json!({}), &properties, replies);
    run.result.unwrap();
    assert!(run.calls[0].starts_with("GET /volumes/detail?name=pvc-u1"));
    let asked: Value = serde_json::from_str(run.calls[1].strip_prefix("POST /volumes ").unwrap()).unwrap();
    assert_eq!(
        asked["volume"],
        json!({"name": "pvc-u1", "description": "claim shop/data", "size": 1, "volume_type": "ssd",
               "availability_zone": "west",
               "metadata": {"mooring-pv-name": "pvc-u1", "mooring-claim": "shop/data"}})
    );
    assert_eq!(
        run.message,
        json!({"client": "rbd", "source": "rbd://by-attach/cinder/volume-v1", "fs-type": "xfs"})
    );
}

#[test]
fn what_a_run_that_was_cut_off_has_asked_for_is_found_and_a_second_one_deleted() {
    let second = with(
        with(volume("available"), "id", json!("v2")),
        "created_at",
        json!("2026-01-02"),
    );
    let foreign = with(with(volume("available"), "id", json!("v0")), "metadata", json!({}));
    let there = || listed(&[second.clone(), foreign.clone(), volume("available")]);
    let replies = vec![there(), there(), snapshots(0), one(&second), done(), gone()];
    let run = ran(&json!({}), &[CLIENT], replies);
    run.result.unwrap();
    assert_eq!(run.calls[4], "DELETE /volumes/v2");
    assert!(run.message["source"].as_str().unwrap().ends_with("volume-v1"));
}

#[test]
fn two_runs_that_ask_within_one_second_keep_the_same_volume() {
    let (first, second) = ("v1", "v2");
    let made = |id: &str, status: &str| with(volume(status), "id", json!(id));
    for (own, other) in [(first, second), (second, first)] {
        let replies = vec![
            listed(&[]),
            reply(202, "{}"),
            listed(&[made(own, "creating")]),
            // It would be chosen if the other one were not looked for again.
            listed(&[made(own, "available"), made(other, "creating")]),
            listed(&[made(own, "available"), made(other, "available")]),
            snapshots(0),
            one(&made(second, "available")),
            done(),
            gone(),
        ];
        let run = ran(&json!({}), &[CLIENT], replies);
        run.result.unwrap();
        assert_eq!(run.calls[7], "DELETE /volumes/v2", "{own}");
        assert!(run.message["source"].as_str().unwrap().ends_with("volume-v1"), "{own}");
    }
}

#[test]
fn a_volume_in_error_is_deleted_and_cinder_s_words_are_passed_on() {
    let words = r#"{"messages": [{"user_message": "schedule allocate volume: no backend has room."}]}"#;
    let replies = vec![
        listed(&[volume("error")]),
        listed(&[volume("error")]),
        reply(200, words),
        snapshots(0),
        one(&volume("error")),
        done(),
        gone(),
    ];
    let run = ran(&json!({}), &[CLIENT], replies);
    let error = run.result.unwrap_err();
    assert_eq!(error.exit_code(), 75);
    assert!(
        error.to_string().contains("no backend has room: it is made again"),
        "{error}"
    );
    assert_eq!(run.calls[5], "DELETE /volumes/v1");
}

#[test]
fn what_cinder_refuses_for_good_is_not_tried_again_and_a_quota_is() {
    let unknown = r#"{"itemNotFound": {"message": "Volume type with name x could not be found.", "code": 404}}"#;
    let quota = r#"{"overLimit": {"message": "VolumeLimitExceeded: Maximum number of volumes allowed (10) exceeded"}}"#;
    for (answer, code, says) in [
        (reply(404, unknown), 78, "Volume type with name x"),
        (
            reply(413, quota).with("retry-after", "0"),
            75,
            "(10) exceeded: delete what",
        ),
        (reply(500, "{}"), 75, "HTTP 500"),
    ] {
        let run = ran(&json!({}), &[CLIENT], vec![listed(&[]), answer]);
        let error = run.result.unwrap_err();
        assert_eq!(error.exit_code(), code, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_file_system_for_several_nodes_and_an_unknown_attribute_are_refused() {
    let run = ran(&json!({"access-modes": ["ReadWriteMany"]}), &[CLIENT], vec![]);
    assert_eq!(run.result.unwrap_err().exit_code(), 78);
    let attributes = json!({"class": "c", "parameters": {"iops": "7"}});
    let run = ran(&json!({"attributes": attributes}), &[CLIENT], vec![]);
    assert!(run.result.unwrap_err().to_string().contains("iops=7"));
}

#[test]
fn a_device_for_several_nodes_needs_a_type_that_lets_them() {
    let asked = json!({"access-modes": ["ReadWriteMany"], "volume-mode": "Block"});
    let shared = with(volume("available"), "multiattach", json!(true));
    let there = vec![listed(std::slice::from_ref(&shared)); 2];
    ran(&asked, &[CLIENT], there).result.unwrap();
    let alone = volume("available");
    let replies = vec![
        listed(std::slice::from_ref(&alone)),
        listed(std::slice::from_ref(&alone)),
        snapshots(0),
        one(&alone),
        done(),
        gone(),
    ];
    let run = ran(&asked, &[CLIENT], replies);
    let error = run.result.unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(
        error.to_string().contains("type ssd") && error.to_string().contains("multiattach"),
        "{error}"
    );
    assert_eq!(run.calls[4], "DELETE /volumes/v1");
}

#[test]
fn a_deletion_of_nothing_is_done_and_one_of_another_s_volume_is_not() {
    let run = ran(&json!({"operation": "delete"}), &[], vec![listed(&[])]);
    run.result.unwrap();
    let source = json!({"source": "rbd://by-attach/cinder/volume-v9"});
    let other = with(volume("available"), "metadata", json!({}));
    let changes = json!({"operation": "delete", "volume": source});
    let run = ran(&changes, &[], vec![listed(&[]), one(&other)]);
    let error = run.result.unwrap_err();
    assert_eq!(error.exit_code(), 75);
    assert!(error.to_string().contains("is not Mooring's"), "{error}");
    ran(&changes, &[], vec![listed(&[]), gone()]).result.unwrap();
}

#[test]
fn a_volume_with_snapshots_goes_with_the_last_of_them() {
    let replies = vec![listed(&[volume("available")]), snapshots(1), done(), snapshots(1)];
    let run = ran(&json!({"operation": "delete"}), &[], replies);
    assert!(run.result.unwrap().contains("goes with the last"));
    assert_eq!(
        run.calls[2],
        r#"POST /volumes/v1/metadata {"metadata":{"mooring-deleted":"true"}}"#
    );

    let snapshot = json!({"snapshots": [{"id": "s1", "status": "available", "volume_id": "v1",
                                         "description": "Mooring, for claim shop/data"}]});
    let named = json!({"name": "snapshot-1", "content-name": "c", "content-uid": "u"});
    let left = with(
        volume("available"),
        "metadata",
        json!({"mooring-pv-name": "pvc-u1", "mooring-deleted": "true"}),
    );
    let replies = vec![
        reply(200, &snapshot.to_string()),
        done(),
        snapshots(0),
        listed(std::slice::from_ref(&left)),
        snapshots(0),
        one(&left),
        done(),
        gone(),
    ];
    let run = ran(
        &json!({"operation": "delete-snapshot", "snapshot": named}),
        &[],
        replies,
    );
    run.result.unwrap();
    assert_eq!(run.calls[1], "DELETE /snapshots/s1");
    assert_eq!(run.calls[6], "DELETE /volumes/v1");
}

#[test]
fn a_second_snapshot_of_a_call_that_came_late_is_deleted_with_the_first_or_before() {
    let one = |id: &str, made: &str| {
        json!({"id": id, "status": "available", "volume_id": "v1", "created_at": made,
               "description": "Mooring, for claim shop/data"})
    };
    let (first, second) = (one("s2", "2026-11-26T10:00:00"), one("s1", "2026-11-26T10:00:03"));
    let there = |all: &[&Value]| reply(200, &json!({"snapshots": all}).to_string());
    let named = json!({"name": "snapshot-1", "content-name": "c", "content-uid": "u"});
    let change = |operation: &str| json!({"operation": operation, "snapshot": named});
    let both = || there(&[&second, &first]);
    let replies = vec![both(), both(), done(), there(&[&first])];
    let run = ran(&change("snapshot"), &[], replies);
    assert!(run.result.unwrap().ends_with("is s2"));
    assert_eq!(run.calls[2], "DELETE /snapshots/s1");

    let replies = vec![both(), done(), there(&[&second]), done(), there(&[]), listed(&[])];
    let run = ran(&change("delete-snapshot"), &[], replies);
    run.result.unwrap();
    assert_eq!(run.calls[1], "DELETE /snapshots/s2");
    assert_eq!(run.calls[3], "DELETE /snapshots/s1");
}

#[test]
fn a_file_of_an_export_grows_when_no_node_has_it() {
    let changes = json!({"operation": "expand", "size": 3_u64 << 30});
    let held = with(volume("in-use"), "attachments", json!([{"attachment_id": "a1"}]));
    let by = |kind: &str| {
        let attachment = json!({"id": "a1", "connection_info": {"driver_volume_type": kind}});
        reply(200, &json!({"attachment": attachment}).to_string())
    };
    let error = ran(&changes, &[], vec![listed(std::slice::from_ref(&held)), by("nfs")]).result;
    let error = error.unwrap_err();
    assert_eq!(error.exit_code(), 75);
    assert!(error.to_string().contains("grows when no Pod uses it"), "{error}");
    let grown = with(held.clone(), "size", json!(3));
    let replies = vec![
        listed(std::slice::from_ref(&held)),
        by("rbd"),
        one(&held),
        done(),
        one(&grown),
    ];
    ran(&changes, &[], replies).result.unwrap();
}

#[test]
fn a_volume_grows_and_never_shrinks() {
    let changes = |gib: u64| json!({"operation": "expand", "size": gib << 30});
    let big = with(volume("in-use"), "size", json!(3));
    let replies = vec![
        listed(&[volume("in-use")]),
        one(&volume("in-use")),
        done(),
        one(&with(volume("extending"), "size", json!(1))),
        one(&big),
    ];
    let run = ran(&changes(3), &[], replies);
    run.result.unwrap();
    assert_eq!(run.calls[2], r#"POST /volumes/v1/action {"os-extend":{"new_size":3}}"#);
    let run = ran(&changes(2), &[], vec![listed(std::slice::from_ref(&big)), one(&big)]);
    assert!(run.result.unwrap().contains("3 GiB already"));
    let failed = volume("error_extending");
    let replies = vec![
        listed(&[volume("available")]),
        one(&volume("available")),
        done(),
        one(&failed),
        reply(200, r#"{"messages": []}"#),
    ];
    assert_eq!(ran(&changes(3), &[], replies).result.unwrap_err().exit_code(), 75);
}

fn attachment() -> Value {
    json!({"addresses": ["10.0.0.7"], "initiator": "iqn.x:a-1"})
}

fn info() -> Value {
    json!({"driver_volume_type": "rbd", "name": "volumes/volume-v1", "hosts": ["10.0.0.1"], "ports": ["6789"],
           "auth_username": "cinder"})
}

fn to_attach() -> Value {
    let options = json!({"client": "rbd", "source": "rbd://by-attach/cinder/volume-v1", "fs-type": "ext4"});
    json!({"operation": "attach", "node-name": "a", "attachment": attachment(), "volume": options})
}

#[test]
fn a_volume_is_attached_without_a_server_and_what_was_half_attached_ends_first() {
    let key = mooring_seal::new_key().unwrap();
    let free = volume("available");
    let replies = vec![
        one(&free),
        one(&free),
        reply(
            200,
            r#"{"attachments": [{"id": "a0", "status": "attaching", "instance": null}]}"#,
        ),
        done(),
        one(&free),
        reply(
            200,
            &json!({"attachment": {"id": "a1", "connection_info": info()}}).to_string(),
        ),
        reply(204, ""),
    ];
    let run = ran(&to_attach(), &[("answer-key", &key), ("ceph-key", "K==")], replies);
    run.result.unwrap();
    assert_eq!(run.calls[3], "DELETE /attachments/a0");
    let asked: Value = serde_json::from_str(run.calls[5].strip_prefix("POST /attachments ").unwrap()).unwrap();
    let connector = &asked["attachment"]["connector"];
    assert_eq!(connector["host"], "a");
    assert_eq!(connector["ip"], "10.0.0.7");
    assert_eq!(connector["initiator"], "iqn.x:a-1");
    assert_eq!(connector["mountpoint"], "mooring:iqn.x:a-1");
    assert_eq!(asked["attachment"]["mode"], "rw");
    assert_eq!(run.calls[6], r#"POST /attachments/a1/action {"os-complete":null}"#);
    assert_eq!(run.message["source"], "rbd://10.0.0.1:6789/volumes/volume-v1");
    assert!(run.message["sealed"].is_string());
}

fn held(device: &str) -> Value {
    with(
        volume("in-use"),
        "attachments",
        json!([{"attachment_id": "a1", "device": device}]),
    )
}

#[test]
fn a_node_keeps_its_attachment_and_another_s_is_not_ended() {
    let key = mooring_seal::new_key().unwrap();
    let properties = [("answer-key", key.as_str()), ("ceph-key", "K==")];
    let own = held("mooring:iqn.x:a-1");
    let shown = json!({"attachment": {"id": "a1", "connection_info": info()}});
    let run = ran(
        &to_attach(),
        &properties,
        vec![one(&own), reply(200, &shown.to_string())],
    );
    run.result.unwrap();

    let other = held("mooring:iqn.x:b-1");
    let list = reply(
        200,
        r#"{"attachments": [{"id": "a1", "status": "attached", "instance": null}]}"#,
    );
    let run = ran(&to_attach(), &properties, vec![one(&other), one(&other), list]);
    let error = run.result.unwrap_err();
    assert_eq!(error.exit_code(), 75);
    assert!(error.to_string().contains("iqn.x:b-1"), "{error}");

    // Of a volume for several nodes each has an attachment of its own.
    let shared = with(other, "multiattach", json!(true));
    let list = r#"{"attachments": [{"id": "a1", "status": "attached", "instance": null}]}"#;
    let made = json!({"attachment": {"id": "a2", "connection_info": info()}});
    let replies = vec![
        one(&shared),
        one(&shared),
        reply(200, list),
        one(&shared),
        reply(200, &made.to_string()),
        reply(204, ""),
    ];
    let run = ran(&to_attach(), &properties, replies);
    run.result.unwrap();
    assert!(
        run.calls.iter().all(|call| !call.starts_with("DELETE")),
        "{:?}",
        run.calls
    );
}

#[test]
fn a_node_that_is_gone_is_fenced_by_an_administrator_first() {
    let gone = json!({"addresses": ["10.0.0.7"], "initiator": "iqn.x:a-1", "gone": true});
    let mut changes = to_attach();
    changes["operation"] = json!("detach");
    changes["attachment"] = gone;
    let own = held("mooring:iqn.x:a-1");
    // By Ceph it is told itself: see fence.rs.
    let info = r#"{"attachment": {"connection_info": {"driver_volume_type": "iscsi"}}}"#;
    let run = ran(&changes, &[], vec![one(&own), reply(200, info)]);
    let error = run.result.unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(error.to_string().contains("blocklist add\" 10.0.0.7"), "{error}");

    let list = reply(
        200,
        r#"{"attachments": [{"id": "a1", "status": "attached", "instance": null}]}"#,
    );
    let replies = vec![one(&own), one(&own), list, done(), one(&volume("available"))];
    let run = ran(&changes, &[("fenced-nodes", "b, a")], replies);
    run.result.unwrap();
    assert_eq!(run.calls[3], "DELETE /attachments/a1");
}

#[test]
fn each_volume_type_of_the_project_is_a_class_and_cinder_s_default_is_the_default() {
    let types = r#"{"volume_types": [{"id": "1", "name": "__DEFAULT__"}, {"id": "2", "name": "ssd"}]}"#;
    let default = r#"{"volume_type": {"id": "2", "name": "ssd"}}"#;
    let replies = || vec![reply(200, types), reply(200, default)];
    let run = ran(&json!({"operation": "discover"}), &[], replies());
    run.result.unwrap();
    let class = |name: &str| json!({"name": name, "parameters": {"volume-type": name}});
    assert_eq!(
        run.message,
        json!({"defaults": {"expansion": true},
               "classes": [class("__DEFAULT__"), with(class("ssd"), "default", json!(true))]})
    );
    let properties = [("volume-types", "hdd, __DEFAULT__"), ("snapshots", "true")];
    let run = ran(&json!({"operation": "discover"}), &properties, replies());
    run.result.unwrap();
    assert_eq!(run.message["classes"], json!([class("__DEFAULT__")]));
    assert_eq!(run.message["defaults"]["snapshots"], true);
}

#[test]
fn each_volume_type_has_a_class_for_each_zone_that_nodes_say_they_are_in() {
    let types = r#"{"volume_types": [{"id": "2", "name": "ssd"}]}"#;
    let default = r#"{"volume_type": {"id": "2", "name": "ssd"}}"#;
    let zones = r#"{"availabilityZoneInfo": [{"zoneName": "west", "zoneState": {"available": true}},
                    {"zoneName": "east", "zoneState": {"available": true}},
                    {"zoneName": "lost", "zoneState": {"available": false}}]}"#;
    let replies = vec![reply(200, types), reply(200, default), reply(200, zones)];
    let label = "topology.kubernetes.io/zone";
    let run = ran(&json!({"operation": "discover"}), &[("zone-label", label)], replies);
    run.result.unwrap();
    let class = |zone: &str| {
        json!({"name": format!("ssd.{zone}"), "topologies": [{label: [zone]}],
               "parameters": {"volume-type": "ssd", "availability-zone": zone}})
    };
    assert_eq!(run.message["classes"], json!([class("west"), class("east")]));
}

#[test]
fn a_backup_that_failed_is_removed_and_says_why() {
    let backup = json!({"backups": [{"id": "b1", "status": "error", "volume_id": "v1", "fail_reason": "no room."}]});
    let named = json!({"name": "backup-1", "content-name": "c", "content-uid": "u", "backup": true});
    let there = || reply(200, &backup.to_string());
    let replies = vec![there(), there(), done(), reply(200, r#"{"backups": []}"#)];
    let run = ran(&json!({"operation": "backup", "snapshot": named}), &[], replies);
    let error = run.result.unwrap_err();
    assert!(error.to_string().contains("no room: it is made again"), "{error}");
    assert_eq!(run.calls[2], "DELETE /backups/b1");
}

#[test]
fn a_volume_is_copied_when_cinder_has_ended_its_work_on_it() {
    let source = |status: &str| with(with(volume(status), "id", json!("v9")), "name", json!("pvc-u9"));
    let options = json!({"source": "rbd://by-attach/cinder/volume-v9"});
    let changes = json!({"operation": "clone", "source": {
        "pv-name": "pvc-u9", "pvc-name": "a", "pvc-uid": "u9", "size": 1 << 30, "volume": options,
    }});
    let replies = vec![
        listed(&[]),
        one(&source("backing-up")),
        one(&source("backing-up")),
        one(&source("in-use")),
        reply(202, "{}"),
        listed(&[volume("available")]),
    ];
    let run = ran(&changes, &[CLIENT], replies);
    run.result.unwrap();
    assert!(run.calls[4].contains(r#""source_volid":"v9""#), "{}", run.calls[4]);
}

#[test]
fn a_volume_gets_another_type_or_says_why_not() {
    let attributes = json!({"class": "fast", "parameters": {"volume-type": "nvme"}});
    let changes = json!({"operation": "modify", "attributes": attributes});
    let now = volume("available");
    let start = || vec![listed(std::slice::from_ref(&now)), one(&now), done()];
    let mut replies = start();
    replies.push(one(&with(now.clone(), "volume_type", json!("nvme"))));
    let run = ran(&changes, &[], replies);
    run.result.unwrap();
    assert_eq!(
        run.calls[2],
        r#"POST /volumes/v1/action {"os-retype":{"migration_policy":"never","new_type":"nvme"}}"#
    );
    let mut replies = start();
    replies.extend([one(&now), reply(200, r#"{"messages": []}"#)]);
    let error = ran(&changes, &[], replies).result.unwrap_err();
    assert!(error.to_string().contains("keeps its type"), "{error}");
}

#[test]
fn a_volume_of_a_backup_is_told_by_its_name_and_gets_its_own_metadata() {
    let restored = with(volume("available"), "metadata", json!({"mooring-pv-name": "pvc-u9"}));
    let there = || listed(std::slice::from_ref(&restored));
    let replies = vec![there(), there(), done()];
    let run = ran(&json!({}), &[CLIENT], replies);
    run.result.unwrap();
    assert_eq!(
        run.calls[2],
        r#"POST /volumes/v1/metadata {"metadata":{"mooring-claim":"shop/data","mooring-pv-name":"pvc-u1"}}"#
    );
    // And what has the name of another is not deleted for what its metadata says.
    let other = with(volume("available"), "name", json!("pvc-u4"));
    let source = json!({"source": "rbd://by-attach/cinder/volume-v1"});
    let changes = json!({"operation": "delete", "volume": source});
    let run = ran(&changes, &[], vec![listed(&[]), one(&other)]);
    assert_eq!(run.result.unwrap_err().exit_code(), 75);
}
