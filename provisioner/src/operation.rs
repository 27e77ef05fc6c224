//! What is done to a volume. Each operation is a [description](describe), and a pure plan in the file of its name, from
//! what is observed to a decision.
//!
//! A controller fills in what it has [`observed`], with the [`limits`] of waiting. For a claim, [`provision`] plans; a
//! claim that is not wanted any more, or whose volume was refused, it leaves to [`undo`], and one that is bound to
//! [`expand`] and [`modify`], which share [`change`] and [`conditions`]. A clone and a restore are planned by
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

/// Whether a bound claim asks for something else than its volume has.
pub(crate) fn is_change_asked(claim: &PersistentVolumeClaim) -> bool {
    expand::is_asked(claim) || modify::is_asked(claim)
}

#[cfg(test)]
pub(crate) mod tests;
