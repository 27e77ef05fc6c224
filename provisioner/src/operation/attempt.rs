//! From one attempt to the next: when it may begin, and what is written down when it fails.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use sha2::{Digest, Sha256};

use super::decision::Failed;
use super::describe::{Description, Effect, SubjectKind, describe};
use super::limits::Limits;
use super::record::Record;
use crate::config::ProvisionerConfig;
use crate::process::events::{Note, reasons};
use crate::run::RunRef;
use crate::run::input_state::InputState;
use crate::run::outcome::{Category, Finish};
use crate::text::hex;
use crate::time::{elapsed, later, whole_seconds};

/// The record of an attempt that begins: for as long as there is a `not-before`, it has not, and has made nothing.
pub(crate) fn begun(record: &Record) -> Record {
    Record {
        gave_up: false,
        not_before: None,
        ..record.clone()
    }
}

/// How long a record still has to wait, if it does; [`Duration::MAX`] for good. Not at all once what it was tried with
/// has changed.
pub(crate) fn held_back(record: &Record, state: &InputState, now: Timestamp) -> Option<Duration> {
    let is_unchanged = record.tried.as_ref().is_none_or(|tried| tried.is_still(state));
    match (is_unchanged, record.gave_up) {
        (false, _) => None,
        (true, true) => Some(Duration::MAX),
        (true, false) => backing_off(record, now),
    }
}

/// The wait of a record, whatever has changed since.
pub(crate) fn backing_off(record: &Record, now: Timestamp) -> Option<Duration> {
    let left = elapsed(now, record.not_before?);
    Some(left).filter(|left| !left.is_zero())
}

/// What an attempt that failed leaves: the record, what users are told, the wait. After exit 78 the operation is tried
/// again when `state` is no longer the same.
pub(crate) fn failed(
    record: &Record,
    finish: &Finish,
    uid: &str,
    state: InputState,
    limits: &Limits,
    now: Timestamp,
    run: Option<RunRef>,
) -> Failed {
    let delay = limits.backoff.delay(record.attempt, uid);
    let mut next = record.failed(&finish.why, whole_seconds(later(now, delay)), finish.may_have_run);
    next.tried = Some(state);
    let give_up = finish.outcome == Outcome::GiveUp;
    let say = if give_up {
        next.gave_up = true;
        next.not_before = None;
        given_up(&next)
    } else {
        let reason = if finish.category == Category::Timeout {
            reasons::TIMED_OUT
        } else {
            describe(record.operation).events.failed
        };
        failure(record.operation, reason, &finish.why, "it will be tried again")
    };
    Failed {
        record: next,
        say,
        run,
        category: finish.category,
        after: (!give_up).then_some(delay),
    }
}

/// What users are told when an operation is given up, and for as long as it is.
pub(crate) fn given_up(record: &Record) -> Note {
    let then = match describe(record.operation).subject {
        SubjectKind::Claim => "not tried again until the ConfigMap, the StorageClass or the claim changes",
        SubjectKind::Volume => "not tried again until the ConfigMap or the StorageClass changes",
        SubjectKind::Config => "not tried again until the ConfigMap changes",
        SubjectKind::Group => "not tried again until the ConfigMap or the VolumeGroupSnapshotClass changes",
        SubjectKind::Snapshot => "not tried again until the ConfigMap or the VolumeSnapshotClass changes",
    };
    failure(record.operation, reasons::GIVEN_UP, &record.last_error, then)
}

/// The same words for the same failure make one Event with a count; the attempt is in the record.
fn failure(operation: Operation, reason: &'static str, why: &str, then: &str) -> Note {
    let Description { effect, events, .. } = describe(operation);
    let reason = match effect {
        // external-resizer and csi-snapshotter have one reason for all of them.
        Effect::ExpandsVolume | Effect::ModifiesVolume | Effect::TakesSnapshot | Effect::RemovesSnapshot => {
            events.failed
        }
        Effect::MakesVolume
        | Effect::RemovesVolume
        | Effect::AttachesVolume
        | Effect::DetachesVolume
        | Effect::KeepsAll => reason,
    };
    Note::warning(reason, events.action, format!("{} failed: {why}; {then}", events.doing))
}

/// A hash of all that decides a run: a change of it ends a giving-up.
pub(crate) fn state_of(
    config: &ProvisionerConfig,
    claim: Option<&PersistentVolumeClaim>,
    class: Option<&StorageClass>,
) -> InputState {
    let mut hash = Sha256::new().chain_update(&config.fingerprint);
    if let Some(claim) = claim {
        hash.update(serde_json::json!(claim.spec).to_string());
        for (key, value) in claim.metadata.annotations.iter().flatten() {
            // Mooring's own record changes with every attempt, and Kubernetes' notes by themselves.
            let own = key == annotations::OPERATION || key.contains("kubernetes.io/");
            if !own || key == annotations::SELECTED_NODE {
                hash.update(format!("{key}={value}\n"));
            }
        }
    }
    if let Some(class) = class {
        hash.update(serde_json::json!([class.parameters, class.mount_options]).to_string());
    }
    InputState::Known(hex(&hash.finalize()[..8]))
}

#[cfg(test)]
mod tests {
    use mooring_contract::operation::Operation;
    use serde_json::json;

    use super::given_up;

    #[test]
    fn a_giving_up_names_all_that_ends_it_and_nothing_else() {
        for (operation, changes) in [
            (Operation::Provision, "the ConfigMap, the StorageClass or the claim"),
            (Operation::Attach, "the ConfigMap or the StorageClass"),
            (Operation::Delete, "the ConfigMap or the StorageClass"),
        ] {
            let record = json!({
                "operation": operation, "attempt": 1, "pod": "a/b", "since": "2026-11-21T12:00:00Z", "config": "a/c",
                "config-uid": "c1", "last-error": "no",
            });
            let text = given_up(&serde_json::from_value(record).unwrap()).text;
            assert!(
                text.ends_with(&format!("failed: no; not tried again until {changes} changes")),
                "{text}"
            );
        }
    }
}
