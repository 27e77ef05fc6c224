//! Tests that have a further node in a virtual machine, which exists as long as the test.

use std::time::Duration;

use anyhow::Result;
use mooring_contract::names::FLEX_DRIVER_DIR;

use super::connection::open_target;
use super::in_namespace::{Limits, in_namespace_with};
use super::scope::Scope;
use super::skip::skip;
use super::waiting::wait_for;
use mooring_testbed::cluster::Cluster;
use mooring_testbed::progress::note;

/// The name of that node.
pub const MACHINE_NODE: &str = "machine-1";

/// How long such a test may take: without KVM the machine is slow.
const LIMIT: Duration = Duration::from_mins(25);

/// By what factor waits may be longer: a container takes half a minute to start there while other tests use the
/// processors.
const PATIENCE: u32 = 4;

/// Mooring's images that tests use there besides the mounter's. All tests have the same, so that the machine's disk is
/// made once.
const IMAGES: &[&str] = &[
    "client-block",
    "client-cephfs",
    "client-iscsi",
    "nfs-locks",
    "provisioner-directory",
];

/// Removes the machine when dropped, whatever happened to the test.
struct MachineNode(Cluster);

impl Drop for MachineNode {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_machine() {
            note(format!("{MACHINE_NODE} is not gone: {error:#}"));
        }
    }
}

/// [`super::in_namespace_within`] with that node. On a cluster other than the testbed's own, the test is skipped and
/// says so.
///
/// # Panics
/// If the machine does not start, or the test fails.
pub fn with_machine_node<F>(name: &str, test: F)
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    let target = open_target().unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let Some(cluster) = target.own_cluster() else {
        return skip("it starts a node of the testbed's own cluster");
    };
    let machine = MachineNode(cluster.clone());
    if let Err(error) = cluster.start_machine(IMAGES) {
        panic!("{name}: {error:#}");
    }
    // The namespace has to be gone before the machine: deleting its volumes may need that node.
    let limits = Limits {
        test: LIMIT,
        patience: PATIENCE,
    };
    in_namespace_with(limits, name, test);
    drop(machine);
}

impl Scope {
    /// Runs a script beside the machine's processes; returns what it printed.
    pub fn on_machine(&self, script: &str) -> Result<String> {
        let _waiting = wait_for(format!("{script} on {MACHINE_NODE}"));
        self.own_cluster()?.on_machine(script)
    }

    /// The volumes in the machine's mount table.
    pub fn mounts_on_machine(&self) -> Result<Vec<String>> {
        let table = self.on_machine("cat /proc/1/mountinfo")?;
        let ours = |line: &&str| line.contains(&format!("/{FLEX_DRIVER_DIR}/"));
        Ok(table.lines().filter(ours).map(str::to_owned).collect())
    }
}
