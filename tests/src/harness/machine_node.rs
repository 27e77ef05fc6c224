//! Tests with a node in a virtual machine beside the testbed's others, which is there for as long as the test.

use anyhow::Result;

use super::{Scope, in_namespace, open_target};
use crate::cluster::Cluster;
use crate::progress::note;

/// The name of that node.
pub const MACHINE_NODE: &str = "machine-1";

/// Takes the machine away when dropped, whatever has become of the test.
struct MachineNode(Cluster);

impl Drop for MachineNode {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_machine() {
            note(format!("{MACHINE_NODE} is not gone: {error:#}"));
        }
    }
}

/// [`in_namespace`] with that node, which has these of Mooring's images beside the mounter's. On another cluster than the testbed's
/// own the test is skipped, and says so.
///
/// # Panics
/// If the machine does not start, or the test fails.
pub fn with_machine_node<F>(name: &str, images: &[&str], test: F)
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    let target = open_target().unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let Some(cluster) = target.own_cluster() else {
        return note(format!(
            "{name} is skipped: it starts a node of the testbed's own cluster"
        ));
    };
    let machine = MachineNode(cluster.clone());
    if let Err(error) = cluster.start_machine(images) {
        panic!("{name}: {error:#}");
    }
    // Before the machine goes, the namespace does: its volumes' deletion may need that node.
    in_namespace(name, test);
    drop(machine);
}
