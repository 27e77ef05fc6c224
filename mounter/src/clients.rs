//! The clients: one file each.

pub mod container;
