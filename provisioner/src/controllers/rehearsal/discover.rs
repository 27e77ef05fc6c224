//! A discovery, rehearsed like the life of a claim: with the loop that has the image run and the one that keeps
//! StorageClasses, each call failing in turn. Classes come, one vanishes while it is used, one when it is not, and all
//! go with their ConfigMap. Nothing is written while nothing changes.

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::core::Status;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};

use super::fake_api::{FakeApi, Fault, key_of};
use super::fake_worker::{FakeWorker, is_free};
use super::{Offers, Script, read, shared};
use crate::apply::Shared;
use crate::cache::store::Cache;
use crate::config::trust::Trust;
use crate::controllers::config::ConfigLoop;
use crate::controllers::discover::{Reported, look};
use crate::process::events::EventRecorder;
use crate::run::Run;

const SCRIPT: Script = Script {
    image_makes_pv: false,
    first_fails: false,
    quick_binder: false,
    deleted_after: None,
    offers: Offers::Changes,
};

const CONFIG: &str = "admin/ceph";

/// The ConfigMap that sums it up.
const STATUS: &str = "admin/storage";

struct Stage {
    api: FakeApi,
    shared: Shared,
    state: ConfigLoop,
    reported: Reported,
    claims: Vec<PersistentVolumeClaim>,
    /// What the image prints, and its exit code.
    prints: (i32, String),
    runs: usize,
    worker: Option<FakeWorker>,
}

fn state(shared: &Shared) -> ConfigLoop {
    ConfigLoop::new(shared.context.clone(), Trust::offline(None, None), shared.cache.clone())
}

impl Stage {
    fn open() -> Self {
        let api = FakeApi::default();
        let shared = shared(&api, SCRIPT);
        let mut stage = Self {
            state: state(&shared),
            api,
            shared,
            reported: Reported::default(),
            claims: Vec::new(),
            prints: (0, String::new()),
            runs: 0,
            worker: None,
        };
        stage.config("1");
        let labels = json!({"type": "provisioner-status"});
        let status = json!({"metadata": {"name": "storage", "namespace": "admin", "uid": "s1", "labels": labels}});
        stage.api.lock().put("configmaps", status);
        stage
    }

    /// Writes the ConfigMap; another `round` is another version of it.
    fn config(&mut self, round: &str) {
        let mut state = self.api.lock();
        let notes = state
            .get("configmaps", CONFIG)
            .map(|there| there["metadata"]["annotations"].clone());
        state.put(
            "configmaps",
            json!({
                "metadata": {"name": "ceph", "namespace": "admin", "uid": "c1", "annotations": notes,
                             "creationTimestamp": "2026-01-01T00:00:00Z",
                             "labels": {"type": "provisioner-config", "app.kubernetes.io/part-of": "storage"}},
                "data": {"plugin-name": "mooring.dev/flex-provisioner", "image": "example.com/ceph:1", "round": round,
                         "volume-source": "csi", "discover-interval": "24h",
                         "operations": "provision,delete,snapshot,delete-snapshot,restore,discover"},
            }),
        );
    }

    /// One claim each names these classes.
    fn uses(&mut self, used: &[&str]) {
        let claim = |class: &&str| {
            let claim =
                json!({"metadata": {"name": class, "namespace": "default"}, "spec": {"storageClassName": class}});
            serde_json::from_value(claim).unwrap()
        };
        self.claims = used.iter().map(claim).collect();
    }

    fn restarted_if_killed(&mut self) {
        if std::mem::take(&mut self.api.lock().tripped) {
            self.shared = shared(&self.api, SCRIPT);
            self.state = state(&self.shared);
            self.reported = Reported::default();
        }
    }

    async fn turn(&mut self) {
        self.watch();
        let configs = read(self.api.lock().each("configmaps"));
        self.state.know(configs, self.shared.cache.clone());
        Box::pin(self.state.turn()).await;
        self.restarted_if_killed();
        self.watch();
        if self.shared.context.configs.is_synced() {
            Box::pin(look(&self.shared, &mut self.reported)).await;
        }
        self.restarted_if_killed();
        self.kubelet();
        self.garbage_collector();
    }

    fn watch(&mut self) {
        let state = self.api.lock();
        let cache = Cache::new(&self.shared.context.settings.config_namespaces);
        let pods: Vec<_> = read(state.each("pods"));
        self.shared.cache = cache.filled(
            self.claims.clone(),
            vec![],
            &pods,
            (read(state.each("classes")), vec![]),
            (vec![], vec![], read(state.each("snapshotclasses"))),
        );
        for run in pods.into_iter().map(Run::of) {
            self.shared.limiter.seen(&run.place());
        }
        if let Some(worker) = &self.worker {
            self.shared
                .cache
                .workers
                .contacts
                .note("w1", &worker.seat, worker.report());
        }
    }

    /// A worker of this version of the ConfigMap.
    async fn hire(&mut self) {
        let map = read(self.api.lock().each("configmaps"));
        self.state.know(map, self.shared.cache.clone());
        Box::pin(self.state.turn()).await;
        let config = self.shared.context.configs.all().remove(0);
        let worker = FakeWorker::start(0).await;
        let mut pod = worker.pod(CONFIG, &config.fingerprint);
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": config.reference.name, "uid": "c1"});
        pod["metadata"]["ownerReferences"] = json!([owner]);
        self.api.lock().put("pods", pod);
        self.worker = Some(worker);
    }

    fn kubelet(&mut self) {
        let mut state = self.api.lock();
        if let Some(worker) = self.worker.as_ref().filter(|worker| worker.order().is_some()) {
            worker.end(self.prints.0, &self.prints.1);
            state.version += 1;
            self.runs += 1;
        }
        for mut pod in state.all("pods") {
            let owned = state
                .all("secrets")
                .iter()
                .any(|secret| secret["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]);
            if !owned || !pod["status"]["phase"].is_null() {
                continue;
            }
            let (code, message) = &self.prints;
            pod["status"] = crate::operation::tests::ended(*code, message);
            pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] =
                json!(Timestamp::now().to_string());
            pod["spec"]["nodeName"] = json!("node-a");
            state.put("pods", pod);
            self.runs += 1;
        }
    }

    fn garbage_collector(&mut self) {
        let mut state = self.api.lock();
        for (owners, kind) in [("configmaps", "pods"), ("pods", "secrets")] {
            let owners = state.all(owners);
            let uids: Vec<Value> = owners.iter().map(|owner| owner["metadata"]["uid"].clone()).collect();
            for object in state.all(kind) {
                if !uids.contains(&object["metadata"]["ownerReferences"][0]["uid"]) {
                    state.delete(kind, &key_of(&object));
                }
            }
        }
    }

    /// Plays until nothing changes any more.
    async fn play(&mut self) {
        let mut quiet = 0;
        for _ in 0..60 {
            let (faults, before) = {
                let state = self.api.lock();
                (state.faults, state.version)
            };
            self.turn().await;
            let state = self.api.lock();
            quiet = if before == state.version && faults == state.faults {
                quiet + 1
            } else {
                0
            };
            if quiet > 2 {
                return;
            }
        }
        panic!("it does not come to rest: {:#?}", self.api.lock());
    }

    fn names(&self, kind: &str) -> Vec<String> {
        self.api.lock().each(kind).map(key_of).collect()
    }

    fn status(&self) -> String {
        let config = self.api.lock().get("configmaps", CONFIG).unwrap();
        let status = &config["metadata"]["annotations"]["mooring.dev/status"];
        status.as_str().unwrap_or_default().to_owned()
    }

    /// The reason of each condition that is not as expected, with its status.
    fn conditions(&self) -> Vec<String> {
        let data = self.api.lock().get("configmaps", STATUS).unwrap()["data"].clone();
        let all: Value = crate::yaml::from_str(data["conditions"].as_str().unwrap_or("[]")).unwrap();
        let text = |condition: &Value, key: &str| condition[key].as_str().unwrap().to_owned();
        for condition in all.as_array().unwrap() {
            let key = text(condition, "type").to_lowercase();
            assert_eq!(data[&key], condition["status"], "{key}");
        }
        let unexpected = all
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["reason"] != "AsExpected");
        unexpected
            .map(|one| format!("{}={}: {}", text(one, "type"), text(one, "status"), text(one, "reason")))
            .collect()
    }

    /// The whole play; `what` goes wrong in it.
    async fn whole(&mut self, what: &str) {
        let both = r#"{"parameter": "pool", "classes": [{"name": "ssd", "snapshots": true}, "hdd"]}"#;
        let one = r#"{"parameter": "pool", "classes": [{"name": "ssd", "snapshots": true}]}"#;
        self.uses(&[]);
        self.prints = (0, both.to_owned());
        self.play().await;
        assert_eq!(self.names("classes"), ["/ceph-hdd", "/ceph-ssd"], "{what}");
        assert_eq!(self.names("snapshotclasses"), ["/ceph-ssd"], "{what}");
        assert_eq!(self.names("pods"), ["admin/discover-c1"], "{what}");
        assert_eq!(self.names("secrets").len(), 1, "{what}");
        assert_eq!(self.status(), "in force; 2 storage classes by discovery", "{what}");

        // A failure, and an answer that is none, change nothing.
        for (round, prints) in [("2", (75, "busy")), ("3", (0, "")), ("4", (0, "{}"))] {
            self.prints = (prints.0, prints.1.to_owned());
            self.config(round);
            self.play().await;
            assert_eq!(self.names("classes"), ["/ceph-hdd", "/ceph-ssd"], "{what}");
            let said = "in force; 2 storage classes by discovery; the last discovery failed: ";
            assert!(self.status().starts_with(said), "{what}: {}", self.status());
            assert_eq!(self.conditions(), ["Degraded=True: DiscoveryFailed"], "{what}");
        }

        self.uses(&["ceph-hdd"]);
        self.prints = (0, one.to_owned());
        self.config("5");
        self.play().await;
        assert_eq!(self.names("classes"), ["/ceph-hdd", "/ceph-ssd"], "{what}: in use");
        assert!(
            self.status().ends_with("as soon as nothing uses them: ceph-hdd"),
            "{what}"
        );
        self.uses(&[]);
        self.play().await;
        assert_eq!(self.names("classes"), ["/ceph-ssd"], "{what}");
        assert_eq!(self.status(), "in force; 1 storage class by discovery", "{what}");
        assert_eq!(self.conditions(), [""; 0], "{what}");

        self.api.lock().delete("configmaps", CONFIG);
        self.play().await;
        for kind in ["classes", "snapshotclasses", "pods", "secrets"] {
            assert_eq!(self.names(kind), [""; 0], "{what}: {kind} left");
        }
        assert_eq!(self.conditions(), ["Available=False: NoConfigMaps"], "{what}");
    }
}

/// Proves: P1
#[tokio::test]
async fn classes_come_and_go_as_the_storage_lists_them_whatever_fails() {
    Stage::open().whole("nothing fails").await;
    for fault in Fault::ALL {
        for nth in 1.. {
            let mut stage = Stage::open();
            stage.api.fail(nth, fault);
            stage.whole(&format!("call {nth} failed {fault:?}")).await;
            if stage.api.lock().calls() < nth {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_class_that_can_t_be_made_is_named_with_the_api_server_s_answer_and_no_more() {
    let mut stage = Stage::open();
    let mut config = stage.api.lock().get("configmaps", CONFIG).unwrap();
    config["metadata"]["labels"]["storage-class"] = json!("gold");
    config["data"]["operations"] = json!("provision,delete");
    stage.api.lock().put("configmaps", config);
    stage.api.lock().refused = Some((Method::POST, "classes", StatusCode::FORBIDDEN));
    stage.turn().await;
    let said = "in force; failed to create storage class \"gold\": ";
    let status = stage.status();
    assert!(status.starts_with(said) && !status.contains('{'), "{status}");
}

/// Proves: P7
#[tokio::test]
async fn a_discovery_that_brings_nothing_new_costs_the_writes_of_its_run_alone() {
    let mut stage = Stage::open();
    stage.uses(&[]);
    stage.prints = (0, r#"{"parameter": "pool", "classes": ["ssd", "hdd"]}"#.to_owned());
    stage.play().await;
    let before = stage.api.lock().log.len();
    // As if the interval had passed.
    let mut pod = stage.api.lock().get("pods", "admin/discover-c1").unwrap();
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = json!("2026-01-01T00:00:00Z");
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    stage.api.lock().put("pods", pod);
    stage.play().await;
    assert_eq!(stage.runs, 2);
    let log = stage.api.lock().log[before..].to_vec();
    let writes: Vec<_> = log.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(writes, ["DELETE", "POST", "POST"], "{log:?}");
}

/// Proves: P1, P7
#[tokio::test]
async fn a_worker_discovers_with_two_writes_and_is_free_at_once_whatever_fails() {
    for fault in Fault::ALL {
        for nth in 1.. {
            let mut stage = Stage::open();
            stage.uses(&[]);
            stage.prints = (0, r#"{"parameter": "pool", "classes": ["ssd", "hdd"]}"#.to_owned());
            stage.hire().await;
            let before = stage.api.lock().log.len();
            stage.api.fail(nth, fault);
            stage.play().await;
            let what = format!("call {nth} failed {fault:?}");
            assert_eq!(stage.names("classes"), ["/ceph-hdd", "/ceph-ssd"], "{what}");
            let api = stage.api.lock();
            let mut left = api.each("pods").filter(|pod| !is_free(pod)).map(key_of);
            // Where the worker had to go, the run has a Pod, which stays.
            assert!(left.all(|pod| pod == "admin/discover-c1"), "{what}");
            if api.calls() < nth {
                let pods: Vec<_> = api.log[before..].iter().filter(|line| line.contains("pods")).collect();
                assert_eq!(pods, ["PATCH /api/v1/namespaces/admin/pods/worker-1"; 2], "{what}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_namespace_in_the_settings_that_may_not_be_read_is_told_of_there_once() {
    let mut shared = shared(&FakeApi::default(), Script::plain(Offers::Changes));
    let (events, mut told) = EventRecorder::new(shared.context.metrics.clone());
    shared.context.events = events;
    let mut state = state(&shared);
    let forbidden = || {
        let status = Status::failure("no", "Forbidden").with_code(403);
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    };
    for _ in 0..2 {
        state.take(("team".to_owned(), Ok(Event::Init)));
        state.take(("team".to_owned(), Err(forbidden())));
    }
    state.take(("team".to_owned(), Err(watcher::Error::NoResourceVersion)));
    let told: Vec<_> = std::iter::from_fn(|| told.try_next()).collect();
    let [(of, note)] = &told[..] else { panic!("{told:#?}") };
    assert_eq!(of.name.as_deref(), Some("mooring-settings"));
    assert!(
        note.text
            .contains("create rolebinding flex-provisioner-configs -n team"),
        "{}",
        note.text
    );
}
