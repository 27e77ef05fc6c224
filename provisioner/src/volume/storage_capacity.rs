//! What the scheduler reads of the space that a class has left: `CSIStorageCapacity` objects in Mooring's namespace, for
//! classes whose provisioner is the CSI driver's name. It looks at none for others
//! (`docs/decisions/storage-capacity.md`).
//!
//! An object is this Mooring's own if it bears Mooring's label in Mooring's namespace. It belongs to its class, so
//! Kubernetes removes both together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use mooring_contract::names::labels::HOSTNAME;
use mooring_contract::names::{CSI_DRIVER, annotations, labels};
use mooring_contract::pool::PoolRoom;

use super::capacity;
use crate::config::ProvisionerConfig;
use crate::config::storage_class::{annotation, config_of};
use crate::config::store::NoConfig;
use crate::text::digest;

/// What a class has left whose storage does not say: the most that Kubernetes counts, so that no Pod waits for it.
pub const UNKNOWN: u64 = i64::MAX.unsigned_abs();

/// Image `local`'s own properties, by which [`PoolRoom::largest_volume`] reckons.
const THIN: &str = "thin";
const RESERVE: &str = "reserve";

/// What one object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCapacity {
    pub class: String,
    /// The host name of the nodes that it is about; all nodes without one.
    pub host: Option<String>,
    /// The largest volume that can still be made there.
    pub bytes: u64,
}

/// An object that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenCapacity {
    pub name: String,
    pub uid: String,
    /// Nothing if it says what Mooring's objects never say.
    pub says: Option<ClassCapacity>,
}

impl SeenCapacity {
    pub fn of(object: CSIStorageCapacity) -> Self {
        let bytes = object.capacity.as_ref().and_then(|left| capacity::bytes(left).ok());
        let host = match object.node_topology {
            None => None,
            Some(topology) if topology.match_expressions.is_some() => None,
            Some(topology) => {
                let mut wanted = topology.match_labels.unwrap_or_default();
                let host = wanted.remove(HOSTNAME);
                wanted.is_empty().then_some(host)
            }
        };
        let says = bytes.zip(host).filter(|_| object.maximum_volume_size.is_none());
        Self {
            name: object.metadata.name.unwrap_or_default(),
            uid: object.metadata.uid.unwrap_or_default(),
            says: says.map(|(bytes, host)| ClassCapacity {
                class: object.storage_class_name,
                host,
                bytes,
            }),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum CapacityAction {
    Create(Box<CSIStorageCapacity>),
    /// Write another capacity. Nothing else of an object can be changed.
    Change {
        there: SeenCapacity,
        bytes: u64,
    },
    Delete(SeenCapacity),
}

/// Decides about all objects: first those to make and to change, so that no Pod is refused in between, and last those
/// to delete. `configs` finds the ConfigMap in force of a class, `honoured` are the namespaces of this Mooring's
/// ConfigMaps, and `pools` what the nodes' pools have left, by host name.
pub fn plan<'a>(
    classes: impl IntoIterator<Item = &'a StorageClass>,
    configs: impl Fn(&StorageClass) -> Result<Arc<ProvisionerConfig>, NoConfig>,
    honoured: &BTreeSet<String>,
    pools: &BTreeMap<String, PoolRoom>,
    there: impl IntoIterator<Item = SeenCapacity>,
) -> Vec<CapacityAction> {
    let mut there: BTreeMap<String, SeenCapacity> =
        there.into_iter().map(|object| (object.name.clone(), object)).collect();
    let (mut actions, mut deletions) = (Vec::new(), Vec::new());
    for class in classes.into_iter().filter(|class| class.provisioner == CSI_DRIVER) {
        for wanted in capacities(class, &configs, honoured, pools) {
            let name = name_of(class, wanted.host.as_deref());
            let Some(object) = there.remove(&name) else {
                actions.push(CapacityAction::Create(Box::new(object_of(class, name, wanted))));
                continue;
            };
            match &object.says {
                Some(says) if *says == wanted => {}
                Some(says) if (&says.class, &says.host) == (&wanted.class, &wanted.host) => {
                    let bytes = wanted.bytes;
                    actions.push(CapacityAction::Change { there: object, bytes });
                }
                // It is made again when it is gone.
                Some(_) | None => deletions.push(CapacityAction::Delete(object)),
            }
        }
    }
    deletions.extend(there.into_values().map(CapacityAction::Delete));
    actions.append(&mut deletions);
    actions
}

/// What a class has left, on each node or on all.
fn capacities(
    class: &StorageClass,
    configs: impl Fn(&StorageClass) -> Result<Arc<ProvisionerConfig>, NoConfig>,
    honoured: &BTreeSet<String>,
    pools: &BTreeMap<String, PoolRoom>,
) -> Vec<ClassCapacity> {
    if config_of(class).is_some_and(|config| !honoured.contains(&config.namespace)) {
        // Another Mooring's.
        return Vec::new();
    }
    let name = class.metadata.name.clone().unwrap_or_default();
    let on = |host: Option<&String>, bytes| ClassCapacity {
        class: name.clone(),
        host: host.cloned(),
        bytes,
    };
    match configs(class) {
        Ok(config) if config.is_node_local() => {
            let said = |key| {
                let own = class.parameters.as_ref().and_then(|all| all.get(key));
                own.or_else(|| config.pass_through.get(key)).map(String::as_str)
            };
            let left = |pool: &PoolRoom| pool.largest_volume(said(THIN), said(RESERVE));
            pools.iter().map(|(host, pool)| on(Some(host), left(pool))).collect()
        }
        // Without a ConfigMap its claims are not served, which they say themselves once their Pods have a node.
        Ok(_) | Err(_) => {
            let left = annotation(class, annotations::CAPACITY).and_then(|text| text.parse().ok());
            vec![on(None, left.unwrap_or(UNKNOWN).min(UNKNOWN))]
        }
    }
}

/// A class that is made again is another one, with objects of its own.
fn name_of(class: &StorageClass, host: Option<&str>) -> String {
    let uid = class.metadata.uid.as_deref().unwrap_or_default();
    let of = format!("{uid}/{}", host.unwrap_or_default());
    format!("mooring-{}", digest(of, 10))
}

fn object_of(class: &StorageClass, name: String, wanted: ClassCapacity) -> CSIStorageCapacity {
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some([(labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_MOORING.to_owned())].into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "storage.k8s.io/v1".to_owned(),
                kind: "StorageClass".to_owned(),
                name: wanted.class.clone(),
                uid: class.metadata.uid.clone().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        capacity: Some(capacity::quantity(wanted.bytes)),
        maximum_volume_size: None,
        // An empty selector is for all nodes, none at all for no node.
        node_topology: Some(LabelSelector {
            match_labels: wanted.host.map(|host| [(HOSTNAME.to_owned(), host)].into()),
            ..LabelSelector::default()
        }),
        storage_class_name: wanted.class,
    }
}

#[cfg(test)]
mod tests;
