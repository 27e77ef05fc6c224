//! The node daemon of Mooring: the only program that mounts.
//!
//! Two front doors on one core (`FlexVolume` through the shim now, CSI later). [`client`] is what passes between the
//! core and whoever makes a mount; [`target`] is the only way to a volume's directory.
#![deny(unsafe_code)]

pub mod agent;
pub mod client;
pub mod client_pods;
pub mod clients;
pub mod mount_options;
pub mod target;
