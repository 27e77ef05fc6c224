//! The whole life of a claim, rehearsed against an API server in memory. Every single call fails in turn, before and
//! after it was carried out, and the controller is restarted each time. Then every call is refused as a conflict, and
//! the controller goes on.
//!
//! What must always hold: it ends with one volume for a claim that exists, and none for one that is gone; and nothing
//! else is left.

mod attach;
mod available;
mod begins_late;
mod binding;
mod capacity;
mod clone;
mod departures;
mod discover;
mod expand;
mod fake_api;
mod fake_worker;
mod group;
mod migrate;
mod model;
mod modify;
mod passed_on;
mod retain;
mod snapshot;
mod waits;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::controller::Action;
use mooring_contract::property::keys;
use mooring_contract::request::Request;
use mooring_contract::worker::Order;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::fake_api::{FakeApi, FakeState, Fault, key_of};
use self::fake_worker::FakeWorker;
use super::orphan;
use super::reconcile::{Reconciled, look};
use crate::apply::signer::Signer;
use crate::apply::{ApplyError, Shared};
use crate::cache::limiter::Limiter;
use crate::cache::store::Cache;
use crate::config::ConfigRef;
use crate::config::discovered::Discoveries;
use crate::config::store::{ConfigStore, Entry};
use crate::context::{Context, Settings};
use crate::operation::backoff::Backoff;
use crate::operation::limits::Limits;
use crate::operation::tests::{class, config};
use crate::process::events::EventRecorder;
use crate::process::metrics::Metrics;
use crate::run::Run;
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

struct Theatre {
    api: FakeApi,
    /// A worker of the ConfigMap, if there is one.
    worker: Option<FakeWorker>,
    script: Script,
    shared: Shared,
    /// The names of the volumes that the storage has.
    storage: BTreeSet<String>,
    attempts: usize,
    /// What of the API the watches have brought.
    watched: u64,
    /// What the watches show that lag behind, by kind.
    lagging: BTreeMap<&'static str, Vec<Value>>,
}

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
    let good = Arc::new(config(source));
    let entry = Entry {
        good: Some(good.clone()),
        problems: vec![],
    };
    [(good.reference.clone(), entry)].into()
}

fn shared(api: &FakeApi, script: Script) -> Shared {
    let metrics = Metrics::new();
    let (events, _) = EventRecorder::new(metrics.clone());
    let store = ConfigStore::new();
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
        cache: Cache::new(&context.settings.config_namespaces).0,
        context,
        limiter: Arc::new(Limiter::new(1)),
        expectations: Arc::default(),
        signer: Signer::default(),
        limits: Limits {
            backoff: zero,
            orphan_age: Duration::ZERO,
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
        let api = FakeApi::default();
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
            script,
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
                    // Killed: all that it had in mind is gone.
                    self.shared = shared(&self.api, self.script);
                    self.watched = 0;
                }
            }
        }
        // Kubernetes collects within a second, Mooring after a minute.
        self.garbage_collector();
        self.watch();
        for uid in self.shared.cache.orphans() {
            drop(Box::pin(orphan::settle(&self.shared, &uid)).await);
        }
        if std::mem::take(&mut self.api.lock().tripped) {
            self.shared = shared(&self.api, self.script);
            self.watched = 0;
        }
    }

    /// The watches bring everything at once.
    fn watch(&mut self) {
        let state = self.api.lock();
        if std::mem::replace(&mut self.watched, state.version) == state.version {
            self.listen(&self.shared.cache);
            return;
        }
        let (cache, mut writers) = Cache::new(&self.shared.context.settings.config_namespaces);
        writers.know_groups(read(state.each("groups")), read(state.each("groupclasses")));
        let pods: Vec<_> = self.shown(&state, "pods");
        self.shared.cache = cache.filled(
            writers,
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
        for run in pods.into_iter().map(Run::of) {
            self.shared.limiter.seen(&run.place());
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
        if let Some(worker) = &self.worker {
            cache.workers.note("w1", &worker.seat, worker.report());
        }
    }

    /// Runs every Pod that has its Secret to its end, and what the worker has.
    fn kubelet(&mut self) {
        let pods = self.api.lock().all("pods");
        if !pods.iter().any(|pod| pod["metadata"]["uid"] == "w1") {
            self.worker = None;
        }
        if let Some(order) = self.worker.as_ref().and_then(FakeWorker::order) {
            let (code, message) = self.effect_of(&order);
            if let Some(worker) = &self.worker {
                worker.end(code, &message);
            }
        }
        for mut pod in pods {
            let secrets = self.api.lock().all("secrets");
            let owned = secrets.iter().any(|secret| {
                secret["metadata"]["name"] == pod["spec"]["volumes"][0]["secret"]["secretName"]
                    && secret["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
            });
            if !owned || !pod["status"]["phase"].is_null() {
                continue;
            }
            let operation = pod["metadata"]["labels"]["mooring.dev/operation"].as_str().unwrap();
            let request = pod["metadata"]["annotations"]["mooring.dev/request"].as_str().unwrap();
            let request: Request = serde_json::from_str(request).unwrap();
            let (code, message) = self.effect(operation, &request.pv_name);
            pod["status"] = crate::operation::tests::ended(code, &message);
            pod["spec"]["nodeName"] = json!("node-a");
            self.api.lock().put("pods", pod);
        }
    }

    /// What a worker does that has this order.
    fn effect_of(&mut self, order: &Order) -> (i32, String) {
        let property = |name: &str| &order.properties[name];
        self.effect(property(keys::OPERATION), property(keys::PV_NAME))
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
            volume["metadata"] = json!({"name": pv_name});
            self.api.lock().put("volumes", volume);
        }
        if self.script.first_fails && self.attempts == 1 {
            (75, "busy".to_owned())
        } else {
            (0, json!({"client": "nfs", "source": "h:/x"}).to_string())
        }
    }

    /// A Secret goes with its Pod, and a Pod with its PV if it belongs to one.
    fn garbage_collector(&mut self) {
        let mut state = self.api.lock();
        for (owners, kind) in [("volumes", "pods"), ("pods", "secrets")] {
            let is_lost = |object: &&Value| {
                let owner = &object["metadata"]["ownerReferences"][0]["uid"];
                !owner.is_null() && !state.each(owners).any(|there| there["metadata"]["uid"] == *owner)
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
        let state = self.api.lock();
        let names = |kind: &str| state.each(kind).map(key_of).collect::<Vec<_>>();
        let left: Vec<_> = state.each("pods").filter(|pod| !fake_worker::is_free(pod)).collect();
        assert!(left.is_empty(), "{what}: Pods left: {left:#?}");
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
        // The image's PersistentVolume is patched.
        let volume = if image_makes_pv {
            "PATCH volumes"
        } else {
            "POST volumes"
        };
        let made = [
            "PATCH claims",
            "POST pods",
            "POST secrets",
            volume,
            "PATCH claims",
            "DELETE pods",
        ];
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
