//! How many nodes there can be, and their names.

/// Most nodes that a testbed cluster can have.
pub const MAX_NODES: u8 = 3;

/// The number of the node in a virtual machine, after all others: see [`super::guest`].
pub const MACHINE: u8 = MAX_NODES + 1;

/// Most nodes together with that one.
pub const ALL_NODES: u8 = MACHINE;

/// A node's name; nodes count from 1.
pub fn name(index: u8) -> String {
    match index {
        MACHINE => "machine-1".to_owned(),
        _ => format!("node-{index}"),
    }
}
