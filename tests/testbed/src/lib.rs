//! A real Kubernetes cluster from nothing on one machine (`cargo testbed`), and Mooring's images and installation on
//! any cluster.
//!
//! Each node is a process tree in namespaces of its own under our init process ([`init`]); the control plane is
//! another. All state of a cluster is in one folder ([`layout`]), which is removed with the cluster.
#![forbid(unsafe_code)]

pub mod audit;
pub mod base_images;
pub mod binaries;
pub mod cgroup;
pub mod cluster;
pub mod command;
pub mod conform;
pub mod control_plane;
pub mod demo;
mod disk_space;
pub mod dns;
pub mod earlier;
pub mod extra_checks;
pub mod hash;
pub mod image_store;
pub mod images;
pub mod init;
pub mod install;
pub mod keys;
pub mod layout;
pub mod lock;
pub mod logs;
pub mod manifests;
pub mod namespaces;
pub mod network;
pub mod node;
pub mod node_folders;
pub mod oci;
pub mod packages;
pub mod pki;
pub mod progress;
pub mod release;
pub mod rights;
mod seclusion;
pub mod spec;
pub mod target;
pub mod virtual_machine;
pub mod wait;
mod work_trees;
