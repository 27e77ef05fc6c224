//! A provisioner ConfigMap, as YAML and as its keys; and the Pod that an accepted one makes.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| mooring_fuzz_targets::config_map::run(text));
