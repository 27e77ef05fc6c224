//! The `VolumeSnapshotClass` beside each StorageClass of what an image has discovered, where snapshots of its volumes
//! can be taken: of the same name, for as long as the StorageClass is there and says so.
//!
//! It is this Mooring's own only if it bears Mooring's label, its own name in its label `storage-class`, and a
//! ConfigMap of a namespace that this Mooring honours.

use kube::ResourceExt as _;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mooring_contract::names::{CSI_DRIVER, annotations, labels};
use mooring_contract::operation::Operation;

use super::snapshot::{DeletionPolicy, VolumeSnapshotClass};
use crate::config::ProvisionerConfig;
use crate::config::storage_class::{annotation, config_of, is_own};
use crate::text::owned;

#[derive(Debug, Clone, PartialEq)]
pub enum SnapshotClassAction {
    Create(Box<VolumeSnapshotClass>),
    /// Remove it: nothing needs it, or it has to be created again.
    Delete(Box<VolumeSnapshotClass>),
}

/// Decides about all of them. `configs` finds the ConfigMap in force of a StorageClass, `honoured` are the namespaces
/// of this Mooring's ConfigMaps, and `used` the classes that snapshots name.
pub fn plan<'a>(
    classes: impl IntoIterator<Item = &'a StorageClass>,
    there: impl IntoIterator<Item = &'a VolumeSnapshotClass>,
    configs: impl Fn(&StorageClass) -> Option<&'a ProvisionerConfig>,
    honoured: &BTreeSet<String>,
    used: &BTreeSet<String>,
) -> Vec<SnapshotClassAction> {
    let there: BTreeMap<&str, &VolumeSnapshotClass> = there
        .into_iter()
        .filter_map(|class| Some((class.metadata.name.as_deref()?, class)))
        .collect();
    let mut actions = Vec::new();
    let mut wanted = BTreeSet::new();
    for class in classes {
        let says_so = annotation(class, annotations::SNAPSHOTS) == Some("true");
        let Some((name, thing)) = class
            .metadata
            .name
            .as_deref()
            .zip(annotation(class, annotations::DISCOVERED))
            .filter(|_| says_so && is_own(class) && config_of(class).is_some())
        else {
            continue;
        };
        wanted.insert(name);
        // While its ConfigMap is not in force, what is there stays.
        let Some(config) = configs(class) else { continue };
        let new = desired(config, name, thing);
        match there.get(name) {
            None => actions.push(SnapshotClassAction::Create(Box::new(new))),
            // What differs can't be changed in place, so it is made again when that is gone.
            Some(old) if is_ours(old, honoured) && old.deletion_policy != new.deletion_policy => {
                actions.push(SnapshotClassAction::Delete(Box::new((*old).clone())));
            }
            Some(_) => {}
        }
    }
    for (name, class) in there {
        if is_ours(class, honoured) && !wanted.contains(name) && !used.contains(name) {
            actions.push(SnapshotClassAction::Delete(Box::new(class.clone())));
        }
    }
    actions
}

fn is_ours(class: &VolumeSnapshotClass, honoured: &BTreeSet<String>) -> bool {
    let config = class.annotations().get(annotations::CONFIG);
    let namespace = config.and_then(|config| config.split_once('/'));
    let label = |key| class.labels().get(key);
    class.driver == CSI_DRIVER
        && label(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_MOORING)
        && label(labels::STORAGE_CLASS) == class.metadata.name.as_ref()
        && namespace.is_some_and(|(namespace, _)| honoured.contains(namespace))
}

fn desired(config: &ProvisionerConfig, name: &str, thing: &str) -> VolumeSnapshotClass {
    let deletes = config.offers(Operation::DeleteSnapshot);
    VolumeSnapshotClass {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(owned([
                (labels::MANAGED_BY, labels::MANAGED_BY_MOORING),
                (labels::STORAGE_CLASS, name),
            ])),
            annotations: Some(owned([
                (annotations::DISCOVERED, thing.to_owned()),
                (annotations::CONFIG, config.reference.to_string()),
            ])),
            ..ObjectMeta::default()
        },
        driver: CSI_DRIVER.to_owned(),
        deletion_policy: if deletes {
            DeletionPolicy::Delete
        } else {
            DeletionPolicy::Retain
        },
        parameters: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::storage::v1::StorageClass;
    use serde_json::json;

    use super::{SnapshotClassAction, plan};
    use crate::operation::tests::config;
    use crate::volume::snapshot::VolumeSnapshotClass;

    fn class(name: &str, snapshots: &str) -> StorageClass {
        let class = json!({
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "mooring", "storage-class": name},
                         "annotations": {"mooring.dev/discovered": "ssd", "mooring.dev/snapshots": snapshots,
                                         "mooring.dev/config-uid": "c1"}},
            "provisioner": "mooring.dev/flex-provisioner",
            "parameters": {"mooring.dev/config-namespace": "admin",
                           "mooring.dev/config-name": "custom-isci-provisioner"},
        });
        serde_json::from_value(class).unwrap()
    }

    #[test]
    fn a_class_of_snapshots_stands_beside_each_that_has_them() {
        let config = config(&[(
            "operations",
            "provision,delete,discover,snapshot,delete-snapshot,restore",
        )]);
        let keeps = super::desired(&config, "silver-ssd", "ssd");
        let other = crate::operation::tests::config(&[("operations", "provision,delete,discover,snapshot,restore")]);
        let retains = super::desired(&other, "silver-ssd", "ssd");
        let mut foreign = keeps.clone();
        foreign.metadata.labels = None;
        let mut another_s = keeps.clone();
        let notes = another_s.metadata.annotations.as_mut().unwrap();
        notes.insert("mooring.dev/config".into(), "elsewhere/x".into());
        let honoured = BTreeSet::from(["admin".to_owned()]);
        let decide = |classes: &[StorageClass], there: &[VolumeSnapshotClass], used: &[&str]| {
            let used: BTreeSet<String> = used.iter().map(|&name| name.to_owned()).collect();
            let actions = plan(classes, there, |_| Some(&config), &honoured, &used);
            let words = actions.into_iter().map(|action| match action {
                SnapshotClassAction::Create(class) => format!("create {}", class.metadata.name.unwrap()),
                SnapshotClassAction::Delete(class) => format!("delete {}", class.metadata.name.unwrap()),
            });
            words.collect::<Vec<_>>().join(", ")
        };
        let ssd = class("silver-ssd", "true");
        let without = class("silver-ssd", "false");
        for (classes, there, used, says) in [
            (vec![ssd.clone()], vec![], vec![], "create silver-ssd"),
            (vec![ssd.clone()], vec![keeps.clone()], vec![], ""),
            (vec![ssd.clone()], vec![retains], vec![], "delete silver-ssd"),
            (vec![ssd.clone()], vec![foreign.clone()], vec![], ""),
            (vec![without.clone()], vec![], vec![], ""),
            (vec![without], vec![keeps.clone()], vec![], "delete silver-ssd"),
            (vec![], vec![keeps.clone()], vec![], "delete silver-ssd"),
            (vec![], vec![keeps.clone()], vec!["silver-ssd"], ""),
            (vec![], vec![foreign], vec![], ""),
            (vec![], vec![another_s], vec![], ""),
        ] {
            assert_eq!(decide(&classes, &there, &used), says, "{classes:?} {there:?}");
        }
        // A ConfigMap that is not in force changes nothing.
        let none: Vec<VolumeSnapshotClass> = vec![];
        assert_eq!(plan([&ssd], &none, |_| None, &honoured, &BTreeSet::new()), []);
        assert_eq!(plan([&ssd], [&keeps], |_| None, &honoured, &BTreeSet::new()), []);
    }
}
