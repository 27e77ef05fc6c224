//! Many at once.

mod bench;
mod claims;
