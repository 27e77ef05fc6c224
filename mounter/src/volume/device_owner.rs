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

    /// Whether it is a PersistentVolume: then whoever wrote that says which Secret its Pods have, and a newer one takes
    /// nothing from the right to the volume. Of a volume that is written in a Pod, the Secret alone shows that right.
    pub fn is_persistent_volume(&self) -> bool {
        self.0.starts_with("PersistentVolume ")
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
