//! [`super::ProvisionerConfig::parse`]: one pass that finds every problem.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use mooring_contract::names;
use mooring_contract::names::{annotations, labels, parameters};
use mooring_contract::operation::Operation;
use mooring_contract::property;
use mooring_contract::volume::{
    CheckError, ClientName, NodeAccess, Speaker, Volume, VolumeError, check_options, split_list,
};
use secrecy::SecretString;

use super::near_miss::{asks_for_fs_type, near_miss};
use super::problem::{ConfigProblem, ProblemKind, Severity};
use super::{
    BindingMode, ClassSettings, ConfigRef, ProvisionerConfig, ReclaimPolicy, VolumeSourceKind, keys, properties, values,
};
use crate::config::trust::Trust;
use crate::text::digest;

/// How long one run may take when the ConfigMap does not say.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(10);

/// How long after a discovery the next one is due when the ConfigMap does not say.
pub const DEFAULT_DISCOVER_INTERVAL: Duration = Duration::from_mins(10);

/// How many workers there are at most when the ConfigMap does not say, and the image has stated that it can be one.
pub const DEFAULT_WORKERS: usize = 2;

/// How long a worker stays without a run when the ConfigMap does not say.
pub const DEFAULT_WORKERS_IDLE: Duration = Duration::from_mins(10);

/// What an image can do when the ConfigMap does not say.
const DEFAULT_OPERATIONS: [Operation; 2] = [Operation::Provision, Operation::Delete];

/// Longest data of a ConfigMap in bytes, as JSON. The last good version of it is kept in an annotation, kubectl may
/// keep another copy, and all annotations of an object have 256 KiB together: a longer one could not be kept in force
/// past a bad edit and a restart.
pub const MAX_DATA: usize = 120 * 1024;

/// Why `backend-volume` or `backup-volume` is no volume for a run.
#[derive(Debug, thiserror::Error)]
enum RunVolumeError {
    /// It can't be read.
    #[error(transparent)]
    Options(#[from] VolumeError),
    /// A ConfigMap may not ask for it.
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error("client={0} is on a node's own disk, and is lost with it: name storage that every node reaches")]
    OnNode(String),
    #[error("client=local is the volume of a claim: give the image the node's whole pool by client=pool")]
    OfAClaim,
}

/// Why `mount-options` can't be a StorageClass's.
#[derive(Debug, thiserror::Error)]
enum MountOptionsError {
    /// They are not separated by commas alone.
    #[error("{0:?} has a blank in it: separate options by commas alone")]
    Blank(String),
    /// One of them reaches for the node.
    #[error(transparent)]
    Node(#[from] NodeAccess),
}

pub fn parse(config_map: &ConfigMap, trust: &Trust) -> Result<ProvisionerConfig, Vec<ConfigProblem>> {
    let empty = BTreeMap::new();
    let data = config_map.data.as_ref().unwrap_or(&empty);
    let mut reader = Reader {
        data,
        problems: Vec::new(),
    };
    let reference = ConfigRef::of(config_map);

    reader.whole(config_map, trust);
    let class_name = reader.class_name(config_map);
    let plugin_name = reader.plugin_name();
    let image = reader.image(trust);
    let service_account = reader.service_account(trust, &reference.namespace);
    let service_token = reader
        .filled(keys::SERVICE_TOKEN)
        .map(|token| SecretString::from(token.to_owned()));
    let node_selector = reader.read(keys::NODE_SELECTOR, values::node_selector);
    let tolerations = reader.read(keys::TOLERATIONS, values::tolerations);
    let run_as_non_root = reader.read(keys::RUN_AS_NON_ROOT, values::boolean).unwrap_or(false);
    let secret_name = reader.read(keys::SECRET_NAME, values::object_name);
    let timeout = reader.read(keys::TIMEOUT, values::timeout);
    let max_parallel: Option<NonZeroUsize> = reader.read(keys::MAX_PARALLEL, values::count);
    let workers = reader.read(keys::WORKERS, values::workers);
    let workers_idle = reader.read(keys::WORKERS_IDLE, values::interval);
    let operations = reader.operations();
    let multi_attach = reader.read(keys::MULTI_ATTACH, values::boolean).unwrap_or(false);
    let discover_interval = reader.read(keys::DISCOVER_INTERVAL, values::interval);
    let volume_source = reader.volume_source();
    let provisioner = reader.provisioner(plugin_name, volume_source);
    let backend_volume = reader.read(keys::BACKEND_VOLUME, run_volume);
    let backup_volume = reader.read(keys::BACKUP_VOLUME, |text| {
        let volume = run_volume(text)?;
        match volume.client.as_str() {
            client @ ClientName::POOL => Err(RunVolumeError::OnNode(client.to_owned())),
            _ => Ok(volume),
        }
    });
    let client_image = reader.read(keys::CLIENT_IMAGE, |text| {
        // Only its form: the mounters have their own list of allowed client images.
        text.parse::<crate::config::trust::ImageRef>().map(|_| text.to_owned())
    });
    let bytes_per_inode = reader.read(keys::BYTES_PER_INODE, values::bytes_per_inode);
    let class = reader.class_settings();
    let pass_through = reader.pass_through(config_map);
    reader.contradictions(&class, &operations, backend_volume.as_ref(), class_name.as_deref());
    reader.attachments(&operations, volume_source);
    let workers = reader.workers(workers, volume_source);

    let mut problems = reader.problems;
    problems.sort_by_key(|problem| problem.severity);
    match image {
        Some(image) if problems.iter().all(|problem| problem.severity == Severity::Warning) => Ok(ProvisionerConfig {
            reference,
            uid: config_map.metadata.uid.clone().unwrap_or_default(),
            resource_version: config_map.metadata.resource_version.clone().unwrap_or_default(),
            fingerprint: fingerprint(config_map, &image, trust.pull_secrets()),
            created: config_map.metadata.creation_timestamp.as_ref().map(|time| time.0),
            class_name,
            provisioner,
            image,
            pull_secrets: trust.pull_secrets().to_vec(),
            service_account,
            service_token,
            node_selector: node_selector.unwrap_or_default(),
            tolerations: tolerations.unwrap_or_default(),
            run_as_non_root,
            secret_name,
            timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
            max_parallel,
            workers,
            workers_idle: workers_idle.unwrap_or(DEFAULT_WORKERS_IDLE),
            operations,
            multi_attach,
            discover_interval: discover_interval.unwrap_or(DEFAULT_DISCOVER_INTERVAL),
            volume_source,
            backend_volume,
            backup_volume,
            client_image,
            bytes_per_inode,
            class,
            pass_through,
            warnings: problems,
        }),
        _ => Err(problems),
    }
}

/// A volume that runs of the image get.
fn run_volume(line: &str) -> Result<Volume, RunVolumeError> {
    let volume = Volume::from_line(line)?;
    volume.check(Speaker::Image, &[])?;
    if volume.client.as_str() == ClientName::LOCAL {
        return Err(RunVolumeError::OfAClaim);
    }
    Ok(volume)
}

/// Hash of what a ConfigMap means: its data, its labels, the annotation that [`parse`] reads, and what settings make of
/// its image.
fn fingerprint(config_map: &ConfigMap, image: &str, pull_secrets: &[String]) -> String {
    let read = (
        image,
        pull_secrets,
        &config_map.metadata.uid,
        config_map.labels().get(labels::STORAGE_CLASS),
        config_map.annotations().get(annotations::PASS_THROUGH),
        &config_map.data,
        config_map
            .binary_data
            .iter()
            .flat_map(BTreeMap::keys)
            .collect::<Vec<_>>(),
    );
    digest(serde_json::to_vec(&read).unwrap_or_default(), 16)
}

struct Reader<'a> {
    data: &'a BTreeMap<String, String>,
    problems: Vec<ConfigProblem>,
}

impl<'a> Reader<'a> {
    /// Problems of a ConfigMap as a whole.
    fn whole(&mut self, config_map: &ConfigMap, trust: &Trust) {
        let namespace = config_map.metadata.namespace.as_deref().unwrap_or_default();
        if let Err(error) = trust.check_namespace(namespace) {
            self.error(ProblemKind::Untrusted, "metadata.namespace", error.to_string());
        }
        if let Some(key) = config_map.binary_data.iter().flatten().map(|(key, _)| key).next() {
            self.error(
                ProblemKind::BadValue,
                key,
                "is under binaryData, which no property can hold: move it to data, or into a Secret named by \
                 secret-name",
            );
        }
        let length = serde_json::to_string(self.data).map_or(usize::MAX, |text| text.len());
        if length > MAX_DATA {
            let message = format!(
                "has {length} bytes (as JSON), and Mooring keeps at most {MAX_DATA} in force: move long values into a \
                 Secret and name that in secret-name, or into the image"
            );
            self.error(ProblemKind::TooLong, "data", message);
        }
    }

    fn service_account(&mut self, trust: &Trust, namespace: &str) -> Option<String> {
        let account = self.read(keys::SERVICE_ACCOUNT_NAME, values::object_name)?;
        if let Err(error) = trust.check_service_account(namespace, &account) {
            self.error(ProblemKind::Untrusted, keys::SERVICE_ACCOUNT_NAME, error.to_string());
        }
        Some(account)
    }

    fn error(&mut self, kind: ProblemKind, key: impl Into<String>, message: impl Into<String>) {
        self.problems.push(ConfigProblem::error(kind, key, message));
    }

    fn warn(&mut self, kind: ProblemKind, key: impl Into<String>, message: impl Into<String>) {
        self.problems.push(ConfigProblem::warning(kind, key, message));
    }

    /// The value of a known key without the blanks around it. An empty one is a problem: it says nothing that leaving
    /// the key out would not say better.
    fn filled(&mut self, key: &'static str) -> Option<&'a str> {
        let value = self.data.get(key)?.trim();
        if value.is_empty() {
            self.error(
                ProblemKind::BadValue,
                key,
                "is empty: give it a value or remove the key",
            );
            return None;
        }
        Some(value)
    }

    fn read<T, E: Display>(&mut self, key: &'static str, read: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        match read(self.filled(key)?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.error(ProblemKind::BadValue, key, error.to_string());
                None
            }
        }
    }

    fn class_name(&mut self, config_map: &ConfigMap) -> Option<String> {
        let name = config_map.metadata.labels.as_ref()?.get(labels::STORAGE_CLASS)?;
        match values::object_name(name) {
            Ok(name) => Some(name),
            Err(error) => {
                let key = format!("metadata.labels.{}", labels::STORAGE_CLASS);
                self.error(ProblemKind::BadValue, key, error.to_string());
                None
            }
        }
    }

    /// Whose ConfigMap it is, if it is Mooring's.
    fn plugin_name(&mut self) -> Option<&'a str> {
        let ours = [names::PROVISIONER, names::PROVISIONER_ALIAS, names::CSI_DRIVER];
        let cure = format!(
            "write {} (or the older {}), or {} with {}: csi where the scheduler is to look at the capacity",
            ours[0],
            ours[1],
            ours[2],
            keys::VOLUME_SOURCE
        );
        let (kind, problem) = match self.data.get(keys::PLUGIN_NAME).map(|name| name.trim()) {
            None => (ProblemKind::MissingKey, format!("is missing: {cure}")),
            Some(name) if ours.contains(&name) => return Some(name),
            Some(name) if ours.iter().any(|ours| strsim::osa_distance(ours, name) <= 3) => {
                (ProblemKind::NearMiss, format!("{name:?} is misspelt: {cure}"))
            }
            Some(name) => (
                ProblemKind::BadValue,
                format!(
                    "{name:?} is another plugin's: {cure}, or remove the label {}",
                    labels::TYPE
                ),
            ),
        };
        self.error(kind, keys::PLUGIN_NAME, problem);
        None
    }

    /// The provisioner of the classes. That of the CSI driver's name is for its volumes: Kubernetes takes what a claim
    /// of such a class gets for one of them, and counts it among those of the node.
    fn provisioner(&mut self, plugin_name: Option<&str>, volume_source: Option<VolumeSourceKind>) -> &'static str {
        if plugin_name != Some(names::CSI_DRIVER) {
            return names::PROVISIONER;
        }
        if volume_source != Some(VolumeSourceKind::Csi) {
            self.error(
                ProblemKind::Contradiction,
                keys::PLUGIN_NAME,
                format!(
                    "is {}, the name of the CSI driver, but the volumes are none of its: set {}: csi, or write {}",
                    names::CSI_DRIVER,
                    keys::VOLUME_SOURCE,
                    names::PROVISIONER
                ),
            );
        }
        names::CSI_DRIVER
    }

    fn image(&mut self, trust: &Trust) -> Option<String> {
        if !self.data.contains_key(keys::IMAGE) {
            self.error(
                ProblemKind::MissingKey,
                keys::IMAGE,
                "is missing: name the provisioning image, such as mooring.dev/provisioner-local:0.1.0",
            );
        }
        let image = self.filled(keys::IMAGE)?;
        match trust.image(image) {
            Ok(image) => return Some(image),
            Err(error @ crate::config::trust::TrustError::BadImage(_)) => {
                self.error(ProblemKind::BadValue, keys::IMAGE, error.to_string());
            }
            Err(error) => self.error(ProblemKind::Untrusted, keys::IMAGE, error.to_string()),
        }
        None
    }

    fn operations(&mut self) -> BTreeSet<Operation> {
        let Some(text) = self.filled(keys::OPERATIONS) else {
            return DEFAULT_OPERATIONS.into();
        };
        let mut operations = BTreeSet::new();
        for word in split_list(text) {
            match word.parse::<Operation>() {
                Ok(operation) => {
                    operations.insert(operation);
                }
                Err(error) => {
                    // Whatever was meant, it is not known to be lacking.
                    operations.extend(DEFAULT_OPERATIONS);
                    let all = Operation::ALL.map(Operation::as_str).join(", ");
                    self.error(
                        ProblemKind::BadValue,
                        keys::OPERATIONS,
                        format!("{error}: choose from {all}"),
                    );
                }
            }
        }
        operations
    }

    fn volume_source(&mut self) -> Option<VolumeSourceKind> {
        self.read(keys::VOLUME_SOURCE, VolumeSourceKind::parse)
    }

    fn class_settings(&mut self) -> ClassSettings {
        let policies = |text: &str| values::choice(text, ReclaimPolicy::ALL, ReclaimPolicy::as_str);
        let reclaim_policy = self.read(keys::RECLAIM_POLICY, policies);
        let modes = |text: &str| values::choice(text, BindingMode::ALL, BindingMode::as_str);
        let binding_mode = self.read(keys::VOLUME_BINDING_MODE, modes);
        let allow_expansion = self.read(keys::ALLOW_VOLUME_EXPANSION, values::boolean);
        let mount_options = self.read(keys::MOUNT_OPTIONS, |text| {
            if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
                return Err(MountOptionsError::Blank(text.to_owned()));
            }
            let options = split_list(text);
            // The class is Mooring's, but its options are the ConfigMap's.
            check_options(&options, &[])?;
            Ok(options)
        });
        ClassSettings {
            reclaim_policy: reclaim_policy.unwrap_or(ReclaimPolicy::Delete),
            binding_mode: binding_mode.unwrap_or(BindingMode::Immediate),
            allow_expansion: allow_expansion.unwrap_or(false),
            mount_options: mount_options.unwrap_or_default(),
        }
    }

    fn pass_through(&mut self, config_map: &ConfigMap) -> BTreeMap<String, String> {
        let meant = config_map.annotations().get(annotations::PASS_THROUGH);
        let meant: BTreeSet<String> = meant.into_iter().flat_map(|list| split_list(list)).collect();
        let mut passed = BTreeMap::new();
        for (key, value) in self.data {
            if let Some(problem) = missing_space(key, value) {
                self.problems.push(problem);
            }
            if keys::is_known(key) {
                continue;
            }
            self.problems.extend(properties::check_value(key, value));
            if asks_for_fs_type(key) && (key == property::keys::FS_TYPE || !meant.contains(key)) {
                self.error(ProblemKind::NearMiss, key, fs_type_of_a_class(key, value));
                continue;
            }
            if let Some(known) = near_miss(key)
                && !meant.contains(key)
            {
                self.error(
                    ProblemKind::NearMiss,
                    key,
                    format!(
                        "looks like {known:?} misspelt: write {known}, or, if your image wants a property {key}, name \
                         it in the annotation {}",
                        annotations::PASS_THROUGH
                    ),
                );
                continue;
            }
            passed.insert(key.clone(), value.clone());
        }
        self.problems
            .extend(properties::check(passed.keys().map(String::as_str)));
        passed
    }

    /// What `attach` needs beside it.
    fn attachments(&mut self, operations: &BTreeSet<Operation>, volume_source: Option<VolumeSourceKind>) {
        if operations.contains(&Operation::Attach) != operations.contains(&Operation::Detach) {
            self.error(
                ProblemKind::Contradiction,
                keys::OPERATIONS,
                "has one of attach and detach, and a volume needs both: add the other, or remove both",
            );
        }
        if !operations.contains(&Operation::Attach) && self.data.contains_key(keys::MULTI_ATTACH) {
            self.warn(
                ProblemKind::Contradiction,
                keys::MULTI_ATTACH,
                "is set, but operations lacks attach and detach, so nothing is attached: add them, or remove this key",
            );
        }
        if operations.contains(&Operation::Attach) && volume_source.is_none() {
            self.error(
                ProblemKind::Contradiction,
                keys::OPERATIONS,
                "has attach, for which Mooring has to make the PersistentVolumes: set volume-source to csi or flexVolume",
            );
        }
    }

    /// How many workers there are: none, whatever the image states, where they could do nothing.
    fn workers(&mut self, wanted: Option<usize>, volume_source: Option<VolumeSourceKind>) -> Option<usize> {
        let mut obstacles = Vec::new();
        if volume_source.is_none() {
            obstacles.push(
                "is set, but the image makes its PersistentVolumes itself, for which each run needs a Pod of its own: \
                 set volume-source to csi or flexVolume, or remove this key"
                    .to_owned(),
            );
        }
        for key in [keys::SERVICE_ACCOUNT_NAME, keys::SERVICE_TOKEN] {
            if self.data.contains_key(key) {
                obstacles.push(format!(
                    "is set, but {key} gives each run a token for its own Pod: remove one of the two"
                ));
            }
        }
        let workers = wanted.or((!obstacles.is_empty()).then_some(0));
        if wanted.is_some_and(|wanted| wanted > 0) {
            for obstacle in obstacles {
                self.error(ProblemKind::Contradiction, keys::WORKERS, obstacle);
            }
        } else if workers == Some(0) && self.data.contains_key(keys::WORKERS_IDLE) {
            self.warn(
                ProblemKind::Contradiction,
                keys::WORKERS_IDLE,
                "is set, but there are no workers: set workers, or remove this key",
            );
        }
        workers
    }

    fn contradictions(
        &mut self,
        class: &ClassSettings,
        operations: &BTreeSet<Operation>,
        backend_volume: Option<&Volume>,
        class_name: Option<&str>,
    ) {
        if !operations.contains(&Operation::Provision) {
            self.error(
                ProblemKind::Contradiction,
                keys::OPERATIONS,
                "lacks provision, without which there is nothing to do: add it",
            );
        }
        if class.reclaim_policy == ReclaimPolicy::Delete && !operations.contains(&Operation::Delete) {
            self.error(
                ProblemKind::Contradiction,
                keys::OPERATIONS,
                "lacks delete, but reclaim-policy is Delete: add delete, or set reclaim-policy: Retain",
            );
        }
        if class.allow_expansion && !operations.contains(&Operation::Expand) {
            self.error(
                ProblemKind::Contradiction,
                keys::ALLOW_VOLUME_EXPANSION,
                "is true, but operations lacks expand, so no volume would ever grow: add it, or remove this key",
            );
        }
        if !operations.contains(&Operation::Discover) && self.data.contains_key(keys::DISCOVER_INTERVAL) {
            self.warn(
                ProblemKind::Contradiction,
                keys::DISCOVER_INTERVAL,
                "is set, but operations lacks discover, so nothing is discovered: add it, or remove this key",
            );
        }
        let node_local = backend_volume.is_some_and(|volume| volume.client.as_str() == ClientName::POOL);
        if node_local && class.binding_mode == BindingMode::Immediate {
            self.warn(
                ProblemKind::Contradiction,
                keys::VOLUME_BINDING_MODE,
                "is Immediate, but each volume is on one node: write WaitForFirstConsumer to have it on the node of \
                 the Pod that uses it",
            );
        }
        if class_name.is_none() {
            for key in [
                keys::RECLAIM_POLICY,
                keys::VOLUME_BINDING_MODE,
                keys::ALLOW_VOLUME_EXPANSION,
                keys::MOUNT_OPTIONS,
            ] {
                if self.data.contains_key(key) {
                    self.warn(
                        ProblemKind::Contradiction,
                        key,
                        format!(
                            "is for the StorageClass that Mooring makes, but no label {} names one: add the label",
                            labels::STORAGE_CLASS
                        ),
                    );
                }
            }
        }
    }
}

/// Where a file system is asked for. An image that reads a key of its own can't be meant by `fs-type`: that property is
/// what the class says.
fn fs_type_of_a_class(key: &str, value: &str) -> String {
    let otherwise = if key == property::keys::FS_TYPE {
        String::new()
    } else {
        format!(
            ", or, if your image wants a property {key}, name it in the annotation {}",
            annotations::PASS_THROUGH
        )
    };
    format!(
        "asks for a file system, which only a StorageClass can: make a class of your own with parameter {}: {value} and \
         the parameters {} and {} for this ConfigMap{otherwise}",
        property::keys::FS_TYPE,
        parameters::CONFIG_NAMESPACE,
        parameters::CONFIG_NAME
    )
}

/// What is left of `zone:west` on a line of its own once the YAML has been read: the end of the value before it.
fn missing_space(key: &str, value: &str) -> Option<ConfigProblem> {
    // A text of several lines or in a form of its own (a list, JSON, a URL) is left alone.
    if value.contains('\n') || value.starts_with(['{', '[', '-']) {
        return None;
    }
    let word = value.split_whitespace().skip(1).find(|word| is_missing_space(word))?;
    let (left, right) = word.split_once(':')?;
    Some(ConfigProblem::warning(
        ProblemKind::MissingSpace,
        key,
        format!(
            "ends in {word:?}, which looks like a line of its own without the space after its colon: write \"{left}: \
             {right}\""
        ),
    ))
}

/// Whether a word looks like `key:value`: a key of lower-case letters and dashes, and no path or port behind the colon.
pub fn is_missing_space(word: &str) -> bool {
    word.split_once(':').is_some_and(|(key, value)| {
        key.starts_with(|c: char| c.is_ascii_lowercase())
            && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
            && !value.is_empty()
            && !value.starts_with('/')
            && !value.bytes().all(|b| b.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests;
