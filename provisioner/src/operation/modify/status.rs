//! What a claim's status says of a modification, as Kubernetes has it (`ModifyVolumeStatus` and the conditions of
//! `k8s.io/api/core/v1`, written as `pkg/modifycontroller/modify_status.go` of kubernetes-csi/external-resizer does).
//! All of it is a merge patch of the field `status`.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::operation::conditions::{condition, is_true, replaced};
use crate::operation::record::Record;

const PENDING: &str = "Pending";
const IN_PROGRESS: &str = "InProgress";
const INFEASIBLE: &str = "Infeasible";

const MODIFYING: &str = "ModifyingVolume";

/// The conditions that are about a modification.
const CONDITIONS: [&str; 2] = [MODIFYING, ERROR];

const ERROR: &str = "ModifyVolumeError";

/// How far a modification is, by the claim's status, and to which class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModifyState<'a> {
    None,
    /// It can't be begun yet.
    Pending(&'a str),
    /// The controller is at it.
    InProgress(&'a str),
    /// The last one can't be done.
    Infeasible(&'a str),
    /// A word of a later Kubernetes.
    Unknown,
}

impl<'a> ModifyState<'a> {
    pub(super) fn of(claim: &'a PersistentVolumeClaim) -> Self {
        let status = claim.status.as_ref();
        let Some(change) = status.and_then(|status| status.modify_volume_status.as_ref()) else {
            return Self::None;
        };
        let target = change
            .target_volume_attributes_class_name
            .as_deref()
            .unwrap_or_default();
        match change.status.as_str() {
            PENDING => Self::Pending(target),
            IN_PROGRESS => Self::InProgress(target),
            INFEASIBLE => Self::Infeasible(target),
            _ => Self::Unknown,
        }
    }
}

/// The class that the claim's volume has; empty for none.
pub(super) fn has(claim: &PersistentVolumeClaim) -> &str {
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    current.unwrap_or_default()
}

/// Whether the claim says that its volume is being modified.
pub(super) fn is_modifying(claim: &PersistentVolumeClaim) -> bool {
    is_true(claim, MODIFYING)
}

/// The status of a claim with this record of a modification.
pub(crate) fn of_record(claim: &PersistentVolumeClaim, record: &Record, now: Timestamp) -> Value {
    let class = &record.attributes;
    let (word, message) = if record.gave_up {
        (
            INFEASIBLE,
            format!("the volume can't be given the attributes of {class:?}"),
        )
    } else {
        (
            IN_PROGRESS,
            format!("the volume is being given the attributes of {class:?}"),
        )
    };
    let mut conditions = vec![condition(claim, MODIFYING, Some(&message), record.since)];
    if !record.last_error.is_empty() {
        conditions.push(condition(claim, ERROR, Some(&record.last_error), now));
    }
    json!({
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": class, "status": word},
        "conditions": replaced(claim, &CONDITIONS, conditions),
    })
}

/// What has to be there first is not there.
pub(super) fn pending(class: &str) -> Value {
    json!({"modifyVolumeStatus": {"targetVolumeAttributesClassName": class, "status": PENDING}})
}

/// The volume has the attributes of this class.
pub(super) fn done(claim: &PersistentVolumeClaim, class: &str) -> Value {
    json!({
        "modifyVolumeStatus": null,
        "currentVolumeAttributesClassName": class,
        "conditions": replaced(claim, &CONDITIONS, vec![]),
    })
}

/// Nothing is asked for any more. What became of the last modification stays, as with external-resizer.
pub(super) fn taken_back(claim: &PersistentVolumeClaim) -> Value {
    json!({"conditions": replaced(claim, &CONDITIONS, vec![])})
}
