//! A provisioner ConfigMap, as YAML and as its keys; and the Pod for an accepted one.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| mooring_fuzz_targets::config_map::run(text));
