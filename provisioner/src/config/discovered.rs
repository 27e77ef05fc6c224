//! The StorageClasses of what images have discovered: what each should be, what it is called, and what to do about
//! those that are there.
//!
//! Nothing is kept but the classes themselves: each says what the storage calls it, and since when the storage does not
//! list it any more. An answer of the image ([`Discoveries`]) is compared with them. Without one, nothing is made,
//! changed or marked.

pub mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use k8s_openapi::api::core::v1::{TopologySelectorLabelRequirement, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::discovered::{Discovered, DiscoveredClass};
use mooring_contract::names::annotations;
use mooring_contract::names::labels::HOSTNAME;
use mooring_contract::operation::Operation;
use tokio::sync::watch;

use super::storage_class::{ClassAction, annotation, change, config_of, desired, is_discovered, is_own};
use super::store::Entry;
use super::{ConfigRef, ProvisionerConfig, VolumeSourceKind};
use crate::time::whole_seconds;

/// A capacity is written again when it has changed by more than this share of it, so that storage in use does not cost
/// a write each time.
const CAPACITY_STEP: u64 = 20;

/// What this process knows of the discovery of each ConfigMap: its last good answer, and how the last run ended. A clone
/// is another handle on the same.
#[derive(Debug, Clone, Default)]
pub struct Discoveries {
    known: Arc<RwLock<Known>>,
    version: watch::Sender<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Known {
    answers: Listings,
    endings: Endings,
}

pub type Listings = BTreeMap<ConfigRef, Listing>;

/// What an image has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub config_uid: String,
    /// What the storage can serve.
    pub discovered: Arc<Discovered>,
}

pub type Endings = BTreeMap<ConfigRef, Ending>;

/// How the last discovery of a ConfigMap ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// The uid of the ConfigMap.
    pub config_uid: String,
    /// Hash of the version of it that was in force.
    pub fingerprint: String,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// What came of asking an image what its storage can serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LastDiscovery {
    /// No run for this version of the ConfigMap has ended, as far as this process knows.
    #[default]
    UnderWay,
    Listed,
    Failed(String),
}

impl Discoveries {
    /// The last good ones.
    pub fn answers(&self) -> Listings {
        self.read().answers.clone()
    }

    /// What came of the last discovery for this version of a ConfigMap.
    pub fn last(&self, config: &ProvisionerConfig) -> LastDiscovery {
        let known = self.read();
        let ending = known.endings.get(&config.reference);
        let ending =
            ending.filter(|ending| ending.config_uid == config.uid && ending.fingerprint == config.fingerprint);
        match ending {
            None => LastDiscovery::UnderWay,
            Some(Ending { failure: None, .. }) => LastDiscovery::Listed,
            Some(Ending { failure: Some(why), .. }) => LastDiscovery::Failed(why.clone()),
        }
    }

    /// Takes what was read just now. Of these ConfigMaps (with their uids) one that has no answer or ending now keeps
    /// the one that it had; the others are forgotten.
    pub fn update(&self, configs: &BTreeMap<ConfigRef, String>, answers: Listings, endings: Endings) {
        let changed = {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            let mut next = known.clone();
            next.answers.extend(answers);
            next.endings.extend(endings);
            next.answers
                .retain(|reference, answer| configs.get(reference) == Some(&answer.config_uid));
            next.endings
                .retain(|reference, ending| configs.get(reference) == Some(&ending.config_uid));
            let changed = *known != next;
            *known = next;
            changed
        };
        if changed {
            self.version.send_modify(|version| *version += 1);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A receiver that is woken when there is another answer or ending.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

/// What there is to say about the classes that a ConfigMap has by discovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// How many of them the storage serves.
    pub served: usize,
    /// Those that it does not list any more, and that are there for as long as they are used.
    pub vanished: BTreeSet<String>,
    /// What there is no class for, since its name and the one that would be taken instead belong to others.
    pub nameless: BTreeSet<String>,
    /// [`plan`] leaves it at its default.
    pub last: LastDiscovery,
}

/// What there is to do about all classes of what was discovered.
#[derive(Debug, Default, PartialEq)]
pub struct DiscoveredPlan {
    pub actions: Vec<ClassAction>,
    /// By ConfigMap that promises to discover.
    pub shown: BTreeMap<ConfigRef, Shown>,
    /// What is left for new volumes in all of them that say so.
    pub capacity: u64,
}

/// Decides about all classes of what was discovered.
///
/// `read` are the namespaces whose ConfigMaps are known in full: a class is only given up if its ConfigMap's is one of
/// them.
pub fn plan<'a>(
    entries: &BTreeMap<ConfigRef, Entry>,
    answers: &Listings,
    classes: impl IntoIterator<Item = &'a StorageClass>,
    read: &BTreeSet<String>,
    now: Timestamp,
) -> DiscoveredPlan {
    let classes: Vec<&StorageClass> = classes.into_iter().collect();
    let mut good: Vec<&Arc<ProvisionerConfig>> = entries.values().filter_map(|entry| entry.good.as_ref()).collect();
    // If two want one name, the older gets it, as with a class that a label names.
    good.sort_by_key(|config| (config.created, &config.uid));
    let discovering: Vec<&ProvisionerConfig> = good
        .iter()
        .map(|config| -> &ProvisionerConfig { config })
        .filter(|config| config.offers(Operation::Discover))
        .collect();
    let ours = |class: &StorageClass| is_own(class) && is_discovered(class);
    let mut own: BTreeMap<ConfigRef, Vec<&StorageClass>> = BTreeMap::new();
    for class in classes.iter().filter(|class| ours(class)) {
        if let Some(reference) = config_of(class) {
            own.entry(reference).or_default().push(class);
        }
    }
    // Names that are there, and those that labels of ConfigMaps ask for.
    let mut taken: BTreeSet<String> = classes.iter().filter_map(|class| class.metadata.name.clone()).collect();
    taken.extend(good.iter().filter_map(|config| config.class_name.clone()));
    let others_default = classes
        .iter()
        .filter(|class| !ours(class))
        .any(|class| annotation(class, annotations::IS_DEFAULT_CLASS) == Some("true"));

    let mut plan = DiscoveredPlan::default();
    let mut default_taken = others_default;
    for config in discovering.iter().copied() {
        let there = own.remove(&config.reference).unwrap_or_default();
        let answer = answers.get(&config.reference);
        let answer = answer.filter(|answer| answer.config_uid == config.uid);
        let mut turn = Turn {
            config,
            there: &there,
            taken: &mut taken,
            default_taken: &mut default_taken,
            now,
            plan: &mut plan,
        };
        let shown = match answer {
            Some(answer) => turn.compare(&answer.discovered),
            None => turn.leave(),
        };
        plan.shown.insert(config.reference.clone(), shown);
    }
    // Those whose ConfigMap is gone, or promises nothing any more. One that only has errors still counts.
    for (reference, there) in own {
        let gone = match entries.get(&reference) {
            None => true,
            Some(entry) => entry.good.is_some(),
        };
        if gone && read.contains(&reference.namespace) {
            plan.actions.extend(there.into_iter().map(give_up));
        }
    }
    plan
}

fn give_up(class: &StorageClass) -> ClassAction {
    ClassAction::GiveUp(Box::new(class.clone()))
}

/// One ConfigMap's turn.
struct Turn<'a, 'p> {
    config: &'a ProvisionerConfig,
    /// Its classes.
    there: &'a [&'a StorageClass],
    taken: &'p mut BTreeSet<String>,
    default_taken: &'p mut bool,
    now: Timestamp,
    plan: &'p mut DiscoveredPlan,
}

impl Turn<'_, '_> {
    /// Nothing is known but what the classes say.
    fn leave(&mut self) -> Shown {
        let mut shown = Shown::default();
        for class in self.there {
            *self.default_taken |= annotation(class, annotations::DEFAULT_BY_DISCOVERY) == Some("true");
            if annotation(class, annotations::VANISHED).is_some() {
                shown.vanished.insert(name_of(class));
                self.plan.actions.push(give_up(class));
            } else {
                shown.served += 1;
            }
        }
        shown
    }

    fn compare(&mut self, discovered: &Discovered) -> Shown {
        let mut shown = Shown::default();
        let mut left: Vec<&StorageClass> = self.there.to_vec();
        for thing in &discovered.classes {
            self.plan.capacity = self.plan.capacity.saturating_add(thing.capacity.unwrap_or(0));
            let at = left
                .iter()
                .position(|class| annotation(class, annotations::DISCOVERED) == Some(thing.name.as_str()));
            let is_default = thing.default == Some(true) && !*self.default_taken;
            *self.default_taken |= is_default;
            let Some(at) = at else {
                let prefix = prefix(self.config);
                let name = names::choose(prefix, &thing.name, &self.config.reference, |name| {
                    self.taken.contains(name)
                });
                let Some(name) = name else {
                    shown.nameless.insert(thing.name.clone());
                    continue;
                };
                self.taken.insert(name.clone());
                let new = class_of(self.config, &name, thing, is_default, None);
                self.plan.actions.push(ClassAction::Create(Box::new(new)));
                shown.served += 1;
                continue;
            };
            let there = left.remove(at);
            let new = class_of(self.config, &name_of(there), thing, is_default, Some(there));
            self.plan.actions.extend(change(there, new));
            shown.served += 1;
        }
        for class in left {
            shown.vanished.insert(name_of(class));
            if annotation(class, annotations::VANISHED).is_none() {
                let marked = vanished(class, self.now);
                self.plan.actions.push(ClassAction::Update(Box::new(marked)));
            } else {
                self.plan.actions.push(give_up(class));
            }
        }
        shown
    }
}

fn name_of(class: &StorageClass) -> String {
    class.metadata.name.clone().unwrap_or_default()
}

/// What the names of a ConfigMap's classes begin with: the name of the class that its label names, else its own.
pub fn prefix(config: &ProvisionerConfig) -> &str {
    config.class_name.as_deref().unwrap_or(&config.reference.name)
}

/// A class that the storage does not list any more. It is no default from now on, since what it stands for may be gone.
fn vanished(class: &StorageClass, now: Timestamp) -> StorageClass {
    let mut class = class.clone();
    let notes = class.metadata.annotations.get_or_insert_default();
    notes.insert(annotations::VANISHED.to_owned(), whole_seconds(now).to_string());
    notes.remove(annotations::CAPACITY);
    if notes.remove(annotations::DEFAULT_BY_DISCOVERY).is_some() {
        notes.remove(annotations::IS_DEFAULT_CLASS);
    }
    class
}

/// The class of something that the storage can serve.
fn class_of(
    config: &ProvisionerConfig,
    name: &str,
    thing: &DiscoveredClass,
    is_default: bool,
    there: Option<&StorageClass>,
) -> StorageClass {
    let mut class = desired(config, name, there);
    let own = class.parameters.take().unwrap_or_default();
    let mut all = thing.parameters.clone();
    all.extend(own);
    class.parameters = Some(all);
    let can_grow = config.offers(Operation::Expand);
    class.allow_volume_expansion = Some(can_grow && thing.expansion.unwrap_or(config.class.allow_expansion));
    if let Some(options) = &thing.mount_options {
        class.mount_options = Some(options.clone()).filter(|options| !options.is_empty());
    }
    class.allowed_topologies = Some(topologies(thing)).filter(|terms| !terms.is_empty());

    let has_snapshots = thing.snapshots == Some(true)
        && config.offers(Operation::Snapshot)
        && config.volume_source == Some(VolumeSourceKind::Csi);
    let notes = class.metadata.annotations.get_or_insert_default();
    notes.remove(annotations::VANISHED);
    notes.insert(annotations::DISCOVERED.to_owned(), thing.name.clone());
    set(notes, annotations::SNAPSHOTS, has_snapshots.then(|| "true".to_owned()));
    let written = notes.get(annotations::CAPACITY).and_then(|text| text.parse().ok());
    let capacity = thing.capacity.map(|now| match written {
        Some(written) if is_about(written, now) => written,
        _ => now,
    });
    set(
        notes,
        annotations::CAPACITY,
        capacity.map(|bytes: u64| bytes.to_string()),
    );
    // Only a change of what was discovered touches the mark: what an administrator does to it stays.
    if notes.contains_key(annotations::DEFAULT_BY_DISCOVERY) != is_default {
        let mark = is_default.then(|| "true".to_owned());
        set(notes, annotations::IS_DEFAULT_CLASS, mark.clone());
        set(notes, annotations::DEFAULT_BY_DISCOVERY, mark);
    }
    class
}

fn set(notes: &mut BTreeMap<String, String>, key: &str, value: Option<String>) {
    match value {
        Some(value) => notes.insert(key.to_owned(), value),
        None => notes.remove(key),
    };
}

/// Whether a capacity is near enough to the one that was written down.
fn is_about(written: u64, now: u64) -> bool {
    (written == 0) == (now == 0) && written.abs_diff(now) <= written / CAPACITY_STEP
}

/// Where volumes can be reached from, as a StorageClass says it: any of these terms, of each all labels.
fn topologies(thing: &DiscoveredClass) -> Vec<TopologySelectorTerm> {
    let requirement = |(key, values): (&String, &Vec<String>)| TopologySelectorLabelRequirement {
        key: key.clone(),
        values: values.clone(),
    };
    let here = (!thing.nodes.is_empty()).then(|| requirement((&HOSTNAME.to_owned(), &thing.nodes)));
    let term = |labels: Vec<TopologySelectorLabelRequirement>| TopologySelectorTerm {
        match_label_expressions: Some(labels.into_iter().chain(here.clone()).collect()),
    };
    if thing.topologies.is_empty() {
        return here.iter().map(|_| term(Vec::new())).collect();
    }
    let terms = thing.topologies.iter();
    terms
        .map(|labels| term(labels.iter().map(requirement).collect()))
        .collect()
}

#[cfg(test)]
mod tests;
