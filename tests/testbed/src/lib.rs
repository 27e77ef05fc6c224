//! A real Kubernetes cluster from nothing on one machine (`cargo testbed`), with Mooring's images and its
//! installation on whatever cluster.
//!
//! Each node is a process tree in namespaces of its own under an init process of ours ([`init`]); the control plane is
//! another. A cluster's state lies in one folder ([`layout`]) and goes with it.
#![forbid(unsafe_code)]

pub mod base_images;
pub mod binaries;
pub mod cgroup;
pub mod cluster;
pub mod command;
pub mod control_plane;
pub mod demo;
pub mod dns;
pub mod earlier;
pub mod extra_checks;
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
pub mod oci;
pub mod packages;
pub mod pki;
pub mod progress;
pub mod spec;
pub mod target;
pub mod virtual_machine;
pub mod wait;
