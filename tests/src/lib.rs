//! A real Kubernetes cluster from nothing on one machine (`cargo testbed`), and what Mooring's end-to-end tests use.
//!
//! Each node is a process tree in namespaces of its own under an init process of ours ([`init`]); the control plane is
//! another. A cluster's state lies in one folder ([`layout`]) and goes with it.
#![forbid(unsafe_code)]

pub mod base_images;
pub mod bench;
pub mod binaries;
pub mod cgroup;
pub mod checks;
pub mod cli;
pub mod cluster;
pub mod command;
pub mod control_plane;
pub mod demo;
pub mod dns;
pub mod harness;
pub mod images;
pub mod init;
pub mod install;
pub mod layout;
pub mod lock;
pub mod logs;
pub mod lots;
pub mod machine;
pub mod namespaces;
pub mod network;
pub mod node;
pub mod oci;
pub mod packages;
pub mod pki;
pub mod progress;
pub mod spec;
pub mod target;
#[cfg(test)]
mod threat_model;
pub mod wait;
