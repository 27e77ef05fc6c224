//! The attachment of a volume to a node: what the controller hands to that node's mounter, and nobody else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Key of the Secret that holds the [`Connection`]; every other key is the image's own.
pub const CONNECTION: &str = "mooring-connection";

/// Begins the name of a Secret with the connection of a volume.
const SECRET_PREFIX: &str = "attachment-";

/// Begins the name by which a node's clients log in at a target.
const INITIATOR_PREFIX: &str = "iqn.2025-01.dev.mooring:";

/// Letters of a Node's uid in that name: nodes of one name in two clusters differ.
const UID_LETTERS: usize = 8;

/// Name of the Secret with the connection of this PV's volume. A PV that refers to such a Secret needs an attachment.
pub fn secret_name(pv_name: &str) -> String {
    format!("{SECRET_PREFIX}{pv_name}")
}

/// The name by which a node's clients log in at a target. A Node that was created again is another one.
pub fn initiator(node: &str, uid: &str) -> String {
    let letters = |text: &str| -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        text.to_ascii_lowercase().chars().filter(|c| plain(*c)).collect()
    };
    let uid: String = letters(uid).chars().take(UID_LETTERS).collect();
    format!("{INITIATOR_PREFIX}{}-{uid}", letters(node))
}

/// The node that the storage lets have a volume, as the PV has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AttachedTo {
    pub node: String,
    /// What the storage knows the node's clients by.
    pub initiator: String,
}

/// How a node reaches its volume, as the Secret has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Connection {
    /// Random, and the same for as long as the Secret is there. What the kubelet hands over with another one is not
    /// from this Secret, but from one that the author of a Pod wrote.
    pub proof: String,
    /// The only node that this is for; empty while the volume is attached to none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Options of the volume, beside those of its PV.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::{Connection, initiator, secret_name};

    #[test]
    fn nodes_of_one_name_in_two_clusters_have_two_initiators() {
        let name = initiator("Node_A.example", "0f1e2d3c-aaaa");
        assert_eq!(name, "iqn.2025-01.dev.mooring:nodea.example-0f1e2d3c");
        assert_ne!(name, initiator("Node_A.example", "1f1e2d3c-aaaa"));
    }

    #[test]
    fn a_connection_reads_back() {
        let text = r#"{"proof":"x","node":"a","options":{"source":"iscsi://h/t/1"}}"#;
        let connection: Connection = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&connection).unwrap(), text);
        assert_eq!(secret_name("pvc-u1"), "attachment-pvc-u1");
    }
}
