//! Turns claims into runs of a storage vendor's provisioning image.
//!
//! A claim goes through the modules one way. A controller of [`controllers`] observes it: the claim, its runs and PVs
//! from [`cache`], its ConfigMap from [`config`]. A pure plan of [`operation`] decides the next step, with [`run`] to
//! read how the image ended and [`volume`] to judge the PV. [`apply`] carries the decision out. What that changes in
//! the API comes back to the cache by a watch, which queues the claim again.
//!
//! Two things come before a decision, in the same turn. What was watched may be old: where a plan depends on it, the
//! controller has it read from the API (`apply::live`) and plans again. And the PV that an image described is made
//! first, and then accepted like one that the image made: to wait for the watch in between would keep the claim's Pods
//! waiting for longer.
//!
//! A module imports only from the modules below it in this table:
//!
//! | module | what it does |
//! | --- | --- |
//! | [`cli`] | from the command line to an exit code |
//! | [`runtime`] | runs the controllers for as long as this replica leads |
//! | [`args`] | the command line |
//! | [`controllers`] | the loops that reconcile: claims, PVs, ConfigMaps, orphaned runs |
//! | [`apply`] | carries a decision out: writes claims and PVs, has runs begun and removed |
//! | [`cache`] | what the controllers know of the cluster, and what they are to look at next |
//! | [`context`] | what every controller works with |
//! | [`operation`] | what is done to a volume: a pure plan of each operation |
//! | [`run`] | one run of the image: what it is given, what carries it out (only this module knows), what came of it |
//! | [`process`] | the program around the controllers: API client, election, health, metrics, Events |
//! | [`volume`] | the PersistentVolume: how it is made, and whether it is what was asked for |
//! | [`config`] | what a ConfigMap means, whether it may say so, and the StorageClass that comes of it |
//! | [`time`] | spans and moments, as the API keeps them |
//! | [`text`] | texts of a given length, and maps of texts |
#![forbid(unsafe_code)]

pub mod apply;
pub mod args;
pub mod cache;
pub mod cli;
pub mod config;
pub mod context;
pub mod controllers;
pub mod operation;
pub mod process;
pub mod run;
pub mod runtime;
mod text;
mod time;
pub mod volume;

pub use mooring_yaml as yaml;
