//! What the fuzz targets in `tests/fuzz` do with an input. Those need a build with coverage, which takes minutes. This
//! library is compiled with the rest of the workspace, and its test runs each target with its seeds and with inputs
//! derived from them.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)] // a panic is the finding

pub mod agent;
pub mod config_map;
pub mod socket;

#[cfg(test)]
mod short;
