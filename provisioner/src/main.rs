//! Turns claims into runs of a storage vendor's provisioning image.

fn main() {}
