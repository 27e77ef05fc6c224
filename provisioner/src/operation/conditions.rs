//! The conditions of a claim that are about changes of its volume.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::text::cut;
use crate::time::whole_seconds;

/// Longest message of a condition, in bytes.
const MAX_MESSAGE: usize = 512;

fn conditions(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &PersistentVolumeClaimCondition> {
    let status = claim.status.as_ref();
    status.into_iter().flat_map(|status| status.conditions.iter().flatten())
}

pub(super) fn is_true(claim: &PersistentVolumeClaim, kind: &str) -> bool {
    conditions(claim).any(|one| one.type_ == kind && one.status == "True")
}

/// A condition that is true, since when it was if it was before.
pub(super) fn condition(
    claim: &PersistentVolumeClaim,
    kind: &str,
    message: Option<&str>,
    now: Timestamp,
) -> PersistentVolumeClaimCondition {
    let before = conditions(claim).find(|old| old.type_ == kind && old.status == "True");
    let since = before.and_then(|before| before.last_transition_time.clone());
    PersistentVolumeClaimCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(since.unwrap_or(Time(whole_seconds(now)))),
        message: message.map(|message| cut(message, MAX_MESSAGE).to_owned()),
        ..PersistentVolumeClaimCondition::default()
    }
}

/// The claim's conditions, those of these kinds replaced by others.
pub(super) fn replaced(
    claim: &PersistentVolumeClaim,
    kinds: &[&str],
    by: Vec<PersistentVolumeClaimCondition>,
) -> Vec<PersistentVolumeClaimCondition> {
    let others = conditions(claim).filter(|old| !kinds.contains(&old.type_.as_str()));
    others.cloned().chain(by).collect()
}
