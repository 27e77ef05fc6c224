//! How many nodes there can be, and their names.

/// Most nodes that a testbed cluster can have.
pub const MAX_NODES: u8 = 3;

/// The number of the node in a virtual machine, after all others: see [`super::guest`].
pub const MACHINE: u8 = MAX_NODES + 1;

/// Most nodes together with that one.
pub const ALL_NODES: u8 = MACHINE;

/// The zone that a node is in, as a cloud's nodes are: two in one, the others in another.
pub fn zone(index: u8) -> &'static str {
    if index <= 2 { "one" } else { "other" }
}

/// A node's name; nodes count from 1.
pub fn name(index: u8) -> String {
    match index {
        MACHINE => "machine-1".to_owned(),
        _ => format!("node-{index}"),
    }
}
