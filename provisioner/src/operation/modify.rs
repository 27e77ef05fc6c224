//! Operation `modify`: from a bound claim that names another `VolumeAttributesClass` than its volume has to a volume
//! with the attributes of that class. The rules are those of Kubernetes' own external-resizer (`pkg/modifycontroller`
//! of kubernetes-csi/external-resizer): users and other tools see the same in a claim's [`status`].
//!
//! The record holds the class. While a run may still give the volume its attributes, nobody could say which of two it
//! has: so another class counts only when the last run is known to have ended without success.

mod status;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::{Attributes, Request};
use serde_json::{Value, json};

use self::status::Change;
pub(crate) use self::status::of_record;
use super::attempt::{begun, failed, held_back, state_of};
use super::attributes::{self, check_offered, wanted};
use super::claim_error::ClaimError;
use super::decision::{Altered, ClaimDecision, Decision, ForClaim, Intent, Start, removable};
use super::describe::{action, describe, waiting};
use super::observed::ObservedClaim;
use super::record::Record;
use super::request;
use super::standing::{self, give_up, has_run, is_bound, is_uncertain, ready};
use super::step::{Step, step};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::process::events::{Note, reasons};
use crate::run::Run;
use crate::run::outcome::Finish;
use crate::time::elapsed;
use crate::volume::persistent_volume;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked<'a> {
    /// Nothing else than it has.
    Nothing,
    /// No class, after another that its volume could not be given.
    TakenBack,
    /// The attributes of a class.
    Class(&'a str),
    /// What somebody has begun whose record is gone: how far it came is not known.
    Begun(&'a str),
}

fn asked(claim: &PersistentVolumeClaim) -> Asked<'_> {
    match (Change::of(claim), wanted(claim)) {
        (Change::InProgress(begun), _) if !begun.is_empty() => Asked::Begun(begun),
        (Change::None, class) if class == status::has(claim) => Asked::Nothing,
        (_, "") if status::is_modifying(claim) => Asked::TakenBack,
        (_, "") => Asked::Nothing,
        (_, class) => Asked::Class(class),
    }
}

/// Whether a bound claim asks for other attributes than its volume has.
pub(crate) fn is_asked(claim: &PersistentVolumeClaim) -> bool {
    is_bound(claim) && asked(claim) != Asked::Nothing
}

/// Whether the plan for a claim depends on this class.
pub(crate) fn names(claim: &PersistentVolumeClaim, class: &str) -> bool {
    let target = match Change::of(claim) {
        Change::Pending(target) | Change::InProgress(target) | Change::Infeasible(target) => target,
        Change::None | Change::Unknown => "",
    };
    wanted(claim) == class || target == class
}

/// Whether a modification could begin if nothing else were open, and was not refused before.
pub(super) fn is_next(seen: &ObservedClaim<'_>, now: Timestamp) -> bool {
    let refused = match Change::of(seen.claim) {
        Change::Infeasible(class) => class == wanted(seen.claim),
        Change::None | Change::Pending(_) | Change::InProgress(_) | Change::Unknown => false,
    };
    !refused && matches!(fresh(seen, now), Decision::Start(_))
}

/// What to do about a bound claim of which nothing is open.
pub(super) fn fresh(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    if has_run(seen) || !is_bound(seen.claim) {
        return Decision::Rest;
    }
    let Some(volume) = standing::volume(seen) else {
        return Decision::Rest;
    };
    let target = match asked(seen.claim) {
        Asked::Nothing => return Decision::Rest,
        Asked::TakenBack => return taken_back(seen, volume, None),
        Asked::Class(class) | Asked::Begun(class) => class,
    };
    let config = match seen.config {
        Ok(config) => config,
        // Of another Mooring's namespace, which that one serves.
        Err(NoConfig::NotOurs { .. } | NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => return Decision::Rest,
        Err(error) => return Decision::wait_for(waiting(Operation::Modify, error.to_string())),
    };
    let attributes = match can_have(seen, volume, config, target) {
        Ok(attributes) => attributes,
        Err(error) => return pending(seen, volume, target, &error, None),
    };
    let run = seen.run(Operation::Modify).in_namespace(&config.reference.namespace);
    let record = Record {
        attributes: target.to_owned(),
        ..Record::first(Operation::Modify, run, now, config)
    };
    begin(seen, volume, config, attributes, record)
}

/// What the image gets about a class, if the volume can have one.
fn can_have(
    seen: &ObservedClaim<'_>,
    volume: &PersistentVolume,
    config: &ProvisionerConfig,
    class: &str,
) -> Result<Attributes, ClaimError> {
    if volume.spec.as_ref().is_none_or(|spec| spec.csi.is_none()) {
        return Err(ClaimError::AttributesNotByCsi);
    }
    check_offered(config)?;
    Ok(attributes::find(seen, class)?)
}

/// What has to be there first is not there: the claim's status says so, then its Events. With a record, that goes.
fn pending(
    seen: &ObservedClaim<'_>,
    volume: &PersistentVolume,
    class: &str,
    error: &ClaimError,
    record: Option<&Record>,
) -> ClaimDecision {
    let known = match Change::of(seen.claim) {
        Change::Pending(target) => target == class,
        // What was begun before stays begun.
        Change::InProgress(_) => record.is_none(),
        Change::None | Change::Infeasible(_) | Change::Unknown => false,
    };
    if known && record.is_none() {
        let text = format!("{error}; the volume stays as it is");
        return Decision::wait_for(Note::warning(reasons::MODIFY_FAILED, action(Operation::Modify), text));
    }
    Decision::Own(ForClaim::Altered(Box::new(Altered {
        status: Some(status::pending(class)),
        release: record.is_some(),
        without: record.map(|record| (record.run.clone(), seen.run(Operation::Modify))),
        ..Altered::of(Operation::Modify, volume)
    })))
}

/// No class is asked for any more, after one that the volume can't be given.
fn taken_back(seen: &ObservedClaim<'_>, volume: &PersistentVolume, record: Option<&Record>) -> ClaimDecision {
    Decision::Own(ForClaim::Altered(Box::new(Altered {
        status: Some(status::taken_back(seen.claim)),
        release: record.is_some(),
        without: record.map(|record| (record.run.clone(), seen.run(Operation::Modify))),
        say: Some(Note::normal(
            reasons::MODIFY_TAKEN_BACK,
            action(Operation::Modify),
            "the failed modification is canceled: the claim names no VolumeAttributesClass",
        )),
        ..Altered::of(Operation::Modify, volume)
    })))
}

/// What to do about a claim whose record is one of a modification.
pub(super) fn ongoing(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> ClaimDecision {
    if seen.claim.metadata.deletion_timestamp.is_some() {
        return give_up(seen, seen.modify_run, record, None, now);
    }
    let Some(volume) = standing::volume(seen) else {
        let text = "Mooring can't modify the volume: its PersistentVolume is gone or no longer Mooring's; restore it, \
                    or delete the claim";
        let say = Note::warning(reasons::MODIFY_FAILED, action(Operation::Modify), text);
        return give_up(seen, seen.modify_run, record, Some(say), now);
    };
    match step(seen.modify_run, record, seen.limits, now) {
        Step::None => again(seen, volume, record, now),
        Step::Leftover(run) => Decision::Stop(run.to_remove()),
        Step::Leaving(say) => Decision::Wait {
            after: Some(seen.limits.overdue),
            say,
        },
        Step::Running(left) => Decision::wait(left),
        Step::Waiting { after, say } => {
            let (run, config) = (seen.run(Operation::Modify), seen.config.as_ref().ok());
            Decision::supply(seen.modify_run, run, config, record, after, say)
        }
        Step::Ended(finish) if finish.outcome == Outcome::Done => modified(seen, volume, record, &finish, now),
        Step::Ended(finish) => fail(seen, record, &finish, now),
    }
}

/// What to do without a run: begin the next attempt if it is time, or take the modification back.
fn again(seen: &ObservedClaim<'_>, volume: &PersistentVolume, record: &Record, now: Timestamp) -> ClaimDecision {
    let class = wanted(seen.claim);
    // The last run is known to have ended, so the claim's class counts again.
    let free = !record.uncertain && (record.not_before.is_some() || record.gave_up);
    // What may yet succeed is not taken back, as with external-resizer.
    if free && record.gave_up && class.is_empty() {
        return taken_back(seen, volume, Some(record));
    }
    let config = match seen.config {
        Ok(config) => config,
        Err(NoConfig::NotReadYet) => return Decision::Rest,
        Err(error) => {
            let say = waiting(Operation::Modify, error.to_string());
            return give_up(seen, seen.modify_run, record, Some(say), now);
        }
    };
    match held_back(record, &state_of(config, Some(seen.claim), seen.class), now) {
        Some(Duration::MAX) => return Decision::Rest,
        Some(left) => return Decision::wait(left),
        None => {}
    }
    let mut next = begun(record);
    next.config = config.reference.to_string();
    next.config_uid.clone_from(&config.uid);
    next.run = seen.run(Operation::Modify).in_namespace(&config.reference.namespace);
    if free && !class.is_empty() && record.attributes != class {
        class.clone_into(&mut next.attributes);
        next.last_error.clear();
    }
    match can_have(seen, volume, config, &next.attributes) {
        Ok(attributes) => begin(seen, volume, config, attributes, next),
        Err(error) if free => pending(seen, volume, &next.attributes, &error, Some(record)),
        // Which attributes the volume has is not known before this one has ended.
        Err(error) => Decision::wait_for(Note::warning(
            reasons::MODIFY_FAILED,
            action(Operation::Modify),
            error.to_string(),
        )),
    }
}

/// The run that the record's attempt is, to be begun.
fn begin(
    seen: &ObservedClaim<'_>,
    volume: &PersistentVolume,
    config: &Arc<ProvisionerConfig>,
    attributes: Attributes,
    record: Record,
) -> ClaimDecision {
    let (made_by, node) = match ready(seen, Operation::Modify, volume, config, "the volume is modified") {
        Ok(ready) => ready,
        Err(wait) => return *wait,
    };
    let options = persistent_volume::options(volume);
    let request = Request {
        attributes: Some(attributes),
        ..request::remembered(Operation::Modify, made_by, options, seen.surroundings(config))
    };
    Decision::Start(Box::new(Start {
        run: seen.run(Operation::Modify),
        request,
        config: config.clone(),
        node,
        allowed: Vec::new(),
        state: state_of(config, Some(seen.claim), seen.class),
        intent: if seen.record == Some(&record) {
            Intent::Recorded
        } else {
            describe(Operation::Modify).intent
        },
        owner: None,
        record,
    }))
}

/// The image says that the volume has the attributes: the PV says so next, then the claim.
fn modified(
    seen: &ObservedClaim<'_>,
    volume: &PersistentVolume,
    record: &Record,
    finish: &Finish,
    now: Timestamp,
) -> ClaimDecision {
    // What the image was asked: the record may have been rewritten by a controller that did not know of this run.
    let asked = match seen.modify_run.map(Run::request) {
        Some(Ok(request)) => request.attributes,
        Some(Err(error)) => {
            return fail(seen, record, &finish.refused(&error), now);
        }
        None => return Decision::Rest,
    };
    let attributes = asked.unwrap_or_else(|| Attributes {
        class: record.attributes.clone(),
        parameters: [].into(),
    });
    let class = attributes.class.clone();
    let took = elapsed(record.since, now);
    let text = format!(
        "the volume got the attributes of VolumeAttributesClass {class:?} in {} s",
        took.as_secs()
    );
    Decision::Own(ForClaim::Altered(Box::new(Altered {
        volume_patch: volume_patch(volume, attributes),
        status: Some(status::done(seen.claim, &class)),
        release: true,
        runs: removable([seen.modify_run]),
        say: Some(Note::normal(reasons::MODIFIED, action(Operation::Modify), text)),
        took: Some(took),
        ..Altered::of(Operation::Modify, volume)
    })))
}

/// What a PV has to say of its new attributes; `None` if it does already.
fn volume_patch(volume: &PersistentVolume, attributes: Attributes) -> Option<Value> {
    let made_by = request::made_by(volume).ok();
    let spec = volume.spec.as_ref();
    let has = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let noted = made_by
        .as_ref()
        .is_none_or(|made_by| made_by.attributes.as_ref() == Some(&attributes));
    if has == Some(attributes.class.as_str()) && noted {
        return None;
    }
    let mut annotated = serde_json::Map::new();
    let class = attributes.class.clone();
    if let Some(made_by) = made_by {
        // So that a later operation is told the attributes that the volume has.
        let request = Request {
            attributes: Some(attributes),
            ..made_by
        };
        annotated.insert(annotations::REQUEST.to_owned(), json!(json!(request).to_string()));
    }
    Some(json!({
        "metadata": {"resourceVersion": volume.metadata.resource_version, "annotations": annotated},
        "spec": {"volumeAttributesClassName": class},
    }))
}

fn fail(seen: &ObservedClaim<'_>, record: &Record, finish: &Finish, now: Timestamp) -> ClaimDecision {
    let state = match seen.config {
        Ok(config) => state_of(config, Some(seen.claim), seen.class),
        Err(_) => String::new(),
    };
    let run = seen.modify_run.map(Run::to_remove);
    let mut failed = failed(record, finish, seen.uid(), state, seen.limits, now, run);
    failed.record.uncertain = is_uncertain(finish);
    // external-resizer has one reason for all of them.
    failed.say.reason = reasons::MODIFY_FAILED;
    if failed.record.gave_up {
        failed.say.text.push_str(
            "; to cancel the modification, set the claim's volumeAttributesClassName to its former value, or another",
        );
    }
    Decision::Fail(Box::new(failed))
}

#[cfg(test)]
mod tests;
