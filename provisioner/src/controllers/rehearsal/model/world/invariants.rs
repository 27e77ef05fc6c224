//! What must hold in the model: at each step, and once everything rests.

use std::collections::{BTreeMap, BTreeSet};

use mooring_contract::names::finalizers;
use mooring_contract::operation::Operation;
use serde_json::Value;

use super::super::super::fake_api::{FakeState, Fault};
use super::super::Fate;
use super::{
    Given, Stored, World, claim_of, handles, has_subject, is_going, is_held, is_lost, is_retained, runs, size,
    snapshot_names, text, volume_of,
};

/// Most turns until everything rests.
const TURNS: usize = 80;

/// Why a volume must not be deleted, if it must not.
fn why_kept(state: &FakeState, volume: &Value) -> Option<&'static str> {
    if is_retained(volume) {
        return Some("the volume is retained");
    }
    let claim = claim_of(state, volume)?;
    let (bound, name) = (&claim["spec"]["volumeName"], text(&volume["metadata"]["name"]));
    if *bound == name {
        return Some("a claim has the volume");
    }
    // One that is being made for the claim may be undone.
    let is_own = name.strip_prefix("pvc-") == claim["metadata"]["uid"].as_str();
    let is_made = is_own && is_held(claim, finalizers::CLAIM);
    let is_promised = bound.is_null() && !is_going(claim) && !is_going(volume) && !is_made;
    is_promised.then_some("a claim is about to get the volume")
}

/// The snapshots that a content, of a snapshot or of a group, says to be on the storage.
fn snapshots_of(content: &Value) -> Option<Vec<Stored>> {
    let status = &content["status"];
    let of_group = status["volumeSnapshotInfoList"].as_array().into_iter().flatten();
    let handles = of_group.chain([status]).filter_map(|of| of["snapshotHandle"].as_str());
    let stored = |handle: &str| {
        let (config, name) = handle.rsplit_once('/')?;
        Some((config.to_owned(), name.to_owned()))
    };
    let stored: Vec<_> = handles.filter_map(stored).collect();
    (status["readyToUse"] == true && !stored.is_empty()).then_some(stored)
}

/// Whether nobody has a volume any more, and it is to go.
fn is_unwanted(volume: &Value) -> bool {
    volume["status"]["phase"] != "Bound" && (is_going(volume) || !is_retained(volume))
}

/// Whether a bound claim asks for something else than it has.
fn asks_for_change(claim: &Value) -> bool {
    let (spec, status) = (&claim["spec"], &claim["status"]);
    let class = &spec["volumeAttributesClassName"];
    size(&spec["resources"]["requests"]) > size(&status["capacity"])
        || !class.is_null() && *class != status["currentVolumeAttributesClassName"]
}

impl World {
    /// No run is given the properties to delete what somebody has or keeps.
    pub(super) fn judge(&mut self) -> Result<(), String> {
        let given = self.given();
        let state = self.theatre.api.lock();
        for Given { uid, place, request } in given {
            if !self.judged.insert(uid) {
                continue;
            }
            let why = match (request.operation, request.snapshot) {
                (Operation::Delete, _) => {
                    let volume = state.get("volumes", &format!("/{}", request.pv_name));
                    volume.and_then(|volume| why_kept(&state, &volume))
                }
                (Operation::DeleteSnapshot | Operation::DeleteGroup, Some(snapshot)) => {
                    let key = format!("/{}", snapshot.content_name);
                    let content = state.get("contents", &key).or_else(|| state.get("groups", &key));
                    let content = content.filter(|content| content["spec"]["deletionPolicy"] == "Retain");
                    let ready = content.as_ref().and_then(snapshots_of);
                    ready.map(|_| "the snapshot is retained")
                }
                _ => None,
            };
            if let Some(why) = why {
                return Err(format!(
                    "{} of {} begins on {place}, and {why}",
                    request.operation, request.pv_name
                ));
            }
        }
        Ok(())
    }

    /// Controllers, kubelets and Kubernetes do what they are there for.
    pub(super) async fn go_well(&mut self) -> Result<(), String> {
        self.look_at_all(false).await;
        self.judge()?;
        self.pods(Fate::Done)?;
        self.theatre.garbage_collector();
        self.bind(true);
        Ok(())
    }

    /// Everything goes well, until nothing changes any more. Then whoever waits is told what for.
    pub(in super::super) async fn rest(&mut self, when: &str) -> Result<(), String> {
        self.rests = true;
        self.theatre.api.fail(usize::MAX, Fault::Conflict);
        self.catch_up();
        self.node_returns();
        self.changes += 1;
        self.configure();
        let mut quiet = 0;
        for _ in 0..TURNS {
            let before = self.theatre.api.lock().version;
            self.time_passes();
            self.go_well().await?;
            let is_quiet = self.theatre.api.lock().version == before;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet > 1 && self.deadlines_pass() {
                quiet = 0;
            } else if quiet > 1 {
                return self.check_told(when).await;
            }
        }
        Err(format!(
            "{when}, it does not come to rest: {:#?}",
            self.theatre.api.lock()
        ))
    }

    /// Whoever waits is told what for, also by a controller that has just started.
    async fn check_told(&mut self, when: &str) -> Result<(), String> {
        self.start();
        self.look_at_all(false).await;
        let told: Vec<_> = std::iter::from_fn(|| self.told.try_next()).collect();
        let state = self.theatre.api.lock();
        let name = |object: &Value| text(&object["metadata"]["name"]).to_owned();
        let mut waiting = BTreeMap::new();
        let claims = state.each("claims");
        let is_open = |claim: &&Value| {
            let bound = &claim["spec"]["volumeName"];
            let volume = state.get("volumes", &format!("/{}", text(bound)));
            let has_less = volume.is_some() && !is_lost(claim) && asks_for_change(claim);
            bound.is_null() || is_held(claim, finalizers::CLAIM) || has_less
        };
        waiting.extend(claims.filter(is_open).map(|claim| (name(claim), claim)));
        // While its claim is there, that one is told.
        let is_left = |volume: &&Value| is_unwanted(volume) && claim_of(&state, volume).is_none();
        let volumes = state.each("volumes").filter(is_left);
        waiting.extend(volumes.map(|volume| (name(volume), volume)));
        let contents = state.each("contents").chain(state.each("groups"));
        let contents = contents.filter(|content| is_going(content) || snapshots_of(content).is_none());
        let of = |content: &Value| {
            let references = ["volumeSnapshotRef", "volumeGroupSnapshotRef"];
            references.map(|of| text(&content["spec"][of]["name"])).concat()
        };
        waiting.extend(contents.map(|content| (of(content), content)));
        let pods = runs(&state).filter(|pod| !has_subject(&state, pod));
        waiting.extend(pods.map(|pod| (name(pod), pod)));
        let is_told = |name: &String| told.iter().any(|(of, _)| of.name.as_ref() == Some(name));
        // Of the runs of an object that is gone, Events are about one.
        let uid = |pod: &Value| text(&pod["metadata"]["labels"]["mooring.dev/claim-uid"]).to_owned();
        let settled: BTreeSet<_> = runs(&state).filter(|pod| is_told(&name(pod))).map(uid).collect();
        waiting.retain(|name, object| !is_told(name) && !settled.contains(&uid(object)));
        if waiting.is_empty() {
            return Ok(());
        }
        let told: Vec<_> = told.iter().map(|(of, note)| (&of.name, &note.text)).collect();
        Err(format!(
            "{when}, some wait and are not told: {waiting:#?}\ntold: {told:#?}"
        ))
    }

    /// What of a claim's volume is not as the claim says, if anything is.
    fn differs(&self, state: &FakeState, claim: &Value) -> Option<String> {
        let name = text(&claim["spec"]["volumeName"]);
        let volume = state.get("volumes", &format!("/{name}"))?;
        let features = self.features.get(&volume_of(&volume))?;
        if asks_for_change(claim) {
            return Some(format!(
                "a claim has not what it asks for, and the storage has {features:?}"
            ));
        }
        let (has, class) = (
            size(&claim["status"]["capacity"]),
            &claim["spec"]["volumeAttributesClassName"],
        );
        // What the last change of a claim that is gone came to, its volume does not say.
        let is_own = name.strip_prefix("pvc-") == claim["metadata"]["uid"].as_str();
        let is_right = if is_own {
            // Its user has taken back an expansion that failed after it had grown the volume.
            let is_size = features.size == has || features.size > has && features.grew_unsaid;
            is_size && (class.is_null() || *class == features.class.as_str())
        } else {
            features.size >= has
        };
        (!is_right).then(|| format!("the storage has {features:?}, which a claim does not say"))
    }

    /// There is one volume for each claim and none for others, what is retained is there, and nothing is half-done.
    pub(in super::super) fn check(&self, when: &str) -> Result<(), String> {
        let state = self.theatre.api.lock();
        let (mut wanted, mut half_made) = (BTreeSet::new(), BTreeSet::new());
        let wrong = |what: &str, object: &Value| Err(format!("{when}, {what}: {object:#}"));
        if let Some(left) = runs(&state).chain(state.each("secrets")).next() {
            return wrong("something is left", left);
        }
        for claim in state.each("claims") {
            let name = text(&claim["spec"]["volumeName"]);
            let volume = state.get("volumes", &format!("/{name}"));
            let has_it = volume.is_some_and(|volume| volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]);
            if name.is_empty() && !is_going(claim) && !claim["spec"]["dataSource"].is_null() {
                // It waits for its source, of which it may have a part.
                half_made.insert(format!("pvc-{}", text(&claim["metadata"]["uid"])));
                continue;
            }
            let own = state.get("volumes", &format!("/pvc-{}", text(&claim["metadata"]["uid"])));
            let is_given = own.is_some_and(|own| own["spec"]["claimRef"]["uid"] != claim["metadata"]["uid"]);
            let is_without = is_lost(claim) || name.is_empty() && is_given;
            if is_going(claim)
                || is_held(claim, finalizers::CLAIM)
                || !has_it && !is_without && !self.given_up.contains(name)
            {
                return wrong("a claim is without its volume", claim);
            }
            if is_without {
                continue;
            }
            if !self.given_up.contains(name)
                && let Some(why) = self.differs(&state, claim)
            {
                return wrong(&why, claim);
            }
        }
        for (kind, object) in &state.gone {
            match *kind {
                "volumes" if is_retained(object) => wanted.insert(volume_of(object)),
                // The claim was given another of its name since.
                "volumes" => wanted.remove(&volume_of(object)),
                "contents" | "groups" if object["spec"]["deletionPolicy"] == "Retain" => {
                    wanted.extend(snapshots_of(object).into_iter().flatten());
                    false
                }
                _ => false,
            };
        }
        for volume in state.each("volumes") {
            if is_unwanted(volume) {
                return wrong("a volume is left", volume);
            }
            wanted.insert(volume_of(volume));
        }
        for content in state.each("contents").chain(state.each("groups")) {
            let source = |handle| state.get("volumes", &format!("/{}", text(handle)));
            let sources: Vec<_> = handles(content).into_iter().map(source).collect();
            let is_there = |source: &Value| source["status"]["phase"] == "Bound" && !is_going(source);
            let configs: BTreeSet<_> = sources.iter().flatten().map(|source| volume_of(source).0).collect();
            let has_sources = configs.len() == 1 && sources.iter().all(|source| source.as_ref().is_some_and(is_there));
            match snapshots_of(content) {
                _ if is_going(content) => return wrong("a snapshot is left", content),
                Some(snapshots) => wanted.extend(snapshots),
                None if has_sources => return wrong("no snapshot was taken", content),
                // What an attempt may have made goes with the content.
                None => half_made.extend(snapshot_names(content)),
            }
        }
        let is_certain = |(_, name): &&Stored| !self.given_up.contains(name) && !half_made.contains(name);
        let lost: Vec<_> = wanted.difference(&self.storage).filter(is_certain).collect();
        let leaked: Vec<_> = self.storage.difference(&wanted).filter(is_certain).collect();
        if lost.is_empty() && leaked.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{when}, the storage lost {lost:?} and keeps {leaked:?}: {:#?}",
            state.log
        ))
    }
}
