//! What a claim's volume is to have in it at first: nothing, or what another claim's volume has.
//!
//! The API server keeps `dataSource` and `dataSourceRef` the same, except that a reference into another namespace
//! stands in `dataSourceRef` only (`NormalizeDataSources` in `pkg/api/persistentvolumeclaim/util.go`). Both are fixed
//! once the claim is made, so they alone say which operation makes its volume.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use mooring_contract::operation::Operation;

use crate::volume::snapshot::{self, VolumeSnapshot, VolumeSnapshotContent};

/// What a claim says that its volume is to be filled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// Nothing.
    Empty,
    /// The volume of the claim of this name, in the same namespace.
    Claim(&'a str),
    /// The snapshot of this name.
    Snapshot(&'a str),
    /// Something in this other namespace.
    Elsewhere(&'a str),
    /// Something that a populator makes the volume from, so nobody else must (KEP-1495).
    Populated,
}

impl<'a> Content<'a> {
    /// Reads it from a claim.
    pub fn of(claim: &'a PersistentVolumeClaim) -> Self {
        let Some(spec) = &claim.spec else { return Self::Empty };
        let by_ref = spec.data_source_ref.as_ref().map(|source| {
            let namespace = source.namespace.as_deref().filter(|namespace| !namespace.is_empty());
            (source.api_group.as_deref(), &source.kind, &source.name, namespace)
        });
        let plain = || {
            let source = spec.data_source.as_ref()?;
            Some((source.api_group.as_deref(), &source.kind, &source.name, None))
        };
        let Some((group, kind, name, namespace)) = by_ref.or_else(plain) else {
            return Self::Empty;
        };
        let known = match (group.unwrap_or_default(), kind.as_str()) {
            ("", "PersistentVolumeClaim") => Self::Claim(name),
            (snapshot::GROUP, "VolumeSnapshot") => Self::Snapshot(name),
            _ => return Self::Populated,
        };
        match namespace.filter(|namespace| claim.metadata.namespace.as_deref() != Some(namespace)) {
            Some(namespace) => Self::Elsewhere(namespace),
            None => known,
        }
    }
}

/// The operation that makes a claim's volume.
pub fn making(claim: &PersistentVolumeClaim) -> Operation {
    match Content::of(claim) {
        Content::Claim(_) => Operation::Clone,
        Content::Snapshot(_) => Operation::Restore,
        Content::Empty | Content::Elsewhere(_) | Content::Populated => Operation::Provision,
    }
}

/// What is to be copied, as far as it is there: a claim and its PV, or a snapshot and its content.
#[derive(Debug, Clone, Default)]
pub struct ObservedSource {
    /// The claim.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// The PV that it is bound to.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The snapshot.
    pub snapshot: Option<Arc<VolumeSnapshot>>,
    /// The content that it is bound to.
    pub content: Option<Arc<VolumeSnapshotContent>>,
}
