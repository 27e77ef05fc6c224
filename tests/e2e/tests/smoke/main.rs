//! The testbed itself.

mod builds;
mod cluster;
mod manifests;
mod oldest;
mod release;
