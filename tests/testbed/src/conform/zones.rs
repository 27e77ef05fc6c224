//! A node more, in another zone, for classes whose volumes may be kept to a zone: their definitions have the label of
//! zones among their `TopologyKeys`.

use anyhow::Result;

use crate::cluster::{self, Wanted};
use crate::layout::Layout;
use crate::manifests;

/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Nodes of such a cluster. The suite wants two nodes in one zone, and one in another.
const NODES: u8 = 3;

/// Starts a cluster whose nodes are in more than one zone, if a definition wants that.
pub(super) fn start_nodes(layout: &Layout, definition: &str) -> Result<()> {
    if wants_zones(definition)? {
        cluster::up(layout, NODES, Wanted::default(), None)?;
    }
    Ok(())
}

fn wants_zones(definition: &str) -> Result<bool> {
    let documents = manifests::documents(definition)?;
    let keys = |document: &serde_json::Value| {
        let keys = document["DriverInfo"]["TopologyKeys"].as_array();
        keys.is_some_and(|keys| keys.iter().any(|key| key == ZONE))
    };
    Ok(documents.iter().any(keys))
}

#[cfg(test)]
mod tests {
    use super::wants_zones;
    use crate::layout::repository;

    #[test]
    fn only_definitions_that_name_the_zone_s_label_want_zones() {
        let wants = |class: &str| {
            let path = repository().join(format!("tests/conformance/{class}.driver.yaml"));
            wants_zones(&std::fs::read_to_string(path).unwrap()).unwrap()
        };
        assert!(wants("rbd"));
        assert!(!wants("local") && !wants("nfs") && !wants("cephfs"));
    }
}
