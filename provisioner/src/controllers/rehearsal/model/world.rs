//! The cluster of the model, and what users, Kubernetes and Mooring do there.

mod invariants;
mod pods;
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mooring_contract::names::finalizers;
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;
use serde_json::{Value, json};

use super::super::departures::{self, Watched, watching};
use super::super::fake_api::{FakeApi, FakeState, key_of};
use super::super::{Offers, Script, Theatre, look_at, shared};
use super::{KINDS, Step};
use crate::cache::limiter::Limiter;
use crate::config::ProvisionerConfig;
use crate::config::store::Entry;
use crate::controllers::orphan;
use crate::operation::limits::Limits;
use crate::operation::tests::{self as operation, config};
use crate::process::events::{EventRecorder, Writer};
use crate::volume::capacity;
use crate::volume::snapshot::tests::content;

/// The ConfigMaps, each with a storage of its own.
const CONFIGS: [&str; 2] = ["admin/first", "admin/second"];

/// The classes of attributes.
const CLASSES: [&str; 2] = ["gold", "iron"];

/// Most runs at once.
const PLACES: usize = 4;

/// A volume or a snapshot: the ConfigMap of its storage, and its name there.
type Stored = (String, String);

/// What a volume on the storage is like.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Features {
    size: u64,
    /// Empty for no class.
    class: String,
}

pub(super) struct World {
    theatre: Theatre,
    /// The watches of the controllers, before a real API server.
    watched: Option<Watched>,
    told: Writer,
    /// Which of [`CONFIGS`] are there.
    there: [bool; 2],
    /// Which of them has the class.
    class: usize,
    /// How often the ConfigMaps were changed.
    changes: usize,
    /// A call that fails kills the controller.
    kills: bool,
    /// Everything is to come to rest.
    rests: bool,
    storage: BTreeSet<Stored>,
    /// What the volumes among them are like.
    features: BTreeMap<Stored, Features>,
    /// The names of what users took from Mooring before it was done with that: the storage may have it or not.
    given_up: BTreeSet<String>,
    /// The Pods that were judged when they got their properties, by uid.
    judged: BTreeSet<String>,
    /// How many objects were made, for their uids.
    made: usize,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn is_going(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn is_held(object: &Value, finalizer: &str) -> bool {
    let held = object["metadata"]["finalizers"].as_array();
    held.is_some_and(|held| held.iter().any(|name| name == finalizer))
}

fn is_retained(volume: &Value) -> bool {
    volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
}

fn volume_of(volume: &Value) -> Stored {
    let config = text(&volume["metadata"]["annotations"]["mooring.dev/config"]);
    (config.to_owned(), text(&volume["metadata"]["name"]).to_owned())
}

/// The bytes of an amount of storage.
fn size(amount: &Value) -> u64 {
    capacity::parse(text(&amount["storage"])).unwrap()
}

/// Name of the snapshot of a content on the storage.
fn snapshot_name(content: &Value) -> String {
    format!("snapshot-{}", text(&content["spec"]["volumeSnapshotRef"]["uid"]))
}

/// The claim that a PersistentVolume refers to, if it is there.
fn claim_of<'a>(state: &'a FakeState, volume: &Value) -> Option<&'a Value> {
    let uid = &volume["spec"]["claimRef"]["uid"];
    state.each("claims").find(|claim| claim["metadata"]["uid"] == *uid)
}

fn makes_volume(request: &Request) -> bool {
    matches!(request.operation, Operation::Provision | Operation::Clone)
}

fn asked(pod: &Value) -> Request {
    serde_json::from_str(text(&pod["metadata"]["annotations"]["mooring.dev/request"])).unwrap()
}

/// Whether a Pod has the Secret that it starts with.
fn has_properties(state: &FakeState, pod: &Value) -> bool {
    let mut secrets = state.each("secrets").map(|secret| &secret["metadata"]);
    secrets.any(|secret| {
        secret["name"] == pod["spec"]["volumes"][0]["secret"]["secretName"]
            && secret["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    })
}

/// Whether the object that a Pod is for is there.
fn has_subject(state: &FakeState, pod: &Value) -> bool {
    let (uid, name) = (&pod["metadata"]["labels"]["mooring.dev/claim-uid"], asked(pod).pv_name);
    let is_of = |object: &Value| object["metadata"]["uid"] == *uid || object["metadata"]["name"] == name;
    KINDS.iter().any(|kind| state.each(kind).any(is_of))
}

impl World {
    pub(super) fn new(api: FakeApi) -> Self {
        let theatre = Theatre::on(api, Script::plain(Offers::Changes));
        let (_, told) = EventRecorder::new(theatre.shared.context.metrics.clone());
        let mut world = Self {
            theatre,
            watched: None,
            told,
            there: [true; 2],
            class: 0,
            changes: 0,
            kills: false,
            rests: false,
            storage: BTreeSet::new(),
            features: BTreeMap::new(),
            given_up: BTreeSet::new(),
            judged: BTreeSet::new(),
            made: 0,
        };
        let class = json!({"metadata": {"name": "silver"}, "driver": "vcs.mooring.dev", "parameters": {}});
        world.theatre.api.lock().put("snapshotclasses", class);
        for name in CLASSES {
            let class =
                json!({"metadata": {"name": name}, "driverName": "vcs.mooring.dev", "parameters": {"tier": name}});
            world.theatre.api.lock().put("attributes", class);
        }
        world.theatre.api.lock().delete("claims", "default/data");
        if world.theatre.api.real().is_some() {
            let mut class = json!(operation::class(&json!({})));
            class["allowVolumeExpansion"] = json!(true);
            world.theatre.api.lock().put("classes", class);
        }
        world.start();
        world.claim(0, &json!({}));
        world
    }

    /// A controller starts, which knows nothing. No clock keeps it waiting.
    fn start(&mut self) {
        let theatre = &mut self.theatre;
        theatre.shared = shared(&theatre.api, theatre.script);
        let (events, told) = EventRecorder::new(theatre.shared.context.metrics.clone());
        theatre.shared.context.events = events;
        self.told = told;
        theatre.shared.limits = Limits {
            start_grace: Duration::ZERO,
            claim_grace: Duration::ZERO,
            place_grace: Duration::ZERO,
            bind_grace: Duration::ZERO,
            overdue: Duration::ZERO,
            ..theatre.shared.limits
        };
        self.time_passes();
        self.catch_up();
        self.configure();
    }

    /// What was begun, and came and went unseen, is forgotten.
    fn time_passes(&mut self) {
        self.theatre.shared.limiter = Arc::new(Limiter::new(PLACES));
        self.theatre.watched = 0;
        if self.theatre.api.real().is_some() {
            self.watched = Some(watching(&mut self.theatre.shared));
        }
    }

    fn catch_up(&mut self) {
        self.theatre.lagging.clear();
        self.theatre.watched = 0;
        self.hold_watches();
    }

    /// Has the proxy before a real API server hold back the watches that lag.
    fn hold_watches(&self) {
        if let Some(real) = self.theatre.api.real() {
            let lagging: Vec<_> = self.theatre.lagging.keys().copied().collect();
            real.hold(&lagging);
        }
    }

    /// The controllers read the ConfigMaps.
    fn configure(&self) {
        let good = config(&[
            ("volume-source", "csi"),
            (
                "operations",
                "provision,clone,delete,expand,modify,snapshot,delete-snapshot",
            ),
        ]);
        let there = (0..CONFIGS.len()).filter(|at| self.there[*at]).map(|at| {
            let good = ProvisionerConfig {
                reference: CONFIGS[at].parse().unwrap(),
                uid: format!("c{at}"),
                class_name: (self.class == at).then(|| "silver".to_owned()),
                fingerprint: format!("{at} {}", self.changes),
                ..good.clone()
            };
            let problems = vec![];
            let reference = good.reference.clone();
            let good = Some(Arc::new(good));
            (reference, Entry { good, problems })
        });
        self.theatre.shared.context.configs.replace(there.collect());
    }

    pub(super) fn restore_configs(&mut self) {
        self.there = [true; 2];
    }

    pub(super) async fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Claim(at) => self.claim(at, &json!({})),
            Step::Clone { claim, source } => {
                let source = json!({"kind": "PersistentVolumeClaim", "name": format!("data-{source}")});
                // As large as any source gets.
                let resources = json!({"requests": {"storage": "4Gi"}});
                let spec = json!({"dataSource": source, "dataSourceRef": source, "resources": resources});
                self.claim(claim, &spec);
            }
            Step::Snapshot { claim, retain } => self.snapshot(claim, retain),
            Step::Grow { claim, gib } => self.grow(claim, gib),
            Step::Modify { claim, class } => self.modify(claim, CLASSES[class]),
            Step::Delete(kind, at) => self.delete(kind, at),
            Step::TakeAway(kind, at) => self.take_away(kind, at),
            Step::Retain(at) => self.retain(at),
            Step::HandOn { volume, claim } => self.hand_on(volume, claim),
            Step::ConfigMap(at, there) => {
                self.there[at] = there;
                self.configure();
            }
            Step::ClassPasses => {
                self.class = 1 - self.class;
                self.configure();
            }
            Step::Bind { quick } => self.bind(quick),
            Step::Collect => self.theatre.garbage_collector(),
            Step::Pods(fate) => self.pods(fate)?,
            Step::NodeReturns => self.node_returns(),
            Step::NodeGoes => self.node_goes(),
            Step::Look(at) => {
                let all = self.shown();
                if let Some(at) = at.checked_rem(all.len()) {
                    self.look(all[at].0, &all[at].1).await;
                }
            }
            Step::LookAtAll { backwards } => self.look_at_all(backwards).await,
            Step::Restart => self.start(),
            Step::Lag(kind) => {
                let now = self.theatre.api.lock().all(kind);
                self.theatre.lagging.entry(kind).or_insert(now);
                self.hold_watches();
            }
            Step::CatchUp => self.catch_up(),
            Step::Fail { nth, fault, kills } => {
                self.kills = kills;
                self.theatre.api.fail(nth, fault);
            }
        }
        self.judge()
    }

    /// The object of this number of its kind, counted from the first again after the last.
    fn nth(&self, kind: &str, at: usize) -> Option<Value> {
        let mut all = self.theatre.api.lock().all(kind);
        let at = at.checked_rem(all.len())?;
        Some(all.swap_remove(at))
    }

    fn claim(&mut self, at: usize, spec: &Value) {
        let mut claim = departures::claim(&format!("data-{at}"));
        for (key, value) in spec.as_object().unwrap() {
            claim["spec"][key] = value.clone();
        }
        let mut state = self.theatre.api.lock();
        if state.get("claims", &key_of(&claim)).is_none() {
            self.made += 1;
            claim["metadata"]["uid"] = json!(format!("u{}", self.made));
            state.put("claims", claim);
        }
    }

    fn snapshot(&mut self, claim: usize, retain: bool) {
        let claim = self.nth("claims", claim).unwrap_or_default();
        if claim["spec"]["volumeName"].is_null() {
            return;
        }
        self.made += 1;
        let at = self.made;
        let taken = content(&json!({
            "metadata": {"name": format!("snapcontent-s{at}"), "uid": format!("s{at}")},
            "spec": {
                "deletionPolicy": if retain { "Retain" } else { "Delete" },
                "source": {"volumeHandle": claim["spec"]["volumeName"]},
                "volumeSnapshotRef": {"kind": "VolumeSnapshot", "namespace": "default", "name": format!("snap-{at}"),
                                      "uid": format!("v{at}"), "apiVersion": "snapshot.storage.k8s.io/v1"},
            },
        }));
        self.theatre.api.lock().put("contents", taken);
    }

    /// As far as the API server lets users: not below what the claim has.
    fn grow(&self, claim: usize, gib: u64) {
        let Some(mut claim) = self.bound(claim) else { return };
        let asked = gib << 30;
        if asked > size(&claim["status"]["capacity"]) || asked >= size(&claim["spec"]["resources"]["requests"]) {
            claim["spec"]["resources"]["requests"]["storage"] = json!(format!("{gib}Gi"));
            self.theatre.api.lock().put("claims", claim);
        }
    }

    fn modify(&self, claim: usize, class: &str) {
        let Some(mut claim) = self.bound(claim) else { return };
        claim["spec"]["volumeAttributesClassName"] = json!(class);
        self.theatre.api.lock().put("claims", claim);
    }

    /// The claim of this number, if it is bound and stays.
    fn bound(&self, at: usize) -> Option<Value> {
        let claim = self.nth("claims", at)?;
        (claim["status"]["phase"] == "Bound" && !is_going(&claim)).then_some(claim)
    }

    fn delete(&self, kind: &'static str, at: usize) {
        let Some(mut object) = self.nth(kind, at) else { return };
        let mut state = self.theatre.api.lock();
        let key = key_of(&object);
        if kind == "contents" && !is_going(&object) {
            let mark = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
            object["metadata"]["annotations"][mark] = json!("yes");
            state.put(kind, object);
        }
        state.delete(kind, &key);
    }

    /// Deletes all claims and snapshots. Volumes go with their claims, unless they are retained.
    pub(super) fn delete_all(&self) {
        for kind in ["claims", "contents"] {
            let count = self.theatre.api.lock().each(kind).count();
            (0..count).rev().for_each(|at| self.delete(kind, at));
        }
    }

    /// Deletes an object and removes its finalizers. What Mooring held it for is its user's from then on, unless a run
    /// is there that remembers all of it.
    fn take_away(&mut self, kind: &'static str, at: usize) {
        let Some(object) = self.nth(kind, at) else { return };
        let mut state = self.theatre.api.lock();
        let name = match kind {
            "claims" => format!("pvc-{}", text(&object["metadata"]["uid"])),
            "volumes" => volume_of(&object).1,
            _ => snapshot_name(&object),
        };
        let noted = text(&object["metadata"]["annotations"]["mooring.dev/operation"]);
        let has_made_before = noted.contains(r#""may-exist":true"#);
        let of_it = |pod: &&Value| makes_volume(&asked(pod)) && asked(pod).pv_name == name;
        let remembers = state.each("pods").find(of_it).is_some_and(|run| !is_going(run)) && !has_made_before;
        if kind != "claims" || is_held(&object, finalizers::CLAIM) && !remembers {
            self.given_up.insert(name);
            // Of a volume that was changed for it, nobody knows how it is.
            let changed = text(&object["spec"]["volumeName"]);
            if !changed.is_empty() {
                self.given_up.insert(changed.to_owned());
            }
        }
        state.take_away(kind, &key_of(&object));
    }

    /// A volume whose end an administrator can still decide: no run was told to delete it.
    fn safe_volume(&self, at: usize) -> Option<Value> {
        let volume = self.nth("volumes", at)?;
        let state = self.theatre.api.lock();
        let stored = volume_of(&volume);
        let deletes = |pod: &&Value| asked(pod).operation == Operation::Delete && asked(pod).pv_name == stored.1;
        let is_told = state
            .each("pods")
            .filter(deletes)
            .any(|pod| has_properties(&state, pod));
        (self.storage.contains(&stored) && !is_told).then_some(volume)
    }

    fn retain(&self, at: usize) {
        let Some(mut volume) = self.safe_volume(at) else { return };
        let mut state = self.theatre.api.lock();
        // A volume that nobody was given yet is nothing to retain: its claim would get it once more.
        let is_own = |claim: &Value| volume_of(&volume).1.strip_prefix("pvc-") == claim["metadata"]["uid"].as_str();
        let is_waiting = |claim: &Value| is_own(claim) && claim["spec"]["volumeName"].is_null();
        if !claim_of(&state, &volume).is_some_and(|claim| is_held(claim, finalizers::CLAIM) || is_waiting(claim)) {
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
            state.put("volumes", volume);
        }
    }

    fn hand_on(&self, volume: usize, claim: usize) {
        let (Some(mut volume), Some(claim)) = (self.safe_volume(volume), self.nth("claims", claim)) else {
            return;
        };
        let mut state = self.theatre.api.lock();
        let is_free = claim_of(&state, &volume).is_none() && !is_going(&volume);
        if is_free && claim["spec"]["volumeName"].is_null() && !is_going(&claim) {
            volume["spec"]["claimRef"] = json!({"kind": "PersistentVolumeClaim", "namespace": "default",
                "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"]});
            state.put("volumes", volume);
        }
    }

    fn bind(&mut self, quick: bool) {
        self.theatre.script.quick_binder = quick;
        self.theatre.binder();
        let mut state = self.theatre.api.lock();
        for mut claim in state.all("claims") {
            let volume = state.get("volumes", &format!("/{}", text(&claim["spec"]["volumeName"])));
            if let Some(volume) = volume.filter(|_| claim["status"]["phase"] != "Bound") {
                claim["status"] = json!({"phase": "Bound", "capacity": volume["spec"]["capacity"],
                    "currentVolumeAttributesClassName": volume["spec"]["volumeAttributesClassName"]});
                state.put("claims", claim);
            }
        }
    }

    /// What the watches show of all that controllers look at, by kind and key.
    fn shown(&self) -> Vec<(&'static str, String)> {
        let state = self.theatre.api.lock();
        let of = |kind| {
            let shown: Vec<Value> = self.theatre.shown(&state, kind);
            shown.into_iter().map(move |object| (kind, key_of(&object)))
        };
        KINDS.into_iter().flat_map(of).collect()
    }

    async fn look(&mut self, kind: &'static str, key: &str) {
        self.watch().await;
        if let Some(object) = self.seen(kind, key) {
            drop(look_at(kind, object, &self.theatre.shared).await);
            self.may_die();
        }
    }

    async fn look_at_all(&mut self, backwards: bool) {
        let mut all = self.shown();
        if backwards {
            all.reverse();
        }
        for (kind, key) in all {
            self.look(kind, &key).await;
        }
        // Kubernetes collects within a second, Mooring after a minute.
        self.theatre.garbage_collector();
        self.watch().await;
        for uid in self.theatre.shared.cache.orphans() {
            drop(Box::pin(orphan::settle(&self.theatre.shared, &uid)).await);
            self.may_die();
            self.watch().await;
        }
    }

    /// The controller is killed if its last look met a call that was to kill it.
    fn may_die(&mut self) {
        let is_hit = std::mem::take(&mut self.theatre.api.lock().tripped);
        if is_hit && self.kills {
            self.start();
        }
    }
}
