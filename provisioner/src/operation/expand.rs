//! Operation `expand`: from a bound claim that asks for more than it has to a volume that is larger. The rules are
//! those of Kubernetes' own external-resizer (`pkg/controller/expand_and_recover.go` of
//! kubernetes-csi/external-resizer) and of `pkg/volume/util/operationexecutor/operation_generator.go`: users and other
//! tools see the same in a claim's [`status`].
//!
//! The record holds the size that is being made. While a run may still make the volume that large, another size would
//! be a lie to quotas: so a lowered request counts only when the last run is known to have ended without success.

mod status;

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::{FLEX_DRIVER, annotations};
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::volume::clients::Growth;
use serde_json::{Value, json};

use self::status::Resize;
pub(crate) use self::status::of_record;
use super::attempt::{begun, failed, held_back, state_of};
use super::claim_error::ClaimError;
use super::decision::{Altered, ClaimDecision, Decision, ForClaim, Intent, Start, removable};
use super::describe::{action, describe, waiting};
use super::observed::ObservedClaim;
use super::record::Record;
use super::request::{self, of_size};
use super::standing::{self, give_up, has_run, is_bound, is_uncertain, ready};
use super::step::{Step, step};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::process::events::{Note, reasons};
use crate::run::Run;
use crate::run::outcome::Finish;
use crate::time::elapsed;
use crate::volume::acceptance::asked_bytes;
use crate::volume::capacity;
use crate::volume::persistent_volume::{self, growth};

/// Whether a bound claim asks for more than it has.
pub(crate) fn is_asked(claim: &PersistentVolumeClaim) -> bool {
    is_bound(claim) && asked_bytes(claim).is_ok_and(|asked| status::has(claim).is_some_and(|has| asked > has))
}

/// Whether the image has refused the last expansion, by the claim's status.
pub(super) fn is_infeasible(claim: &PersistentVolumeClaim) -> bool {
    Resize::of(claim) == Resize::ControllerInfeasible
}

/// Whether an expansion could begin if nothing else were open, and was not refused before.
pub(super) fn is_next(seen: &ObservedClaim<'_>, now: Timestamp) -> bool {
    !is_infeasible(seen.claim) && matches!(fresh(seen, now), Decision::Start(_))
}

/// What to do about a bound claim of which nothing is open.
pub(super) fn fresh(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    if has_run(seen) || !is_bound(seen.claim) {
        return Decision::Rest;
    }
    let Some(volume) = standing::volume(seen) else {
        return Decision::Rest;
    };
    let (Ok(asked), Some(has)) = (asked_bytes(seen.claim), status::has(seen.claim)) else {
        return Decision::Rest;
    };
    if asked <= has {
        return settled(seen, volume, has);
    }
    let Some(size) = wanted(seen.claim, volume, asked) else {
        return Decision::Rest;
    };
    let config = match seen.config {
        Ok(config) => config,
        // Of another Mooring's namespace, which that one serves.
        Err(NoConfig::NotOurs { .. } | NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => return Decision::Rest,
        Err(error) => return Decision::wait_for(waiting(Operation::Expand, error.to_string())),
    };
    if let Some(say) = not_offered(config) {
        return Decision::wait_for(say);
    }
    let run = seen.run(Operation::Expand).in_namespace(&config.reference.namespace);
    let record = Record {
        size: Some(size),
        ..Record::first(Operation::Expand, run, now, config)
    };
    begin(seen, volume, config, record)
}

/// A claim that has what it asks for: what is left of an expansion is taken back.
fn settled(seen: &ObservedClaim<'_>, volume: &PersistentVolume, has: u64) -> ClaimDecision {
    // Kubernetes itself takes the mark of a FlexVolume away (`isNodeExpandComplete` in `pkg/controller/volume/expand`).
    let flex = volume.spec.as_ref().is_some_and(|spec| spec.flex_volume.is_some());
    let marked = volume.metadata.annotations.as_ref();
    let marked = marked.is_some_and(|all| all.contains_key(annotations::PRE_RESIZE_CAPACITY));
    let grown = persistent_volume::size(volume).is_some_and(|size| has >= size);
    let volume_patch = (marked && grown && !flex).then(|| {
        json!({"metadata": {
            "resourceVersion": volume.metadata.resource_version,
            "annotations": {annotations::PRE_RESIZE_CAPACITY: null},
        }})
    });
    let left = match Resize::of(seen.claim) {
        Resize::Controller | Resize::ControllerInfeasible => true,
        Resize::None | Resize::Node | Resize::NodeInfeasible | Resize::Unknown => false,
    };
    if volume_patch.is_none() && !left {
        return Decision::Rest;
    }
    Decision::Own(ForClaim::Altered(Box::new(Altered {
        volume_patch,
        status: left.then(|| status::taken_back(seen.claim)),
        ..Altered::of(Operation::Expand, volume)
    })))
}

/// The size to make; `None` while the kubelet is to finish an earlier expansion.
fn wanted(claim: &PersistentVolumeClaim, volume: &PersistentVolume, asked: u64) -> Option<u64> {
    let allocated = status::allocated(claim);
    let size = persistent_volume::size(volume).unwrap_or(0);
    match (Resize::of(claim), size < asked) {
        (Resize::Node, _) if is_only_called_larger(claim, volume) => Some(allocated.unwrap_or(asked)),
        (Resize::Node, true) => {
            let earlier = allocated.unwrap_or(asked);
            (size < earlier).then_some(earlier)
        }
        (Resize::Node, false) => None,
        // Begun by somebody whose record is gone: how far it came is not known.
        (Resize::NodeInfeasible | Resize::Controller, _)
        // The storage is that large already, and only that was not written down.
        | (Resize::ControllerInfeasible | Resize::None | Resize::Unknown, false) => Some(allocated.unwrap_or(asked)),
        (Resize::ControllerInfeasible | Resize::None | Resize::Unknown, true) => Some(asked),
    }
}

/// Whether Kubernetes itself has called a volume larger that no image has made larger yet. It does so with FlexVolume,
/// unless the policies of `configmaps/install` keep it from that (`expandAndRecoverFunction` in
/// `pkg/volume/util/operationexecutor`); and it leaves its mark.
fn is_only_called_larger(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let by = claim.metadata.annotations.as_ref();
    let by = by.and_then(|all| all.get(annotations::STORAGE_RESIZER));
    let made = request::made_by(volume).ok().map(|made_by| made_by.size);
    by.map(String::as_str) == Some(FLEX_DRIVER) && made < status::allocated(claim) && made.is_some()
}

/// What users are told where the image does not expand volumes.
fn not_offered(config: &ProvisionerConfig) -> Option<Note> {
    (!config.operations.contains(&Operation::Expand)).then(|| {
        let error = ClaimError::NoOperation(config.reference.to_string(), Operation::Expand.as_str());
        let text = format!("{error}; or lower the claim's request again, to any size above its capacity");
        Note::warning(reasons::RESIZE_FAILED, action(Operation::Expand), text)
    })
}

/// What to do about a claim whose record is one of an expansion.
pub(super) fn ongoing(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> ClaimDecision {
    if seen.claim.metadata.deletion_timestamp.is_some() {
        return give_up(seen, seen.expand_run, record, None, now);
    }
    let Some(volume) = standing::volume(seen) else {
        let text = "Mooring can't expand the volume: its PersistentVolume is gone or no longer Mooring's; restore it, \
                    or delete the claim";
        let say = Note::warning(reasons::RESIZE_FAILED, action(Operation::Expand), text);
        return give_up(seen, seen.expand_run, record, Some(say), now);
    };
    match step(seen.expand_run, record, seen.limits, now) {
        Step::None => again(seen, volume, record, now),
        Step::Leftover(run) => Decision::Stop(run.to_remove()),
        Step::Leaving(say) => Decision::Wait {
            after: Some(seen.limits.overdue),
            say,
        },
        Step::Running(left) => Decision::wait(left),
        Step::Waiting { after, say } => {
            let (run, config) = (seen.run(Operation::Expand), seen.config.as_ref().ok());
            Decision::supply(seen.expand_run, run, config, record, after, say)
        }
        Step::Ended(finish) if finish.outcome == Outcome::Done => grown(seen, volume, record, &finish, now),
        Step::Ended(finish) => fail(seen, record, &finish, now),
    }
}

/// What to do without a run: begin the next attempt if it is time, or take the expansion back.
fn again(seen: &ObservedClaim<'_>, volume: &PersistentVolume, record: &Record, now: Timestamp) -> ClaimDecision {
    let asked = asked_bytes(seen.claim).unwrap_or(0);
    // The last run is known to have ended, so the claim's request counts again.
    let free = !record.uncertain && (record.not_before.is_some() || record.gave_up);
    if free && status::has(seen.claim).is_some_and(|has| asked <= has) {
        return Decision::Own(ForClaim::Altered(Box::new(Altered {
            status: Some(status::taken_back(seen.claim)),
            release: true,
            without: Some((record.run.clone(), seen.run(Operation::Expand))),
            say: Some(Note::normal(
                reasons::RESIZE_TAKEN_BACK,
                action(Operation::Expand),
                "the failed expansion is canceled: the claim asks for no more than its capacity",
            )),
            ..Altered::of(Operation::Expand, volume)
        })));
    }
    let config = match seen.config {
        Ok(config) => config,
        Err(NoConfig::NotReadYet) => return Decision::Rest,
        Err(error) => {
            return give_up(
                seen,
                seen.expand_run,
                record,
                Some(waiting(Operation::Expand, error.to_string())),
                now,
            );
        }
    };
    if let Some(say) = not_offered(config) {
        return give_up(seen, seen.expand_run, record, Some(say), now);
    }
    match held_back(record, &state_of(config, Some(seen.claim), seen.class), now) {
        Some(Duration::MAX) => return Decision::Rest,
        Some(left) => return Decision::wait(left),
        None => {}
    }
    let mut next = begun(record);
    next.config = config.reference.to_string();
    next.config_uid.clone_from(&config.uid);
    next.run = seen.run(Operation::Expand).in_namespace(&config.reference.namespace);
    if free && record.size != Some(asked) {
        next.size = Some(asked);
        next.last_error.clear();
    }
    begin(seen, volume, config, next)
}

/// The run that the record's attempt is, to be begun.
fn begin(
    seen: &ObservedClaim<'_>,
    volume: &PersistentVolume,
    config: &std::sync::Arc<ProvisionerConfig>,
    record: Record,
) -> ClaimDecision {
    let (made_by, node) = match ready(seen, Operation::Expand, volume, config, "the volume is expanded") {
        Ok(ready) => ready,
        Err(wait) => return *wait,
    };
    let size = record.size.unwrap_or(made_by.size);
    let options = persistent_volume::options(volume);
    let request = of_size(
        request::remembered(Operation::Expand, made_by, options, seen.surroundings(config)),
        size,
    );
    Decision::Start(Box::new(Start {
        run: seen.run(Operation::Expand),
        request,
        config: config.clone(),
        node,
        allowed: Vec::new(),
        state: state_of(config, Some(seen.claim), seen.class),
        intent: if seen.record == Some(&record) {
            Intent::Recorded
        } else {
            describe(Operation::Expand).intent
        },
        owner: None,
        record,
    }))
}

/// The image says that the storage has the size: the PV says so next, then the claim.
fn grown(
    seen: &ObservedClaim<'_>,
    volume: &PersistentVolume,
    record: &Record,
    finish: &Finish,
    now: Timestamp,
) -> ClaimDecision {
    // What the image was asked: the record may have been rewritten by a controller that did not know of this run.
    let request = seen.expand_run.map(Run::request);
    let size = match request {
        Some(Ok(request)) => request.size,
        Some(Err(error)) => {
            return fail(seen, record, &finish.refused(&error), now);
        }
        None => return Decision::Rest,
    };
    let growth = volume.spec.as_ref().map_or(Growth::AtServer, growth);
    let took = elapsed(record.since, now);
    let (is_done, status, reason, then) = match growth {
        Growth::AtServer => (
            true,
            status::done(seen.claim, size),
            reasons::RESIZED,
            "so it is expanded",
        ),
        Growth::AtNode => (
            false,
            status::pending(seen.claim, now),
            reasons::FS_RESIZE_REQUIRED,
            "its file system grows where a Pod uses it",
        ),
    };
    let text = format!(
        "the volume's storage grew to {} in {} s, {then}",
        capacity::quantity(size).0,
        took.as_secs()
    );
    Decision::Own(ForClaim::Altered(Box::new(Altered {
        volume_patch: volume_patch(seen.claim, volume, size, growth),
        status: Some(status),
        at_once: Some(is_done),
        release: true,
        runs: removable([seen.expand_run]),
        say: Some(Note::normal(reason, action(Operation::Expand), text)),
        took: Some(took),
        ..Altered::of(Operation::Expand, volume)
    })))
}

/// What a PV has to say of its new size; `None` if it does already. It is never made smaller.
fn volume_patch(claim: &PersistentVolumeClaim, volume: &PersistentVolume, size: u64, growth: Growth) -> Option<Value> {
    let made_by = request::made_by(volume).ok();
    let has = persistent_volume::size(volume).unwrap_or(0);
    if has >= size && made_by.as_ref().is_none_or(|made_by| made_by.size >= size) {
        return None;
    }
    let mut notes = serde_json::Map::new();
    let marked = volume.metadata.annotations.as_ref();
    let marked = marked.is_some_and(|all| all.contains_key(annotations::PRE_RESIZE_CAPACITY));
    match (growth, status::has(claim)) {
        (Growth::AtNode, Some(has)) if !marked => {
            notes.insert(
                annotations::PRE_RESIZE_CAPACITY.to_owned(),
                json!(capacity::quantity(has)),
            );
        }
        (Growth::AtNode | Growth::AtServer, _) => {}
    }
    if let Some(made_by) = made_by {
        // So that a later operation is told the size that the volume has.
        notes.insert(
            annotations::REQUEST.to_owned(),
            json!(json!(of_size(made_by, size)).to_string()),
        );
    }
    Some(json!({
        "metadata": {"resourceVersion": volume.metadata.resource_version, "annotations": notes},
        "spec": {"capacity": {"storage": capacity::quantity(size.max(has))}},
    }))
}

fn fail(seen: &ObservedClaim<'_>, record: &Record, finish: &Finish, now: Timestamp) -> ClaimDecision {
    let state = match seen.config {
        Ok(config) => state_of(config, Some(seen.claim), seen.class),
        Err(_) => String::new(),
    };
    let run = seen.expand_run.map(Run::to_remove);
    let mut failed = failed(record, finish, seen.uid(), state, seen.limits, now, run);
    failed.record.uncertain = is_uncertain(finish);
    // external-resizer has one reason for all of them.
    failed.say.reason = reasons::RESIZE_FAILED;
    if failed.record.gave_up {
        failed.say.text.push_str(
            "; to cancel the expansion, lower the claim's request to a size above its capacity that the storage can \
             provide",
        );
    }
    Decision::Fail(Box::new(failed))
}

#[cfg(test)]
mod tests;
