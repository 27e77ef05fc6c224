//! Turns claims into runs of a storage vendor's provisioning image.
//!
//! [`args`] is the command line, [`runtime`] puts the controllers together, [`lint`] checks ConfigMaps offline.
#![forbid(unsafe_code)]

pub mod acceptance;
pub mod apply;
pub mod args;
pub mod backoff;
pub mod capacity;
pub mod claim_controller;
pub mod cli;
pub mod client;
pub mod config;
pub mod config_controller;
pub mod config_store;
pub mod context;
pub mod election;
pub mod events;
pub mod health;
mod held;
pub mod lint;
pub mod metrics;
pub mod mirror;
pub mod operation;
pub mod orphan;
pub mod outcome;
pub mod persistent_volume;
pub mod pod;
pub mod properties;
pub mod provisioning;
#[cfg(test)]
mod rehearsal;
pub mod retry;
pub mod runtime;
pub mod seen_to;
pub mod slots;
pub mod storage_class;
pub mod topology;
pub mod trust;
pub mod volume_controller;
pub mod wake;
pub mod watched;

pub use mooring_yaml as yaml;
