//! The testbed itself.

mod builds;
mod cluster;
mod install;
mod manifests;
mod oldest;
mod release;
