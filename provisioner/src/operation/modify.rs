//! Operation `modify`: from a bound claim that names another `VolumeAttributesClass` than its volume has to a volume
//! with the attributes of that class. The rules are those of Kubernetes' own external-resizer (`pkg/modifycontroller`
//! of kubernetes-csi/external-resizer): users and other tools see the same in a claim's [`status`].
//!
//! The record holds the class. While a run may still give the volume its attributes, nobody could say which of two it
//! has: so another class counts only when the last run is known to have ended without success.

mod status;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use mooring_contract::request::{Attributes, Request};
use mooring_program::error::chain;
use serde_json::{Value, json};

use self::status::ModifyState;
pub(crate) use self::status::of_record;
use super::attributes::{self, wanted};
use super::change::{Change, changed_after_all, refusal, refused_unless};
use super::claim_error::ClaimError;
use super::decision::{Altered, ClaimDecision, Decision, ForClaim, Start};
use super::describe::{action, done};
use super::drive::{Operate, Progress, begin, drive};
use super::observed::ObservedClaim;
use super::record::Record;
use super::request;
use super::standing::is_bound;
use crate::config::ProvisionerConfig;
use crate::process::events::{Note, reasons};
use crate::run::Run;
use crate::run::outcome::Finish;

const CANCEL: &str =
    "to cancel the modification, set the claim's volumeAttributesClassName to its former value, or another";

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
    match (ModifyState::of(claim), wanted(claim)) {
        (ModifyState::InProgress(begun), _) if !begun.is_empty() => Asked::Begun(begun),
        (ModifyState::None, class) if class == status::has(claim) => Asked::Nothing,
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
    let target = match ModifyState::of(claim) {
        ModifyState::Pending(target) | ModifyState::InProgress(target) | ModifyState::Infeasible(target) => target,
        ModifyState::None | ModifyState::Unknown => "",
    };
    wanted(claim) == class || target == class
}

/// Whether a modification could begin if nothing else were open, and was not refused before.
pub(super) fn is_next(seen: &ObservedClaim<'_>, now: Timestamp) -> bool {
    let refused = match ModifyState::of(seen.claim) {
        ModifyState::Infeasible(class) => class == wanted(seen.claim),
        ModifyState::None | ModifyState::Pending(_) | ModifyState::InProgress(_) | ModifyState::Unknown => false,
    };
    !refused && matches!(fresh(seen, now), Decision::Start(_))
}

/// What to do about a bound claim of which nothing is open.
pub(super) fn fresh(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    let Some(change) = Change::fresh(seen, Operation::Modify, now) else {
        return Decision::Rest;
    };
    match asked(seen.claim) {
        Asked::Nothing => Decision::Rest,
        Asked::TakenBack => taken_back(&change),
        Asked::Class(class) | Asked::Begun(class) => begin(&Modification { change, class }),
    }
}

/// What to do about a claim whose record is one of a modification.
pub(super) fn ongoing(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> ClaimDecision {
    match Change::ongoing(seen, record, now) {
        Ok(change) => {
            let asked = Some(wanted(seen.claim)).filter(|asked| change.is_free() && !asked.is_empty());
            let class = asked.unwrap_or(&record.attributes);
            drive(&Modification { change, class }, record)
        }
        Err(over) => *over,
    }
}

/// No class is asked for any more, after one that the volume can't be given.
fn taken_back(change: &Change<'_>) -> ClaimDecision {
    let say = Note::normal(
        reasons::MODIFY_TAKEN_BACK,
        action(Operation::Modify),
        "the failed modification is canceled: the claim names no VolumeAttributesClass",
    );
    change.taken_back(status::taken_back(change.seen.claim), Some(say))
}

struct Modification<'a> {
    change: Change<'a>,
    /// The class whose attributes the volume is to have.
    class: &'a str,
}

impl Modification<'_> {
    /// What the image gets about the class, if the volume can have it.
    fn attributes(&self, config: &ProvisionerConfig) -> Result<Attributes, ClaimError> {
        let spec = self.change.volume.spec.as_ref();
        if spec.is_none_or(|spec| spec.csi.is_none()) {
            return Err(ClaimError::AttributesNotByCsi);
        }
        config.check_offered(Operation::Modify)?;
        Ok(attributes::find(self.change.seen, self.class)?)
    }

    /// What has to be there first is not there: the claim's status says so, then its Events. A record goes.
    fn pending(&self, error: &ClaimError) -> ClaimDecision {
        let is_known = match ModifyState::of(self.change.seen.claim) {
            ModifyState::Pending(target) => target == self.class,
            // What was begun before stays begun.
            ModifyState::InProgress(_) => true,
            ModifyState::None | ModifyState::Infeasible(_) | ModifyState::Unknown => false,
        };
        if !self.change.is_free() {
            // Which attributes the volume has is not known before this one has ended.
            return Decision::wait_for(refusal(Operation::Modify, error.to_string()));
        }
        if is_known && self.change.progress.record.is_none() {
            let text = format!("{error}; the volume stays as it is");
            return Decision::wait_for(refusal(Operation::Modify, text));
        }
        self.change.taken_back(status::pending(self.class), None)
    }
}

impl Operate for Modification<'_> {
    type Own = ForClaim;

    fn progress(&self) -> &Progress<'_> {
        &self.change.progress
    }

    fn instead(&self, record: &Record) -> Option<ClaimDecision> {
        // What may yet succeed is not taken back, as with external-resizer.
        if self.change.is_free() && record.gave_up && wanted(self.change.seen.claim).is_empty() {
            return Some(taken_back(&self.change));
        }
        self.change.config().err().map(|without| *without)
    }

    fn request(&self) -> Result<Start, Box<ClaimDecision>> {
        let config = self.change.config()?;
        let attributes = self
            .attributes(config)
            .map_err(|error| Box::new(self.pending(&error)))?;
        let mut record = self.change.progress.next(config);
        if record.attributes != self.class {
            self.class.clone_into(&mut record.attributes);
            record.last_error.clear();
        }
        self.change
            .start(config, record, "the volume is modified", |request| Request {
                attributes: Some(attributes),
                ..request
            })
    }

    /// The image says that the volume has the attributes: the PV says so next, then the claim.
    fn apply(&self, run: &Run, record: &Record, finish: &Finish) -> Result<ClaimDecision, Finish> {
        // What the image was asked: the record may have been rewritten by a controller that did not know of this run.
        let asked = run.request().map_err(|error| finish.refused(chain(&error)))?.attributes;
        let attributes = asked.unwrap_or_else(|| Attributes {
            class: record.attributes.clone(),
            parameters: [].into(),
        });
        let class = attributes.class.clone();
        let made = self.change.made(record);
        let text = format!(
            "the volume got the attributes of VolumeAttributesClass {class:?} in {} s",
            made.took.unwrap_or_default().as_secs()
        );
        Ok(Decision::Own(ForClaim::Altered(Box::new(Altered {
            volume_patch: volume_patch(self.change.volume, attributes),
            status: Some(status::done(self.change.seen.claim, &class)),
            say: done(Operation::Modify, text),
            ..made
        }))))
    }

    fn ran_after_all(&self, run: &Run, record: &Record) -> Option<Record> {
        changed_after_all(run, record, |record, asked| {
            if let Some(attributes) = asked.attributes {
                record.attributes = attributes.class;
            }
        })
    }

    fn fail(&self, record: &Record, finish: &Finish) -> ClaimDecision {
        self.change.fail(record, finish, CANCEL)
    }

    fn given_up(&self, record: &Record) -> Note {
        refused_unless(record, CANCEL)
    }
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

#[cfg(test)]
mod tests;
