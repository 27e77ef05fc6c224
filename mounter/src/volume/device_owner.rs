//! Whose a device is: the volume that has it on this node.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The volume that a device belongs to, the same for all of its Pods on a node; as words of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceOwner(String);

impl DeviceOwner {
    pub fn persistent_volume(name: &str) -> Self {
        Self(format!("PersistentVolume {name}"))
    }

    /// A volume that is written in Pods. A replacement of a Pod has it too, and a namespace's Pods trust each other.
    pub fn inline(namespace: &str, name: &str) -> Self {
        Self(format!("volume {name} of Pods in namespace {namespace}"))
    }
}

impl fmt::Display for DeviceOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
