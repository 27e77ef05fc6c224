//! The attachment of a volume to a node: what the controller hands to that node's mounter, and nobody else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Key of a volume's Secret with its [`VolumeKey`].
pub const CONNECTION: &str = "mooring-connection";

/// Begins the name of a Secret with the key of a volume.
const SECRET_PREFIX: &str = "attachment-";

/// Begins the name by which a node's clients log in at a target.
const INITIATOR_PREFIX: &str = "iqn.2025-01.dev.mooring:";

/// Letters of a Node's uid in that name: nodes of one name in two clusters differ.
const UID_LETTERS: usize = 8;

/// Name of the Secret with the key of this PV's volume. A PV that refers to such a Secret needs an attachment.
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

/// Whether several nodes can have a volume with these access modes at once.
pub fn is_for_many(access_modes: &[String]) -> bool {
    access_modes.iter().any(|mode| mode.ends_with("Many"))
}

/// A node that the storage lets have a volume, as the PV has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AttachedTo {
    pub node: String,
    /// What the storage knows the node's clients by.
    pub initiator: String,
    /// What the node's cloud called it then; empty where nobody said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// A signed [`Connection`]; empty where a controller of an earlier version attached the volume.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub connection: String,
}

impl AttachedTo {
    /// Whether both are about one node. What its cloud calls it may have become known since.
    pub fn is_same(&self, other: &Self) -> bool {
        self.node == other.node && self.initiator == other.initiator
    }
}

/// The nodes that the storage lets have a volume, as the PV has them: an object for one, a list for several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttachedNodes(pub Vec<AttachedTo>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrSeveral {
    One(AttachedTo),
    Several(Vec<AttachedTo>),
}

impl AttachedNodes {
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        Ok(Self(match serde_json::from_str(text)? {
            OneOrSeveral::One(one) => vec![one],
            OneOrSeveral::Several(several) => several,
        }))
    }

    /// `None` if there are none.
    pub fn to_text(&self) -> Option<String> {
        match self.0.as_slice() {
            [] => None,
            [one] => serde_json::to_string(one).ok(),
            several => serde_json::to_string(several).ok(),
        }
    }

    pub fn of(&self, node: &str) -> Option<&AttachedTo> {
        self.0.iter().find(|one| one.node == node)
    }

    pub fn has(&self, node: &str) -> bool {
        self.of(node).is_some()
    }

    #[must_use]
    pub fn without(&self, node: &str) -> Self {
        Self(self.0.iter().filter(|one| one.node != node).cloned().collect())
    }

    #[must_use]
    pub fn with(&self, to: &AttachedTo) -> Self {
        let mut nodes = self.without(&to.node);
        nodes.0.push(to.clone());
        nodes
    }
}

/// What a volume's Secret has under [`CONNECTION`]. The kubelet hands it over for Pods that use the PersistentVolume, so
/// who has the key has such a Pod.
#[derive(Clone, Serialize, Deserialize)]
pub struct VolumeKey {
    /// Random; opens [`Connection::sealed`]. The controller makes a new one when no node has the volume any more.
    #[serde(rename = "proof")]
    pub key: String,
}

/// How one node reaches a volume that is attached to it. The controller signs it, and the node's mounter takes no other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Connection {
    /// The PersistentVolume's name and uid.
    pub volume: String,
    pub volume_uid: String,
    pub node: String,
    /// Grows with each attachment of the volume: an older connection is not used after a newer one.
    pub serial: u64,
    /// Options of the volume on that node, beside those of its PV.
    pub options: BTreeMap<String, String>,
    /// Its secrets, sealed with the [`VolumeKey`] for this volume and node.
    pub sealed: String,
}

#[cfg(test)]
mod tests {
    use super::{AttachedNodes, AttachedTo, VolumeKey, initiator, is_for_many, secret_name};

    #[test]
    fn nodes_of_one_name_in_two_clusters_have_two_initiators() {
        let name = initiator("Node_A.example", "0f1e2d3c-aaaa");
        assert_eq!(name, "iqn.2025-01.dev.mooring:nodea.example-0f1e2d3c");
        assert_ne!(name, initiator("Node_A.example", "1f1e2d3c-aaaa"));
    }

    #[test]
    fn the_key_of_a_volume_is_read_from_secrets_of_earlier_versions_too() {
        let key: VolumeKey = serde_json::from_str(r#"{"proof":"x","node":"a","options":{}}"#).unwrap();
        assert_eq!(serde_json::to_string(&key).unwrap(), r#"{"proof":"x"}"#);
        assert_eq!(secret_name("pvc-u1"), "attachment-pvc-u1");
    }

    #[test]
    fn one_node_is_written_as_it_was_when_there_could_be_no_other() {
        let to = |node: &str| AttachedTo {
            node: node.into(),
            initiator: "i".into(),
            provider_id: String::new(),
            connection: String::new(),
        };
        let one = AttachedNodes::default().with(&to("a"));
        assert_eq!(one.to_text().unwrap(), r#"{"node":"a","initiator":"i"}"#);
        let both = one.with(&to("b")).with(&to("a"));
        assert_eq!(both.0, [to("b"), to("a")]);
        for nodes in [&one, &both] {
            assert_eq!(AttachedNodes::parse(&nodes.to_text().unwrap()).unwrap(), *nodes);
        }
        assert_eq!(one.without("a").to_text(), None);
        let called = AttachedTo {
            provider_id: "openstack:///1".into(),
            ..to("a")
        };
        assert!(called.is_same(&to("a")) && !called.is_same(&to("b")));
        let noted = AttachedNodes(vec![called]);
        assert_eq!(AttachedNodes::parse(&noted.to_text().unwrap()).unwrap(), noted);
        assert!(AttachedNodes::parse("{}").is_err());
    }

    #[test]
    fn access_modes_say_whether_a_volume_is_for_several_nodes() {
        let many = |modes: &[&str]| is_for_many(&modes.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(many(&["ReadWriteMany"]) && many(&["ReadWriteOnce", "ReadOnlyMany"]));
        assert!(!many(&["ReadWriteOnce"]) && !many(&["ReadWriteOncePod"]) && !many(&[]));
    }
}
