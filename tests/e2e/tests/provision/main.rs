//! Volumes from the claim to the PersistentVolume and back.

mod attach;
mod backup;
mod clone;
mod config;
mod conform;
mod contract;
mod deleted;
mod discover;
mod expand;
mod grant;
mod group;
mod kits;
mod local;
mod lost;
mod migrate;
mod modify;
mod outcomes;
mod populate;
mod refusals;
mod smb;
mod snapshot;
mod worker_faults;
mod workers;
