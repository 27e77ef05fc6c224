//! Reads the provisioner ConfigMaps, keeps [`ConfigStore`](crate::config::store::ConfigStore) and the StorageClasses in
//! step with them, and tells each ConfigMap's author what has become of it.
//!
//! One loop looks at all of them together, since two may claim one class. It is woken by watches; each turn decides
//! purely ([`mod@verdict`], [`storage_class::plan`]) and then acts. Whatever fails is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Resource, ResourceExt};
use mooring_contract::names::{SETTINGS_CONFIG, annotations, labels};
use mooring_program::error::chain;
use mooring_program::repeated::Repeated;
use mooring_program::settings::keys::CONFIG_NAMESPACES;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use super::retry::{Pace, RETRY};
use crate::cache::mirror::Mirror;
use crate::cache::store::Cache;
use crate::config::ConfigRef;
use crate::config::discovered::{self, LastDiscovery, Shown};
use crate::config::storage_class::{self, Claim, ClassAction};
use crate::config::store::Entry;
use crate::config::trust::Trust;
use crate::context::Context;
use crate::process::call::{CHANGED, CallError, Tolerant as _};
use crate::process::events::{Note, reasons};
use crate::process::metrics::ConfigState;
use crate::process::objects::Objects;

pub mod classes;
pub mod summary;
pub mod usage;
pub mod verdict;

use summary::Part;
use usage::{Uses, uses};
use verdict::{Verdict, verdict, without_last_discovery};

/// Name of this loop in metrics and logs.
const CONTROLLER: &str = "config";

/// How long the loop waits for a namespace whose ConfigMaps can't be read before it goes on without.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many changes are taken in before a turn: a burst, such as the first list, is one turn's work.
const BURST: usize = 256;

/// How long a class that was made and is not seen yet counts as there.
const UNSEEN: Duration = Duration::from_secs(10);

/// What the watch of a namespace's ConfigMaps has brought.
pub(super) type Seen = (String, Result<Event<ConfigMap>, watcher::Error>);

pub async fn run(context: Context, trust: Trust, cache: Cache, stop: CancellationToken) {
    let mut seen = watches(&context, &trust).ready_chunks(BURST);
    let classes = cache.classes_changed.clone();
    let mut answers = context.discoveries.subscribe();
    let mut state = ConfigLoop::new(context, trust, cache);
    let started = Instant::now();
    let mut next_turn = started + PATIENCE;
    let mut pace = Pace::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(burst) = seen.next() => {
                for seen in burst {
                    state.take(seen);
                }
                next_turn = Instant::now();
            }
            () = classes.notified() => next_turn = Instant::now(),
            () = state.uses_changed() => next_turn = Instant::now(),
            Ok(()) = answers.changed() => next_turn = Instant::now(),
            () = sleep_until(next_turn) => {}
        }
        if next_turn > Instant::now() {
            continue;
        }
        if !state.is_readable(started) {
            next_turn = (started + PATIENCE).max(Instant::now() + RETRY.0);
            continue;
        }
        let turn = state.turn().instrument(info_span!("turn", controller = CONTROLLER));
        let is_well = turn.await;
        next_turn = pace.next(is_well, state.context.settings.resync);
    }
}

fn watches(context: &Context, trust: &Trust) -> BoxStream<'static, Seen> {
    let selector = format!(
        "{} in ({}, {})",
        labels::TYPE,
        labels::TYPE_PROVISIONER_CONFIG,
        labels::TYPE_PROVISIONER_STATUS
    );
    let all = trust.namespaces().map(|namespace| {
        let namespace = namespace.to_owned();
        let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
        watcher(api, Config::default().labels(&selector).page_size(50))
            .default_backoff()
            .map(move |event| (namespace.clone(), event))
            .boxed()
    });
    stream::select_all(all).boxed()
}

pub(super) struct ConfigLoop {
    context: Context,
    trust: Trust,
    config_maps: BTreeMap<String, Mirror<ConfigMap>>,
    cache: Cache,
    /// The classes that were made and are not seen yet, and when they were.
    made: Vec<(Instant, Arc<StorageClass>)>,
    entries: BTreeMap<ConfigRef, Entry>,
    /// Why ConfigMaps can't be read, by namespace.
    unread: BTreeMap<String, Repeated>,
    /// The classes to give up.
    given_up: BTreeSet<String>,
    /// How often they are used.
    uses: Option<Uses>,
}

impl ConfigLoop {
    pub(super) fn new(context: Context, trust: Trust, cache: Cache) -> Self {
        let config_maps = trust
            .namespaces()
            .map(|namespace| (namespace.to_owned(), Mirror::default()))
            .collect();
        Self {
            context,
            trust,
            config_maps,
            cache,
            made: Vec::new(),
            entries: BTreeMap::new(),
            unread: BTreeMap::new(),
            given_up: BTreeSet::new(),
            uses: None,
        }
    }

    pub(super) fn take(&mut self, (namespace, seen): Seen) {
        match seen {
            Ok(event) => {
                // Another try to list begins with `Init`.
                if !matches!(event, Event::Init) {
                    self.unread.remove(&namespace);
                }
                let config_maps = self.config_maps.entry(namespace).or_default();
                config_maps.take(event, |mut config_map: ConfigMap| {
                    config_map.metadata.managed_fields = None;
                    Some(config_map)
                });
            }
            Err(error) => {
                self.context.metrics.reconciled(CONTROLLER, "watch");
                let text = chain(&error);
                if !self.unread.entry(namespace.clone()).or_default().is_due(&text) {
                    return;
                }
                warn!(
                    error = text,
                    "failed to watch config maps of namespace {namespace}; if this is forbidden, bind ClusterRole \
                     flex-provisioner-configs in that namespace"
                );
                if is_forbidden(&error) {
                    self.tell_of_unread(&namespace);
                }
            }
        }
    }

    /// Whether there is enough to go by: all of it, or all that could be read in a fair time.
    fn is_readable(&self, started: Instant) -> bool {
        self.cache.classes.is_listed()
            && (self.config_maps.values().all(Mirror::is_synced) || started.elapsed() >= PATIENCE)
    }

    /// Returns when a class to give up is used by more or fewer.
    async fn uses_changed(&self) {
        loop {
            self.cache.uses_changed.notified().await;
            if !self.given_up.is_empty() && uses(&self.cache, &self.given_up) != self.uses {
                return;
            }
        }
    }

    /// The classes that there are.
    fn classes(&mut self) -> Vec<Arc<StorageClass>> {
        let mut classes = self.cache.classes.state();
        // The turn that a made class wakes may come before the watch does.
        self.made.retain(|(at, made)| {
            let is_seen = classes.iter().any(|class| class.metadata.name == made.metadata.name);
            !is_seen && at.elapsed() < UNSEEN
        });
        classes.extend(self.made.iter().map(|(_, made)| made.clone()));
        classes
    }

    /// One look at everything; false if something has to be tried again.
    pub(super) async fn turn(&mut self) -> bool {
        let config_maps = self.config_maps.values().flat_map(Mirror::values).cloned();
        let (status_maps, config_maps): (Vec<ConfigMap>, Vec<ConfigMap>) = config_maps.partition(summary::is_status);
        let verdicts: BTreeMap<ConfigRef, (&ConfigMap, Verdict)> = config_maps
            .iter()
            .map(|config_map| {
                let reference = ConfigRef::of(config_map);
                let before = self.entries.get(&reference);
                let verdict = verdict(config_map, before, &self.trust);
                (reference, (config_map, verdict))
            })
            .collect();
        self.entries = verdicts
            .iter()
            .map(|(reference, (_, verdict))| (reference.clone(), verdict.entry.clone()))
            .collect();
        let read: BTreeSet<String> = self
            .config_maps
            .iter()
            .filter(|(_, mirror)| mirror.is_synced())
            .map(|(namespace, _)| namespace.clone())
            .collect();
        let classes = self.classes();
        let there = || classes.iter().map(|class| &**class);
        let plan = storage_class::plan(&self.entries, there(), &read);

        let mut by_discovery = discovered::plan(
            &self.entries,
            &self.context.discoveries.answers(),
            there(),
            &read,
            Timestamp::now(),
        );
        for (reference, shown) in &mut by_discovery.shown {
            if let Some(config) = self.entries.get(reference).and_then(|entry| entry.good.as_ref()) {
                shown.last = self.context.discoveries.last(config);
            }
        }
        let shown = by_discovery.shown;
        self.context.metrics.set_discovered(
            shown.values().map(|shown| shown.served).sum(),
            shown.values().map(|shown| shown.vanished.len()).sum(),
            by_discovery.capacity,
        );

        self.context.configs.replace(self.entries.clone());
        self.context.metrics.set_configs(
            verdicts.values().map(|(_, verdict)| verdict.state),
            verdicts
                .values()
                .flat_map(|(_, verdict)| verdict.errors().map(crate::config::ConfigProblem::category)),
        );

        let actions = plan.actions.into_iter().chain(by_discovery.actions).collect();
        let failed = self.act(actions).await;
        let mut all_well = failed.is_empty();
        let mut parts = Vec::new();
        for (reference, (config_map, verdict)) in &verdicts {
            let claim = match plan.claims.get(reference).cloned() {
                Some(Claim::Kept(class)) => Some(match failed.get(&class) {
                    Some(error) => Claim::Failed {
                        class,
                        why: chain(error),
                    },
                    None => Claim::Kept(class),
                }),
                other => other,
            };
            let shown = shown.get(reference);
            let span = info_span!(
                "reconcile",
                controller = CONTROLLER,
                object.namespace = reference.namespace,
                object.name = reference.name,
                object.uid = config_map.metadata.uid
            );
            let said = self.report(config_map, verdict, claim.as_ref(), shown);
            all_well &= said.instrument(span).await;
            parts.push(Part::new(config_map, verdict, claim.as_ref(), shown));
        }
        all_well &= self.sum_up(&status_maps, &parts).await;
        self.context.metrics.turned(CONTROLLER, all_well);
        all_well
    }

    /// Says on the settings that a namespace in them lacks the binding that they need.
    fn tell_of_unread(&self, namespace: &str) {
        let own = &self.context.settings.namespace;
        let settings = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            name: Some(SETTINGS_CONFIG.to_owned()),
            namespace: Some(own.clone()),
            ..ObjectReference::default()
        };
        let text = format!(
            "key {CONFIG_NAMESPACES} names namespace {namespace}, where the controller may not read ConfigMaps, so none \
             there counts: kubectl create rolebinding flex-provisioner-configs -n {namespace} \
             --clusterrole=flex-provisioner-configs --serviceaccount={own}:flex-provisioner"
        );
        let note = Note::warning(reasons::BAD_CONFIG, "ReadConfigMaps", text);
        self.context.events.publish(&settings, note);
    }

    /// Says on the ConfigMap what has become of it, if it does not say so already.
    async fn report(
        &self,
        config_map: &ConfigMap,
        verdict: &Verdict,
        claim: Option<&Claim>,
        shown: Option<&Shown>,
    ) -> bool {
        let status = verdict.status(claim, shown);
        let said = |key| config_map.annotations().get(key);
        let same_but_discovery = said(annotations::STATUS)
            .is_some_and(|said| without_last_discovery(said) == without_last_discovery(&status));
        let last = shown.map(|shown| &shown.last);
        // What is said of the last discovery stays until the next one has ended.
        let stays = same_but_discovery && last == Some(&LastDiscovery::UnderWay);
        let news = said(annotations::STATUS) != Some(&status) && !stays;
        let mut change = serde_json::Map::new();
        if news {
            change.insert(annotations::STATUS.to_owned(), json!(status));
        }
        // A bad version leaves the record alone.
        if verdict.state == ConfigState::InForce && said(annotations::LAST_GOOD) != verdict.record.as_ref() {
            change.insert(annotations::LAST_GOOD.to_owned(), json!(verdict.record));
        }
        if change.is_empty() {
            return true;
        }
        let reference = ConfigRef::of(config_map);
        match self
            .patch(config_map, json!({"metadata": {"annotations": change}}))
            .await
        {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    config.namespace = reference.namespace,
                    config.name = reference.name,
                    "failed to annotate config map"
                );
                return false;
            }
        }
        if news {
            info!(
                config.namespace = reference.namespace,
                config.name = reference.name,
                status
            );
            // Of a discovery that failed, the controller of discoveries tells.
            let is_told = same_but_discovery && matches!(last, Some(LastDiscovery::Failed(_)));
            if !is_told {
                self.context
                    .events
                    .publish(&config_map.object_ref(&()), note(verdict, claim, shown, status));
            }
        }
        true
    }

    /// `None` if it was deleted or created again meanwhile: the watch brings what there is now.
    async fn patch(&self, config_map: &ConfigMap, mut patch: Value) -> Result<Option<ConfigMap>, CallError> {
        let ConfigRef { namespace, name } = ConfigRef::of(config_map);
        patch["metadata"]["uid"] = json!(config_map.metadata.uid);
        let config_maps: Objects<ConfigMap> = Objects::within(&self.context.client, &namespace);
        config_maps.patch(&name, &Patch::Merge(patch)).await.unless(CHANGED)
    }

    /// Writes into each ConfigMap of a status what there is to say of all its parts; false if that failed.
    async fn sum_up(&self, status_maps: &[ConfigMap], parts: &[Part<'_>]) -> bool {
        let mut all_well = true;
        let mut all = Vec::new();
        for status_map in status_maps {
            let conditions = summary::conditions(status_map, parts, Timestamp::now());
            if let Some(data) = summary::change(status_map, &conditions) {
                let reference = ConfigRef::of(status_map);
                match self.patch(status_map, json!({"metadata": {}, "data": data})).await {
                    Ok(Some(_)) => info!(
                        status.namespace = reference.namespace,
                        status.name = reference.name,
                        ?data
                    ),
                    Ok(None) => {}
                    Err(error) => {
                        warn!(
                            error = &error as &dyn std::error::Error,
                            status.namespace = reference.namespace,
                            status.name = reference.name,
                            "failed to write a status"
                        );
                        all_well = false;
                    }
                }
            }
            all.extend(conditions);
        }
        self.context.metrics.set_conditions(
            all.iter()
                .map(|condition| (condition.kind.as_str(), condition.status.as_str())),
        );
        all_well
    }

    /// Acts on the classes; what failed, by class.
    async fn act(&mut self, actions: Vec<ClassAction>) -> BTreeMap<String, CallError> {
        let client = self.context.client.clone();
        let mut failed = BTreeMap::new();
        let mut given_up = Vec::new();
        for action in actions {
            let (class, done) = match action {
                ClassAction::Create(class) => (class.name_any(), self.make(&class).await),
                ClassAction::Update(class) => (class.name_any(), classes::update(&client, &class).await),
                ClassAction::Replace { old, new } => {
                    let done = match classes::delete(&client, &old).await {
                        Ok(()) => self.make(&new).await,
                        Err(error) => Err(error),
                    };
                    (new.name_any(), done)
                }
                ClassAction::GiveUp(class) => {
                    given_up.push(*class);
                    continue;
                }
            };
            note_failure(&mut failed, class, done);
        }
        self.give_up(given_up, &mut failed).await;
        failed
    }

    async fn make(&mut self, class: &StorageClass) -> Result<(), CallError> {
        if let Some(made) = classes::create(&self.context.client, class).await? {
            self.made.push((Instant::now(), Arc::new(made)));
        }
        Ok(())
    }

    /// Deletes those of these classes that nothing uses.
    async fn give_up(&mut self, classes: Vec<StorageClass>, failed: &mut BTreeMap<String, CallError>) {
        self.given_up = classes.iter().map(ResourceExt::name_any).collect();
        self.uses = if classes.is_empty() {
            None
        } else {
            uses(&self.cache, &self.given_up)
        };
        // Not known yet.
        let Some(uses) = &self.uses else { return };
        for class in classes {
            let name = class.name_any();
            if uses.get(&name) == Some(&0) {
                note_failure(failed, name, classes::delete(&self.context.client, &class).await);
            } else {
                self.context.events.publish(&class.object_ref(&()), kept(&class));
            }
        }
    }
}

/// Why a class that is not wanted any more is still there.
fn kept(class: &StorageClass) -> Note {
    if class.annotations().contains_key(annotations::VANISHED) {
        Note::warning(
            reasons::CLASS_VANISHED,
            "GiveUp",
            "the storage no longer lists what this class is for; Mooring deletes the class when no claim and no volume \
             names it any more, and keeps it if the storage lists that again",
        )
    } else {
        Note::warning(
            reasons::CLASS_KEPT,
            "GiveUp",
            "its provisioner ConfigMap is gone, so it serves no new claim; it is deleted when the last claim and the \
             last volume that name it are gone",
        )
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code == 403,
        _ => false,
    }
}

#[cfg(test)]
impl ConfigLoop {
    /// Knows just these, as if they had been listed.
    pub(super) fn know(&mut self, config_maps: Vec<ConfigMap>, cache: Cache) {
        let each = config_maps.into_iter().map(Event::InitApply);
        for event in std::iter::once(Event::Init).chain(each).chain([Event::InitDone]) {
            self.take(("admin".to_owned(), Ok(event)));
        }
        self.cache = cache;
    }
}

fn note_failure(failed: &mut BTreeMap<String, CallError>, class: String, done: Result<(), CallError>) {
    if let Err(error) = done {
        warn!(
            error = &error as &dyn std::error::Error,
            "failed to keep a storage class as its ConfigMap says"
        );
        failed.insert(class, error);
    }
}

/// The Event that goes with a new status.
fn note(verdict: &Verdict, claim: Option<&Claim>, shown: Option<&Shown>, status: String) -> Note {
    match (verdict.state, claim) {
        (ConfigState::LastGood | ConfigState::Refused, _) => Note::warning(reasons::CONFIG_REFUSED, "Read", status),
        (ConfigState::InForce, Some(Claim::Taken { .. } | Claim::Foreign { .. } | Claim::Failed { .. })) => {
            Note::warning(reasons::CLASS_TAKEN, "Read", status)
        }
        (ConfigState::InForce, _) if shown.is_some_and(|shown| !shown.vanished.is_empty()) => {
            Note::warning(reasons::CLASS_VANISHED, "Discover", status)
        }
        (ConfigState::InForce, _) if !verdict.entry.problems.is_empty() => {
            Note::warning(reasons::CONFIG_WARNING, "Read", status)
        }
        (ConfigState::InForce, _) => Note::normal(reasons::CONFIG_IN_FORCE, "Read", status),
    }
}
