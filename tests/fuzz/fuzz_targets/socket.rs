//! What the shim sends to the mounter, and what the mounter answers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mooring_fuzz_targets::socket::run(bytes));
