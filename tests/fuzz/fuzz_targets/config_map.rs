//! A provisioner ConfigMap, as YAML and as its keys.
#![no_main]

use std::collections::BTreeMap;

use flex_provisioner::config::ProvisionerConfig;
use flex_provisioner::trust::Trust;
use flex_provisioner::yaml;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let trust = Trust::offline(None, None);
    if let Ok(config_map) = yaml::from_str::<ConfigMap>(text) {
        let _ = ProvisionerConfig::parse(&config_map, &trust);
    }
    // A key and its value on a line each, so that the fuzzer need not learn YAML first.
    let data: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.replace('|', "\n")))
        .collect();
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some("fuzz".to_owned()),
            namespace: Some("mooring".to_owned()),
            labels: Some(BTreeMap::from([
                ("type".to_owned(), "provisioner-config".to_owned()),
                ("storage-class".to_owned(), "fuzz".to_owned()),
            ])),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    };
    let _ = ProvisionerConfig::parse(&config_map, &trust);
});
