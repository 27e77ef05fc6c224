//! The node in a virtual machine, for classes that only its kernel can mount: their definitions have its name as
//! `ClientNodeName`.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::manifests;
use crate::node::{self, MACHINE};
use crate::progress::note;
use crate::target::Target;

/// Mooring's images that run there, besides the mounter's.
const IMAGES: &[&str] = &["provisioner-directory"];

/// The node. It is removed when this is dropped.
pub(super) struct Machine(Cluster);

impl Machine {
    /// Starts the node with the suite's images, if a definition names it.
    pub(super) fn of_definition(target: &Target, definition: &str, images: &BTreeSet<String>) -> Result<Option<Self>> {
        if !names_machine(definition)? {
            return Ok(None);
        }
        let cluster = target.own_cluster().context("not the testbed's own cluster")?;
        let machine = Self(cluster.clone());
        let images: Vec<_> = IMAGES
            .iter()
            .copied()
            .chain(images.iter().map(String::as_str))
            .collect();
        cluster.start_machine(&images)?;
        Ok(Some(machine))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_machine() {
            note(format!("{} is not gone: {error:#}", node::name(MACHINE)));
        }
    }
}

fn names_machine(definition: &str) -> Result<bool> {
    let documents = manifests::documents(definition)?;
    let node = node::name(MACHINE);
    Ok(documents
        .iter()
        .any(|document| document["ClientNodeName"] == node.as_str()))
}

#[cfg(test)]
mod tests {
    use super::names_machine;
    use crate::layout::repository;

    #[test]
    fn only_definitions_whose_client_needs_its_kernel_name_the_machine() {
        let names = |class: &str| {
            let path = repository().join(format!("tests/conformance/{class}.driver.yaml"));
            names_machine(&std::fs::read_to_string(path).unwrap()).unwrap()
        };
        assert!(names("nfs"));
        assert!(!names("local") && !names("rbd") && !names("cephfs"));
    }
}
