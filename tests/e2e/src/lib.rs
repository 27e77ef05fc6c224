//! A list of the end-to-end tests: their files in `tests/`, what each needs, and how long it takes. The testbed's
//! command line runs them from this list.
#![forbid(unsafe_code)]

mod files;
pub mod guarantees;
pub mod images;
pub mod settings;

#[cfg(test)]
mod image_list;
#[cfg(test)]
mod links;
#[cfg(test)]
mod network;
#[cfg(test)]
mod policies;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod rooms;
#[cfg(test)]
mod threat_model;
#[cfg(test)]
mod troubleshooting;
#[cfg(test)]
mod uninstall;

pub use files::{FILES, File, Needs, Tier};
