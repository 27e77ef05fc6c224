//! What the fuzz targets in `tests/fuzz` do with an input. They need a build with coverage, which takes minutes; this library is
//! compiled with all the rest, and its test gives each target its seeds and inputs that are like those.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)] // a panic is the finding

pub mod agent;
pub mod config_map;
pub mod socket;

#[cfg(test)]
mod short;
