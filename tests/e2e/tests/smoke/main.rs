//! End-to-end tests: see each file.

mod cluster;
mod images;
