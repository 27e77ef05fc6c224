//! What a claim's volume is to have in it at first: nothing, or what another claim's volume has.
//!
//! The API server keeps `dataSource` and `dataSourceRef` the same, except that a reference into another namespace is in
//! `dataSourceRef` only (`NormalizeDataSources` in `pkg/api/persistentvolumeclaim/util.go`). Both are fixed once the
//! claim is made, so they alone say which operation makes its volume.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use mooring_contract::operation::Operation;

use crate::volume::grant::{Use, Version};
use crate::volume::snapshot::{self, VolumeSnapshot, VolumeSnapshotContent};

const CLAIM: &str = "PersistentVolumeClaim";
const SNAPSHOT: &str = "VolumeSnapshot";

/// The data source of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    Empty,
    Claim(SourceRef<'a>),
    Snapshot(SourceRef<'a>),
    /// Something that a populator makes the volume from, so nobody else must (KEP-1495).
    Populated,
}

/// An object that a claim names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRef<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    /// The namespace is not the claim's own.
    pub is_elsewhere: bool,
}

impl fmt::Display for SourceRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_elsewhere {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(self.name)
    }
}

/// Whether a claim may be made of what it names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Permission {
    /// It is in the claim's own namespace.
    #[default]
    Own,
    /// It is in another one, which has a `ReferenceGrant` for it.
    Granted,
    /// It is in another one without such a grant. The API has this version.
    Refused(Version),
    /// It is in another one, and the cluster has no grants.
    NoApi,
    /// It is in another one, and what grants there are is not known yet.
    NotKnown,
}

impl<'a> Content<'a> {
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
        let own = claim.metadata.namespace.as_deref().unwrap_or_default();
        let namespace = namespace.unwrap_or(own);
        let source = SourceRef {
            namespace,
            name,
            is_elsewhere: namespace != own,
        };
        match (group.unwrap_or_default(), kind.as_str()) {
            ("", CLAIM) => Self::Claim(source),
            (snapshot::GROUP, SNAPSHOT) => Self::Snapshot(source),
            _ => Self::Populated,
        }
    }

    /// What the claim needs a `ReferenceGrant` for, if it names something in another namespace.
    pub fn needs_grant(self, claim: &'a PersistentVolumeClaim) -> Option<Use<'a>> {
        let (source, group, kind) = match self {
            Self::Claim(source) => (source, "", CLAIM),
            Self::Snapshot(source) => (source, snapshot::GROUP, SNAPSHOT),
            // What a populator makes is the populator's to judge.
            Self::Empty | Self::Populated => return None,
        };
        source.is_elsewhere.then(|| Use {
            by: claim.metadata.namespace.as_deref().unwrap_or_default(),
            namespace: source.namespace,
            group,
            kind,
            name: source.name,
        })
    }
}

pub fn making(claim: &PersistentVolumeClaim) -> Operation {
    match Content::of(claim) {
        Content::Claim(_) => Operation::Clone,
        Content::Snapshot(_) => Operation::Restore,
        Content::Empty | Content::Populated => Operation::Provision,
    }
}

/// The source, as far as it exists: a claim and its PV, or a snapshot and its content.
#[derive(Debug, Clone, Default)]
pub struct ObservedSource {
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// The PV that it is bound to.
    pub volume: Option<Arc<PersistentVolume>>,
    pub snapshot: Option<Arc<VolumeSnapshot>>,
    /// Whether the cluster has snapshots, as far as that is known.
    pub has_snapshot_api: Option<bool>,
    /// The content that it is bound to.
    pub content: Option<Arc<VolumeSnapshotContent>>,
    /// Whether the claim may be made of it. Where it may not, nothing else is known here.
    pub access: Permission,
}
