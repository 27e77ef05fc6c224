//! End-to-end tests: see each file.

mod config;
mod contract;
mod deleted;
mod local;
mod lost;
mod outcomes;
mod refusals;
mod smb;
