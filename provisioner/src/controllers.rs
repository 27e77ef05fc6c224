//! The loops that reconcile. Each observes its objects, has a pure plan decide, and has the decision carried out.
//!
//! [`provisioning`] starts [`claim`], [`volume`] and [`orphan`], and the watches that they share. [`claim`] brings a claim to
//! its volume, [`volume`] deletes the volume when the claim is gone, [`orphan`] settles Pods that have neither; all three
//! plan with [`crate::operation`] and act through [`crate::apply`]. [`config`] keeps ConfigMaps and StorageClasses in step and
//! has nothing to do with volumes. [`retry`] says when an object that failed is looked at again.

pub mod claim;
pub mod config;
pub mod orphan;
pub mod provisioning;
#[cfg(test)]
mod rehearsal;
pub mod retry;
mod serving;
pub mod volume;
