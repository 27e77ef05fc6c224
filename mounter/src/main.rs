//! `mounter`: see the library.

fn main() {}
