//! The cluster of the model, and what users, Kubernetes and Mooring do there.

mod invariants;
mod pods;
mod watched;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mooring_contract::names::finalizers;
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;
use serde_json::{Value, json};

use super::super::departures::{self, Watched, watching};
use super::super::fake_api::{FakeApi, FakeState, key_of};
use super::super::fake_worker::is_free;
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
use crate::volume::group_snapshot::tests::group_content;
use crate::volume::snapshot::tests::content;

/// The ConfigMaps, each with a storage of its own.
const CONFIGS: [&str; 2] = ["admin/first", "admin/second"];

/// The classes of attributes.
const CLASSES: [&str; 2] = ["gold", "iron"];

/// How many turns of all are enough for a claim to be bound, or to get what it asks for.
const GOES_WELL: usize = 4;

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
    /// The run that last made it larger did not say so.
    grew_unsaid: bool,
}

/// A run that was given its properties.
struct Given {
    /// Of the run.
    uid: String,
    /// What carries it out.
    place: String,
    request: Request,
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
    /// The runs that were judged when they got their properties, by uid.
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

/// Whether another claim was given what this one had.
fn is_lost(claim: &Value) -> bool {
    claim["status"]["phase"] == "Lost"
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

/// Names of the snapshots of a content, of a snapshot or of a group, on the storage.
fn snapshot_names(content: &Value) -> Vec<String> {
    let spec = &content["spec"];
    match &spec["volumeGroupSnapshotRef"]["uid"] {
        Value::Null => vec![format!("snapshot-{}", text(&spec["volumeSnapshotRef"]["uid"]))],
        uid => {
            let of = |volume: &Value| format!("groupsnapshot-{}.{}", text(uid), text(volume));
            handles(content).into_iter().map(of).collect()
        }
    }
}

/// The handles of the volumes of a content, of a snapshot or of a group.
fn handles(content: &Value) -> Vec<&Value> {
    let source = &content["spec"]["source"];
    let of_group = source["volumeHandles"].as_array().into_iter().flatten();
    let one = Some(&source["volumeHandle"]).filter(|handle| !handle.is_null());
    of_group.chain(one).collect()
}

/// The claim that a PersistentVolume refers to, if it is there.
fn claim_of<'a>(state: &'a FakeState, volume: &Value) -> Option<&'a Value> {
    let uid = &volume["spec"]["claimRef"]["uid"];
    state.each("claims").find(|claim| claim["metadata"]["uid"] == *uid)
}

fn makes_volume(request: &Request) -> bool {
    matches!(
        request.operation,
        Operation::Provision | Operation::Clone | Operation::Restore
    )
}

/// All that carries out a run.
fn runs(state: &FakeState) -> impl Iterator<Item = &Value> {
    state.each("pods").filter(|pod| !is_free(pod))
}

/// What the run of a Pod is asked.
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
        world.theatre.api.lock().put("snapshotclasses", class.clone());
        if world.theatre.api.real().is_none() {
            world.theatre.api.lock().put("groupclasses", class);
        }
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
                "provision,clone,restore,delete,expand,modify,snapshot,delete-snapshot,snapshot-group,delete-group",
            ),
        ]);
        let is_real = self.theatre.api.real().is_some();
        for (at, place) in CONFIGS.iter().enumerate().filter(|_| !is_real) {
            let mut state = self.theatre.api.lock();
            let name = place.rsplit_once('/').unwrap().1;
            let map = json!({"metadata": {"namespace": "admin", "name": name, "uid": format!("c{at}")}});
            match state.get("configmaps", place) {
                Some(_) if !self.there[at] => state.delete("configmaps", place),
                None if self.there[at] => state.put("configmaps", map),
                _ => {}
            }
        }
        let there = (0..CONFIGS.len()).filter(|at| self.there[*at]).map(|at| {
            let good = ProvisionerConfig {
                reference: CONFIGS[at].parse().unwrap(),
                uid: format!("c{at}"),
                class_name: (self.class == at).then(|| "silver".to_owned()),
                fingerprint: self.fingerprint(at),
                workers: Some(1),
                ..good.clone()
            };
            let problems = vec![];
            let reference = good.reference.clone();
            let good = Some(Arc::new(good));
            (reference, Entry { good, problems })
        });
        self.theatre.shared.context.configs.replace(there.collect());
    }

    /// That of a ConfigMap as it is now.
    fn fingerprint(&self, at: usize) -> String {
        format!("{at} {}", self.changes)
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
            Step::Restore { claim, snapshot } => {
                if let Some(content) = self.nth("contents", snapshot) {
                    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
                                        "name": content["spec"]["volumeSnapshotRef"]["name"]});
                    let resources = json!({"requests": {"storage": "4Gi"}});
                    let spec = json!({"dataSource": source, "dataSourceRef": source, "resources": resources});
                    self.claim(claim, &spec);
                }
            }
            Step::Snapshot { claim, retain } => self.snapshot(claim, retain),
            Step::Group { retain } => self.group(retain),
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
            Step::Hire { config, lost_answers } => self.hire(config, lost_answers).await,
            Step::Dismiss => self.dismiss(),
            Step::Pods(fate) => self.pods(fate)?,
            Step::NodeReturns => self.node_returns(),
            Step::NodeGoes => self.node_goes(),
            Step::Look(at) => {
                let all = self.shown();
                // Some wait for a worker, and others do not.
                let patience = &mut self.theatre.shared.limits.worker_patience;
                patience.longest = Duration::from_hours(1);
                patience.between = if at % 2 == 0 { patience.longest } else { Duration::ZERO };
                if let Some(at) = at.checked_rem(all.len()) {
                    self.look(all[at].0, &all[at].1).await;
                }
                self.theatre.shared.limits.worker_patience.between = Duration::ZERO;
            }
            Step::GoWell => {
                for _ in 0..GOES_WELL {
                    self.go_well().await?;
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
        let name = format!("snap-{at}");
        let snapshot = json!({
            "metadata": {"namespace": "default", "name": name, "uid": format!("v{at}")},
            "spec": {"source": {"persistentVolumeClaimName": claim["metadata"]["name"]}},
        });
        let mut state = self.theatre.api.lock();
        state.put("snapshots", snapshot);
        let snapshot = state.get("snapshots", &format!("default/{name}")).unwrap();
        let taken = content(&json!({
            "metadata": {"name": format!("snapcontent-s{at}"), "uid": format!("s{at}")},
            "spec": {
                "deletionPolicy": if retain { "Retain" } else { "Delete" },
                "source": {"volumeHandle": claim["spec"]["volumeName"]},
                "volumeSnapshotRef": {"kind": "VolumeSnapshot", "namespace": "default", "name": name,
                                      "uid": snapshot["metadata"]["uid"], "apiVersion": "snapshot.storage.k8s.io/v1"},
            },
        }));
        state.put("contents", taken);
    }

    /// No objects are made of its snapshots: volumes are made of those that were taken alone.
    fn group(&mut self, retain: bool) {
        let mut state = self.theatre.api.lock();
        let bound = |claim: &Value| Some(claim["spec"]["volumeName"].clone()).filter(|name| !name.is_null());
        let handles: Vec<_> = state.each("claims").filter_map(bound).collect();
        if handles.is_empty() || state.real().is_some() {
            return;
        }
        self.made += 1;
        let at = self.made;
        state.put(
            "groups",
            group_content(&json!({
                "metadata": {"name": format!("groupsnapcontent-g{at}"), "uid": format!("g{at}")},
                "spec": {
                    "deletionPolicy": if retain { "Retain" } else { "Delete" },
                    "source": {"volumeHandles": handles},
                    "volumeGroupSnapshotRef": {
                        "kind": "VolumeGroupSnapshot", "namespace": "default", "name": format!("group-{at}"),
                        "uid": format!("v{at}"), "apiVersion": "groupsnapshot.storage.k8s.io/v1"},
                },
            })),
        );
    }

    /// What snapshot-controller does: says on the snapshots what their contents say.
    fn snapshot_controller(&self) {
        let mut state = self.theatre.api.lock();
        for content in state.all("contents") {
            let name = text(&content["spec"]["volumeSnapshotRef"]["name"]);
            let status = json!({"boundVolumeSnapshotContentName": content["metadata"]["name"],
                                "readyToUse": content["status"]["readyToUse"] == true});
            if let Some(mut snapshot) = state.get("snapshots", &format!("default/{name}"))
                && snapshot["status"] != status
            {
                snapshot["status"] = status;
                state.put("snapshots", snapshot);
            }
        }
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
            let snapshot = text(&object["spec"]["volumeSnapshotRef"]["name"]).to_owned();
            state.delete("snapshots", &format!("default/{snapshot}"));
            let mark = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
            object["metadata"]["annotations"][mark] = json!("yes");
            state.put(kind, object);
        } else if kind == "groups" && !is_going(&object) {
            let mark = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
            object["metadata"]["annotations"][mark] = json!("yes");
            state.put(kind, object);
        }
        state.delete(kind, &key);
    }

    /// Deletes all claims and snapshots. Volumes go with their claims, unless they are retained.
    pub(super) fn delete_all(&self) {
        for kind in ["claims", "contents", "groups"] {
            let count = self.theatre.api.lock().each(kind).count();
            (0..count).rev().for_each(|at| self.delete(kind, at));
        }
    }

    /// Deletes an object and removes its finalizers. What Mooring held it for is its user's from then on, unless a run
    /// is there that remembers all of it.
    fn take_away(&mut self, kind: &'static str, at: usize) {
        let Some(object) = self.nth(kind, at) else { return };
        let mut state = self.theatre.api.lock();
        let names = match kind {
            "claims" => vec![format!("pvc-{}", text(&object["metadata"]["uid"]))],
            "volumes" => vec![volume_of(&object).1],
            _ => snapshot_names(&object),
        };
        let noted = text(&object["metadata"]["annotations"]["mooring.dev/operation"]);
        let has_made_before = noted.contains(r#""may-exist":true"#);
        let of_it = |pod: &&Value| makes_volume(&asked(pod)) && names.contains(&asked(pod).pv_name);
        let remembers = runs(&state).find(of_it).is_some_and(|run| !is_going(run)) && !has_made_before;
        if kind != "claims" || is_held(&object, finalizers::CLAIM) && !remembers {
            self.given_up.extend(names);
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
        let stored = volume_of(&volume);
        let deletes = |run: &Given| run.request.operation == Operation::Delete && run.request.pv_name == stored.1;
        let is_told = self.given().iter().any(deletes);
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
        // As a populator does with the volume of its own claim. What is undone or changed is nobody's to hand on.
        let can_lose = |had: &Value| {
            let noted = text(&had["metadata"]["annotations"]["mooring.dev/operation"]);
            let open = ["expand", "modify", "delete"].map(|operation| format!(r#""operation":"{operation}""#));
            had["metadata"]["uid"] != claim["metadata"]["uid"]
                && !open.iter().any(|open| noted.contains(open))
                && !noted.contains(r#""refused":true"#)
        };
        let is_free = claim_of(&state, &volume).is_none_or(can_lose) && !is_going(&volume);
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
            let Some(volume) = volume else { continue };
            let is_its_own = volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"];
            if !is_its_own && !is_lost(&claim) {
                claim["status"]["phase"] = json!("Lost");
                state.put("claims", claim);
            } else if is_its_own && claim["status"]["phase"] != "Bound" {
                claim["status"] = json!({"phase": "Bound", "capacity": volume["spec"]["capacity"],
                    "currentVolumeAttributesClassName": volume["spec"]["volumeAttributesClassName"]});
                state.put("claims", claim);
            }
        }
        drop(state);
        self.snapshot_controller();
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

    /// The runs that were given their properties.
    fn given(&self) -> Vec<Given> {
        let state = self.theatre.api.lock();
        let pods = state.each("pods").filter(|pod| has_properties(&state, pod));
        let pods = pods.map(|pod| Given {
            uid: text(&pod["metadata"]["uid"]).to_owned(),
            place: key_of(pod),
            request: asked(pod),
        });
        pods.chain(self.on_worker()).collect()
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
