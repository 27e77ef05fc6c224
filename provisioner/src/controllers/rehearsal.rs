//! The whole life of a claim, rehearsed against an API server in memory. Every single call fails in turn, before and
//! after it was carried out, and the controller is restarted each time. Then every call is refused as a conflict, and
//! the controller goes on.
//!
//! What must always hold: it ends with one volume for a claim that exists, and none for one that is gone; and nothing
//! else is left.

mod addresses;
mod attach;
mod available;
mod begins_late;
mod binding;
mod capacity;
mod cel;
mod clone;
mod departures;
mod discover;
mod expand;
mod fake_api;
mod fake_worker;
mod group;
mod held;
mod keeper;
mod migrate;
mod model;
mod modify;
mod not_started;
mod passed_on;
mod policies;
mod real_api;
mod retain;
mod snapshot;
mod waits;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::controller::Action;
use mooring_contract::request::Request;
use mooring_contract::worker::with_statement;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::fake_api::{FakeApi, FakeState, Fault, key_of};
use self::fake_worker::{FakeWorker, WORKER, is_worker};
use super::orphan;
use super::reconcile::{Reconciled, look};
use super::workers::Keeper;
use crate::apply::signer::Signer;
use crate::apply::{ApplyError, Shared};
use crate::cache::limiter::Limiter;
use crate::cache::store::Cache;
use crate::cache::work_queue::WorkQueue;
use crate::config::discovered::Discoveries;
use crate::config::store::{ConfigStore, Entry};
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::context::{Context, Settings};
use crate::operation::backoff::Backoff;
use crate::operation::limits::Limits;
use crate::operation::tests::{class, config};
use crate::process::events::EventRecorder;
use crate::process::metrics::Metrics;
use crate::run::Run;
use crate::run::workers::WorkerPatience;
use crate::volume::grant::Version;
use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::snapshot::VolumeSnapshotContent;

/// What the image and the user do.
#[derive(Debug, Clone, Copy)]
struct Script {
    /// The image makes the PV itself.
    image_makes_pv: bool,
    /// The first attempt makes the volume and then fails.
    first_fails: bool,
    /// The binder of Kubernetes is quicker than Mooring.
    quick_binder: bool,
    /// The user deletes the claim after so many turns; never, if the claim is to stand.
    deleted_after: Option<usize>,
    /// What the ConfigMap offers, if Mooring makes the PV.
    offers: Offers,
}

impl Script {
    /// Nothing out of the ordinary happens.
    const fn plain(offers: Offers) -> Self {
        Self {
            image_makes_pv: false,
            first_fails: false,
            quick_binder: false,
            deleted_after: None,
            offers,
        }
    }
}

/// What a ConfigMap offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offers {
    /// Changes and copies of volumes.
    Changes,
    /// Volumes that nodes get by operation `attach`.
    Attachments,
}

/// What carries runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// A Pod for each.
    Pods,
    /// A worker, and Pods where it is not free.
    Worker,
    /// A worker whose Pod is deleted after so many turns, and Pods.
    Killed(usize),
}

impl By {
    /// Pods, and one of the ways with a worker. The next rehearsal has another of them, so that all are played.
    fn each(rehearsed: &impl std::fmt::Debug) -> [Self; 2] {
        let ways = [Self::Worker, Self::Killed(2), Self::Killed(3), Self::Killed(5)];
        let sum: usize = format!("{rehearsed:?}").bytes().map(usize::from).sum();
        [Self::Pods, ways[sum % ways.len()]]
    }
}

/// A run that has its properties and has not ended.
struct Going {
    /// What carries it out.
    pod: Value,
    /// It begins now.
    is_new: bool,
}

impl Going {
    fn is_on_worker(&self) -> bool {
        is_worker(&self.pod)
    }

    fn operation(&self) -> &str {
        self.label("mooring.dev/operation")
    }

    /// The uid of what it is about.
    fn uid(&self) -> &str {
        self.label("mooring.dev/claim-uid")
    }

    fn request(&self) -> Request {
        let request = self.pod["metadata"]["annotations"]["mooring.dev/request"].as_str();
        serde_json::from_str(request.unwrap()).unwrap()
    }

    fn label(&self, name: &str) -> &str {
        self.pod["metadata"]["labels"][name].as_str().unwrap()
    }
}

struct Theatre {
    api: FakeApi,
    /// A worker of the ConfigMap, if there is one.
    worker: Option<FakeWorker>,
    /// The number of the run that it was last seen to have begun.
    begun_on_worker: u64,
    script: Script,
    /// The image states that its containers can be workers.
    states: bool,
    /// Workers are kept; none of them starts.
    keeps_workers: bool,
    shared: Shared,
    /// The names of the volumes that the storage has.
    storage: BTreeSet<String>,
    attempts: usize,
    /// What of the API the watches have brought.
    watched: u64,
    /// What the watches show that lag behind, by kind.
    lagging: BTreeMap<&'static str, Vec<Value>>,
}

/// What is written to make a volume.
const MADE_BY_POD: [&str; 6] = [
    "PATCH claims",
    "POST pods",
    "POST secrets",
    "POST volumes",
    "PATCH claims",
    "DELETE pods",
];

/// The same by a worker, whose Pod is given the run and gives it back.
const MADE_BY_WORKER: [&str; 5] = [
    "PATCH claims",
    "PATCH pods",
    "POST volumes",
    "PATCH claims",
    "PATCH pods",
];

const UID: &str = "u1";
const PV: &str = "pvc-u1";

fn configs(script: Script) -> BTreeMap<ConfigRef, Entry> {
    let source: &[(&str, &str)] = if script.image_makes_pv {
        &[]
    } else if script.offers == Offers::Attachments {
        &[
            ("volume-source", "csi"),
            ("operations", "provision,delete,attach,detach"),
        ]
    } else {
        &[
            ("volume-source", "flexVolume"),
            (
                "operations",
                "provision,delete,expand,modify,clone,snapshot,delete-snapshot,snapshot-group,delete-group,restore,\
                 backup,delete-backup",
            ),
        ]
    };
    // For the example's service account there would be no workers.
    let good = Arc::new(ProvisionerConfig {
        workers: None,
        ..config(source)
    });
    let entry = Entry {
        good: Some(good.clone()),
        problems: vec![],
    };
    [(good.reference.clone(), entry)].into()
}

fn shared(api: &FakeApi, script: Script) -> Shared {
    let metrics = Metrics::new();
    let (events, _) = EventRecorder::new(metrics.clone());
    let store = ConfigStore::default();
    store.replace(configs(script));
    let context = Context {
        client: api.client(),
        configs: store,
        discoveries: Discoveries::default(),
        events,
        metrics,
        settings: Settings {
            namespace: "mooring".to_owned(),
            config_namespaces: ["admin".to_owned()].into(),
            kube_api: "https://k:1".into(),
            max_in_flight: 1,
            max_pods: 1,
            resync: Duration::from_mins(10),
            max_backoff: Duration::ZERO,
        },
    };
    let zero = Backoff {
        base: Duration::ZERO,
        cap: Duration::ZERO,
    };
    Shared {
        cache: Cache::new(&context.settings.config_namespaces),
        context,
        limiter: Arc::new(Limiter::new(1)),
        expectations: Arc::default(),
        signer: Signer::default(),
        limits: Limits {
            backoff: zero,
            orphan_age: Duration::ZERO,
            worker_patience: WorkerPatience {
                between: Duration::ZERO,
                longest: Duration::ZERO,
            },
            ..Limits::default()
        },
    }
}

fn read<'a, K: DeserializeOwned>(values: impl Iterator<Item = &'a Value>) -> Vec<K> {
    values.map(|value| K::deserialize(value).unwrap()).collect()
}

/// Has the controllers look at an object of this kind.
async fn look_at(kind: &str, object: Value, shared: &Shared) -> Result<Action, ApplyError> {
    async fn of<K: Reconciled>(object: Value, shared: &Shared) -> Result<Action, ApplyError> {
        let object: K = serde_json::from_value(object).unwrap();
        Box::pin(look(&object, shared)).await
    }
    match kind {
        "claims" => of::<PersistentVolumeClaim>(object, shared).await,
        "volumes" => of::<PersistentVolume>(object, shared).await,
        "contents" => of::<VolumeSnapshotContent>(object, shared).await,
        _ => of::<VolumeGroupSnapshotContent>(object, shared).await,
    }
}

impl Theatre {
    fn open(script: Script) -> Self {
        Self::on(FakeApi::default(), script)
    }

    fn on(api: FakeApi, script: Script) -> Self {
        api.lock().put(
            "claims",
            json!({
                "metadata": {"name": "data", "namespace": "default", "uid": UID, "annotations": {
                    "volume.kubernetes.io/storage-provisioner": "mooring.dev/flex-provisioner"}},
                "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"],
                         "resources": {"requests": {"storage": "1Gi"}}},
            }),
        );
        Self {
            shared: shared(&api, script),
            api,
            worker: None,
            begun_on_worker: 0,
            script,
            states: false,
            keeps_workers: false,
            storage: BTreeSet::new(),
            attempts: 0,
            watched: 0,
            lagging: BTreeMap::new(),
        }
    }

    async fn turn(&mut self) {
        self.turn_of_controllers().await;
        self.kubelet();
        self.garbage_collector();
        self.binder();
    }

    /// One look of the controllers at everything there is.
    async fn turn_of_controllers(&mut self) {
        for kind in ["claims", "volumes", "groups", "contents"] {
            let keys: Vec<String> = self.api.lock().each(kind).map(key_of).collect();
            for key in keys {
                self.watch();
                let Some(object) = self.shown_object(kind, &key) else {
                    continue;
                };
                let result = look_at(kind, object, &self.shared).await;
                if let Err(error) = &result {
                    eprintln!("{key}: {}", error.chain());
                }
                drop(result);
                if std::mem::take(&mut self.api.lock().tripped) {
                    self.restart();
                }
            }
        }
        // Kubernetes collects within a second, Mooring after a minute.
        self.garbage_collector();
        self.watch();
        for uid in self.shared.cache.orphans() {
            drop(Box::pin(orphan::settle(&self.shared, &uid)).await);
        }
        if self.keeps_workers {
            self.watch();
            let mut keeper = Keeper::new(self.shared.clone(), WorkQueue::new().0);
            Box::pin(keeper.turn()).await;
        }
        if std::mem::take(&mut self.api.lock().tripped) {
            self.restart();
        }
    }

    /// The controller is killed, and another one begins: all that it had in mind is gone.
    fn restart(&mut self) {
        self.shared = shared(&self.api, self.script);
        self.watched = 0;
    }

    /// The watches bring everything at once.
    fn watch(&mut self) {
        let state = self.api.lock();
        if std::mem::replace(&mut self.watched, state.version) == state.version {
            self.listen(&self.shared.cache);
            return;
        }
        let cache = Cache::new(&self.shared.context.settings.config_namespaces);
        cache.know_groups(read(state.each("groups")), read(state.each("groupclasses")));
        let pods: Vec<_> = self.shown(&state, "pods");
        let workers = self.shared.cache.workers.clone();
        self.shared.cache = cache.filled(
            self.shown(&state, "claims"),
            self.shown(&state, "volumes"),
            &pods,
            (vec![class(&json!({}))], read(state.each("attributes"))),
            (
                self.shown(&state, "contents"),
                read(state.each("snapshots")),
                read(state.each("snapshotclasses")),
            ),
        );
        self.shared.cache.grants.know(Version::V1, read(state.each("grants")));
        if self.script.offers == Offers::Attachments {
            self.shared.cache.consumers.know(&read(state.each("users")));
        }
        self.shared.cache.workers = workers;
        for run in pods.into_iter().map(Run::of) {
            self.shared.limiter.seen(&run.place());
            self.shared.cache.note_answer(&run);
        }
        drop(state);
        self.listen(&self.shared.cache);
    }

    /// What the watch of a kind shows.
    fn shown<K: DeserializeOwned>(&self, state: &FakeState, kind: &str) -> Vec<K> {
        match self.lagging.get(kind) {
            Some(shown) => read(shown.iter()),
            None => read(state.each(kind)),
        }
    }

    /// What the watch of a kind shows of one object.
    fn shown_object(&self, kind: &str, key: &str) -> Option<Value> {
        match self.lagging.get(kind) {
            Some(shown) => shown.iter().find(|object| key_of(object) == key).cloned(),
            None => self.api.lock().get(kind, key),
        }
    }

    /// The worker says how things are.
    fn listen(&self, cache: &Cache) {
        match &self.worker {
            Some(worker) if worker.is_reached() => {
                cache.workers.contacts.note(&worker.uid, &worker.seat, worker.report());
            }
            Some(worker) => cache.workers.contacts.lost(&worker.uid),
            None => {}
        }
    }

    /// Has the ConfigMap have a worker.
    async fn hire(&mut self, lost_answers: usize) {
        let worker = FakeWorker::start(lost_answers).await;
        let config = self.shared.context.configs.all().remove(0);
        let mut pod = worker.pod(&config.reference.to_string(), &config.fingerprint);
        let name = &config.reference.name;
        let map = json!({"metadata": {"namespace": "admin", "name": name, "uid": config.uid}});
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": config.uid, "controller": true}]);
        self.api.lock().put("configmaps", map);
        self.api.lock().put("pods", pod);
        self.worker = Some(worker);
    }

    async fn carried_out(&mut self, by: By) {
        if by != By::Pods {
            self.hire(0).await;
        }
    }

    /// The worker's Pod is deleted, and what it does ends.
    fn kill_worker(&mut self) {
        self.worker = None;
        self.api.lock().delete("pods", WORKER);
    }

    /// The runs that have their properties and have not ended.
    fn runs(&mut self) -> Vec<Going> {
        let state = self.api.lock();
        let has_secret = |pod: &Value| {
            state.each("secrets").any(|secret| {
                secret["metadata"]["name"] == pod["spec"]["volumes"][0]["secret"]["secretName"]
                    && secret["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
            })
        };
        if state.get("pods", WORKER).is_none() {
            self.worker = None;
        }
        let order = self.worker.as_ref().and_then(FakeWorker::order);
        let number = order.map(|order| order.number);
        let going = state.each("pods").filter_map(|pod| {
            let is_new = match pod["status"]["phase"].as_str() {
                _ if is_worker(pod) => number? != self.begun_on_worker,
                None if has_secret(pod) => true,
                Some("Running") => false,
                _ => return None,
            };
            Some(Going {
                pod: pod.clone(),
                is_new,
            })
        });
        going.collect()
    }

    /// The run that goes on, if there is one: there must not be two at once.
    fn the_run(&mut self, what: &str) -> impl Iterator<Item = Going> + use<> {
        let runs = self.runs();
        let all: Vec<_> = runs
            .iter()
            .map(|going| (going.operation(), going.is_on_worker()))
            .collect();
        assert!(all.len() <= 1, "{what}: two run at once: {all:?}");
        runs.into_iter()
    }

    /// A run begins or goes on, and whoever carries it out says so: nothing rests meanwhile.
    fn goes_on(&mut self, going: Going) {
        let mut state = self.api.lock();
        if going.is_on_worker() {
            let number = self.worker.as_ref().map(|worker| worker.report().number);
            self.begun_on_worker = number.unwrap_or_default();
            state.version += 1;
            return;
        }
        let mut pod = going.pod;
        if going.is_new {
            pod["status"] = crate::operation::tests::running();
            // By the clock of the controllers, so that it is not overdue.
            pod["status"]["startTime"] = json!(k8s_openapi::jiff::Timestamp::now().to_string());
        }
        pod["spec"]["nodeName"] = json!("node-a");
        state.put("pods", pod);
    }

    fn ends(&mut self, going: Going, code: i32, message: &str) {
        let mut state = self.api.lock();
        if going.is_on_worker() {
            if let Some(worker) = &self.worker {
                worker.end(code, message);
            }
            state.version += 1;
            return;
        }
        let mut pod = going.pod;
        pod["status"] = crate::operation::tests::ended(code, message);
        pod["spec"]["nodeName"] = json!("node-a");
        state.put("pods", pod);
    }

    /// The Pods, but for a worker that waits.
    fn pods_left(&self) -> Vec<String> {
        let state = self.api.lock();
        let left = state.each("pods").filter(|pod| !fake_worker::is_free(pod));
        left.map(key_of).collect()
    }

    /// Runs every Pod that has its Secret to its end, and what the worker has.
    fn kubelet(&mut self) {
        for going in self.runs().into_iter().filter(|going| going.is_new) {
            let (code, message) = self.effect(going.operation(), &going.request().pv_name);
            self.ends(going, code, &message);
        }
    }

    /// What the image does to the volume of this name on the storage; its exit code and its answer.
    fn effect(&mut self, operation: &str, pv_name: &str) -> (i32, String) {
        if operation != "provision" {
            self.storage.remove(pv_name);
            return (0, String::new());
        }
        self.attempts += 1;
        self.storage.insert(pv_name.to_owned());
        if self.script.image_makes_pv && self.api.lock().get("volumes", &format!("/{pv_name}")).is_none() {
            let mut volume = crate::volume::acceptance::tests::volume();
            // As `pv create` makes it.
            let by = json!({"pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner"});
            volume["metadata"] = json!({"name": pv_name, "annotations": by});
            self.api.lock().put("volumes", volume);
        }
        if self.script.first_fails && self.attempts == 1 {
            (75, "busy".to_owned())
        } else {
            let answer = json!({"client": "nfs", "source": "h:/x"}).to_string();
            (0, if self.states { with_statement(answer) } else { answer })
        }
    }

    /// A Secret goes with its Pod, and a Pod with its PV or its ConfigMap if it belongs to one.
    fn garbage_collector(&mut self) {
        let mut state = self.api.lock();
        for kind in ["pods", "secrets"] {
            let is_lost = |object: &&Value| {
                let owner = &object["metadata"]["ownerReferences"][0];
                let owners = match owner["kind"].as_str() {
                    None => return false,
                    Some("PersistentVolume") => "volumes",
                    Some("ConfigMap") => "configmaps",
                    Some(_) => "pods",
                };
                !state.each(owners).any(|there| there["metadata"]["uid"] == owner["uid"])
            };
            let lost: Vec<_> = state.each(kind).filter(is_lost).map(key_of).collect();
            for key in lost {
                state.delete(kind, &key);
            }
        }
    }

    /// What kube-controller-manager does to claims and PVs. It binds a claim as soon as there is a PV for it or, if it
    /// is slow, when Mooring has let the claim go.
    fn binder(&self) {
        let mut state = self.api.lock();
        for mut volume in state.all("volumes") {
            let (name, uid) = (volume["metadata"]["name"].clone(), &volume["spec"]["claimRef"]["uid"]);
            let claim = state
                .each("claims")
                .find(|claim| claim["metadata"]["uid"] == *uid)
                .cloned();
            let mut phase = match &claim {
                Some(claim) if claim["spec"]["volumeName"] == name => "Bound",
                Some(claim) if claim["spec"]["volumeName"].is_null() => "Pending",
                // The claim is gone or has another.
                Some(_) | None => "Released",
            };
            let is_going = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
            let is_held = |claim: &Value| {
                claim["metadata"]["finalizers"]
                    .as_array()
                    .is_some_and(|held| !held.is_empty())
            };
            if let Some(mut claim) = claim.filter(|claim| self.script.quick_binder || !is_held(claim))
                && claim["spec"]["volumeName"].is_null()
                && !is_going(&claim)
                && !is_going(&volume)
            {
                claim["spec"]["volumeName"] = name;
                claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
                state.put("claims", claim);
                phase = "Bound";
            }
            if volume["status"]["phase"] != phase {
                volume["status"]["phase"] = json!(phase);
                state.put("volumes", volume);
            }
        }
    }

    /// Has a call go wrong, if one is named: its number from now on, and how.
    fn fail(&self, fault: Option<(usize, Fault)>) {
        if let Some((nth, fault)) = fault {
            self.api.fail(nth, fault);
        }
    }

    /// How many calls there were since.
    fn calls(&self) -> usize {
        self.api.lock().calls()
    }

    /// Plays until nothing changes any more.
    async fn play(&mut self) {
        let mut quiet = 0;
        for turn in 0..80 {
            if self.script.deleted_after == Some(turn) {
                self.api.lock().delete("claims", "default/data");
            }
            let faults = self.api.lock().faults;
            let before = self.api.lock().log.len();
            self.turn().await;
            let writes = self.api.lock().log.len() - before;
            // A call that failed may have been the one that a write was to come after.
            let rests = writes == 0 && faults == self.api.lock().faults;
            quiet = if rests { quiet + 1 } else { 0 };
            if quiet > 1 && self.script.deleted_after.is_none_or(|at| turn > at) {
                return;
            }
        }
        panic!("it does not come to rest: {:#?}", self.api.lock());
    }

    fn check(&self, what: &str) {
        assert_eq!(self.pods_left(), [""; 0], "{what}: Pods left");
        let state = self.api.lock();
        let names = |kind: &str| state.each(kind).map(key_of).collect::<Vec<_>>();
        assert_eq!(names("secrets"), [""; 0], "{what}: Secrets left");
        if self.script.deleted_after.is_some() {
            assert_eq!(names("claims"), [""; 0], "{what}: the claim hangs");
            assert_eq!(names("volumes"), [""; 0], "{what}: the PV hangs");
            assert_eq!(self.storage, BTreeSet::new(), "{what}: a volume without a claim");
            return;
        }
        let claim = state.get("claims", "default/data").unwrap();
        assert_eq!(claim["spec"]["volumeName"], PV, "{what}: not bound");
        assert_eq!(claim["metadata"]["finalizers"], json!([]), "{what}: still held");
        assert_eq!(names("volumes"), [format!("/{PV}")], "{what}: the PersistentVolumes");
        let volume = state.get("volumes", &format!("/{PV}")).unwrap();
        assert_eq!(
            volume["metadata"]["finalizers"],
            json!(["mooring.dev/volume"]),
            "{what}: not accepted"
        );
        assert_eq!(
            self.storage,
            [PV.to_owned()].into(),
            "{what}: the volumes on the storage"
        );
    }
}

/// Plays what is rehearsed without a fault, then with each call going wrong in every way.
async fn with_every_fault<R, P>(rehearsed: &R, play: P)
where
    R: std::fmt::Debug,
    P: AsyncFn(Option<(usize, Fault)>, &str) -> usize,
{
    with_faults(rehearsed, &Fault::ALL, play).await;
}

/// Plays what is rehearsed without a fault, then with each call going wrong in these ways, until there are no more
/// calls to fail. `play` plays and checks it with that fault, and returns how many calls there were.
async fn with_faults<R, P>(rehearsed: &R, faults: &[Fault], play: P)
where
    R: std::fmt::Debug,
    P: AsyncFn(Option<(usize, Fault)>, &str) -> usize,
{
    play(None, &format!("{rehearsed:?}")).await;
    for &fault in faults {
        for nth in 1.. {
            let what = format!("{rehearsed:?}, call {nth} failed {fault:?}");
            if play(Some((nth, fault)), &what).await < nth {
                break;
            }
        }
    }
}

async fn rehearse(script: Script) {
    with_every_fault(&script, async |fault, what| {
        let mut theatre = Theatre::open(script);
        theatre.fail(fault);
        theatre.play().await;
        theatre.check(what);
        theatre.calls()
    })
    .await;
}

fn scripts(deleted_after: Option<usize>) -> Vec<Script> {
    let mut scripts = vec![];
    for image_makes_pv in [false, true] {
        for first_fails in [false, true] {
            for quick_binder in [false, true] {
                scripts.push(Script {
                    image_makes_pv,
                    first_fails,
                    quick_binder,
                    deleted_after,
                    offers: Offers::Changes,
                });
            }
        }
    }
    scripts
}

/// Proves: P1
#[tokio::test]
async fn a_claim_that_stands_ends_with_one_volume_whatever_fails() {
    for script in scripts(None) {
        rehearse(script).await;
    }
}

/// Every script deleted at these moments; the moments are split among tests, to be played at once.
async fn deleted_at(turns: &[usize]) {
    for turn in turns {
        for script in scripts(Some(*turn)).into_iter().skip(turn % 4).step_by(4) {
            rehearse(script).await;
        }
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_claim_that_is_deleted_early_ends_with_none_whatever_fails() {
    deleted_at(&[0, 1, 2]).await;
}

/// Proves: P1, P3
#[tokio::test]
async fn a_claim_that_is_deleted_midway_ends_with_none_whatever_fails() {
    deleted_at(&[3, 4, 5]).await;
}

/// Proves: P1, P3
#[tokio::test]
async fn a_claim_that_is_deleted_late_ends_with_none_whatever_fails() {
    deleted_at(&[6, 9]).await;
}

/// Proves: P7
#[tokio::test]
async fn a_claim_costs_six_writes_until_it_is_bound_and_ten_in_its_whole_life() {
    // Events come on top: they are told in their own time.
    for image_makes_pv in [false, true] {
        let mut script = Script {
            image_makes_pv,
            first_fails: false,
            quick_binder: false,
            deleted_after: None,
            offers: Offers::Changes,
        };
        let mut theatre = Theatre::open(script);
        theatre.play().await;
        theatre.check("its budget");
        let mut made = MADE_BY_POD;
        if image_makes_pv {
            made[3] = "PATCH volumes";
        }
        assert_eq!(theatre.api.lock().writes(), made);
        script.deleted_after = Some(20);
        let mut theatre = Theatre::open(script);
        theatre.play().await;
        theatre.check("a whole life");
        let removed = ["POST pods", "POST secrets", "DELETE volumes", "PATCH volumes"];
        assert_eq!(theatre.api.lock().writes(), [&made[..], &removed].concat());
    }
}

/// Proves: P2
#[tokio::test]
async fn of_a_pv_that_mooring_may_not_remove_the_claim_has_an_event_with_the_cure() {
    let mut theatre = Theatre::open(Script {
        image_makes_pv: true,
        first_fails: false,
        quick_binder: false,
        deleted_after: None,
        offers: Offers::Changes,
    });
    let (events, mut told) = EventRecorder::new(theatre.shared.context.metrics.clone());
    theatre.shared.context.events = events;
    theatre.turn().await;
    {
        // The image gave it a name of its own, and no annotation.
        let mut state = theatre.api.lock();
        let mut volume = state.get("volumes", &format!("/{PV}")).unwrap();
        state.delete("volumes", &format!("/{PV}"));
        volume["metadata"] = json!({"name": "mine"});
        state.put("volumes", volume);
    }
    theatre.turn().await;
    let texts: Vec<_> = std::iter::from_fn(|| told.try_next())
        .map(|(_, note)| note.text)
        .collect();
    let said = |text: &str| texts.iter().any(|told| told.contains(text));
    assert!(
        said("use the property pv-name") && said("kubectl delete pv mine"),
        "{texts:#?}"
    );
    assert!(theatre.api.lock().get("volumes", "/mine").is_some());
}

/// Nobody tries in silence what a policy goes on refusing.
#[tokio::test]
async fn what_a_policy_refuses_to_be_written_on_a_claim_is_no_conflict() {
    let mut theatre = Theatre::open(Script::plain(Offers::Changes));
    theatre.turn().await;
    theatre.watch();
    theatre.api.lock().refused = Some((Method::PATCH, "claims", StatusCode::UNPROCESSABLE_ENTITY));
    let claim = theatre.api.lock().get("claims", "default/data").unwrap();
    let refused = look_at("claims", claim, &theatre.shared).await.unwrap_err();
    assert!(refused.is_refusal(), "{}", refused.chain());
}
