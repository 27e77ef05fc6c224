//! The testbed itself.

mod cluster;
mod images;
