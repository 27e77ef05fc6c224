//! End-to-end tests: see each file.

mod bench;
mod claims;
