//! The StorageClasses that Mooring makes for ConfigMaps: what each should be, and what to do about those that are
//! there.
//!
//! A class is Mooring's own only if it bears Mooring's label, the uid of the ConfigMap that it was made for, and its
//! own name in its label `storage-class`. So neither an administrator's class nor a copy of one of Mooring's under
//! another name is ever touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mooring_contract::names::{self, annotations, labels, parameters};

use crate::config::store::{Entry, claimant};
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::text::owned;

#[derive(Debug, Clone, PartialEq)]
pub enum ClassAction {
    Create(Box<StorageClass>),
    /// Change what a class lets be changed.
    Update(Box<StorageClass>),
    /// Delete the existing one and create it again: what differs can't be changed in place.
    Replace {
        old: Box<StorageClass>,
        new: Box<StorageClass>,
    },
    /// Its ConfigMap is gone: delete it as soon as nothing uses it.
    GiveUp(Box<StorageClass>),
}

/// What has become of the class that a ConfigMap claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Mooring keeps the class for it.
    Kept(String),
    /// Somebody made a class of that name with Mooring's provisioner: Mooring leaves it as it is.
    Own(String),
    /// A class of that name is another provisioner's.
    Foreign { class: String, provisioner: String },
    /// The class could not be made or changed; it is tried again.
    Failed { class: String, why: String },
    /// An older ConfigMap claims it as well, and has it.
    Taken {
        class: String,
        /// The older ConfigMap.
        by: ConfigRef,
    },
}

/// What there is to do about all classes, and what has become of each ConfigMap's claim.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<ClassAction>,
    /// By ConfigMap.
    pub claims: BTreeMap<ConfigRef, Claim>,
}

/// Decides about all classes.
///
/// `read` are the namespaces whose ConfigMaps are known in full: a class is only given up if its ConfigMap's is one of
/// them.
pub fn plan<'a>(
    entries: &BTreeMap<ConfigRef, Entry>,
    classes: impl IntoIterator<Item = &'a StorageClass>,
    read: &BTreeSet<String>,
) -> Plan {
    let classes: BTreeMap<&str, &StorageClass> = classes
        .into_iter()
        .filter_map(|class| Some((class.metadata.name.as_deref()?, class)))
        .collect();
    let good: Vec<&Arc<ProvisionerConfig>> = entries.values().filter_map(|entry| entry.good.as_ref()).collect();
    let mut plan = Plan::default();

    for config in &good {
        let Some(name) = &config.class_name else { continue };
        let Some(winner) = claimant(good.iter().copied(), name) else {
            continue;
        };
        let claim = if winner.reference == config.reference {
            let (claim, action) = keep(config, name, classes.get(name.as_str()).copied());
            plan.actions.extend(action);
            claim
        } else {
            Claim::Taken {
                class: name.clone(),
                by: winner.reference.clone(),
            }
        };
        plan.claims.insert(config.reference.clone(), claim);
    }

    for (&name, class) in &classes {
        if is_discovered(class) {
            // Those are planned by `super::discovered`.
            continue;
        }
        let wanted = good.iter().any(|config| config.class_name.as_deref() == Some(name));
        if !wanted && is_own(class) && is_forsaken(class, entries, read) {
            plan.actions.push(ClassAction::GiveUp(Box::new((*class).clone())));
        }
    }
    plan
}

/// Whether Mooring made this class.
pub fn is_own(class: &StorageClass) -> bool {
    let label = |key| class.metadata.labels.as_ref().and_then(|all| all.get(key));
    names::is_provisioner(&class.provisioner)
        && label(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_MOORING)
        && label(labels::STORAGE_CLASS) == class.metadata.name.as_ref()
        && config_uid(class).is_some()
}

/// Whether a class bears the name of something that an image has discovered. It may be a copy of one of Mooring's.
pub fn is_discovered(class: &StorageClass) -> bool {
    annotation(class, annotations::DISCOVERED).is_some()
}

pub fn annotation<'a>(class: &'a StorageClass, key: &str) -> Option<&'a str> {
    class.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The ConfigMap that a class's parameters name.
pub fn config_of(class: &StorageClass) -> Option<ConfigRef> {
    let all = class.parameters.as_ref()?;
    Some(ConfigRef::new(
        all.get(parameters::CONFIG_NAMESPACE)?,
        all.get(parameters::CONFIG_NAME)?,
    ))
}

fn config_uid(class: &StorageClass) -> Option<&String> {
    class.metadata.annotations.as_ref()?.get(annotations::CONFIG_UID)
}

/// Whether the ConfigMap of one of our classes is gone, or names another class now. One that only has errors still
/// counts.
fn is_forsaken(class: &StorageClass, entries: &BTreeMap<ConfigRef, Entry>, read: &BTreeSet<String>) -> bool {
    match config_of(class) {
        Some(config) if !read.contains(&config.namespace) => false,
        Some(config) => match entries.get(&config) {
            None => true,
            Some(entry) => entry.good.is_some(),
        },
        None => false,
    }
}

fn keep(config: &ProvisionerConfig, name: &str, there: Option<&StorageClass>) -> (Claim, Option<ClassAction>) {
    let Some(there) = there else {
        let new = desired(config, name, None);
        return (Claim::Kept(name.to_owned()), Some(ClassAction::Create(Box::new(new))));
    };
    if !names::is_provisioner(&there.provisioner) {
        let claim = Claim::Foreign {
            class: name.to_owned(),
            provisioner: there.provisioner.clone(),
        };
        return (claim, None);
    }
    if !is_own(there) || is_discovered(there) {
        return (Claim::Own(name.to_owned()), None);
    }
    let new = desired(config, name, Some(there));
    (Claim::Kept(name.to_owned()), change(there, new))
}

/// The patch that makes an existing class what it should be.
pub(super) fn change(there: &StorageClass, new: StorageClass) -> Option<ClassAction> {
    let fixed = |class: &StorageClass| {
        (
            class.provisioner.clone(),
            class.parameters.clone().unwrap_or_default(),
            class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned()),
            class
                .volume_binding_mode
                .clone()
                .unwrap_or_else(|| "Immediate".to_owned()),
        )
    };
    let loose = |class: &StorageClass| {
        (
            class.allow_volume_expansion.unwrap_or(false),
            class.mount_options.clone().unwrap_or_default(),
            class.allowed_topologies.clone().unwrap_or_default(),
            class.metadata.annotations.clone().unwrap_or_default(),
        )
    };
    if fixed(there) != fixed(&new) {
        Some(ClassAction::Replace {
            old: Box::new(there.clone()),
            new: Box::new(new),
        })
    } else if loose(there) != loose(&new) {
        Some(ClassAction::Update(Box::new(new)))
    } else {
        None
    }
}

/// The class of a ConfigMap as it should be. Labels and annotations that others put on the one that exists are kept,
/// such as the mark of the default class, and so are its owners and finalizers.
pub(super) fn desired(config: &ProvisionerConfig, name: &str, there: Option<&StorageClass>) -> StorageClass {
    let mut all_labels = there
        .and_then(|class| class.metadata.labels.clone())
        .unwrap_or_default();
    all_labels.insert(labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_MOORING.to_owned());
    all_labels.insert(labels::STORAGE_CLASS.to_owned(), name.to_owned());
    let mut all_annotations = there
        .and_then(|class| class.metadata.annotations.clone())
        .unwrap_or_default();
    all_annotations.insert(annotations::CONFIG_UID.to_owned(), config.uid.clone());
    let parameters = owned([
        (parameters::CONFIG_NAMESPACE, &config.reference.namespace),
        (parameters::CONFIG_NAME, &config.reference.name),
    ]);
    StorageClass {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(all_labels),
            annotations: Some(all_annotations),
            // An update must not run over one that came between.
            resource_version: there.and_then(|class| class.metadata.resource_version.clone()),
            finalizers: there.and_then(|class| class.metadata.finalizers.clone()),
            owner_references: there.and_then(|class| class.metadata.owner_references.clone()),
            ..ObjectMeta::default()
        },
        provisioner: config.provisioner.to_owned(),
        parameters: Some(parameters),
        reclaim_policy: Some(config.class.reclaim_policy.as_str().to_owned()),
        volume_binding_mode: Some(config.class.binding_mode.as_str().to_owned()),
        allow_volume_expansion: Some(config.class.allow_expansion),
        mount_options: Some(config.class.mount_options.clone()).filter(|options| !options.is_empty()),
        allowed_topologies: None,
    }
}

#[cfg(test)]
mod tests;
