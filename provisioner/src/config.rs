//! What a provisioner ConfigMap means: [`ProvisionerConfig::parse`] reads one, whole, and finds all that is wrong with
//! it at once.
//!
//! Keys that Mooring knows steer it ([`keys`]); every other key is a property that the image gets unread. [`trust`] is
//! what the administrator lets a ConfigMap ask for. [`store`] holds the ConfigMaps in force: there a claim's controller
//! finds the one of its class. [`storage_class`] plans the StorageClasses that ConfigMaps ask for, [`discovered`] those
//! for what images list.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Toleration};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::named;
use mooring_contract::operation::Operation;
use mooring_contract::volume::Volume;
use secrecy::SecretString;

use crate::config::trust::Trust;
use crate::config::values::ValueError;

pub mod discovered;
pub mod keys;
pub mod near_miss;
pub mod parse;
pub mod problem;
pub mod properties;
pub mod storage_class;
pub mod store;
pub mod trust;
pub mod values;

pub use problem::{ConfigProblem, ProblemKind, Severity};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConfigRef {
    /// `metadata.namespace`: the runs for the ConfigMap are in this namespace too.
    pub namespace: String,
    pub name: String,
}

impl ConfigRef {
    /// A reference to the ConfigMap of this namespace and name.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The reference of a ConfigMap as the API gives it.
    pub fn of(config_map: &ConfigMap) -> Self {
        Self::new(
            config_map.metadata.namespace.clone().unwrap_or_default(),
            config_map.metadata.name.clone().unwrap_or_default(),
        )
    }
}

impl std::fmt::Display for ConfigRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Not of the form `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not name a ConfigMap: write namespace/name")]
pub struct BadConfigRef(String);

impl std::str::FromStr for ConfigRef {
    type Err = BadConfigRef;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self::new(namespace, name))
            }
            _ => Err(BadConfigRef(s.to_owned())),
        }
    }
}

named! {
    /// The kind of PV source that Mooring makes from the options that the image prints (`volume-source`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum VolumeSourceKind {
        /// `flexVolume` with Mooring's driver.
        FlexVolume = "flexVolume",
        /// `csi` with Mooring's driver.
        Csi = "csi",
    }
}

impl VolumeSourceKind {
    /// Reads what [`Self::as_str`] says, in any case.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        values::choice(text, Self::ALL, Self::as_str)
    }
}

named! {
    /// When claims of a class are bound.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum BindingMode {
        /// At once.
        Immediate = "Immediate",
        /// When a Pod that uses the claim is scheduled.
        WaitForFirstConsumer = "WaitForFirstConsumer",
    }
}

named! {
    /// What happens to a volume whose claim is deleted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ReclaimPolicy {
        Delete = "Delete",
        Retain = "Retain",
    }
}

/// The settings of the StorageClass that is made for a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSettings {
    /// `reclaim-policy`; Delete unless said otherwise.
    pub reclaim_policy: ReclaimPolicy,
    /// `volume-binding-mode`; Immediate unless said otherwise.
    pub binding_mode: BindingMode,
    /// `allow-volume-expansion`; false unless said otherwise.
    pub allow_expansion: bool,
    /// `mount-options`, in their order.
    pub mount_options: Vec<String>,
}

/// A ConfigMap that has been read and checked.
#[derive(Debug, Clone)]
pub struct ProvisionerConfig {
    pub reference: ConfigRef,
    pub uid: String,
    /// Resource version of the ConfigMap that this was read from. Mooring's own annotations change it too: to see
    /// whether the meaning has changed, compare [`ProvisionerConfig::fingerprint`].
    pub resource_version: String,
    /// Hash of all that was read: labels and data. The same for as long as the ConfigMap means the same.
    pub fingerprint: String,
    /// When the ConfigMap was made: of two that claim one class, the older wins.
    pub created: Option<Timestamp>,
    /// The StorageClass that it serves (label `storage-class`), if it names one.
    pub class_name: Option<String>,
    /// `provisioner` of the classes that are made for it, by its `plugin-name`.
    pub provisioner: &'static str,
    /// The provisioning image, by its name in this cluster.
    pub image: String,
    /// Secrets of the ConfigMap's namespace with the logins of registries.
    pub pull_secrets: Vec<String>,
    /// `service-account-name`: of the ConfigMap's own namespace.
    pub service_account: Option<String>,
    /// `service-token`, where the ConfigMap brings its own.
    pub service_token: Option<SecretString>,
    /// `node-selector` of the provisioning Pod.
    pub node_selector: BTreeMap<String, String>,
    /// `tolerations` of the provisioning Pod.
    pub tolerations: Vec<Toleration>,
    /// `run-as-non-root`: the kubelet starts no container of the image as root.
    pub run_as_non_root: bool,
    /// `secret-name`: a Secret of the ConfigMap's own namespace, whose keys become properties.
    pub secret_name: Option<String>,
    /// How long one run of the image may take.
    pub timeout: Duration,
    /// How many runs may go on at once; no limit of its own if not said.
    pub max_parallel: Option<NonZeroUsize>,
    /// How many Pods of the image may stay, and carry out one run after another, if the ConfigMap says: see
    /// [`Self::workers`].
    pub workers: Option<usize>,
    /// `workers-idle`: how long such a Pod stays without a run.
    pub workers_idle: Duration,
    /// What the image can do.
    pub operations: BTreeSet<Operation>,
    /// Whether the image lets several nodes have a volume at once, if the claim asks for that.
    pub multi_attach: bool,
    /// `discover-interval`: how long after a discovery the next one is due.
    pub discover_interval: Duration,
    /// Set where Mooring makes the PV from what the image prints.
    pub volume_source: Option<VolumeSourceKind>,
    /// The volume that the Pod gets at [`mooring_contract::names::paths::BACKEND`].
    pub backend_volume: Option<Volume>,
    /// The volume that a run which makes, reads or deletes a backup gets at
    /// [`mooring_contract::names::paths::BACKUP`]. It lives on no node.
    pub backup_volume: Option<Volume>,
    /// `client-image`: which client image mounts the volumes.
    pub client_image: Option<String>,
    /// `bytes-per-inode`, where the class does not say it.
    pub bytes_per_inode: Option<String>,
    /// Settings of the generated StorageClass.
    pub class: ClassSettings,
    /// Every key that Mooring does not know: properties of the image.
    pub pass_through: BTreeMap<String, String>,
    /// What was found odd but does not keep the ConfigMap from being in force.
    pub warnings: Vec<ConfigProblem>,
}

/// An operation that a ConfigMap does not list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ConfigMap {0} does not list {1:?} in its key \"operations\": add it if the image can do that")]
pub struct NotOffered(ConfigRef, &'static str);

impl ProvisionerConfig {
    pub fn offers(&self, operation: Operation) -> bool {
        self.operations.contains(&operation)
    }

    pub fn check_offered(&self, operation: Operation) -> Result<(), NotOffered> {
        let refused = || NotOffered(self.reference.clone(), operation.as_str());
        self.offers(operation).then_some(()).ok_or_else(refused)
    }

    /// Reads a ConfigMap. All errors are found at once, each with its cure, and the warnings come with them.
    pub fn parse(config_map: &ConfigMap, trust: &Trust) -> Result<Self, Vec<ConfigProblem>> {
        parse::parse(config_map, trust)
    }

    /// How many Pods of the image may stay, on each node where its volumes live on their nodes. `is_capable` says whether the image has stated that its containers can be
    /// workers: where the ConfigMap does not say how many there are, that decides.
    pub fn workers(&self, is_capable: bool) -> usize {
        let default = if is_capable { parse::DEFAULT_WORKERS } else { 0 };
        self.workers.unwrap_or(default)
    }

    /// Whether the Pod works on its own node's pool (`backend-volume: client=pool`): its volumes then live on that
    /// node.
    pub fn is_node_local(&self) -> bool {
        self.backend_volume
            .as_ref()
            .is_some_and(|volume| volume.client.as_str() == mooring_contract::volume::ClientName::POOL)
    }
}
