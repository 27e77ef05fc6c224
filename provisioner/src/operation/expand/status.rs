//! What a claim's status says of an expansion, as Kubernetes has it (`ClaimResourceStatus` and the conditions of
//! `k8s.io/api/core/v1`, written as `pkg/volume/util/resize_util.go` does). All of it is a merge patch of the field
//! `status`.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::operation::conditions::{condition, replaced};
use crate::operation::record::Record;
use crate::volume::capacity;

const STORAGE: &str = "storage";

const IN_PROGRESS: &str = "ControllerResizeInProgress";
const INFEASIBLE: &str = "ControllerResizeInfeasible";
const NODE_PENDING: &str = "NodeResizePending";

const RESIZING: &str = "Resizing";
const PENDING: &str = "FileSystemResizePending";
const ERROR: &str = "ControllerResizeError";

/// The conditions that are about an expansion.
const CONDITIONS: [&str; 4] = [RESIZING, PENDING, ERROR, "NodeResizeError"];

/// How far an expansion is, by the claim's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resize {
    None,
    Controller,
    /// The controller can't do it.
    ControllerInfeasible,
    /// The kubelet is to do it, or is at it.
    Node,
    /// The kubelet can't do it.
    NodeInfeasible,
    /// A word of a later Kubernetes.
    Unknown,
}

impl Resize {
    pub(super) fn of(claim: &PersistentVolumeClaim) -> Self {
        let status = claim.status.as_ref();
        let statuses = status.and_then(|status| status.allocated_resource_statuses.as_ref());
        match statuses.and_then(|all| all.get(STORAGE)).map(String::as_str) {
            None | Some("") => Self::None,
            Some(IN_PROGRESS) => Self::Controller,
            Some(INFEASIBLE) => Self::ControllerInfeasible,
            Some(NODE_PENDING | "NodeResizeInProgress") => Self::Node,
            Some("NodeResizeInfeasible") => Self::NodeInfeasible,
            Some(_) => Self::Unknown,
        }
    }
}

fn storage(resources: Option<&std::collections::BTreeMap<String, Quantity>>) -> Option<u64> {
    capacity::bytes(resources?.get(STORAGE)?).ok()
}

/// What the claim has.
pub(super) fn has(claim: &PersistentVolumeClaim) -> Option<u64> {
    storage(claim.status.as_ref()?.capacity.as_ref())
}

/// The size that the last expansion was to reach.
pub(super) fn allocated(claim: &PersistentVolumeClaim) -> Option<u64> {
    storage(claim.status.as_ref()?.allocated_resources.as_ref())
}

/// The status of a claim with this record of an expansion.
pub(crate) fn of_record(claim: &PersistentVolumeClaim, record: &Record, now: Timestamp) -> Value {
    let word = if record.gave_up { INFEASIBLE } else { IN_PROGRESS };
    let mut conditions = vec![condition(claim, RESIZING, None, record.since)];
    if !record.last_error.is_empty() {
        conditions.push(condition(claim, ERROR, Some(&record.last_error), now));
    }
    json!({
        "allocatedResources": {STORAGE: record.size.map(capacity::quantity)},
        "allocatedResourceStatuses": {STORAGE: word},
        "conditions": replaced(claim, &CONDITIONS, conditions),
    })
}

/// The storage has grown, and nobody else has to do anything.
pub(super) fn done(claim: &PersistentVolumeClaim, size: u64) -> Value {
    json!({
        "capacity": {STORAGE: capacity::quantity(size)},
        "allocatedResources": {STORAGE: capacity::quantity(size)},
        "allocatedResourceStatuses": {STORAGE: null},
        "conditions": replaced(claim, &CONDITIONS, vec![]),
    })
}

/// The storage has grown, and the kubelet does the rest.
pub(super) fn pending(claim: &PersistentVolumeClaim, now: Timestamp) -> Value {
    let message = "the storage has grown; the file system grows while or when a Pod uses the volume";
    let conditions = vec![
        condition(claim, RESIZING, None, now),
        condition(claim, PENDING, Some(message), now),
    ];
    json!({
        "allocatedResourceStatuses": {STORAGE: NODE_PENDING},
        "conditions": replaced(claim, &CONDITIONS, conditions),
    })
}

/// The status without any trace of an expansion.
pub(super) fn taken_back(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "allocatedResources": {STORAGE: null},
        "allocatedResourceStatuses": {STORAGE: null},
        "conditions": replaced(claim, &CONDITIONS, vec![]),
    })
}
