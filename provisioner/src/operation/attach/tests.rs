//! Every branch of the plan for volumes that have to be attached.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use mooring_contract::request::Attachment;
use serde_json::{Value, json};

use super::super::tests::{ago, config, ended, leaving, no_image, now, record, run, run_with, running};
use super::nodes::VolumeNodes;
use super::observed::{Look, NodeFacts, NodeMounter, ObservedAttachment, ObservedNode};
use super::{is_open, plan, secret_of};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::operation::decision::{Decision, ForVolume, Intent, Start, VolumeDecision};
use crate::operation::limits::Limits;
use crate::operation::record::Record;
use crate::operation::waits::assert_told;
use crate::run::Run;
use crate::run::properties::tests::silver;

const INITIATOR_A: &str = "iqn.2025-01.dev.mooring:a-uida";

/// All that the plan sees, to be changed by each test.
struct World {
    volume: Value,
    record: Option<Record>,
    config: Result<Arc<ProvisionerConfig>, NoConfig>,
    attach_run: Option<Run>,
    detach_run: Option<Run>,
    wanted: Vec<String>,
    /// In use, out of service, or gone, by name.
    nodes: fn(&str) -> Option<NodeFacts>,
    /// The looks that were needed.
    looked: Vec<Look>,
}

fn offering(operations: &str) -> ProvisionerConfig {
    config(&[("operations", operations), ("volume-source", "csi")])
}

fn there(name: &str) -> Option<NodeFacts> {
    (!name.is_empty()).then(|| NodeFacts {
        uid: format!("uid{name}"),
        addresses: vec![format!("10.0.0.{}", name.len())],
        mounter: NodeMounter::Current,
        ..NodeFacts::default()
    })
}

fn used(name: &str) -> Option<NodeFacts> {
    there(name).map(|node| NodeFacts { in_use: true, ..node })
}

fn out_of_service(name: &str) -> Option<NodeFacts> {
    used(name).map(|node| NodeFacts {
        out_of_service: true,
        ..node
    })
}

fn gone(_: &str) -> Option<NodeFacts> {
    None
}

/// A record, for node a unless it is changed.
fn record_of(operation: &str, change: &Value) -> Record {
    let mut value = json!({"operation": operation, "pod": format!("admin/{operation}-u1"), "node": "a",
                           "initiator": INITIATOR_A});
    for (key, new) in change.as_object().unwrap() {
        value[key] = new.clone();
    }
    record(&value)
}

impl World {
    fn new(wanted: &[&str]) -> Self {
        let mut request = silver();
        request.pv_name = "pvc-u1".into();
        request.pvc_uid = "u1".into();
        Self {
            volume: json!({
                "metadata": {"name": "pvc-u1", "annotations": {"mooring.dev/request": json!(request).to_string()}},
                "spec": {"csi": {"driver": "vcs.mooring.dev", "volumeHandle": "pvc-u1",
                                 "volumeAttributes": {"client": "block", "source": "iscsi://h/t/1"},
                                 "nodePublishSecretRef": {"namespace": "admin", "name": "attachment-pvc-u1"}}},
                "status": {"phase": "Bound"},
            }),
            record: None,
            config: Ok(Arc::new(offering("provision,delete,attach,detach"))),
            attach_run: None,
            detach_run: None,
            wanted: wanted.iter().map(ToString::to_string).collect(),
            nodes: there,
            looked: Vec::new(),
        }
    }

    /// Node a has it.
    fn held(wanted: &[&str]) -> Self {
        let mut world = Self::new(wanted);
        let to = json!({"node": "a", "initiator": INITIATOR_A, "connection": "x"}).to_string();
        world.volume["metadata"]["annotations"]["mooring.dev/attached-to"] = json!(to);
        world
    }

    /// An operation for node a is open.
    fn open(operation: &str, wanted: &[&str]) -> Self {
        let mut world = Self::new(wanted);
        world.change_record(operation, &json!({}));
        world
    }

    /// Several nodes can have it, and these do.
    fn shared(attached: &[&str], wanted: &[&str]) -> Self {
        let mut world = Self::new(wanted);
        world.volume["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        let to = |node: &&str| json!({"node": node, "initiator": format!("i-{node}"), "connection": "x"});
        let list: Vec<_> = attached.iter().map(to).collect();
        if !list.is_empty() {
            world.volume["metadata"]["annotations"]["mooring.dev/attached-to"] = json!(json!(list).to_string());
        }
        world
    }

    fn change_record(&mut self, operation: &str, change: &Value) {
        self.record = Some(record_of(operation, change));
    }

    fn defer(&mut self, records: &[Record]) {
        self.volume["metadata"]["annotations"]["mooring.dev/deferred-attachments"] = json!(json!(records).to_string());
    }

    fn volume(&self) -> PersistentVolume {
        serde_json::from_value(self.volume.clone()).unwrap()
    }

    fn plan(&mut self) -> VolumeDecision {
        assert_told(|at| self.plan_at(at).silent_wait());
        self.plan_at(now())
    }

    fn plan_at(&mut self, now: Timestamp) -> VolumeDecision {
        let volume = self.volume();
        let mut nodes = Vec::new();
        self.looked.clear();
        loop {
            let seen = ObservedAttachment {
                volume: &volume,
                record: self.record.as_ref(),
                class: None,
                config: &self.config,
                attach_run: self.attach_run.as_ref(),
                detach_run: self.detach_run.as_ref(),
                wanted: &self.wanted,
                nodes: &nodes,
                kube_api: "https://k:1",
                limits: &Limits::default(),
            };
            match plan(&seen, now) {
                Ok(decision) => return decision,
                Err(look) => {
                    assert!(!self.looked.contains(&look), "{look:?} again");
                    self.looked.push(look.clone());
                    let there = (self.nodes)(&look.node);
                    nodes.push(ObservedNode { name: look.node, there });
                }
            }
        }
    }

    fn start(&mut self) -> Start {
        match self.plan() {
            Decision::Start(start) => *start,
            other => panic!("{other:?}"),
        }
    }

    fn noted(&mut self) -> Record {
        match self.plan() {
            Decision::Record(record) => *record,
            other => panic!("{other:?}"),
        }
    }

    /// What users are told.
    fn told(&mut self) -> String {
        match self.plan() {
            Decision::Wait { say: Some(note), .. } => note.text,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_volume_is_attached_to_the_node_whose_pod_was_made_first() {
    let start = World::new(&["a", "b"]).start();
    assert_eq!(
        (start.run.name().as_str(), start.intent),
        ("attach-u1", Intent::ToRecord)
    );
    assert_eq!(
        (start.record.operation, start.record.node.as_str()),
        (Operation::Attach, "a")
    );
    assert_eq!(start.request.node_name, "a");
    let attachment = start.request.attachment.unwrap();
    assert_eq!((attachment.initiator.as_str(), attachment.gone), (INITIATOR_A, false));
    assert_eq!(attachment.addresses, ["10.0.0.1"]);
    assert_eq!(start.request.volume["source"], "iscsi://h/t/1");
    assert!(matches!(World::new(&[]).plan(), Decision::Rest));
}

#[test]
fn a_node_that_is_gone_gets_nothing() {
    for nodes in [gone, out_of_service] {
        let mut world = World::new(&["a"]);
        world.nodes = nodes;
        assert!(world.told().contains("node a is out of service"));
    }
}

#[test]
fn a_volume_stays_where_it_is_used() {
    assert!(matches!(World::held(&["a"]).plan(), Decision::Rest));
    // Another node waits, and is told for what.
    let told = World::held(&["b", "a"]).told();
    assert!(
        told.contains("node b waits") && told.contains("which is attached to node a"),
        "{told}"
    );
    // Its Pod was deleted by force: the node's mounter has the last word.
    let mut forced = World::held(&["b"]);
    forced.nodes = used;
    assert!(forced.told().contains("out-of-service"));
    forced.wanted.clear();
    // Nobody is told: nobody waits for the volume.
    assert!(matches!(
        forced.plan_at(now()),
        Decision::Wait {
            say: None,
            after: Some(_)
        }
    ));
}

#[test]
fn a_volume_that_no_pod_uses_is_detached_before_another_node_gets_it() {
    for wanted in [&[] as &[_], &["b"]] {
        let mut world = World::held(wanted);
        let noted = world.noted();
        assert_eq!((noted.operation, noted.node.as_str()), (Operation::Detach, "a"));
        assert_eq!(noted.initiator, INITIATOR_A);
        world.record = Some(noted);
        let start = world.start();
        assert_eq!(
            (start.run.operation, start.intent),
            (Operation::Detach, Intent::Recorded)
        );
        assert_eq!(start.request.node_name, "a");
        assert_eq!(world.looked.len(), 1, "after the record was there");
    }
}

#[test]
fn a_mount_that_began_before_the_record_was_there_holds_the_volume() {
    let mut world = World::open("detach", &["b"]);
    world.nodes = used;
    assert!(world.told().contains("node b waits"));
}

#[test]
fn a_node_that_is_gone_is_fenced_before_another_gets_the_volume() {
    for nodes in [gone, out_of_service] {
        let mut world = World::held(&["b"]);
        world.nodes = nodes;
        world.record = Some(world.noted());
        let start = world.start();
        assert_eq!(start.run.operation, Operation::Detach);
        let attachment = start.request.attachment.unwrap();
        assert!(attachment.gone);
        // What the storage knows it by outlives its Node.
        assert_eq!(attachment.initiator, INITIATOR_A);
    }
}

#[test]
fn what_a_node_s_cloud_calls_it_is_known_when_its_node_is_gone() {
    let called = |name: &str| {
        there(name).map(|node| NodeFacts {
            provider_id: format!("openstack:///{name}"),
            ..node
        })
    };
    let mut world = World::new(&["a"]);
    world.nodes = called;
    let start = world.start();
    assert_eq!(start.request.attachment.unwrap().provider_id, "openstack:///a");
    world.record = Some(start.record);
    world.attach_run = Some(run("attach", 1, 10, &ended(0, r#"{"source": "iscsi://h:3260/t/2"}"#)));
    let Decision::Own(ForVolume::Attached(attached)) = world.plan() else {
        panic!()
    };
    assert_eq!(attached.to.provider_id, "openstack:///a");

    let mut world = World::held(&[]);
    world.volume["metadata"]["annotations"]["mooring.dev/attached-to"] = json!(json!(attached.to).to_string());
    world.record = Some(world.noted());
    world.nodes = gone;
    let attachment = world.start().request.attachment.unwrap();
    assert_eq!(
        (attachment.provider_id.as_str(), attachment.gone),
        ("openstack:///a", true)
    );
    // A controller of before has not noted it.
    let mut world = World::open("detach", &[]);
    world.nodes = called;
    let start = world.start();
    assert_eq!(start.record.provider_id, "openstack:///a");
}

#[test]
fn a_connection_by_another_client_has_no_initiator_unless_that_one_logs_in() {
    let mut world = World::open("attach", &["a"]);
    let message = r#"{"client": "node-disk", "source": "serial://1"}"#;
    world.attach_run = Some(run("attach", 1, 10, &ended(0, message)));
    let Decision::Own(ForVolume::Attached(attached)) = world.plan() else {
        panic!()
    };
    assert!(!attached.answered.options.contains_key("initiator"));
}

#[test]
fn that_a_node_is_gone_ends_the_waiting_of_a_detachment() {
    let mut world = World::open("detach", &["b"]);
    world.detach_run = Some(run("detach", 1, 10, &ended(78, "node a does not answer")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert!(failed.record.gave_up);
    world.detach_run = None;
    world.record = Some(failed.record);
    assert!(matches!(world.plan(), Decision::Wait { say: Some(say), .. } if say == failed.say));
    world.nodes = out_of_service;
    let start = world.start();
    assert_eq!((start.record.attempt, start.record.gave_up), (2, false));
    assert!(start.request.attachment.unwrap().gone);
}

#[test]
fn a_volume_that_is_wanted_again_is_attached_again_however_far_its_detaching_came() {
    let mut world = World::open("detach", &["a", "b"]);
    let start = world.start();
    assert_eq!(
        (start.run.operation, start.record.node.as_str()),
        (Operation::Attach, "a")
    );
    // Not while a run may still detach it.
    world.detach_run = Some(run("detach", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
}

#[test]
fn what_may_have_been_attached_is_detached_if_nobody_wants_it() {
    let mut world = World::open("attach", &[]);
    assert_eq!(world.noted().operation, Operation::Detach);
    // Of a run that ended, the end counts first.
    world.attach_run = Some(run("attach", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
    world.attach_run = Some(run("attach", 1, 10, &no_image()));
    assert!(matches!(world.plan(), Decision::Stop(_)));
    world.attach_run = Some(leaving(run("attach", 1, 10, &no_image())));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
    // One that is wanted goes on waiting for its image.
    world.wanted = vec!["a".into()];
    world.attach_run = Some(run("attach", 1, 10, &no_image()));
    assert!(matches!(world.plan(), Decision::Wait { .. } | Decision::Supply { .. }));
}

#[test]
fn the_answer_of_an_image_goes_to_the_node_that_it_was_asked_for() {
    let mut world = World::open("attach", &["b"]);
    let message = r#"{"source": "iscsi://h:3260/t/2", "sealed": "abc"}"#;
    world.attach_run = Some(run("attach", 1, 10, &ended(0, message)));
    let Decision::Own(ForVolume::Attached(attached)) = world.plan() else {
        panic!()
    };
    assert_eq!(
        (attached.to.node.as_str(), attached.to.initiator.as_str()),
        ("a", INITIATOR_A)
    );
    assert_eq!(attached.answered.options["source"], "iscsi://h:3260/t/2");
    assert_eq!(attached.answered.sealed.as_deref(), Some("abc"));
    assert!(!attached.answered.options.contains_key("sealed"));
    // What the storage was told, the client says too.
    assert_eq!(attached.answered.options["initiator"], INITIATOR_A);
    assert_eq!(attached.runs.len(), 1);
    // It need not say anything, but what it says has to be understood.
    world.attach_run = Some(run("attach", 1, 10, &ended(0, "")));
    assert!(matches!(world.plan(), Decision::Own(ForVolume::Attached(_))));
    world.attach_run = Some(run("attach", 1, 10, &ended(0, "attached!")));
    assert!(matches!(world.plan(), Decision::Fail(failed) if failed.say.text.contains("not a JSON object")));
}

#[test]
fn an_answer_that_reaches_for_the_node_or_another_volume_is_refused() {
    for (message, why) in [
        (r#"{"client": "pool", "source": ""}"#, "gives out"),
        (r#"{"client": "host", "source": "h:/x", "fs-type": "nfs"}"#, "gives out"),
        (r#"{"client": "local", "source": "pvc-other.img"}"#, "gives out"),
        (r#"{"client": "local", "source": "pvc-u1.img"}"#, "gives out"),
        (r#"{"source": "/dev/sda"}"#, "option source"),
        (r#"{"port": "1"}"#, "has no option"),
        (r#"{"client-image": "mooring.dev/other"}"#, "client-image"),
    ] {
        let mut world = World::open("attach", &["a"]);
        world.attach_run = Some(run("attach", 1, 10, &ended(0, message)));
        let Decision::Fail(failed) = world.plan() else {
            panic!("{message} was accepted");
        };
        assert!(failed.say.text.contains(why), "{message}: {}", failed.say.text);
    }
}

#[test]
fn a_failed_attempt_is_repeated_after_a_while() {
    let mut world = World::open("attach", &["a"]);
    world.attach_run = Some(run("attach", 1, 10, &ended(75, "no free target")));
    let Decision::Fail(failed) = world.plan() else { panic!() };
    assert_eq!((failed.record.attempt, failed.say.reason), (2, "VolumeAttachFailed"));
    assert!(failed.say.text.contains("no free target"));
    world.attach_run = None;
    world.record = Some(failed.record);
    assert!(matches!(world.plan(), Decision::Wait { after: Some(_), .. }));
    world.change_record("attach", &json!({"attempt": 2, "not-before": ago(1)}));
    assert_eq!(world.start().record.attempt, 2);
}

#[test]
fn a_detached_volume_says_so_and_its_runs_go() {
    let mut world = World::open("detach", &[]);
    world.detach_run = Some(run("detach", 1, 10, &ended(0, "")));
    assert!(matches!(world.plan(), Decision::Own(ForVolume::Detached(detached)) if detached.runs.len() == 1));
    // After a crash in between.
    let mut crashed = World::new(&["b"]);
    crashed.detach_run = Some(run("detach", 1, 10, &ended(0, "")));
    assert!(matches!(crashed.plan(), Decision::Stop(runs) if runs.len() == 1));
    crashed.detach_run = Some(leaving(run("detach", 1, 10, &ended(0, ""))));
    assert!(matches!(crashed.plan(), Decision::Wait { .. }));
}

#[test]
fn two_runs_are_never_at_work_on_one_volume() {
    let mut world = World::open("detach", &["a"]);
    world.attach_run = Some(run("attach", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Stop(_)));
    world.attach_run = Some(leaving(run("attach", 1, 10, &running())));
    assert!(matches!(world.plan(), Decision::Wait { .. }));
    let mut world = World::open("attach", &["a"]);
    world.detach_run = Some(run("detach", 1, 10, &running()));
    assert!(matches!(world.plan(), Decision::Stop(_)));
}

#[test]
fn without_its_operations_a_config_map_says_what_it_lacks() {
    let mut world = World::new(&["a"]);
    world.config = Ok(Arc::new(offering("provision,delete")));
    assert!(world.told().contains("lacks attach"));
    let mut world = World::held(&[]);
    world.config = Ok(Arc::new(offering("provision,delete")));
    assert!(world.told().contains("lacks detach"));
    for operation in ["attach", "detach"] {
        let mut world = World::open(operation, if operation == "attach" { &["a"] } else { &[] });
        world.config = Ok(Arc::new(offering("provision,delete")));
        assert!(world.told().contains("lacks"), "{operation}");
    }
    let mut world = World::held(&[]);
    world.config = Err(NoConfig::NotReadYet);
    assert!(matches!(world.plan(), Decision::Rest));
}

#[test]
fn a_volume_needs_an_attachment_if_its_pv_refers_to_that_secret() {
    let mut world = World::held(&[]);
    let secret = ("admin".to_owned(), "attachment-pvc-u1".to_owned());
    assert_eq!(secret_of(&world.volume()), Some(secret.clone()));
    assert_eq!(VolumeNodes::of(&world.volume()).names(), ["a"]);
    assert!(is_open(&world.volume(), None));
    let reference = world.volume["spec"]["csi"]["nodePublishSecretRef"].clone();
    world.volume["spec"] = json!({"flexVolume": {"driver": "mooring.dev/vcs", "secretRef": reference}});
    assert_eq!(secret_of(&world.volume()), Some(secret));
    world.volume["spec"]["flexVolume"]["secretRef"]["name"] = json!("attachment-pvc-u2");
    assert_eq!(secret_of(&world.volume()), None);
    let world = World::open("detach", &[]);
    assert!(is_open(&world.volume(), world.record.as_ref()) && !is_open(&world.volume(), None));
}

/// A run for a node, which had its effect.
fn late(operation: &str, node: &str) -> Run {
    late_and(operation, node, &ended(0, ""))
}

fn late_and(operation: &str, node: &str, status: &Value) -> Run {
    let mut request = silver();
    request.node_name = node.into();
    request.attachment = Some(Attachment {
        addresses: Vec::new(),
        initiator: format!("iqn.2025-01.dev.mooring:{node}-uid{node}"),
        provider_id: String::new(),
        gone: false,
    });
    run_with(operation, 1, 10, status, &json!(request))
}

/// Proves: P1
#[test]
fn what_a_run_did_that_was_begun_late_is_undone() {
    // The volume is free, and the storage let a node in.
    let mut free = World::new(&[]);
    free.attach_run = Some(late("attach", "a"));
    let noted = free.noted();
    assert_eq!((noted.operation, noted.node.as_str()), (Operation::Detach, "a"));
    assert_eq!(noted.initiator, INITIATOR_A);
    // Another node has it: that one keeps it, and does not get it from the one that is detached.
    let mut held = World::held(&["a", "b"]);
    held.attach_run = Some(late("attach", "b"));
    let noted = held.noted();
    assert_eq!((noted.operation, noted.node.as_str()), (Operation::Detach, "b"));
    held.attach_run = None;
    held.record = Some(noted);
    assert_eq!(held.start().run.operation, Operation::Detach);
    // It was taken from the node that has it.
    let mut held = World::held(&["a"]);
    held.detach_run = Some(late("detach", "a"));
    let noted = held.noted();
    assert_eq!((noted.operation, noted.node.as_str()), (Operation::Attach, "a"));
    // What is left of a run that is over is not late.
    let mut held = World::held(&["a"]);
    held.attach_run = Some(late("attach", "a"));
    assert!(matches!(held.plan(), Decision::Stop(_)));
    let mut free = World::new(&[]);
    free.detach_run = Some(late("detach", "a"));
    assert!(matches!(free.plan(), Decision::Stop(_)));
}

/// Proves: P1
#[test]
fn a_run_for_one_node_says_nothing_of_another_whose_record_is_open() {
    // It is given no properties, and its end is not taken for that of the other node's run.
    for (status, did_something) in [
        (json!({}), false),
        (running(), true),
        (ended(0, ""), true),
        (ended(75, "busy"), true),
    ] {
        for open in ["attach", "detach"] {
            for late in ["attach", "detach"] {
                let mut world = World::open(open, &["a", "b"]);
                let run = Some(late_and(late, "b", &status));
                if late == "attach" {
                    world.attach_run = run;
                } else {
                    world.detach_run = run;
                }
                let decision = world.plan();
                let is_right = match &decision {
                    Decision::Own(ForVolume::Deferred(_)) => did_something,
                    Decision::Stop(_) => !did_something,
                    _ => false,
                };
                assert!(is_right, "{open}, {late}, {status}: {decision:?}");
            }
        }
    }
    // What it did is undone while the other waits, and no third node gets the volume meanwhile.
    let mut world = World::new(&["a", "b"]);
    world.defer(&[record_of("attach", &json!({}))]);
    world.attach_run = Some(late("attach", "b"));
    let noted = world.noted();
    assert_eq!((noted.operation, noted.node.as_str()), (Operation::Detach, "b"));
    world.record = Some(noted);
    world.attach_run = None;
    assert_eq!(world.start().run.operation, Operation::Detach);
    world.record = None;
    let start = world.start();
    assert_eq!(
        (start.run.operation, start.record.node.as_str()),
        (Operation::Attach, "a")
    );
    // Of two that may have it, one loses it before the other gets it.
    world.defer(&[
        record_of("attach", &json!({})),
        record_of("detach", &json!({"node": "c"})),
    ]);
    assert_eq!(world.noted().operation, Operation::Detach);
}

#[test]
fn a_node_whose_mounter_writes_no_notes_gets_nothing_and_loses_nothing() {
    let silent = |name: &str| {
        there(name).map(|node| NodeFacts {
            mounter: NodeMounter::Silent,
            ..node
        })
    };
    // One that notes what it uses, and reads connections in a Secret.
    let older = |name: &str| {
        there(name).map(|node| NodeFacts {
            mounter: NodeMounter::Older,
            ..node
        })
    };
    let mut world = World::new(&["a"]);
    for nodes in [silent as fn(&str) -> Option<NodeFacts>, older] {
        world.nodes = nodes;
        assert!(world.told().contains("older than the controller"));
    }
    let mut held = World::held(&["b"]);
    held.nodes = silent;
    assert!(held.told().contains("node b waits"));
    let mut open = World::open("detach", &["b"]);
    open.nodes = silent;
    assert!(open.told().contains("node b waits"));
}

#[test]
fn a_volume_that_an_earlier_controller_attached_is_attached_again() {
    let mut world = World::held(&["a"]);
    let to = json!({"node": "a", "initiator": INITIATOR_A}).to_string();
    world.volume["metadata"]["annotations"]["mooring.dev/attached-to"] = json!(to);
    let record = world.start().record;
    assert_eq!((record.operation, record.node.as_str()), (Operation::Attach, "a"));
    // Nobody uses it any more.
    world.wanted.clear();
    assert_eq!(world.noted().operation, Operation::Detach);
}

/// Node a is in the way: its mounter uses the volume, though its Pod is gone.
fn used_by_a(name: &str) -> Option<NodeFacts> {
    if name == "a" { used(name) } else { there(name) }
}

#[test]
fn several_nodes_have_a_volume_that_is_for_several() {
    assert_eq!(World::shared(&[], &["a", "b"]).start().record.node, "a");
    let start = World::shared(&["a"], &["a", "b"]).start();
    assert_eq!(
        (start.record.operation, start.record.node.as_str()),
        (Operation::Attach, "b")
    );
    let mut both = World::shared(&["a", "b"], &["a", "b"]);
    assert!(matches!(both.plan(), Decision::Rest));
    assert_eq!(both.looked, []);
    both.wanted = vec!["b".into()];
    let noted = both.noted();
    assert_eq!((noted.operation, noted.node.as_str()), (Operation::Detach, "a"));
    assert_eq!(noted.initiator, "i-a");
    // Users wait for an attachment, and nobody for a detachment.
    let start = World::shared(&["a"], &["c"]).start();
    assert_eq!(
        (start.record.operation, start.record.node.as_str()),
        (Operation::Attach, "c")
    );
}

#[test]
fn a_node_that_can_t_have_a_shared_volume_holds_up_no_other() {
    // A node that is gone.
    let mut world = World::shared(&[], &["a", "b"]);
    world.nodes = |name| there(name).filter(|_| name != "a");
    assert_eq!(world.start().record.node, "b");
    // One where it is still mounted.
    let mut world = World::shared(&["a", "b"], &[]);
    world.nodes = used_by_a;
    assert_eq!(world.noted().node, "b");
    // One where attaching fails: what is open is put aside, and taken up again in its time.
    let failed = record_of("attach", &json!({"attempt": 2, "not-before": ago(-60)}));
    let mut world = World::shared(&[], &["a", "b"]);
    world.record = Some(failed.clone());
    assert!(matches!(world.plan(), Decision::Own(ForVolume::Deferred(record)) if *record == failed));
    world.record = None;
    world.defer(std::slice::from_ref(&failed));
    assert_eq!(world.start().record.node, "b");
    world.wanted = vec!["a".into()];
    assert!(matches!(world.plan(), Decision::Wait { after: Some(_), .. }));
    let due = record_of("attach", &json!({"attempt": 2, "not-before": ago(1)}));
    world.defer(&[due]);
    assert_eq!(world.start().record.attempt, 2);
    // With nothing to do for another, it stays where it is.
    let mut world = World::shared(&[], &["a"]);
    world.record = Some(failed);
    assert!(matches!(world.plan(), Decision::Wait { after: Some(_), .. }));
    // A volume of one node has one operation to the end.
    let mut world = World::open("detach", &["b"]);
    world.nodes = used_by_a;
    assert!(world.told().contains("node b waits"));
}

#[test]
fn what_was_deferred_is_undone_when_nobody_wants_it() {
    let mut world = World::shared(&[], &[]);
    world.defer(&[record_of("attach", &json!({"gave-up": true}))]);
    assert!(is_open(&world.volume(), None));
    assert_eq!(world.noted().operation, Operation::Detach);
    world.defer(&[record_of("detach", &json!({}))]);
    assert_eq!(world.start().run.operation, Operation::Detach);
    // Or attached, where it was to be detached and a Pod came back.
    world.wanted = vec!["a".into()];
    assert_eq!(world.start().run.operation, Operation::Attach);
}
