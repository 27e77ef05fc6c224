//! What real services do only now and then, by a server that answers from a list.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::test_run::{self, Ran, done, gone};
use crate::test_server::{Reply, reply};

const NFS: [(&str, &str); 3] = [
    ("share-protocol", "nfs"),
    ("share-type", "fast"),
    ("allowed-addresses", "10.0.0.0/24"),
];

fn share(status: &str) -> Value {
    json!({"id": "s1", "name": "pvc-u1", "status": status, "size": 1, "share_proto": "NFS",
           "metadata": {"mooring-pv-name": "pvc-u1"}, "created_at": "2026-01-01"})
}

fn listed(shares: &[Value]) -> Reply {
    reply(200, &json!({"shares": shares}).to_string())
}

fn one(share: &Value) -> Reply {
    reply(200, &json!({"share": share}).to_string())
}

fn rules(rules: &Value) -> Reply {
    reply(200, &json!({"access_list": rules}).to_string())
}

fn rule(state: &str) -> Value {
    json!({"id": "r1", "access_type": "ip", "access_to": "10.0.0.0/24", "access_level": "rw", "state": state})
}

fn none_of(key: &str) -> Reply {
    reply(200, &json!({key: []}).to_string())
}

fn ran(changes: &Value, properties: &[(&str, &str)], replies: Vec<Reply>) -> Ran {
    test_run::ran("manila", changes, properties, replies)
}

#[test]
fn a_share_of_nfs_lets_the_named_addresses_in() {
    let locations = json!({"export_locations": [
        {"path": "10.0.0.9:/admin", "is_admin_only": true, "preferred": true},
        {"path": "10.0.0.8:/second"}, {"path": "10.0.0.9:/share", "preferred": true}]});
    let replies = vec![
        listed(&[]),
        done(),
        listed(&[share("creating")]),
        listed(&[share("available")]),
        rules(&json!([])),
        done(),
        rules(&json!([rule("applying")])),
        rules(&json!([rule("active")])),
        reply(200, &locations.to_string()),
    ];
    let run = ran(&json!({"access-modes": ["ReadWriteMany"]}), &NFS, replies);
    run.result.unwrap();
    let asked: Value = serde_json::from_str(run.calls[1].strip_prefix("POST /shares ").unwrap()).unwrap();
    assert_eq!(asked["share"]["share_proto"], "NFS");
    assert_eq!(asked["share"]["share_type"], "fast");
    assert_eq!(
        run.calls[5],
        r#"POST /shares/s1/action {"allow_access":{"access_level":"rw","access_to":"10.0.0.0/24","access_type":"ip"}}"#
    );
    assert_eq!(run.message, json!({"client": "nfs", "source": "10.0.0.9:/share"}));
}

const CEPH: [(&str, &str); 5] = [
    ("share-protocol", "CEPHFS"),
    ("keys-namespace", "mooring"),
    ("service-token", "t"),
    // Nobody is asked for it here.
    (
        "kube-ca",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ),
    ("driver", "fuse"),
];

#[test]
fn a_share_of_cephfs_has_a_client_of_its_own_whose_key_goes_into_a_secret() {
    let mut made = share("available");
    made["metadata"]["__mount_options"] = json!("fs=cephfs");
    let rule = json!({"id": "r1", "access_type": "cephx", "access_to": "pvc-u1", "access_level": "rw",
                      "state": "active", "access_key": "K=="});
    let no_key = json!({"id": "r1", "access_type": "cephx", "access_to": "pvc-u1", "state": "active"});
    let replies = vec![
        listed(std::slice::from_ref(&made)),
        listed(std::slice::from_ref(&made)),
        rules(&json!([])),
        done(),
        rules(&json!([no_key])),
        rules(&json!([rule])),
        reply(201, "{}"),
        reply(200, r#"{"export_locations": [{"path": "10.0.0.1:6789:/volumes/x"}]}"#),
    ];
    let run = ran(&json!({}), &CEPH, replies);
    run.result.unwrap();
    let path = "PATCH /api/v1/namespaces/mooring/secrets/share-pvc-u1?fieldManager=provisioner-openstack&force=true ";
    let secret: Value = serde_json::from_str(run.calls[6].strip_prefix(path).unwrap()).unwrap();
    assert_eq!(secret["stringData"], json!({"user": "pvc-u1", "key": "K=="}));
    assert_eq!(secret["type"], "mooring.dev/vcs");
    assert_eq!(
        run.message,
        json!({"client": "cephfs", "source": "10.0.0.1:6789:/volumes/x", "fs-name": "cephfs", "driver": "fuse",
               "secret-name": "share-pvc-u1", "secret-namespace": "mooring"})
    );
}

#[test]
fn the_secret_of_a_share_goes_with_it() {
    let delete = json!({"operation": "delete"});
    let forbidden = r#"{"kind": "Status", "message": "secrets is forbidden"}"#;
    let run = ran(
        &delete,
        &CEPH,
        vec![listed(&[]), none_of("snapshots"), reply(403, forbidden)],
    );
    let error = run.result.unwrap_err();
    assert_eq!(error.exit_code(), 75);
    assert!(
        error.to_string().contains("Kubernetes says: secrets is forbidden"),
        "{error}"
    );
    let run = ran(
        &delete,
        &CEPH,
        vec![listed(&[]), none_of("snapshots"), reply(404, "{}")],
    );
    run.result.unwrap();
    assert_eq!(run.calls[2], "DELETE /api/v1/namespaces/mooring/secrets/share-pvc-u1");
}

#[test]
fn what_is_not_said_is_asked_for_before_anything_is_made() {
    for (properties, says) in [
        (&NFS[..2], "allowed-addresses"),
        (&[("share-protocol", "CEPHFS")][..], "keys-namespace"),
        (&[("protocols", "CEPHFS")], "keys-namespace"),
        (&[("protocols", "CEPHFS, NFS")], "share-protocol"),
        (&[("share-protocol", "SMB")][..], "CEPHFS, NFS or CIFS"),
        (&[][..], "share-protocol"),
    ] {
        let error = ran(&json!({}), properties, vec![]).result.unwrap_err();
        assert_eq!(error.exit_code(), 78);
        assert!(error.to_string().contains(says), "{error}");
    }
    let block = json!({"volume-mode": "Block"});
    assert_eq!(ran(&block, &NFS, vec![]).result.unwrap_err().exit_code(), 78);
}

#[test]
fn a_rule_that_another_run_has_just_made_is_as_good() {
    let exists = r#"{"badRequest": {"message": "Share access ip:10.0.0.0/24 exists.", "code": 400}}"#;
    let refused = || {
        vec![
            listed(&[share("available")]),
            listed(&[share("available")]),
            rules(&json!([])),
            reply(400, exists),
        ]
    };
    let active = || rules(&json!([rule("active")]));
    let mut replies = refused();
    replies.extend([active(), active()]);
    replies.push(reply(200, r#"{"export_locations": [{"path": "10.0.0.9:/share"}]}"#));
    ran(&json!({}), &NFS, replies).result.unwrap();
    let mut replies = refused();
    replies.push(rules(&json!([])));
    let error = ran(&json!({}), &NFS, replies).result.unwrap_err();
    assert_eq!(error.exit_code(), 78, "{error}");
}

#[test]
fn a_rule_in_error_is_removed_and_made_again() {
    let replies = vec![
        listed(&[share("available")]),
        listed(&[share("available")]),
        rules(&json!([rule("error")])),
        rules(&json!([rule("error")])),
        none_of("messages"),
        done(),
    ];
    let run = ran(&json!({}), &NFS, replies);
    assert_eq!(run.result.unwrap_err().exit_code(), 75);
    assert_eq!(
        run.calls[5],
        r#"POST /shares/s1/action {"deny_access":{"access_id":"r1"}}"#
    );
}

#[test]
fn a_share_in_error_is_deleted_all_the_same() {
    let delete = json!({"operation": "delete"});
    let replies = vec![
        listed(&[share("error")]),
        none_of("snapshots"),
        one(&share("error")),
        done(),
        one(&share("deleting")),
        gone(),
        none_of("snapshots"),
    ];
    let run = ran(&delete, &[], replies);
    run.result.unwrap();
    assert_eq!(run.calls[3], "DELETE /shares/s1");
    ran(&delete, &[], vec![listed(&[]), none_of("snapshots")])
        .result
        .unwrap();

    let stuck = || {
        vec![
            listed(&[share("error_deleting")]),
            none_of("snapshots"),
            one(&share("error_deleting")),
        ]
    };
    let mut replies = stuck();
    replies.extend([done(), gone(), none_of("snapshots")]);
    let run = ran(&delete, &[], replies);
    run.result.unwrap();
    assert_eq!(run.calls[3], r#"POST /shares/s1/action {"force_delete":null}"#);
    let mut replies = stuck();
    replies.extend([reply(403, "{}"), none_of("messages")]);
    let error = ran(&delete, &[], replies).result.unwrap_err();
    assert!(
        error.to_string().contains("error_deleting: have an administrator"),
        "{error}"
    );
}

#[test]
fn a_share_with_snapshots_goes_with_the_last_of_them() {
    let snapshots = || reply(200, r#"{"snapshots": [{"id": "n1"}]}"#);
    let replies = vec![
        listed(&[share("available")]),
        snapshots(),
        done(),
        snapshots(),
        none_of("snapshots"),
    ];
    let run = ran(&json!({"operation": "delete"}), &[], replies);
    assert!(run.result.unwrap().contains("goes with the last"));

    let named = json!({"name": "snapshot-1", "content-name": "c", "content-uid": "u"});
    let there = json!({"snapshots": [{"id": "n1", "status": "available", "share_id": "s1"}]});
    let mut left = share("available");
    left["metadata"]["mooring-deleted"] = json!("true");
    let replies = vec![
        reply(200, &there.to_string()),
        done(),
        none_of("snapshots"),
        listed(std::slice::from_ref(&left)),
        none_of("snapshots"),
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
    assert_eq!(run.calls[6], "DELETE /shares/s1");
}

#[test]
fn a_share_of_a_smaller_snapshot_is_made_as_large_as_that_and_grows() {
    let snapshots = json!({"snapshots": [{"id": "n1", "status": "available", "share_id": "s0", "size": 1}]});
    let mut grown = share("available");
    grown["size"] = json!(2);
    let replies = vec![
        listed(&[]),
        reply(200, &snapshots.to_string()),
        done(),
        listed(&[share("available")]),
        one(&share("available")),
        done(),
        one(&grown),
        rules(&json!([rule("active")])),
        rules(&json!([rule("active")])),
        reply(200, r#"{"export_locations": [{"path": "10.0.0.9:/share"}]}"#),
    ];
    let changes = json!({"operation": "restore", "size": 2_147_483_648_u64, "size-gi": 2,
                         "snapshot": {"name": "snapshot-n", "content-name": "c", "content-uid": "u"}});
    let run = ran(&changes, &NFS, replies);
    run.result.unwrap();
    let asked: Value = serde_json::from_str(run.calls[2].strip_prefix("POST /shares ").unwrap()).unwrap();
    assert_eq!(
        (&asked["share"]["size"], &asked["share"]["snapshot_id"]),
        (&json!(1), &json!("n1"))
    );
    assert_eq!(run.calls[5], r#"POST /shares/s1/action {"extend":{"new_size":2}}"#);
}

#[test]
fn a_copy_is_made_of_a_snapshot_that_goes_when_the_share_is_there_or_is_not_wanted() {
    let mut source = share("available");
    source["id"] = json!("s0");
    source["name"] = json!("pvc-u0");
    let taken = json!({"snapshots": [{"id": "n1", "status": "available", "share_id": "s0", "size": 1,
                                      "description": "Mooring, for claim shop/data"}]});
    let taken = || reply(200, &taken.to_string());
    let replies = vec![
        listed(&[]),
        none_of("snapshots"),
        listed(std::slice::from_ref(&source)),
        done(),
        taken(),
        taken(),
        done(),
        listed(&[share("available")]),
        rules(&json!([rule("active")])),
        rules(&json!([rule("active")])),
        reply(200, r#"{"export_locations": [{"path": "10.0.0.9:/share"}]}"#),
        taken(),
        done(),
        none_of("snapshots"),
        one(&source),
    ];
    let of = json!({"pv-name": "pvc-u0", "pvc-name": "first", "pvc-uid": "u0", "volume": {}, "size": 1});
    let changes = json!({"operation": "clone", "source": of});
    let run = ran(&changes, &NFS, replies);
    run.result.unwrap();
    assert!(run.calls[3].contains(r#""name":"copy-pvc-u1""#), "{}", run.calls[3]);
    assert!(run.calls[3].contains(r#""share_id":"s0""#), "{}", run.calls[3]);
    assert!(run.calls[6].contains(r#""snapshot_id":"n1""#), "{}", run.calls[6]);
    assert_eq!(run.calls[12], "DELETE /snapshots/n1");

    // The claim went before the share was there, and its source after that.
    source["metadata"]["mooring-deleted"] = json!("true");
    let replies = vec![
        listed(&[]),
        taken(),
        done(),
        none_of("snapshots"),
        one(&source),
        none_of("snapshots"),
        one(&source),
        done(),
        gone(),
    ];
    let run = ran(&json!({"operation": "delete"}), &[], replies);
    run.result.unwrap();
    assert_eq!(
        (run.calls[2].as_str(), run.calls[7].as_str()),
        ("DELETE /snapshots/n1", "DELETE /shares/s0")
    );
}

#[test]
fn a_type_without_snapshots_says_so() {
    let named = json!({"name": "snapshot-1", "content-name": "c", "content-uid": "u"});
    let no = r#"{"unprocessableEntity": {"message": "Snapshots cannot be created for share s1.", "code": 422}}"#;
    let replies = vec![none_of("snapshots"), listed(&[share("available")]), reply(422, no)];
    let run = ran(&json!({"operation": "snapshot", "snapshot": named}), &[], replies);
    let error = run.result.unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(error.to_string().contains("Snapshots cannot be created"), "{error}");
}

#[test]
fn a_share_grows_and_never_shrinks() {
    let expand = |gib: u64| json!({"operation": "expand", "size": gib << 30});
    let mut big = share("available");
    big["size"] = json!(3);
    let replies = vec![
        listed(&[share("available")]),
        one(&share("available")),
        done(),
        one(&share("extending")),
        one(&big),
    ];
    let run = ran(&expand(3), &[], replies);
    run.result.unwrap();
    assert_eq!(run.calls[2], r#"POST /shares/s1/action {"extend":{"new_size":3}}"#);
    let run = ran(&expand(2), &[], vec![listed(std::slice::from_ref(&big)), one(&big)]);
    assert!(run.result.unwrap().contains("3 GiB already"));
}

#[test]
fn each_type_and_protocol_is_a_class() {
    let types = json!({"share_types": [
        {"name": "ceph", "is_default": true, "extra_specs": {"driver_handles_share_servers": "False",
            "snapshot_support": "True", "create_share_from_snapshot_support": "True"}},
        {"name": "both", "extra_specs": {"storage_protocol": "NFS_CIFS"}},
        {"name": "served", "required_extra_specs": {"driver_handles_share_servers": "True"}},
    ]});
    let discover = || json!({"operation": "discover"});
    let run = ran(
        &discover(),
        &[("protocols", "CEPHFS")],
        vec![reply(200, &types.to_string())],
    );
    run.result.unwrap();
    assert_eq!(
        run.message["classes"],
        json!([
            {"name": "ceph-cephfs", "parameters": {"share-type": "ceph", "share-protocol": "CEPHFS"},
             "default": true, "snapshots": true},
            {"name": "both-nfs", "parameters": {"share-type": "both", "share-protocol": "NFS"}},
        ])
    );
    let properties = [("protocols", "NFS"), ("share-types", "both"), LOGIN[0]];
    let run = ran(&discover(), &properties, vec![reply(200, &types.to_string())]);
    run.result.unwrap();
    assert_eq!(run.message["classes"][1]["name"], "both-smb");
    let properties = [("protocols", "NFS"), ("share-network", "n"), ("share-types", "served")];
    let run = ran(&discover(), &properties, vec![reply(200, &types.to_string())]);
    run.result.unwrap();
    assert_eq!(run.message["classes"][0]["name"], "served-nfs");
    let zones = reply(200, r#"{"availability_zones": [{"name": "west"}]}"#);
    let properties = [("protocols", "CEPHFS"), ("zone-label", "zone"), ("share-types", "ceph")];
    let run = ran(&discover(), &properties, vec![reply(200, &types.to_string()), zones]);
    run.result.unwrap();
    assert_eq!(
        run.message["classes"],
        json!([{"name": "ceph-cephfs.west", "snapshots": true, "topologies": [{"zone": ["west"]}],
                "parameters": {"share-type": "ceph", "share-protocol": "CEPHFS", "availability-zone": "west"}}])
    );
    assert_eq!(
        ran(&discover(), &[], vec![reply(200, &types.to_string())])
            .result
            .unwrap_err()
            .exit_code(),
        78
    );
}

fn to_attach(operation: &str, client: &str, source: &str) -> Value {
    json!({"operation": operation, "node-name": "a.example", "attaches": true,
           "attachment": {"addresses": ["10.0.0.7", "a.example"], "initiator": "iqn.x:a-1"},
           "volume": {"client": client, "source": source}})
}

/// A rule for that node.
fn own_rule(kind: &str, to: &str, state: &str) -> Value {
    json!({"id": "r7", "access_type": kind, "access_to": to, "state": state, "access_key": "K==",
           "metadata": {"mooring-node": "a.example"}})
}

#[test]
fn a_node_that_mounts_a_share_is_let_in_by_its_address_and_shut_out_afterwards() {
    let there = || vec![listed(&[share("available")]), one(&share("available"))];
    let others = rule("active");
    let mut replies = there();
    replies.extend([
        rules(&json!([others])),
        done(),
        rules(&json!([others, own_rule("ip", "10.0.0.7", "active")])),
    ]);
    let run = ran(&to_attach("attach", "nfs", "10.0.0.9:/share"), &[], replies);
    run.result.unwrap();
    let asked: Value = serde_json::from_str(run.calls[3].strip_prefix("POST /shares/s1/action ").unwrap()).unwrap();
    assert_eq!(
        asked["allow_access"],
        json!({"access_type": "ip", "access_to": "10.0.0.7", "access_level": "rw",
               "metadata": {"mooring-node": "a.example"}})
    );
    assert_eq!(run.message, json!({}));

    // Whatever addresses it has now; a node that is gone has none.
    let mut gone = to_attach("detach", "nfs", "10.0.0.9:/share");
    gone["attachment"] = json!({"addresses": [], "initiator": "iqn.x:a-1", "gone": true});
    let mut replies = there();
    replies.extend([
        rules(&json!([others, own_rule("ip", "10.0.0.7", "active")])),
        done(),
        rules(&json!([others, own_rule("ip", "10.0.0.7", "denying")])),
        rules(&json!([others])),
    ]);
    let run = ran(&gone, &[], replies);
    run.result.unwrap();
    assert_eq!(
        run.calls[3],
        r#"POST /shares/s1/action {"deny_access":{"access_id":"r7"}}"#
    );
    ran(&gone, &[], vec![listed(&[])]).result.unwrap();
    // A rule that Manila could not end still lets the node in.
    let mut replies = there();
    replies.extend([
        rules(&json!([own_rule("ip", "10.0.0.7", "active")])),
        done(),
        rules(&json!([own_rule("ip", "10.0.0.7", "error")])),
        none_of("messages"),
    ]);
    assert_eq!(ran(&gone, &[], replies).result.unwrap_err().exit_code(), 75);
}

#[test]
fn a_rule_that_is_being_taken_away_is_made_again_when_it_is_gone() {
    let rule = |state: &str| rules(&json!([own_rule("ip", "10.0.0.7", state)]));
    let replies = vec![
        listed(&[share("available")]),
        one(&share("available")),
        rule("denying"),
        rules(&json!([])),
        done(),
        rule("active"),
    ];
    let run = ran(&to_attach("attach", "nfs", "10.0.0.9:/share"), &[], replies);
    run.result.unwrap();
    assert!(run.calls[4].contains("allow_access"), "{:?}", run.calls);
}

#[test]
fn each_node_has_a_client_of_ceph_of_its_own_for_a_share() {
    let key = mooring_seal::new_key().unwrap();
    let name = "pvc-u1-a_example";
    let replies = vec![
        listed(&[share("available")]),
        one(&share("available")),
        rules(&json!([own_rule("cephx", name, "active")])),
        rules(&json!([own_rule("cephx", name, "active")])),
    ];
    let source = "10.0.0.1:6789:/volumes/x";
    let run = ran(&to_attach("attach", "cephfs", source), &[("answer-key", &key)], replies);
    run.result.unwrap();
    let purpose = mooring_seal::Purpose {
        pv_name: "pvc-u1",
        node: "a.example",
    };
    let sealed = run.message["sealed"].as_str().unwrap();
    let secrets = mooring_seal::open(&key, purpose, sealed).unwrap();
    assert_eq!(json!(secrets), json!({"user": name, "key": "K=="}));
    let none = json!({"addresses": ["a.example"], "initiator": "i"});
    let mut unknown = to_attach("attach", "nfs", "10.0.0.9:/share");
    unknown["attachment"] = none;
    let there = vec![listed(&[share("available")]), one(&share("available"))];
    assert_eq!(ran(&unknown, &[], there).result.unwrap_err().exit_code(), 75);
}

#[test]
fn an_attach_is_tried_again_whatever_is_missing_in_the_cloud() {
    let asked = to_attach("attach", "nfs", "10.0.0.9:/share");
    let there = || {
        vec![
            listed(&[share("available")]),
            one(&share("available")),
            rules(&json!([])),
        ]
    };
    let mut refused = there();
    refused.extend([
        reply(400, r#"{"badRequest": {"message": "no", "code": 400}}"#),
        rules(&json!([])),
    ]);
    for replies in [
        vec![listed(&[])],
        vec![listed(&[share("available")]), reply(404, "{}")],
        refused,
    ] {
        let error = ran(&asked, &[], replies).result.unwrap_err();
        assert_eq!(error.exit_code(), 75, "{error}");
    }
}

#[test]
fn a_share_that_nodes_get_by_attach_lets_nobody_in_before() {
    let replies = vec![
        listed(&[share("available")]),
        listed(&[share("available")]),
        reply(200, r#"{"export_locations": [{"path": "10.0.0.9:/share"}]}"#),
    ];
    // What older shares need may still stand in the ConfigMap.
    let run = ran(&json!({"attaches": true}), &NFS, replies);
    run.result.unwrap();
    assert_eq!(run.message, json!({"client": "nfs", "source": "10.0.0.9:/share"}));
}

const LOGIN: [(&str, &str); 2] = [("cifs-username", "mooring"), ("cifs-password", "p, q")];

/// The one rule by which these nodes come.
fn shared_rule(nodes: &[&str]) -> Reply {
    let metadata: BTreeMap<_, _> = nodes
        .iter()
        .map(|node| (format!("mooring-node.{node}"), "true"))
        .collect();
    rules(
        &json!([{"id": "r8", "access_type": "user", "access_to": "mooring", "state": "active", "metadata": metadata}]),
    )
}

#[test]
fn nodes_mount_a_share_of_cifs_as_one_user_who_is_let_in_until_the_last_of_them_goes() {
    let replies = vec![
        listed(&[share("available")]),
        listed(&[share("available")]),
        reply(200, r#"{"export_locations": [{"path": "\\\\10.0.0.9\\share-1"}]}"#),
    ];
    let cifs = [("share-protocol", "CIFS"), ("driver", "kernel")];
    let run = ran(&json!({"attaches": true}), &cifs, replies);
    run.result.unwrap();
    assert_eq!(run.message, json!({"client": "smb", "source": "//10.0.0.9/share-1"}));
    // Nobody would be told the password.
    let error = ran(&json!({}), &cifs, vec![]).result.unwrap_err();
    assert!(error.to_string().contains("attach and detach"), "{error}");

    let source = "//10.0.0.9/share-1";
    let there = || vec![listed(&[share("available")]), one(&share("available"))];
    let attach = |asked: Reply, before: Reply| {
        let key = mooring_seal::new_key().unwrap();
        let mut replies = there();
        replies.extend([before, asked, shared_rule(&["a.example", "b"])]);
        let properties = [LOGIN[0], LOGIN[1], ("answer-key", &key)];
        let run = ran(&to_attach("attach", "smb", source), &properties, replies);
        run.result.unwrap();
        let purpose = mooring_seal::Purpose {
            pv_name: "pvc-u1",
            node: "a.example",
        };
        let secrets = mooring_seal::open(&key, purpose, run.message["sealed"].as_str().unwrap()).unwrap();
        assert_eq!(json!(secrets), json!({"username": "mooring", "password": "p, q"}));
        run.calls[3].clone()
    };
    let first = attach(done(), rules(&json!([])));
    let asked: Value = serde_json::from_str(first.strip_prefix("POST /shares/s1/action ").unwrap()).unwrap();
    assert_eq!(asked["allow_access"]["access_type"], "user");
    assert_eq!(
        asked["allow_access"]["metadata"],
        json!({"mooring-node.a.example": "true"})
    );
    assert_eq!(
        attach(done(), shared_rule(&["b"])),
        r#"PUT /share-access-rules/r8/metadata {"metadata":{"mooring-node.a.example":"true"}}"#
    );

    let detach = to_attach("detach", "smb", source);
    let mut replies = there();
    replies.extend([shared_rule(&["a.example", "b"]), done(), shared_rule(&["b"])]);
    let run = ran(&detach, &LOGIN, replies);
    run.result.unwrap();
    assert_eq!(
        run.calls[3],
        "DELETE /share-access-rules/r8/metadata/mooring-node.a.example"
    );
    let mut replies = there();
    replies.extend([shared_rule(&["a.example"]), done(), rules(&json!([]))]);
    let run = ran(&detach, &LOGIN, replies);
    run.result.unwrap();
    assert_eq!(
        run.calls[3],
        r#"POST /shares/s1/action {"deny_access":{"access_id":"r8"}}"#
    );
}

#[test]
fn a_node_that_is_gone_is_kept_from_a_share_of_cifs_by_an_administrator_while_others_have_it() {
    let mut gone = to_attach("detach", "smb", "//10.0.0.9/share-1");
    gone["attachment"] = json!({"addresses": [], "initiator": "iqn.x:a-1", "gone": true});
    let there = || {
        vec![
            listed(&[share("available")]),
            one(&share("available")),
            shared_rule(&["a.example", "b"]),
        ]
    };
    let error = ran(&gone, &LOGIN, there()).result.unwrap_err();
    assert!(error.to_string().contains("fenced-nodes"), "{error}");
    let mut replies = there();
    replies.extend([done(), shared_rule(&["b"])]);
    let fenced = [LOGIN[0], LOGIN[1], ("fenced-nodes", "a.example")];
    ran(&gone, &fenced, replies).result.unwrap();
    let mut replies = there();
    replies[2] = shared_rule(&["a.example"]);
    replies.extend([shared_rule(&["a.example"]), done(), rules(&json!([]))]);
    ran(&gone, &LOGIN, replies).result.unwrap();
}
