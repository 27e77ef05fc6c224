//! Attempts to break out.

mod boundaries;
mod break_out;
mod config;
mod credentials;
mod mounts;
mod secrets;
