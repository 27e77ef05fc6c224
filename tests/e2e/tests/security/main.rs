//! Attempts to break out.

mod boundaries;
mod config;
mod credentials;
mod mounts;
mod secrets;
