//! End-to-end tests: see each file.

mod drop_in;
mod generated;
mod rules;
