//! Whether a node is among those that a PV can be used from.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;
use mooring_contract::names::labels;
use mooring_program::node_selector::meets;

use crate::config::VolumeSourceKind;

/// A node as far as volumes care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`. The label [`labels::HOSTNAME`] may have another value.
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// What keeps Pods off nodes that say of themselves that they can't mount a client's volumes, which the kubelet has by
/// this driver. A node that says nothing
/// is not left out: it may be a new one, whose mounter has not looked yet, or what a cluster autoscaler thinks a new
/// one would be; and nobody knows what the client of a vendor needs.
pub fn able(client: &str, by: VolumeSourceKind) -> Vec<NodeSelectorRequirement> {
    let mut able = [labels::NODE_MOUNTER.to_owned(), of_client(client)]
        .map(is_not_unready)
        .to_vec();
    able.extend((by == VolumeSourceKind::FlexVolume).then(by_flex_volume));
    able
}

/// What a volume asks of a node because the kubelet has it by FlexVolume.
pub fn by_flex_volume() -> NodeSelectorRequirement {
    is_not_unready(of_client(labels::FLEX_VOLUME))
}

fn is_not_unready(key: String) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key,
        operator: "NotIn".to_owned(),
        values: Some(vec![labels::NOT_READY.to_owned()]),
    }
}

/// The label by which a node says that it can't mount a client's volumes. An annotation of that name says why.
pub fn mark_of_unable(node: &Node, client: &str, by: VolumeSourceKind) -> Option<String> {
    let mut wanted = able(client, by).into_iter();
    let unmet = wanted.find(|wanted| !meets(wanted, node.labels.get(&wanted.key)));
    unmet.map(|wanted| wanted.key)
}

/// Whether a node says that it can't mount a client's volumes.
pub fn is_unable(node: &Node, client: &str, by: VolumeSourceKind) -> bool {
    mark_of_unable(node, client, by).is_some()
}

/// A node without what it says of its clients: that can be otherwise when a volume is used.
pub fn however_able(node: &Node) -> BTreeMap<String, String> {
    let says = |key: &String| key == labels::NODE_MOUNTER || key.starts_with(labels::NODE_CLIENT_PREFIX);
    let others = node.labels.iter().filter(|(key, _)| !says(key));
    others.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// What a class's `allowedTopologies` ask of a node, in one of their terms.
pub fn within(term: &TopologySelectorTerm) -> Vec<NodeSelectorRequirement> {
    let wanted = term.match_label_expressions.iter().flatten();
    wanted
        .map(|wanted| NodeSelectorRequirement {
            key: wanted.key.clone(),
            operator: "In".to_owned(),
            values: Some(wanted.values.clone()),
        })
        .collect()
}

/// A class's `allowedTopologies`, as the image gets them.
pub fn allowed(class: &StorageClass) -> Vec<BTreeMap<String, Vec<String>>> {
    let terms = class.allowed_topologies.iter().flatten();
    terms
        .map(|term| {
            let wanted = term.match_label_expressions.iter().flatten();
            wanted
                .map(|wanted| (wanted.key.clone(), wanted.values.clone()))
                .collect()
        })
        .collect()
}

fn of_client(client: &str) -> String {
    format!("{}{client}", labels::NODE_CLIENT_PREFIX)
}

/// The labels of a node that say where it is: what the image gets as `topology`.
pub fn of_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    labels
        .iter()
        .filter(|(key, _)| *key == labels::HOSTNAME || key.starts_with("topology.") || key.contains(".topology."))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Node, VolumeSourceKind, able, however_able, is_unable, of_labels};
    use mooring_program::node_selector::selects;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn labels() -> BTreeMap<String, String> {
        [
            ("kubernetes.io/hostname", "host-a"),
            ("topology.kubernetes.io/zone", "west"),
            ("disks", "4"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    #[test]
    fn a_node_is_left_out_only_if_it_says_that_it_can_t() {
        for (label, word, by_flex_volume, by_csi) in [
            ("disks", "4", true, true),
            ("client.mooring.dev/sshfs", "ready", true, true),
            ("client.mooring.dev/nfs", "not-ready", true, true),
            ("client.mooring.dev/sshfs", "not-ready", false, false),
            ("client.mooring.dev/FlexVolume", "not-ready", false, true),
            ("mooring.dev/mounter", "not-ready", false, false),
        ] {
            let node = Node {
                name: "a".into(),
                labels: [(label.to_owned(), word.to_owned())].into(),
            };
            for (by, want) in [
                (VolumeSourceKind::FlexVolume, by_flex_volume),
                (VolumeSourceKind::Csi, by_csi),
            ] {
                let terms = json!({"nodeSelectorTerms": [{"matchExpressions": able("sshfs", by)}]});
                let selector = serde_json::from_value(terms).unwrap();
                assert_eq!(selects(&selector, "a", &node.labels), want, "{label}={word} {by:?}");
                assert_eq!(is_unable(&node, "sshfs", by), !want, "{label}={word} {by:?}");
                assert!(selects(&selector, "a", &however_able(&node)), "{label}={word} {by:?}");
            }
        }
    }

    #[test]
    fn the_image_sees_where_the_node_stands_and_nothing_else() {
        let topology = of_labels(&labels());
        assert_eq!(topology.len(), 2);
        assert!(!topology.contains_key("disks"));
    }
}
