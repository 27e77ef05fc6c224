//! What is undone of a claim: of one that is being deleted or was bound elsewhere while its volume was being made, and
//! of one whose volume was refused.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::{annotations, finalizers};
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;

use super::decision::{ClaimDecision, Decision, ForClaim, Refuse, Undone, name_and_uid, removable};
use super::delete::Deletion;
use super::describe::{SubjectKind, action, waiting};
use super::drive::{removed, taken_back};
use super::observed::ObservedClaim;
use super::reclaim::{ReclaimPolicy, may_delete};
use super::record::Record;
use super::{attributes, request};
use crate::config::store::NoConfig;
use crate::process::events::{Note, reasons};
use crate::run::Run;
use crate::time::{elapsed, later};
use crate::volume::persistent_volume;

/// What to do about a claim that is being deleted, or was bound elsewhere, while its volume was being made.
pub fn plan_undo(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    let finalizers = seen.claim.metadata.finalizers.as_deref().unwrap_or_default();
    if !finalizers.iter().any(|name| name == finalizers::CLAIM) {
        return Decision::Rest;
    }
    let Some(record) = seen.record else {
        let has_run = seen.provision_run.or(seen.delete_run).is_some() || !seen.changes.is_empty();
        if !has_run && seen.volumes.is_empty() {
            return release_claim(seen, None, None);
        }
        return Decision::wait_for(waiting(
            Operation::Delete,
            format!(
                "annotation {} is missing: delete the volume by hand, then the finalizer {}",
                annotations::OPERATION,
                finalizers::CLAIM
            ),
        ));
    };
    if let Some(run) = seen.provision_run {
        return stop(seen, record, run, now);
    }
    let departed = seen.departed.filter(|run| run.attempt == record.attempt);
    let never_ran = !record.may_exist
        && record.is_provision()
        && seen.volumes.is_empty()
        && seen.departed.is_none_or(|run| !run.end.started);
    let unmade = departed.is_some_and(|run| !run.end.may_have_run);
    if never_ran && (record.cancelled || record.not_before.is_some() || unmade) {
        return release_claim(seen, None, None);
    }
    if record.is_delete() && !record.may_exist && record.not_before.is_some() {
        return release_claim(seen, None, None);
    }
    run_for_claim(seen, record, now)
}

/// The PV that the claim is bound to, if it was made for the claim and is not accepted yet: a Pod may have written to
/// it, so its own reclaim policy says what becomes of it.
pub(super) fn given<'a>(seen: &ObservedClaim<'a>) -> Option<&'a PersistentVolume> {
    let name = seen.claim.spec.as_ref()?.volume_name.as_deref()?;
    let is_refused = seen.record.is_some_and(|record| record.refused);
    let mut volumes = seen.volumes.iter().filter(|_| !is_refused);
    volumes
        .find(|volume| volume.metadata.name.as_deref() == Some(name))
        .map(|volume| &**volume)
}

/// What to do about a claim whose volume was refused: delete the volume, then provision again.
pub fn plan_refused(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> ClaimDecision {
    if !seen.volumes.is_empty() {
        // The controller may have been stopped between the record and this; a refused PV must not be bound.
        return Decision::Own(ForClaim::Refuse(Box::new(Refuse {
            record: record.clone(),
            volumes: seen.volumes.iter().map(|volume| name_and_uid(volume)).collect(),
            say: None,
            run: seen.provision_run.map(Run::to_remove),
        })));
    }
    if let Some(run) = seen.provision_run {
        return removed(run, record.operation, seen.limits, now);
    }
    run_for_claim(seen, record, now)
}

/// Stops a run whose volume is not wanted any more.
fn stop(seen: &ObservedClaim<'_>, record: &Record, run: &Run, now: Timestamp) -> ClaimDecision {
    if !record.is_provision() {
        return removed(run, record.operation, seen.limits, now);
    }
    let local = seen.config.as_ref().is_ok_and(|config| config.is_node_local());
    let node = run.node().filter(|node| record.node != *node);
    if let Some(node) = node.filter(|_| local && run.attempt() == record.attempt) {
        // It is not yet known where it ran.
        return Decision::Record(Box::new(Record {
            node: node.to_owned(),
            ..record.clone()
        }));
    }
    taken_back(run, record, seen.limits, now)
}

/// Runs `delete` for a claim that exists.
fn run_for_claim(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> ClaimDecision {
    let config = match seen.config {
        Ok(config) => config,
        Err(NoConfig::NotReadYet) => return Decision::Rest,
        Err(error) => {
            let is_its_own = |run: &&Run| record.is_delete() && run.attempt() == record.attempt;
            return match seen.delete_run.filter(is_its_own) {
                Some(run) if run.is_done() => over(seen, record, None, Some(elapsed(run.made(), now)), now),
                _ => Decision::wait_for(waiting(Operation::Delete, format!("{error}{}", or_give_up(seen)))),
            };
        }
    };
    let mut node = None;
    if config.is_node_local() && !record.node.is_empty() {
        node = (seen.nodes)(&record.node);
        if node.is_none() {
            let text = format!("node {} has left the cluster, and the volume with it", record.node);
            let say = Note::warning(reasons::NODE_GONE, action(Operation::Delete), text);
            return over(seen, record, Some(say), None, now);
        }
    }
    let volume = seen
        .volumes
        .first()
        .map_or_else(BTreeMap::new, |volume| persistent_volume::options(volume));
    let node_name = node.as_ref().map(|node| node.name.clone());
    let asked = request::for_claim(
        Operation::Delete,
        seen.claim,
        node.as_ref(),
        volume,
        seen.surroundings(config),
    );
    let request = match asked {
        Ok(request) => Request {
            // What the image was asked to make; a class that has been deleted holds nothing up.
            attributes: attributes::of_claim(seen).unwrap_or_default(),
            ..request
        },
        Err(error) => return Decision::wait_for(waiting(Operation::Delete, error.to_string())),
    };
    let deletion = Deletion {
        progress: seen.progress(
            Operation::Delete,
            (record.is_delete() || record.refused).then_some(record),
            seen.delete_run,
            now,
        ),
        asked_by: SubjectKind::Claim,
        // A volume that nobody was given is nothing to retain.
        policy: given(seen).map_or(ReclaimPolicy::Delete, ReclaimPolicy::of_volume),
        config,
        request,
        node: node_name,
        refused: record.refused && seen.claim.metadata.deletion_timestamp.is_none(),
        before: Some(record),
        owner: None,
        gone: &|took| over(seen, record, None, took, now),
        // Its server may be gone for good.
        or: or_give_up(seen),
    };
    deletion.plan()
}

/// How an administrator gives up the volume of a claim that is being deleted, in the words that end an Event.
fn or_give_up(seen: &ObservedClaim<'_>) -> String {
    if seen.claim.metadata.deletion_timestamp.is_none() {
        return String::new();
    }
    format!(
        "; or give the volume up, which leaves what the storage has of it: remove the finalizer {} from the claim",
        finalizers::CLAIM
    )
}

/// The volume of an existing claim is gone.
fn over(
    seen: &ObservedClaim<'_>,
    record: &Record,
    say: Option<Note>,
    took: Option<Duration>,
    now: Timestamp,
) -> ClaimDecision {
    let deleting = seen.claim.metadata.deletion_timestamp.is_some();
    if deleting || !record.refused {
        return release_claim(seen, say, took);
    }
    let delay = seen.limits.backoff.delay(record.attempt, seen.uid());
    let reschedule = seen.waits_for_consumer() && seen.config.as_ref().is_ok_and(|config| config.is_node_local());
    Decision::Own(ForClaim::Undone(Box::new(Undone {
        next: Some(Record {
            attempt: record.attempt.saturating_add(1),
            not_before: Some(later(now, delay)),
            node: String::new(),
            may_exist: false,
            refused: false,
            ..record.clone()
        }),
        reschedule,
        runs: removable([seen.provision_run, seen.delete_run]),
        say,
        took,
        after: Some(delay),
        ..Undone::default()
    })))
}

fn release_claim(seen: &ObservedClaim<'_>, say: Option<Note>, took: Option<Duration>) -> ClaimDecision {
    let kept =
        given(seen).filter(|volume| may_delete(&ReclaimPolicy::of_volume(volume), Operation::Delete, None).is_err());
    let kept = kept.map(name_and_uid);
    let volumes = seen.volumes.iter().map(|volume| name_and_uid(volume));
    Decision::Own(ForClaim::Undone(Box::new(Undone {
        volumes: volumes.filter(|volume| Some(volume) != kept.as_ref()).collect(),
        runs: removable([seen.provision_run, seen.delete_run]),
        say,
        took,
        ..Undone::default()
    })))
}
