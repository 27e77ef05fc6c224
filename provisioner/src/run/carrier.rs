//! What carries runs out, as the cluster has it: a Pod, of one run or a worker's.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use mooring_contract::names::{annotations, labels};

/// What carries runs out, as the cache watches it.
pub type Carrier = Pod;

/// The labels that carriers of runs have, as a selector.
pub fn selector() -> String {
    format!("{}={}", labels::COMPONENT, labels::COMPONENT_PROVISIONING)
}

pub fn is_worker(carrier: &Carrier) -> bool {
    carrier.labels().contains_key(labels::WORKER)
}

/// Whether a worker has a run.
pub fn has_run(carrier: &Carrier) -> bool {
    carrier.labels().contains_key(labels::OPERATION)
}

/// The number of the last run that a worker was given.
pub(super) fn number(carrier: &Carrier) -> u64 {
    annotation(carrier, annotations::RUNS).unwrap_or(0)
}

/// Since when a worker has its run.
pub(super) fn begun(carrier: &Carrier) -> Option<Timestamp> {
    annotation(carrier, annotations::BEGUN)
}

/// How long a worker's run may take.
pub(super) fn timeout(carrier: &Carrier) -> Duration {
    Duration::from_secs(annotation(carrier, annotations::TIMEOUT).unwrap_or(0))
}

fn annotation<T: std::str::FromStr>(carrier: &Carrier, key: &str) -> Option<T> {
    carrier.annotations().get(key)?.parse().ok()
}

pub(super) fn owner(kind: &str, name: &str, uid: &str, controller: Option<bool>) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller,
        block_owner_deletion: None,
    }
}
