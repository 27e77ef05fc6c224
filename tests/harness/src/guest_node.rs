//! Tests that have a further node in a virtual machine, which exists as long as the test.

use std::time::Duration;

use anyhow::{Result, anyhow};
use mooring_contract::names::{CSI_VOLUMES_DIR, FLEX_DRIVER_DIR};

use super::connection::open_target;
use super::in_namespace::{Limits, in_namespace_with};
use super::scope::Scope;
use super::skip::skip;
use super::waiting::wait_for;
use mooring_testbed::cluster::Cluster;
use mooring_testbed::node::guest::Selinux;
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
    "client-sshfs",
    "nfs-locks",
    "provisioner-directory",
];

/// Most lines of a kernel's panic to show before the one that names it.
const PANIC_LINES: usize = 6;

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
    with_machine_node_and(Selinux::Off, name, test);
}

/// [`with_machine_node`] with SELinux on or off.
///
/// # Panics
/// Likewise.
pub fn with_machine_node_and<F>(selinux: Selinux, name: &str, test: F)
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    let target = open_target().unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let Some(cluster) = target.own_cluster() else {
        return skip("it starts a node of the testbed's own cluster");
    };
    let machine = MachineNode(cluster.clone());
    if let Err(error) = cluster.start_machine_with(selinux, IMAGES) {
        panic!("{name}: {error:#}");
    }
    // The namespace has to be gone before the machine: deleting its volumes may need that node.
    let limits = Limits {
        test: LIMIT,
        patience: PATIENCE,
    };
    let before = cluster.machine_console().len();
    in_namespace_with(limits, name, async |scope| {
        let tested = test(scope).await;
        let console = cluster.machine_console();
        let Some(panic) = panic_of(console.get(before..).unwrap_or(&console)) else {
            return tested;
        };
        // A node that was started again may look well.
        let panic = format!("the kernel of {MACHINE_NODE} panicked, and it was started again: {panic}");
        match tested {
            Ok(()) => Err(anyhow!(panic)),
            Err(error) => Err(error.context(panic)),
        }
    });
    drop(machine);
}

/// What the kernel said when it panicked, if it did: why, where, and that it did.
fn panic_of(console: &str) -> Option<String> {
    let says = |line: &&str| {
        ["BUG", "Oops", "RIP: 0010:", "Kernel panic"]
            .iter()
            .any(|word| line.contains(word))
    };
    let said: Vec<_> = console.lines().filter(says).map(str::trim).collect();
    let last = said.iter().rposition(|line| line.contains("Kernel panic"))?;
    Some(said[last.saturating_sub(PANIC_LINES)..=last].join("; "))
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
        let drivers = [FLEX_DRIVER_DIR, CSI_VOLUMES_DIR].map(|driver| format!("/{driver}/"));
        let ours = |line: &&str| drivers.iter().any(|driver| line.contains(driver));
        Ok(table.lines().filter(ours).map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::panic_of;

    #[test]
    fn a_failure_says_why_the_machine_s_kernel_panicked() {
        let console = "[  1.0] mtrr: none\n[ 98.1] BUG: unable to handle page fault for address: 8\n\
                       [ 98.2] RIP: 0033:0x81b096\n[ 98.3] RIP: 0010:f+0x1/0x2\r\n\
                       [ 98.4] Kernel panic - not syncing: Fatal exception in interrupt\n\
                       [  0.5] mtrr: none";
        let said = panic_of(console).unwrap();
        assert!(
            said.starts_with("[ 98.1] BUG") && said.contains("f+0x1/0x2; [ 98.4] Kernel panic"),
            "{said}"
        );
        assert!(said.ends_with("in interrupt"), "{said}");
        assert_eq!(panic_of("[ 98.1] BUG: scheduling while atomic\n"), None);
    }
}
