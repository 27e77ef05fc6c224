//! A volume or a share, as its service shows it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{DELETED, PV_NAME};

/// A volume of Cinder or a share of Manila.
#[derive(Debug, Clone, Deserialize)]
pub struct Item {
    pub id: String,
    #[serde(default)]
    name: Option<String>,
    pub status: String,
    /// In GiB.
    pub size: u64,
    #[serde(default)]
    pub metadata: BTreeMap<String, Value>,
    #[serde(default)]
    created_at: Option<String>,
    /// Of a volume: name of its type.
    #[serde(rename = "volume_type", default)]
    pub kind: Option<String>,
    /// Of a volume: whether several nodes can have it at once.
    #[serde(default)]
    pub multiattach: bool,
    /// Of a volume: its attachments that are complete.
    #[serde(default)]
    pub attachments: Vec<ItemAttachment>,
}

/// An attachment that is complete, as a volume shows it.
#[derive(Debug, Clone, Deserialize)]
pub struct ItemAttachment {
    pub attachment_id: String,
    #[serde(default)]
    pub device: Option<String>,
    /// Nova's server that it is for.
    #[serde(default)]
    pub server_id: Option<String>,
}

impl ItemAttachment {
    pub fn is_of_server(&self, id: &str) -> bool {
        self.server_id.as_deref() == Some(id)
    }
}

impl Item {
    /// Whether it was made for a PersistentVolume of this name. A volume that Cinder restores from a backup has the
    /// metadata of the one that the backup is of, so only the name tells which it is.
    pub fn is_of(&self, pv_name: &str) -> bool {
        self.name.as_deref() == Some(pv_name) && self.metadata.contains_key(PV_NAME)
    }

    /// Whether it is to go with its last snapshot.
    pub fn is_deleted(&self) -> bool {
        self.metadata.contains_key(DELETED)
    }

    pub fn is_failed(&self) -> bool {
        self.status.contains("error")
    }

    /// Whether a server of Nova has it.
    pub fn is_on_server(&self, id: &str) -> bool {
        self.attachments.iter().any(|held| held.is_of_server(id))
    }

    /// A text of its metadata.
    pub fn says(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).and_then(Value::as_str)
    }

    /// What orders several by their age.
    pub(super) fn age(&self) -> (&str, &str) {
        (self.created_at.as_deref().unwrap_or_default(), &self.id)
    }
}
