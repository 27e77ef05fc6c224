//! How a worker is freed of its run, and whom it belongs to while it is free.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use kube::api::Patch;
use mooring_contract::names::{annotations, labels};
use serde_json::{Value, json};

use super::carrier::{self, Carrier};

pub(super) const CONFIG_MAP: &str = "ConfigMap";

/// The ConfigMap as the owner of its worker. One that is not on the cluster has no uid.
pub(super) fn owner(name: &str, uid: &str) -> Option<Vec<OwnerReference>> {
    // A node can be drained of what has a controller.
    (!uid.is_empty()).then(|| vec![carrier::owner(CONFIG_MAP, name, uid, Some(true))])
}

/// What it takes to free a worker of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Release {
    /// The number of the run.
    number: u64,
    /// Name and uid of the ConfigMap that the worker belongs to while it is free; none if it belongs to it all the time.
    config: Option<(String, String)>,
}

impl Release {
    pub(super) fn of(worker: &Carrier) -> Self {
        let note = |key: &str| worker.annotations().get(key);
        let name = note(annotations::CONFIG).and_then(|reference| reference.split_once('/'));
        let name = name.map(|(_, name)| name.to_owned());
        Self {
            number: carrier::number(worker),
            config: name.zip(note(annotations::CONFIG_UID).cloned()),
        }
    }

    /// The patch that takes from a worker's Pod what [`super::worker_pod::lend`] wrote for this run, and gives it back to its ConfigMap. Its
    /// number stays, and whom the run belonged to, which the next run overwrites.
    pub(super) fn patch(&self) -> Patch<()> {
        let path =
            |folder: &str, key: &str| format!("/metadata/{folder}/{}", key.replace('~', "~0").replace('/', "~1"));
        let of_run = [
            labels::OPERATION,
            labels::ATTEMPT,
            labels::CLAIM_UID,
            labels::CLAIM_NAMESPACE,
            labels::CLAIM_NAME,
        ];
        let notes = [
            annotations::CLAIM,
            annotations::REQUEST,
            annotations::BEGUN,
            annotations::TIMEOUT,
            annotations::INPUT_STATE,
        ];
        // An earlier version may not have written it, and what is not there can't be removed.
        let remove = |path: String| {
            [
                json!({"op": "add", "path": path, "value": ""}),
                json!({"op": "remove", "path": path}),
            ]
        };
        let number = self.number.to_string();
        let same_run = json!({"op": "test", "path": path("annotations", annotations::RUNS), "value": number});
        let owner = self.config.as_ref().and_then(|(name, uid)| owner(name, uid));
        let owner = owner.map(|owner| json!({"op": "add", "path": "/metadata/ownerReferences", "value": owner}));
        let steps: Vec<Value> = [same_run]
            .into_iter()
            .chain(owner)
            .chain(of_run.into_iter().flat_map(|key| remove(path("labels", key))))
            .chain(notes.into_iter().flat_map(|key| remove(path("annotations", key))))
            .collect();
        Patch::Json(serde_json::from_value(Value::Array(steps)).unwrap_or_default())
    }
}
