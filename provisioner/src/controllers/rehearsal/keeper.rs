//! The keeper of workers: how many it makes, and how often it tries.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use mooring_contract::volume::Volume;
use mooring_contract::worker::Report;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::departures::{claim, look_at, watched};
use super::fake_api::FakeApi;
use super::fake_worker::{FakeWorker, is_worker};
use super::{Offers, Script, read, shared};
use crate::apply::Shared;
use crate::cache::limiter::Limiter;
use crate::cache::store::Cache;
use crate::cache::work_queue::WorkQueue;
use crate::config::ProvisionerConfig;
use crate::config::store::Entry;
use crate::controllers::workers::Keeper;
use crate::operation::tests::class;
use crate::process::events::EventRecorder;
use crate::run::pod::affinity;
use crate::run::worker_set::WorkerSet;
use crate::run::workers::Seat;

/// A controller with one ConfigMap, which is like this.
fn controller(api: &FakeApi, change: impl FnOnce(&mut ProvisionerConfig)) -> Shared {
    let mut shared = shared(api, Script::plain(Offers::Changes));
    let configs = &shared.context.configs;
    let mut config = (*configs.all().remove(0)).clone();
    change(&mut config);
    let entry = Entry {
        good: Some(Arc::new(config.clone())),
        problems: vec![],
    };
    configs.replace([(config.reference, entry)].into());
    shared.limiter = Arc::new(Limiter::new(8));
    shared
}

fn keeper(shared: &Shared) -> Keeper {
    Keeper::new(shared.clone(), WorkQueue::new().0)
}

/// A worker's Pod whose kubelet has started it.
fn worker(config: &ProvisionerConfig, name: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "admin", "name": name,
            "labels": {"mooring.dev/component": "provisioning", "mooring.dev/worker": "true"},
            "annotations": {"mooring.dev/config": config.reference.to_string(),
                            "mooring.dev/fingerprint": config.fingerprint},
        },
        "status": {"phase": "Running"},
    })
}

/// The watches have brought what there is, and bring nothing more.
fn watch_once(api: &FakeApi, shared: &mut Shared) {
    let cache = Cache::new(&shared.context.settings.config_namespaces);
    let pods: Vec<_> = read(api.lock().each("pods"));
    let none = (vec![], vec![]);
    shared.cache = cache.filled(vec![], vec![], &pods, none, (vec![], vec![], vec![]));
}

fn workers(api: &FakeApi) -> usize {
    api.lock().each("pods").filter(|pod| is_worker(pod)).count()
}

/// One worker of two has a run, another run wants one, and the watch shows this and nothing that is done about it.
fn wanting(api: &FakeApi, ended: bool) -> Keeper {
    let mut shared = controller(api, |config| config.workers = Some(2));
    let config = shared.context.configs.all().remove(0);
    let mut busy = worker(&config, "busy");
    busy["metadata"]["uid"] = json!("busy");
    busy["metadata"]["creationTimestamp"] = json!("2026-11-21T00:00:00Z");
    busy["metadata"]["labels"]["mooring.dev/operation"] = json!("attach");
    let run = json!({"mooring.dev/component": "provisioning", "mooring.dev/operation": "provision"});
    let own = json!({"metadata": {"namespace": "admin", "name": "provision-u2", "labels": run}});
    api.lock().put("pods", busy);
    api.lock().put("pods", own);
    if ended {
        let mut later = worker(&config, "ended");
        later["status"] = crate::operation::tests::ended(78, "no operation serve");
        api.lock().put("pods", later);
    }
    watch_once(api, &mut shared);
    let known = &shared.cache.workers;
    known.contacts.note("busy", &seat(), Report::default());
    let wanted = WorkerSet {
        config: config.reference.to_string(),
        node: None,
    };
    known.demand.note("admin/provision-u2", wanted);
    keeper(&shared)
}

fn seat() -> Seat {
    Seat {
        host: "h".into(),
        port: 1,
        key: SecretString::from("k".to_owned()),
    }
}

#[tokio::test]
async fn a_worker_counts_as_free_only_if_a_run_would_get_it() {
    let api = FakeApi::default();
    let mut shared = controller(&api, |config| config.workers = Some(1));
    let config = shared.context.configs.all().remove(0);
    let mut pod = worker(&config, "worker-1");
    pod["metadata"]["uid"] = json!("w");
    api.lock().put("pods", pod);
    watch_once(&api, &mut shared);
    let contacts = &shared.cache.workers.contacts;
    let set = WorkerSet {
        config: config.reference.to_string(),
        node: None,
    };
    let free = async || {
        keeper(&shared).turn().await;
        let metrics = shared.context.metrics.encode().unwrap();
        metrics.lines().any(|line| line.ends_with("workers{state=\"free\"} 1"))
    };
    assert!(!free().await, "nothing was heard of it");
    contacts.note("w", &seat(), Report::default());
    assert!(free().await);
    let taken = shared.cache.take_worker(&config, &set, true).unwrap();
    assert!(!free().await, "it is taken");
    shared.cache.give_back(&taken);
    assert!(free().await);
    let has_run = Report { number: 1, ended: None };
    contacts.note("w", &seat(), has_run);
    assert!(!free().await, "it has a run, which the watch does not show yet");
}

#[tokio::test]
async fn no_worker_is_made_before_the_watch_has_shown_the_one_before() {
    let api = FakeApi::default();
    let mut keeper = wanting(&api, false);
    for _ in 0..3 {
        keeper.turn().await;
    }
    assert_eq!(workers(&api), 2);
}

/// One that ended before it could be spoken with has the next one wait, although an earlier one is well.
#[tokio::test]
async fn a_worker_that_is_well_proves_nothing_of_those_after_it() {
    let api = FakeApi::default();
    let mut keeper = wanting(&api, true);
    for _ in 0..2 {
        keeper.turn().await;
    }
    assert_eq!(api.lock().writes(), ["DELETE pods"]);
}

/// A controller that has just begun to lead finds workers that were made long ago.
#[tokio::test(start_paused = true)]
async fn a_worker_of_the_leader_before_is_told_of_only_when_this_one_has_waited_for_it() {
    let api = FakeApi::default();
    let mut shared = controller(&api, |config| config.workers = Some(1));
    let (events, mut told) = EventRecorder::new(shared.context.metrics.clone());
    shared.context.events = events;
    let config = shared.context.configs.all().remove(0);
    let mut early = worker(&config, "early");
    early["metadata"]["creationTimestamp"] = json!("2026-11-21T00:00:00Z");
    api.lock().put("pods", early);
    watch_once(&api, &mut shared);
    let mut keeper = keeper(&shared);
    let mut times = async |after| {
        tokio::time::advance(Duration::from_secs(after)).await;
        keeper.turn().await;
        let failed = std::iter::from_fn(|| told.try_next()).filter(|(_, note)| note.reason == "WorkerFailed");
        failed.count()
    };
    assert_eq!(times(0).await, 0, "it was not waited for");
    assert_eq!(times(29).await, 0);
    assert_eq!(times(2).await, 1);
    assert_eq!(times(60).await, 0, "it was told of twice");
}

#[tokio::test]
async fn a_worker_that_can_t_be_removed_is_tried_again_only_after_a_while() {
    let api = FakeApi::default();
    let mut shared = controller(&api, |config| {
        config.workers = Some(1);
        config.workers_idle = Duration::ZERO;
    });
    let config = shared.context.configs.all().remove(0);
    api.lock().put("pods", worker(&config, "worker-1"));
    api.lock().refused = Some((Method::DELETE, "pods", StatusCode::FORBIDDEN));
    watch_once(&api, &mut shared);
    let after = keeper(&shared).turn().await;
    assert_eq!(api.lock().writes(), ["DELETE pods"]);
    assert!(after >= Duration::from_secs(1), "{after:?}");
}

/// The workers that are made when three claims come at once.
async fn made_for_three_claims(change: impl FnOnce(&mut ProvisionerConfig), are_refused: bool) -> usize {
    const TURNS: usize = 20;
    let api = FakeApi::default();
    api.lock().put("classes", json!(class(&json!({}))));
    for name in ["one", "two", "three"] {
        api.lock().put("claims", claim(name));
    }
    let mut shared = controller(&api, change);
    let (_queued, _watches) = watched(&mut shared).await;
    if are_refused {
        let config = shared.context.configs.all().remove(0);
        let pod = Arc::new(serde_json::from_value(worker(&config, "worker-gone")).unwrap());
        let gone = crate::run::worker::Worker::of(&pod).unwrap();
        shared.cache.workers.refusals.note(&gone, true);
    }
    for name in ["one", "two", "three"] {
        look_at(&api, &shared, "claims", &format!("default/{name}")).await;
    }
    let mut keeper = keeper(&shared);
    for _ in 0..TURNS {
        keeper.turn().await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    workers(&api)
}

#[tokio::test]
async fn there_are_as_many_workers_as_runs_at_once() {
    let three = |config: &mut ProvisionerConfig| config.workers = Some(5);
    assert_eq!(made_for_three_claims(three, false).await, 3);
    let with_max_parallel = |config: &mut ProvisionerConfig| {
        config.workers = Some(5);
        config.max_parallel = 1.try_into().ok();
    };
    assert_eq!(made_for_three_claims(with_max_parallel, false).await, 1);
}

#[tokio::test]
async fn no_worker_is_made_while_none_can_be_given_a_run() {
    assert_eq!(made_for_three_claims(|config| config.workers = Some(5), true).await, 0);
}

/// The nodes that workers may be on, in the order of their names.
fn nodes_of_workers(api: &FakeApi) -> Vec<String> {
    let api = api.lock();
    let workers = api.each("pods").filter(|pod| is_worker(pod));
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let node = |pod: &Value| pod.pointer(&format!("{terms}/0/matchFields/0/values/0")).cloned();
    let nodes = workers.map(|pod| node(pod).and_then(|node| node.as_str().map(str::to_owned)));
    nodes.map(Option::unwrap_or_default).collect()
}

/// Proves: P1
#[tokio::test]
async fn a_run_that_has_to_be_on_a_node_has_the_worker_there_or_has_one_made_there_which_goes_with_the_node() {
    let api = FakeApi::default();
    let class = class(&json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    api.lock().put("classes", json!(class));
    let nodes = [("one", "node-a"), ("two", "node-b")];
    for (name, node) in nodes {
        let labels = json!({"kubernetes.io/hostname": node});
        api.lock()
            .put("nodes", json!({"metadata": {"name": node, "labels": labels}}));
        let mut claim = claim(name);
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!(node);
        api.lock().put("claims", claim);
    }
    let mut shared = controller(&api, |config| {
        config.workers = Some(2);
        config.backend_volume = Volume::from_line("client=pool").ok();
    });
    let config = shared.context.configs.all().remove(0);
    let there = FakeWorker::start(0).await;
    let mut pod = there.pod(&config.reference.to_string(), &config.fingerprint);
    pod["spec"]["affinity"] = json!(affinity(Some("node-a"), &[], &["pool"]));
    api.lock().put("pods", pod);
    let (_queued, _watches) = watched(&mut shared).await;
    shared.cache.workers.contacts.note("w1", &there.seat, there.report());
    for (name, _) in nodes {
        look_at(&api, &shared, "claims", &format!("default/{name}")).await;
    }
    let of = |key: &str| {
        api.lock()
            .get("pods", key)
            .map(|pod| pod["metadata"]["labels"]["mooring.dev/claim-uid"].clone())
    };
    assert_eq!(of("admin/worker-1"), Some(json!("uid-of-one")));
    assert_eq!(of("admin/provision-uid-of-two"), Some(json!("uid-of-two")));
    assert_eq!(there.order().map(|order| order.number), Some(1));

    let mut keeper = keeper(&shared);
    let mut turns = async || {
        for _ in 0..5 {
            keeper.turn().await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    turns().await;
    assert_eq!(nodes_of_workers(&api), ["node-a", "node-b"]);
    {
        let mut state = api.lock();
        state.delete("pods", "admin/provision-uid-of-two");
        for node in ["/node-a", "/node-b"] {
            state.delete("nodes", node);
        }
    }
    turns().await;
    assert_eq!(nodes_of_workers(&api), ["node-a"], "only one with a run stays");
}
