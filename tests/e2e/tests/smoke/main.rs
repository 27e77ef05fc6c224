//! The testbed itself.

mod builds;
mod cluster;
mod oldest;
