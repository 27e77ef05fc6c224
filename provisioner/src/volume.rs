//! The PersistentVolume of a claim.
//!
//! [`persistent_volume`] makes one of what the image printed, and reads one that is there. [`acceptance`] judges each
//! before it is bound, whether Mooring or the image made it. [`topology`] says which nodes it can be used from,
//! [`capacity`] reads sizes.

pub mod acceptance;
pub mod capacity;
pub mod grant;
pub mod persistent_volume;
pub mod snapshot;
pub mod snapshot_class;
pub mod topology;
