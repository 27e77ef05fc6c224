//! Turns claims into runs of a storage vendor's provisioning image.
//!
//! A claim goes through the modules one way. A controller of [`controllers`] observes it: the claim, its runs and PVs
//! from [`cache`], its ConfigMap from [`config`]. A pure plan of [`operation`] decides the next step, with [`run`] to
//! read how the image ended and [`volume`] to judge the PV. [`apply`] carries the decision out. What that changes in
//! the API comes back to the cache by a watch, which queues the claim again.
#![forbid(unsafe_code)]

// Carries a decision out: writes claims and PVs, and has runs begun and removed.
pub mod apply;
// What the controllers know of the cluster, and what they are to look at next.
pub mod cache;
// What a ConfigMap means, whether it may say so, and the StorageClass that comes of it.
pub mod config;
// Tries a vendor's image by the contract: `flex-provisioner conform`.
pub mod conform;
// The loops that reconcile: claims, PVs, ConfigMaps, orphaned runs.
pub mod controllers;
// Moves volumes between FlexVolume and CSI: `flex-provisioner migrate`.
pub mod migrate;
// What is done to a volume: a pure plan of each operation.
pub mod operation;
// The program around the controllers: command line, API client, election, health, metrics, Events.
pub mod process;
// One run of the provisioning image: what it is given, what carries it out (only this module knows), what came of it.
pub mod run;
// Spans and moments, as the API keeps them.
mod time;
// The PersistentVolume: how it is made, and whether it is what was asked for.
pub mod volume;

pub use mooring_yaml as yaml;
