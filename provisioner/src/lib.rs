//! Turns claims into runs of a storage vendor's provisioning image.
//!
//! [`args`] is the command line, [`runtime`] puts the controllers together, [`lint`] checks ConfigMaps offline.
#![forbid(unsafe_code)]

pub mod args;
pub mod config;
pub mod config_store;
pub mod context;
pub mod events;
pub mod metrics;
pub mod trust;
pub mod yaml;
