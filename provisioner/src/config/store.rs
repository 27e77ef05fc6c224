//! The provisioner ConfigMaps in force, for all controllers to read.

use kube::ResourceExt as _;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::storage::v1::StorageClass;
use mooring_contract::names::{self, labels, parameters};
use mooring_contract::operation::Operation;
use tokio::sync::watch;

use crate::config::problem::join;
use crate::config::{ConfigProblem, ConfigRef, ProvisionerConfig};

/// What is known of one ConfigMap.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    /// The last version that was good, if there was one: it is in force.
    pub good: Option<Arc<ProvisionerConfig>>,
    /// What is wrong with the version in the API; without errors if it is the one in force.
    pub problems: Vec<ConfigProblem>,
}

/// A class, as a user finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassRef {
    Storage(String),
    Snapshot(String),
    /// A `VolumeGroupSnapshotClass`.
    Group(String),
}

impl fmt::Display for ClassRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Storage(name) => write!(f, "storage class {name:?}"),
            Self::Snapshot(name) => write!(f, "VolumeSnapshotClass {name:?}"),
            Self::Group(name) => write!(f, "VolumeGroupSnapshotClass {name:?}"),
        }
    }
}

/// Where nothing else is said, a class is one of volumes.
impl From<String> for ClassRef {
    fn from(name: String) -> Self {
        Self::Storage(name)
    }
}

impl From<&str> for ClassRef {
    fn from(name: &str) -> Self {
        Self::Storage(name.to_owned())
    }
}

/// The cure where a namespace does not count here.
pub const ADD_NAMESPACE: &str = "add the namespace to the setting config-namespaces or, if another Mooring in this \
                                 cluster honours it, check that the other one is running";

/// Why a StorageClass has no ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoConfig {
    /// The class belongs to another provisioner.
    #[error("{class} is served by {provisioner:?}, not by Mooring")]
    NotOurs {
        /// The class that the claim, the volume or the snapshot is of.
        class: ClassRef,
        provisioner: String,
    },
    /// The controller has only just started.
    #[error("Mooring has not read the provisioner ConfigMaps yet: wait some seconds")]
    NotReadYet,
    /// One of the two parameters without the other.
    #[error(
        "{class} has only one of the parameters {} and {}: give both",
        parameters::CONFIG_NAMESPACE,
        parameters::CONFIG_NAME
    )]
    HalfNamed {
        /// The class that the claim, the volume or the snapshot is of.
        class: ClassRef,
    },
    /// The ConfigMap that the parameters name isn't there.
    #[error(
        "{class} is tied to ConfigMap {reference}, which does not exist or is not honoured: create it \
         with the label {}={} in one of the namespaces in the setting config-namespaces",
        labels::TYPE,
        labels::TYPE_PROVISIONER_CONFIG
    )]
    Missing {
        /// The class that the claim, the volume or the snapshot is of.
        class: ClassRef,
        reference: ConfigRef,
    },
    /// The ConfigMap is of a namespace that this Mooring does not honour; another may.
    #[error(
        "{class} is tied to ConfigMap {reference}, and this Mooring honours no ConfigMaps of that \
         namespace: {ADD_NAMESPACE}"
    )]
    Elsewhere {
        /// The class that the claim, the volume or the snapshot is of.
        class: ClassRef,
        reference: ConfigRef,
        /// There is one that does: it makes or has made volumes of the class.
        is_at_work: bool,
    },
    /// No ConfigMap's label names the class, of those that this Mooring honours.
    #[error(
        "{class} has no provisioner ConfigMap in the namespaces that this Mooring honours: label one \
         {}={label}, or name it in the class's parameters {} and {}",
        labels::STORAGE_CLASS,
        parameters::CONFIG_NAMESPACE,
        parameters::CONFIG_NAME
    )]
    Unclaimed {
        /// The class that the claim, the volume or the snapshot is of.
        class: ClassRef,
        /// What the label would have to say.
        label: String,
    },
    /// The ConfigMap is bad and there never was a good version of it.
    #[error("{class} is tied to ConfigMap {reference}, which has errors: {}", join(problems))]
    Refused {
        /// The class that the claim, the volume or the snapshot is of.
        class: ClassRef,
        reference: ConfigRef,
        problems: Vec<ConfigProblem>,
    },
}

impl NoConfig {
    /// Bounded name for metrics and Event reasons.
    pub fn category(&self) -> &'static str {
        match self {
            Self::NotOurs { .. } => "not-ours",
            Self::NotReadYet => "not-read-yet",
            Self::HalfNamed { .. } => "half-named-config",
            Self::Missing { .. } => "missing-config",
            Self::Elsewhere { .. } => "config-elsewhere",
            Self::Unclaimed { .. } => "unclaimed-class",
            Self::Refused { .. } => "refused-config",
        }
    }
}

/// The ConfigMaps in force. A clone is another handle on the same store.
#[derive(Debug, Clone, Default)]
pub struct ConfigStore {
    state: Arc<RwLock<State>>,
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    synced: bool,
    entries: BTreeMap<ConfigRef, Entry>,
}

impl ConfigStore {
    /// The version of a ConfigMap that is in force.
    pub fn get(&self, reference: &ConfigRef) -> Option<Arc<ProvisionerConfig>> {
        self.read(|state| state.entries.get(reference).and_then(|entry| entry.good.clone()))
    }

    /// All versions in force.
    pub fn all(&self) -> Vec<Arc<ProvisionerConfig>> {
        self.read(|state| state.entries.values().filter_map(|entry| entry.good.clone()).collect())
    }

    /// The ConfigMap in force for a class: by the class's parameters, else by its label `storage-class`, else by the
    /// label that ConfigMaps bear and the class's name. Never for another provisioner's class.
    pub fn for_class(&self, class: &StorageClass) -> Result<Arc<ProvisionerConfig>, NoConfig> {
        self.read(|state| state.for_class(class))
    }

    /// Whether some ConfigMap in force offers this operation.
    pub fn offers(&self, operation: Operation) -> bool {
        self.read(|state| {
            let mut good = state.entries.values().filter_map(|entry| entry.good.as_ref());
            good.any(|config| config.offers(operation))
        })
    }

    /// A receiver that is woken whenever what [`ConfigStore::get`] or [`ConfigStore::for_class`] answer may have
    /// changed.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Whether all ConfigMaps have been read once.
    pub fn is_synced(&self) -> bool {
        self.read(|state| state.synced)
    }

    /// Puts what is in force in place of what was, whole, and wakes the subscribers if anything changed.
    pub fn replace(&self, entries: BTreeMap<ConfigRef, Entry>) {
        let changed = {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            let changed = !state.synced || !same(&state.entries, &entries);
            *state = State { synced: true, entries };
            changed
        };
        if changed {
            self.version.send_modify(|version| *version += 1);
        }
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Which of those that name one class gets it: the older, then (two made within one second) the lower uid.
pub fn claimant<'a>(
    configs: impl IntoIterator<Item = &'a Arc<ProvisionerConfig>>,
    class: &str,
) -> Option<&'a Arc<ProvisionerConfig>> {
    configs
        .into_iter()
        .filter(|config| config.class_name.as_deref() == Some(class))
        .min_by_key(|config| (config.created, &config.uid))
}

fn same(a: &BTreeMap<ConfigRef, Entry>, b: &BTreeMap<ConfigRef, Entry>) -> bool {
    let meaning = |entry: &Entry| entry.good.as_ref().map(|config| config.fingerprint.clone());
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|((a_ref, a), (b_ref, b))| a_ref == b_ref && meaning(a) == meaning(b) && a.problems == b.problems)
}

impl State {
    fn for_class(&self, class: &StorageClass) -> Result<Arc<ProvisionerConfig>, NoConfig> {
        let name = class.metadata.name.clone().unwrap_or_default();
        if !names::is_provisioner(&class.provisioner) {
            return Err(NoConfig::NotOurs {
                class: name.into(),
                provisioner: class.provisioner.clone(),
            });
        }
        if !self.synced {
            return Err(NoConfig::NotReadYet);
        }
        let parameter = |key| class.parameters.as_ref().and_then(|all| all.get(key)).cloned();
        match (
            parameter(parameters::CONFIG_NAMESPACE),
            parameter(parameters::CONFIG_NAME),
        ) {
            (Some(namespace), Some(config)) => self.by_reference(name.into(), ConfigRef::new(namespace, config)),
            (None, None) => {
                let label = class.labels().get(labels::STORAGE_CLASS).unwrap_or(&name).clone();
                claimant(self.entries.values().filter_map(|entry| entry.good.as_ref()), &label)
                    .cloned()
                    .ok_or(NoConfig::Unclaimed {
                        class: name.into(),
                        label,
                    })
            }
            _ => Err(NoConfig::HalfNamed { class: name.into() }),
        }
    }

    fn by_reference(&self, class: ClassRef, reference: ConfigRef) -> Result<Arc<ProvisionerConfig>, NoConfig> {
        match self.entries.get(&reference) {
            None => Err(NoConfig::Missing { class, reference }),
            Some(Entry { good: Some(config), .. }) => Ok(config.clone()),
            Some(Entry { good: None, problems }) => Err(NoConfig::Refused {
                class,
                reference,
                problems: problems.clone(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::api::storage::v1::StorageClass;

    use super::{ConfigStore, Entry};
    use crate::config::trust::Trust;
    use crate::config::{ConfigProblem, ConfigRef, ProblemKind, ProvisionerConfig};
    use crate::yaml;

    fn config(name: &str, label: &str, created: &str) -> (ConfigRef, Entry) {
        let config_map: ConfigMap = yaml::from_str(&format!(
            "metadata: {{namespace: mooring, name: {name}, uid: uid-{name}, creationTimestamp: '{created}', labels: \
             {{storage-class: {label}}}}}\ndata: {{plugin-name: mooring.dev/flex-provisioner, image: mooring.dev/x}}"
        ))
        .unwrap();
        let good = ProvisionerConfig::parse(&config_map, &Trust::offline(None, None)).unwrap();
        let entry = Entry {
            good: Some(Arc::new(good)),
            problems: Vec::new(),
        };
        (ConfigRef::new("mooring", name), entry)
    }

    fn class(text: &str) -> StorageClass {
        yaml::from_str(text).unwrap()
    }

    #[test]
    fn classes_find_their_config_map_by_parameters_then_label_then_name() {
        let store = ConfigStore::default();
        let mut bad = config("bad", "bad", "2026-01-01T00:00:00Z");
        bad.1.good = None;
        bad.1.problems = vec![ConfigProblem::error(ProblemKind::MissingKey, "image", "is missing")];
        store.replace(BTreeMap::from([
            config("young", "silver", "2026-01-02T00:00:00Z"),
            config("old", "silver", "2026-01-01T00:00:00Z"),
            bad,
        ]));
        let ours = "provisioner: mooring.dev/flex-provisioner";
        for (text, expected) in [
            ("metadata: {name: silver}", Ok("old")),
            ("metadata: {name: copy, labels: {storage-class: silver}}", Ok("old")),
            (
                "metadata: {name: copy}\nparameters: {mooring.dev/config-namespace: mooring, mooring.dev/config-name: \
                 young}",
                Ok("young"),
            ),
            (
                "metadata: {name: silver}\nparameters: {mooring.dev/config-namespace: mooring, \
                 mooring.dev/config-name: gone}",
                Err("missing-config"),
            ),
            (
                "metadata: {name: x}\nparameters: {mooring.dev/config-namespace: mooring, mooring.dev/config-name: \
                 bad}",
                Err("refused-config"),
            ),
            (
                "metadata: {name: silver}\nparameters: {mooring.dev/config-name: old}",
                Err("half-named-config"),
            ),
            ("metadata: {name: gold}", Err("unclaimed-class")),
        ] {
            let found = store.for_class(&class(&format!("{ours}\n{text}")));
            let found = found
                .as_ref()
                .map(|c| c.reference.name.as_str())
                .map_err(super::NoConfig::category);
            assert_eq!(found, expected, "{text}");
        }
        let by_csi = class("provisioner: vcs.mooring.dev\nmetadata: {name: silver}");
        assert_eq!(store.for_class(&by_csi).unwrap().reference.name, "old");
        let other = class("provisioner: example.com/x\nmetadata: {name: silver}");
        assert_eq!(store.for_class(&other).unwrap_err().category(), "not-ours");
    }

    #[test]
    fn subscribers_are_woken_by_changes_only() {
        let store = ConfigStore::default();
        let mut woken = store.subscribe();
        let ours = class("provisioner: mooring.dev/flex-provisioner\nmetadata: {name: silver}");
        assert_eq!(store.for_class(&ours).unwrap_err().category(), "not-read-yet");
        store.replace(BTreeMap::new());
        assert!(
            woken.has_changed().unwrap(),
            "the first read is a change even if there is nothing"
        );
        woken.mark_unchanged();
        let entries = BTreeMap::from([config("a", "silver", "2026-01-01T00:00:00Z")]);
        store.replace(entries.clone());
        assert!(woken.has_changed().unwrap());
        woken.mark_unchanged();
        store.replace(entries);
        assert!(!woken.has_changed().unwrap());
    }
}
