//! What is done to a volume. Each operation is a [description](describe), and a pure plan in the file of its name, from
//! what is observed to a decision.
//!
//! A controller fills in what it has [`observed`], with the [`limits`] of waiting. Which plan a claim or a PV gets is
//! decided here. For a claim, [`provision`] plans; a claim that is not wanted any more, or whose volume was refused, it
//! leaves to [`undo`]. One that is bound gets [`expand`] and [`modify`], which share [`change`] and [`conditions`]. A clone and a restore are planned by
//! [`provision`] too: the claim's [`content`] says which of the three it is, and [`source`] finds the source. For a PV,
//! [`delete`] plans, and [`attach`] where it has to be attached, for a `VolumeSnapshotContent` [`snapshot`], for a
//! ConfigMap [`discover`], and for runs that belong to nothing [`orphan`]. Whatever the operation, [`drive`] goes on
//! from the [`record`] on the object ([`attempt`], [`backoff`]) and the run. It returns a [`decision`], which
//! [`crate::apply`] carries out: often a run with its [`request`], in which classes have their say ([`parameters`],
//! [`attributes`]). A [`claim_error`] says why a claim can't have what it asks for.

pub mod attach;
pub mod attempt;
pub mod attributes;
pub mod backoff;
mod change;
pub mod claim_error;
pub mod conditions;
pub mod content;
pub mod decision;
pub mod delete;
pub mod describe;
pub mod discover;
mod drive;
pub mod expand;
pub mod limits;
pub mod modify;
pub mod observed;
pub mod orphan;
pub mod parameters;
pub mod provision;
pub(crate) mod reclaim;
pub mod record;
pub mod request;
pub mod snapshot;
pub mod source;
pub mod standing;
pub mod undo;
#[cfg(test)]
mod waits;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;

use self::change::set_aside;
use self::decision::{ClaimDecision, Decision, VolumeDecision};
use self::describe::{Effect, describe};
use self::observed::{ObservedClaim, ObservedVolume};
use self::record::{Record, is_busy};
use crate::volume::persistent_volume::is_ours;

/// What to do about a claim: the operation goes on that its record is of.
pub(crate) fn plan_claim(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    if standing::is_moving(seen.claim) && !is_busy(seen.claim) {
        // What would change the volume would change a PersistentVolume that is about to be replaced.
        return Decision::Rest;
    }
    let Some(record) = seen.record else {
        return provision::plan(seen, now);
    };
    match describe(record.operation).effect {
        Effect::ExpandsVolume => {
            let expansion = expand::ongoing(seen, record, now);
            give_way(expansion, seen, record, || modify::is_next(seen, now))
        }
        Effect::ModifiesVolume => {
            let modification = modify::ongoing(seen, record, now);
            give_way(modification, seen, record, || expand::is_next(seen, now))
        }
        Effect::MakesVolume
        | Effect::RemovesVolume
        | Effect::TakesSnapshot
        | Effect::RemovesSnapshot
        | Effect::AttachesVolume
        | Effect::DetachesVolume
        | Effect::KeepsAll => provision::plan(seen, now),
    }
}

/// A change that the image has refused is set aside for another that can begin.
fn give_way(
    decision: ClaimDecision,
    seen: &ObservedClaim<'_>,
    record: &Record,
    other: impl FnOnce() -> bool,
) -> ClaimDecision {
    match decision {
        Decision::Wait { .. } if record.is_refused_change() && other() => set_aside(seen, record),
        decision => decision,
    }
}

/// A claim that has its volume. It may ask for another size and for other attributes: one is done after the other, and
/// last what the image has refused before.
fn fresh_change(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    let (expansion, modification) = (expand::fresh(seen, now), modify::fresh(seen, now));
    let (first, second) = if expand::is_infeasible(seen.claim) {
        (modification, expansion)
    } else {
        (expansion, modification)
    };
    // What can't be begun does not hold up the other.
    match (&first, &second) {
        (Decision::Rest, _) | (Decision::Wait { .. }, Decision::Start(_) | Decision::Own(_)) => second,
        _ => first,
    }
}

/// What to do about a PV.
pub(crate) fn plan_volume(seen: &ObservedVolume<'_>, now: Timestamp) -> VolumeDecision {
    if !is_ours(seen.volume) {
        return Decision::Rest;
    }
    delete::plan(seen, now)
}

/// Whether a bound claim asks for something else than its volume has.
pub(crate) fn is_change_asked(claim: &PersistentVolumeClaim) -> bool {
    expand::is_asked(claim) || modify::is_asked(claim)
}

#[cfg(test)]
pub(crate) mod tests;
