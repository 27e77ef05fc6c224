//! What mounter and agent send to each other, and what an agent would run for it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mooring_fuzz_targets::agent::run(bytes));
