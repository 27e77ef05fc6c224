//! Volumes from the claim to the PersistentVolume and back.

mod clone;
mod config;
mod contract;
mod deleted;
mod expand;
mod local;
mod lost;
mod outcomes;
mod refusals;
mod smb;
mod snapshot;
