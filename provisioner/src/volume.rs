//! The PersistentVolume of a claim.
//!
//! [`persistent_volume`] makes one of what the image printed, and reads one that exists. [`acceptance`] judges each
//! before it is bound, whether Mooring or the image made it. [`topology`] says which nodes it can be used from,
//! [`capacity`] reads sizes. [`snapshot`] and [`group_snapshot`] have what is read of snapshots, and [`content_view`]
//! what both say alike. [`storage_capacity`] says what the scheduler reads of the space that is left.

pub mod acceptance;
pub mod capacity;
pub mod content_view;
pub mod grant;
pub mod group_snapshot;
pub mod persistent_volume;
pub mod snapshot;
pub mod snapshot_class;
pub mod storage_capacity;
pub mod topology;
