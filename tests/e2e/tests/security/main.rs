//! End-to-end tests: see each file.

mod boundaries;
mod config;
mod credentials;
mod mounts;
mod secrets;
