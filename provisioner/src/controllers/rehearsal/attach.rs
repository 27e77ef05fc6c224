//! A volume that nodes get by operation `attach`, rehearsed like the rest of a claim's life, with two nodes and their
//! mounters: never does the storage let two nodes have it unless it is for several, never has a node it mounted that
//! the storage does not let, and nothing is left in the end.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::attachment::{Connection, VolumeKey};
use mooring_contract::worker::Order;
use mooring_seal::signature::PublicKeys;
use mooring_seal::{Purpose, open, seal};
use serde_json::{Value, json};

use super::fake_api::key_of;
use super::fake_worker::{FakeWorker, is_free};
use super::{Offers, PV, Script, Theatre, UID, look_at, with_every_fault};
use crate::controllers::attachment::concerns;
use crate::operation::attach::nodes::VolumeNodes;
use crate::operation::record::Record;
use crate::run::properties::REQUEST_KEY;
use crate::run::properties::tests::silver;

const SECRET: &str = "admin/attachment-pvc-u1";

/// The volume's key until no node has it any more.
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// What happens beside the controller.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a happening of its own")]
struct Moves {
    /// The first run that attaches and the first that detaches have their effect, and end with this code.
    first_exit: Option<i32>,
    /// After so many turns the Pod moves from node a to node b.
    moved_after: Option<usize>,
    /// The ConfigMap with the controllers' public keys is emptied then.
    keys_emptied: bool,
    /// Node a is lost then: nobody unmounts there, and its administrator says that it is out of service.
    lost: bool,
    /// After so many turns Pod and claim are deleted.
    deleted_after: Option<usize>,
    /// The volume is for several nodes, and a Pod on node b uses it from the start.
    shared: bool,
    /// Node a never gets it: the image fails there.
    never_on_a: bool,
    /// The ConfigMap has a worker.
    by_worker: Option<WorkerMoves>,
    /// A controller that was held up makes the first Pod of this operation once more, after so many turns, and is killed
    /// before it looks whether that is still wanted.
    held_up: Option<(&'static str, usize)>,
}

/// What becomes of the worker.
#[derive(Debug, Clone, Copy, Default)]
struct WorkerMoves {
    /// So many of its answers are lost.
    lost_answers: usize,
    /// Its Pod is deleted after so many turns. A run that it has at the time has had its effect.
    deleted_after: Option<usize>,
}

struct Stage {
    theatre: Theatre,
    moves: Moves,
    /// The nodes that the storage lets have the volume.
    allowed: BTreeSet<String>,
    /// Those that it has fenced.
    fenced: BTreeSet<String>,
    mounted: BTreeSet<String>,
    runs: BTreeMap<String, usize>,
    /// The operations that had an effect, in order.
    done: Vec<String>,
    /// The Pod that a controller is held up with.
    begun: Option<Value>,
}

impl Stage {
    async fn open(moves: Moves) -> Self {
        let mut theatre = Theatre::open(Script::plain(Offers::Attachments));
        let mut made_by = silver();
        (made_by.pv_name, made_by.pvc_uid) = (PV.into(), UID.into());
        let mut volume = crate::volume::acceptance::tests::volume();
        volume["metadata"]["annotations"] = json!({
            "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
            "mooring.dev/config": "admin/custom-isci-provisioner",
            "mooring.dev/request": json!(made_by).to_string(),
        });
        volume["metadata"]["finalizers"] = json!(["mooring.dev/volume"]);
        volume["spec"].as_object_mut().unwrap().remove("flexVolume");
        volume["spec"]["csi"] = json!({
            "driver": "vcs.mooring.dev", "volumeHandle": PV,
            "volumeAttributes": {"client": "block", "source": "iscsi://h/t/0"},
            "nodePublishSecretRef": {"namespace": "admin", "name": "attachment-pvc-u1"},
        });
        volume["status"] = json!({"phase": "Bound"});
        let access = if moves.shared { "ReadWriteMany" } else { "ReadWriteOnce" };
        volume["spec"]["accessModes"] = json!([access]);
        {
            let mut api = theatre.api.lock();
            api.put("volumes", volume);
            let mut claim = api.get("claims", "default/data").unwrap();
            claim["spec"]["volumeName"] = json!(PV);
            claim["metadata"]["finalizers"] = json!([]);
            claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
            api.put("claims", claim);
            let connection = json!({"proof": KEY}).to_string();
            let data = json!(BTreeMap::from([(
                "mooring-connection",
                k8s_openapi::ByteString(connection.into_bytes())
            )]));
            api.put(
                "secrets",
                json!({
                    "metadata": {"namespace": "admin", "name": "attachment-pvc-u1",
                                 "labels": {"mooring.dev/component": "attachment"}},
                    "type": "mooring.dev/vcs", "data": data,
                }),
            );
            api.put(
                "configmaps",
                json!({"metadata": {"namespace": "mooring", "name": "connection-keys"}, "data": {"of-before": "x"}}),
            );
            for name in ["a", "b"] {
                let notes = json!({"attached.mooring.dev/noted-by-mounter": "signed"});
                api.put("nodes", json!({"metadata": {"name": name, "annotations": notes}}));
            }
            api.put("users", user("a"));
            if moves.shared {
                api.put("users", user("b"));
            }
        }
        if let Some(WorkerMoves { lost_answers, .. }) = moves.by_worker {
            theatre.hire(lost_answers).await;
        }
        Self {
            theatre,
            moves,
            allowed: BTreeSet::new(),
            fenced: BTreeSet::new(),
            mounted: BTreeSet::new(),
            runs: BTreeMap::new(),
            done: Vec::new(),
            begun: None,
        }
    }

    /// Ends every run that has its properties, as the image would.
    fn image(&mut self, what: &str) {
        let pods = self.theatre.api.lock().all("pods");
        let secrets = self.theatre.api.lock().all("secrets");
        let own = |pod: &Value| {
            let is_own = |secret: &&Value| secret["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"];
            secrets.iter().find(is_own).cloned()
        };
        let running: Vec<_> = pods
            .iter()
            .filter(|pod| pod["status"]["phase"].is_null())
            .filter_map(|pod| Some((pod.clone(), own(pod)?)))
            .collect();
        if !pods.iter().any(|pod| pod["metadata"]["uid"] == "w1") {
            self.theatre.worker = None;
        }
        let on_worker = self.theatre.worker.as_ref().and_then(FakeWorker::order);
        let at_once = running.len() + usize::from(on_worker.is_some());
        assert!(at_once <= 1, "{what}: two run at once: {running:#?} {on_worker:#?}");
        if let Some(order) = on_worker {
            let (code, message) = self.effect_of(what, &order);
            if let Some(worker) = &self.theatre.worker {
                worker.end(code, &message);
            }
            return;
        }
        let Some((mut pod, secret)) = running.into_iter().next() else {
            return;
        };
        let operation = pod["metadata"]["labels"]["mooring.dev/operation"].as_str().unwrap();
        let operation = operation.to_owned();
        let property = |key: &str| {
            serde_json::from_value::<k8s_openapi::ByteString>(secret["data"][key].clone())
                .map(|value| String::from_utf8(value.0).unwrap())
                .unwrap()
        };
        let request = serde_json::from_str(&property(REQUEST_KEY)).unwrap();
        let key = || property("answer-key");
        let (code, message) = self.effect(what, &operation, &request, key);
        pod["status"] = crate::operation::tests::ended(code, &message);
        pod["spec"]["nodeName"] = json!("node-a");
        self.theatre.api.lock().put("pods", pod);
    }

    fn effect_of(&mut self, what: &str, order: &Order) -> (i32, String) {
        let request = serde_json::from_str(&order.request).unwrap();
        let key = || order.properties["answer-key"].clone();
        self.effect(what, &order.properties["operation"], &request, key)
    }

    /// What the image does to the storage; its exit code and its answer.
    fn effect(&mut self, what: &str, operation: &str, request: &Value, key: impl FnOnce() -> String) -> (i32, String) {
        let node = request["node-name"].as_str().unwrap().to_owned();
        let gone = request["attachment"]["gone"] == true;
        self.done.push(format!("{operation} {node}"));
        let mut message = String::new();
        match operation {
            "attach" => {
                if self.moves.never_on_a && node == "a" {
                    return (78, "no path to node a".to_owned());
                }
                self.allowed.insert(node.clone());
                let most = if self.moves.shared { 2 } else { 1 };
                assert!(self.allowed.len() <= most, "{what}: two nodes are let in");
                let purpose = Purpose {
                    pv_name: PV,
                    node: &node,
                };
                let secrets = [("password".to_owned(), format!("geheim-{node}"))].into();
                let sealed = seal(&key(), purpose, &secrets).unwrap();
                message = json!({"source": format!("iscsi://h/t-{node}/1"), "sealed": sealed}).to_string();
            }
            "detach" => {
                assert!(
                    gone || !self.mounted.contains(&node),
                    "{what}: taken from a node that uses it"
                );
                if gone {
                    self.mounted.remove(&node);
                    self.fenced.insert(node.clone());
                }
                self.allowed.remove(&node);
            }
            other => {
                assert_eq!(other, "delete", "{what}");
                assert_eq!(
                    self.allowed,
                    BTreeSet::new(),
                    "{what}: deleted while a node may have it"
                );
            }
        }
        let runs = self.runs.entry(operation.to_owned()).or_default();
        *runs += 1;
        let code = self.moves.first_exit.filter(|_| *runs == 1).unwrap_or(0);
        if code != 0 {
            message = "busy".to_owned();
        }
        (code, message)
    }

    /// What the mounters of both nodes do. A node that is lost does nothing.
    fn mounters(&mut self, turn: usize) {
        let mut api = self.theatre.api.lock();
        let volume = api.get("volumes", &format!("/{PV}"));
        let notes = volume.map_or(Value::Null, |volume| volume["metadata"]["annotations"].clone());
        let to = notes["mooring.dev/attached-to"].as_str().unwrap_or("null");
        let to: Value = serde_json::from_str(to).unwrap();
        let has = |node: &str| match &to {
            Value::Array(all) => all.iter().any(|to| to["node"] == node),
            one => one["node"] == node,
        };
        let record = notes["mooring.dev/operation"].as_str().unwrap_or("null");
        let record: Value = serde_json::from_str(record).unwrap();
        let lost = |node: &str| self.moves.lost && node == "a" && self.moves.moved_after.is_some_and(|at| turn >= at);
        for node in ["a", "b"].into_iter().filter(|node| !lost(node)) {
            let used = api.each("users").any(|user| user["spec"]["nodeName"] == node);
            let note = "attached.mooring.dev/pvc-u1";
            let key = format!("/{node}");
            let mut found = api.get("nodes", &key).unwrap();
            if used && record["node"] != node && has(node) {
                if self.mounted.insert(node.to_owned()) {
                    found["metadata"]["annotations"][note] = json!("used");
                    api.put("nodes", found);
                }
            } else if !used && self.mounted.remove(node) {
                found["metadata"]["annotations"].as_object_mut().unwrap().remove(note);
                api.put("nodes", found);
            }
        }
        let unlet: Vec<_> = self.mounted.difference(&self.allowed).collect();
        assert!(
            unlet.iter().all(|node| self.fenced.contains(*node)),
            "{unlet:?} have it mounted and are not let"
        );
    }

    fn users(&mut self, turn: usize, what: &str) {
        if self
            .moves
            .by_worker
            .is_some_and(|moves| moves.deleted_after == Some(turn))
        {
            if let Some(order) = self.theatre.worker.as_ref().and_then(FakeWorker::order) {
                self.effect_of(what, &order);
            }
            self.theatre.worker = None;
            self.theatre.api.lock().delete("pods", "admin/worker-1");
        }
        self.held_up_controller(turn);
        let mut api = self.theatre.api.lock();
        if self.moves.moved_after == Some(turn) {
            if self.moves.lost {
                let mut node = api.get("nodes", "/a").unwrap();
                node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
                api.put("nodes", node);
            }
            if self.moves.keys_emptied {
                api.put(
                    "configmaps",
                    json!({"metadata": {"namespace": "mooring", "name": "connection-keys"}}),
                );
            }
            api.delete("users", "default/on-a");
            if api.get("users", "default/on-b").is_none() {
                api.put("users", user("b"));
            }
        }
        if self.moves.deleted_after == Some(turn) {
            for node in ["a", "b"] {
                api.delete("users", &format!("default/on-{node}"));
            }
            api.delete("claims", "default/data");
        }
        let gone = api.get("claims", "default/data").is_none();
        if let Some(mut volume) = api.get("volumes", &format!("/{PV}"))
            && gone
            && volume["status"]["phase"] != "Released"
        {
            volume["status"]["phase"] = json!("Released");
            api.put("volumes", volume);
        }
    }

    fn held_up_controller(&mut self, turn: usize) {
        let Some((operation, wakes)) = self.moves.held_up else {
            return;
        };
        let mut api = self.theatre.api.lock();
        let there = api.get("pods", &format!("admin/{operation}-u1"));
        if self.begun.is_none() {
            self.begun = there.clone().map(|mut pod| {
                pod["status"] = json!({});
                pod["spec"]["nodeName"] = Value::Null;
                for given in ["uid", "resourceVersion", "creationTimestamp"] {
                    pod["metadata"][given] = Value::Null;
                }
                pod
            });
        }
        let volume = api.get("volumes", &format!("/{PV}"));
        let is_looked_at = volume.is_some_and(|volume| {
            let volume = serde_json::from_value(volume).unwrap();
            concerns(&volume, Record::on(&volume).unwrap().as_ref())
        });
        if let Some(pod) = self.begun.clone()
            && turn == wakes
            && there.is_none()
            // Else it is an orphan's run once the volume is gone.
            && is_looked_at
        {
            api.put("pods", pod);
        }
    }

    async fn play(&mut self, what: &str) {
        let mut quiet = 0;
        let held_up = self.moves.held_up.map(|(_, wakes)| wakes);
        let last = self.moves.deleted_after.max(self.moves.moved_after).max(held_up);
        for turn in 0..80 {
            let before = self.theatre.api.lock().version;
            self.users(turn, what);
            self.image(what);
            self.theatre.turn_of_controllers().await;
            self.mounters(turn);
            let rests = self.theatre.api.lock().version == before;
            quiet = if rests { quiet + 1 } else { 0 };
            if quiet > 1 && last.is_none_or(|at| turn > at) {
                return;
            }
        }
        panic!("{what}: it does not come to rest: {:#?}", self.theatre.api.lock());
    }

    fn check(&self, what: &str) {
        let api = self.theatre.api.lock();
        let names = |kind: &str| api.each(kind).map(key_of).collect::<Vec<_>>();
        let left: Vec<_> = api.each("pods").filter(|pod| !is_free(pod)).collect();
        assert!(left.is_empty(), "{what}: Pods left: {left:#?}");
        if self.moves.deleted_after.is_some() {
            for kind in ["secrets", "claims", "volumes"] {
                assert_eq!(names(kind), [""; 0], "{what}: {kind} left");
            }
            assert_eq!(self.allowed, BTreeSet::new(), "{what}: a node may have what is gone");
            return;
        }
        let has_a = self.moves.moved_after.is_none() && !self.moves.never_on_a;
        let has_b = self.moves.moved_after.is_some() || self.moves.shared;
        let at: BTreeSet<_> = [("a", has_a), ("b", has_b)]
            .into_iter()
            .filter(|(_, has)| *has)
            .map(|(node, _)| node.to_owned())
            .collect();
        assert_eq!(self.allowed, at, "{what}");
        assert_eq!(self.mounted, at, "{what}");
        assert_eq!(names("secrets"), [SECRET], "{what}");
        let data = api.get("secrets", SECRET).unwrap()["data"].clone();
        let data: BTreeMap<String, k8s_openapi::ByteString> = serde_json::from_value(data).unwrap();
        assert_eq!(data.keys().collect::<Vec<_>>(), ["mooring-connection"], "{what}");
        let key: VolumeKey = serde_json::from_slice(&data["mooring-connection"].0).unwrap();
        let was_free = self.done.iter().any(|done| done.starts_with("detach")) && !self.moves.shared;
        assert!(
            !was_free || key.key != KEY,
            "{what}: a node that lost it still has its key"
        );
        let published = api.get("configmaps", "mooring/connection-keys").unwrap()["data"].clone();
        let published: BTreeMap<String, String> = serde_json::from_value(published).unwrap();
        assert!(!published.contains_key("of-before"), "{what}");
        let published = PublicKeys::published(published);
        let volume: PersistentVolume = serde_json::from_value(api.get("volumes", &format!("/{PV}")).unwrap()).unwrap();
        for to in VolumeNodes::of(&volume).attached.0 {
            let signed = published.verify::<Connection>(&to.connection);
            let connection = signed.unwrap_or_else(|error| panic!("{what}: {error}")).into_inner();
            let node = to.node.as_str();
            assert!(at.contains(node), "{what}: {connection:?}");
            assert_eq!((&*connection.volume, &*connection.node), (PV, node), "{what}");
            assert_eq!(connection.options["source"], format!("iscsi://h/t-{node}/1"), "{what}");
            let purpose = Purpose { pv_name: PV, node };
            let secrets = open(&key.key, purpose, &connection.sealed).unwrap();
            assert_eq!(secrets["password"], format!("geheim-{node}"), "{what}");
        }
    }
}

fn user(node: &str) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": format!("on-{node}")},
        "spec": {"nodeName": node, "containers": [],
                 "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
    })
}

/// Plays it without a fault, then with each call going wrong in every way.
async fn rehearse(moves: Moves) {
    with_every_fault(&moves, async |fault, what| {
        let mut stage = Stage::open(moves).await;
        stage.theatre.fail(fault);
        stage.play(what).await;
        stage.check(what);
        stage.theatre.calls()
    })
    .await;
}

/// Proves: P1
#[tokio::test]
async fn a_volume_is_attached_to_the_node_of_its_pod_and_to_no_other_whatever_fails() {
    for first_exit in [None, Some(75)] {
        rehearse(Moves {
            first_exit,
            ..Moves::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_volume_follows_its_pod_to_another_node_whatever_fails() {
    for moved_after in [0, 1, 3, 8] {
        rehearse(Moves {
            first_exit: Some(75).filter(|_| moved_after == 8),
            moved_after: Some(moved_after),
            ..Moves::default()
        })
        .await;
    }
}

#[tokio::test]
async fn a_key_that_somebody_took_out_of_the_configmap_is_there_again_with_the_next_attachment() {
    rehearse(Moves {
        moved_after: Some(8),
        keys_emptied: true,
        ..Moves::default()
    })
    .await;
}

/// Proves: P1
#[tokio::test]
async fn a_node_that_is_lost_is_fenced_before_another_gets_its_volume_whatever_fails() {
    for moved_after in [2, 8] {
        let moves = Moves {
            moved_after: Some(moved_after),
            lost: true,
            ..Moves::default()
        };
        rehearse(moves).await;
        let mut stage = Stage::open(moves).await;
        stage.play("to be fenced").await;
        assert_eq!(stage.fenced, BTreeSet::from(["a".to_owned()]));
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_volume_that_is_deleted_is_detached_first_whatever_fails() {
    for deleted_after in [0, 1, 2, 3, 8] {
        rehearse(Moves {
            deleted_after: Some(deleted_after),
            ..Moves::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_run_that_a_controller_made_late_is_taken_for_no_other_node_s() {
    for shared in [false, true] {
        for held_up in (0..24).flat_map(|wakes| ["attach", "detach"].map(|operation| (operation, wakes))) {
            let moves = Moves {
                shared,
                moved_after: Some(6),
                deleted_after: Some(14),
                held_up: Some(held_up),
                ..Moves::default()
            };
            let mut stage = Stage::open(moves).await;
            let what = format!("{moves:?}");
            stage.play(&what).await;
            stage.check(&what);
        }
    }
}

/// Proves: P1
#[tokio::test]
async fn a_worker_attaches_and_detaches_as_a_pod_of_the_run_s_own_would_whatever_fails() {
    for lost_answers in [0, 1, 2] {
        let by_worker = Some(WorkerMoves {
            lost_answers,
            ..WorkerMoves::default()
        });
        for moved_after in [None, Some(1), Some(8)] {
            rehearse(Moves {
                first_exit: Some(75).filter(|_| moved_after.is_none()),
                moved_after,
                by_worker,
                ..Moves::default()
            })
            .await;
        }
    }
}

/// Proves: P1
#[tokio::test]
async fn a_worker_that_is_killed_leaves_a_volume_with_one_node_whatever_fails() {
    for deleted_after in [1, 2, 3, 5] {
        rehearse(Moves {
            moved_after: Some(4),
            by_worker: Some(WorkerMoves {
                lost_answers: 0,
                deleted_after: Some(deleted_after),
            }),
            ..Moves::default()
        })
        .await;
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_volume_is_detached_by_a_worker_before_it_is_deleted_whatever_fails() {
    for deleted_after in [0, 1, 2, 8] {
        rehearse(Moves {
            deleted_after: Some(deleted_after),
            by_worker: Some(WorkerMoves::default()),
            ..Moves::default()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn several_nodes_get_a_volume_that_is_for_several_and_lose_it_one_by_one_whatever_fails() {
    let shared = Moves {
        shared: true,
        ..Moves::default()
    };
    for by_worker in [None, Some(WorkerMoves::default())] {
        for moved_after in [None, Some(1), Some(4), Some(8)] {
            rehearse(Moves {
                moved_after,
                by_worker,
                ..shared
            })
            .await;
        }
    }
    rehearse(Moves {
        lost: true,
        moved_after: Some(8),
        ..shared
    })
    .await;
    for deleted_after in [0, 2, 4, 8] {
        rehearse(Moves {
            deleted_after: Some(deleted_after),
            ..shared
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_node_that_can_t_have_a_volume_keeps_it_from_no_other_whatever_fails() {
    for deleted_after in [None, Some(12)] {
        rehearse(Moves {
            shared: true,
            never_on_a: true,
            deleted_after,
            ..Moves::default()
        })
        .await;
    }
}

/// The one write of a controller that leads: it publishes the key of its signatures, before it signs for the first time.
const PUBLISHED: &str = "PUT configmaps";

/// What an attachment costs.
const ATTACHED: [&str; 5] = [
    "PATCH volumes",
    "POST pods",
    "POST secrets",
    "PATCH volumes",
    "DELETE pods",
];

/// The same by a worker.
const BY_WORKER: [&str; 4] = ["PATCH volumes", "PATCH pods", "PATCH volumes", "PATCH pods"];

/// With the writes that it costs once: the first attachment is signed when its run has ended.
fn published(first: &[&'static str]) -> Vec<&'static str> {
    let mut writes = first.to_vec();
    writes.insert(first.len() - 2, PUBLISHED);
    writes
}

/// Nobody tries in silence what a policy goes on refusing.
#[tokio::test]
async fn what_a_policy_refuses_to_be_written_on_a_secret_is_no_conflict() {
    let mut stage = Stage::open(Moves {
        moved_after: Some(12),
        ..Moves::default()
    })
    .await;
    {
        let mut api = stage.theatre.api.lock();
        let mut secret = api.get("secrets", SECRET).unwrap();
        secret["metadata"]["labels"] = json!({});
        api.put("secrets", secret);
    }
    for turn in 0..40 {
        stage.users(turn, "");
        stage.image("");
        stage.theatre.watch();
        let volume = stage.theatre.api.lock().get("volumes", &format!("/{PV}")).unwrap();
        match look_at("volumes", volume, &stage.theatre.shared).await {
            Err(error) if error.is_refusal() => return,
            Ok(_) | Err(_) => stage.mounters(turn),
        }
    }
    panic!("nobody is told");
}

/// Proves: P7
#[tokio::test]
async fn an_attachment_costs_five_writes_and_a_detachment_six() {
    let mut stage = Stage::open(Moves::default()).await;
    stage.play("its budget").await;
    stage.check("its budget");
    assert_eq!(stage.theatre.api.lock().writes(), published(&ATTACHED));
    let mut stage = Stage::open(Moves {
        moved_after: Some(12),
        ..Moves::default()
    })
    .await;
    stage.play("its budget").await;
    stage.check("its budget");
    let detached = [
        "PATCH volumes",
        "POST pods",
        "POST secrets",
        "PATCH secrets",
        "PATCH volumes",
        "DELETE pods",
    ];
    let writes = [&published(&ATTACHED)[..], &detached, &ATTACHED].concat();
    assert_eq!(stage.theatre.api.lock().writes(), writes);
    assert_eq!(stage.done, ["attach a", "detach a", "attach b"]);
}

/// Proves: P7
#[tokio::test]
async fn an_attachment_by_a_worker_costs_four_writes_and_a_detachment_six() {
    let mut stage = Stage::open(Moves {
        by_worker: Some(WorkerMoves::default()),
        ..Moves::default()
    })
    .await;
    stage.play("its budget").await;
    stage.check("its budget");
    assert_eq!(stage.theatre.api.lock().writes(), published(&BY_WORKER));
    let mut stage = Stage::open(Moves {
        moved_after: Some(12),
        by_worker: Some(WorkerMoves::default()),
        ..Moves::default()
    })
    .await;
    stage.play("its budget").await;
    stage.check("its budget");
    // What is to be detached is written down before it is known which worker is free.
    let detached = [
        "PATCH volumes",
        "PATCH volumes",
        "PATCH pods",
        "PATCH secrets",
        "PATCH volumes",
        "PATCH pods",
    ];
    let writes = [&published(&BY_WORKER)[..], &detached, &BY_WORKER].concat();
    assert_eq!(stage.theatre.api.lock().writes(), writes);
    assert_eq!(stage.done, ["attach a", "detach a", "attach b"]);
}
