//! What passes between Mooring's parts, in one place: the names in the Kubernetes API ([`names`]), one run of a
//! provisioning image ([`operation`], [`property`], [`request`], [`outcome`], [`discovered`], [`worker`]), the volume
//! itself ([`volume`]), how a node reaches one that is attached to it ([`attachment`]), and what a node's own disk has
//! left ([`pool`]).
//!
//! Pure data: nothing here does input or output. `docs/vendors.md` says the same to a vendor.
#![forbid(unsafe_code)]

pub mod attachment;
pub mod discovered;
pub mod image;
pub mod named;
pub mod names;
pub mod near_miss;
pub mod operation;
pub mod outcome;
pub mod pool;
pub mod property;
pub mod request;
pub mod volume;
pub mod worker;

/// Version of the provisioning contract, handed to the image as property `contract`.
pub const CONTRACT_VERSION: u32 = 1;
