//! What is done to a volume. Each operation is one file: its description, and a pure `plan` from what is observed to a
//! decision. [`describe`] has all descriptions, for whatever serves several operations.
//!
//! A controller fills in what it has [`observed`]. For a claim, [`provision`] plans; a claim that is not wanted any
//! more, or whose volume was refused, it leaves to [`undo`], and one that is bound to [`expand`] and [`modify`], which
//! share [`standing`] and [`conditions`]. A claim that is to be a copy is planned in the same way as [`clone`], one that
//! is to be filled from a snapshot as [`restore`]; what is to be copied is in [`source`]. For a PV, [`delete`] plans, and
//! for a `VolumeSnapshotContent` [`snapshot`]. A plan goes by the [`record`] on the object ([`attempt`], [`backoff`]) and
//! by how far the run is ([`step`]). It returns a [`decision`], a run with its [`request`] among them, which
//! [`crate::apply`] carries out.

pub mod attempt;
pub mod backoff;
pub mod clone;
pub mod conditions;
pub mod decision;
pub mod delete;
pub mod describe;
pub mod expand;
pub mod modify;
pub mod observed;
pub mod provision;
pub mod record;
pub mod request;
pub mod restore;
pub mod snapshot;
pub mod source;
pub mod standing;
pub mod step;
pub mod undo;

#[cfg(test)]
pub(crate) mod tests;
