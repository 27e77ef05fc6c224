//! What a claim's volume is to have in it at first: nothing, or what another claim's volume has.
//!
//! The API server keeps `dataSource` and `dataSourceRef` the same, except that a reference into another namespace
//! stands in `dataSourceRef` only (`NormalizeDataSources` in `pkg/api/persistentvolumeclaim/util.go`). Both are fixed
//! once the claim is made, so they alone say which operation makes its volume.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use mooring_contract::names::{annotations, finalizers};
use mooring_contract::request::Source;

use super::observed::ObservedClaim;
use super::record::Record;
use crate::config::ProvisionerConfig;
use crate::run::Kind;
use crate::volume::acceptance::asked_bytes;
use crate::volume::capacity;
use crate::volume::persistent_volume::{self, is_ours};
use crate::volume::topology::Node;

/// The API group of snapshots.
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

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
            (SNAPSHOTS, "VolumeSnapshot") => Self::Snapshot(name),
            _ => return Self::Populated,
        };
        match namespace.filter(|namespace| claim.metadata.namespace.as_deref() != Some(namespace)) {
            Some(namespace) => Self::Elsewhere(namespace),
            None => known,
        }
    }
}

/// The operation that makes a claim's volume.
pub fn making(claim: &PersistentVolumeClaim) -> Kind {
    match Content::of(claim) {
        Content::Claim(_) => Kind::Clone,
        Content::Empty | Content::Snapshot(_) | Content::Elsewhere(_) | Content::Populated => Kind::Provision,
    }
}

/// The claim and the PV that are to be copied, as far as they are there.
#[derive(Debug, Clone, Default)]
pub struct ObservedSource {
    /// The claim.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// The PV that it is bound to.
    pub volume: Option<Arc<PersistentVolume>>,
}

/// Why a claim's volume can't be made of what it names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Of a snapshot.
    #[error(
        "the claim's dataSource is a VolumeSnapshot, which this version can't fill a volume from: name a claim, or make it without one"
    )]
    Snapshot,
    /// Of another namespace.
    #[error(
        "the claim's dataSourceRef is in namespace {0:?}, and only claims of its own namespace can be copied: name one of those"
    )]
    Elsewhere(String),
    /// Of itself.
    #[error("the claim's dataSource is the claim itself: name another claim")]
    Itself,
    /// It is not there.
    #[error("claim {0:?}, which is to be copied, does not exist yet: it is waited for")]
    Missing(String),
    /// It has no volume.
    #[error("claim {0:?}, which is to be copied, is not bound to a volume yet: it is waited for")]
    Unbound(String),
    /// Something is being done to it.
    #[error("claim {0:?}, which is to be copied, has an operation going on (see its Events): its end is waited for")]
    Busy(String),
    /// The node that its volume is on is not there.
    #[error("the volume to copy is on node {0}, which is not in the cluster: it is waited for")]
    NodeGone(String),
    /// It is about to go.
    #[error("claim {0:?}, which is to be copied, is being deleted: delete this claim, and make it of another")]
    Going(String),
    /// It is not the one that was copied before.
    #[error(
        "claim {claim:?} has another volume than {volume}, of which a copy was begun: delete this claim, and make it again"
    )]
    Another {
        /// The claim.
        claim: String,
        /// The PV that the record names.
        volume: String,
    },
    /// It is not Mooring's.
    #[error("volume {0}, which is to be copied, was not made by Mooring: name the claim of a volume that was")]
    NotOurs(String),
    /// Another ConfigMap made it.
    #[error(
        "volume {volume}, which is to be copied, was made by ConfigMap {made_by}, and this claim's class is served by {serves}: ask for a class of the same ConfigMap"
    )]
    OtherConfig {
        /// The PV.
        volume: String,
        /// The ConfigMap that made it.
        made_by: String,
        /// The ConfigMap of the claim's class.
        serves: String,
    },
    /// Its capacity is no quantity.
    #[error("the capacity of volume {0}, which is to be copied, can't be read: correct its PersistentVolume")]
    NoSize(String),
    /// It does not fit.
    #[error(
        "the claim asks for {asked} bytes, and claim {claim:?}, which is to be copied, has {size}: ask for at least as much"
    )]
    Smaller {
        /// The claim to copy.
        claim: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes that it has.
        size: u64,
    },
    /// It is used in another way.
    #[error("claim {claim:?}, which is to be copied, has volumeMode {mode}: ask for the same")]
    Mode {
        /// The claim to copy.
        claim: String,
        /// Its mode.
        mode: String,
    },
}

impl SourceError {
    /// Whether it passes by itself.
    pub fn is_wait(&self) -> bool {
        match self {
            Self::Missing(_) | Self::Unbound(_) | Self::Busy(_) | Self::NodeGone(_) => true,
            Self::Snapshot
            | Self::Elsewhere(_)
            | Self::Itself
            | Self::Going(_)
            | Self::Another { .. }
            | Self::NotOurs(_)
            | Self::OtherConfig { .. }
            | Self::NoSize(_)
            | Self::Smaller { .. }
            | Self::Mode { .. } => false,
        }
    }
}

/// What is to be copied, and the node that it is on if it lives on one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// For the image.
    pub source: Source,
    /// The node.
    pub node: Option<Node>,
}

/// What the claim's volume is to be a copy of; `None` if it is to be empty.
pub(super) fn find(seen: &ObservedClaim<'_>, config: &ProvisionerConfig) -> Result<Option<Found>, SourceError> {
    let name = match Content::of(seen.claim) {
        // A populated claim does not come this far.
        Content::Empty | Content::Populated => return Ok(None),
        Content::Snapshot(_) => return Err(SourceError::Snapshot),
        Content::Elsewhere(namespace) => return Err(SourceError::Elsewhere(namespace.to_owned())),
        Content::Claim(name) => name,
    };
    if seen.claim.metadata.name.as_deref() == Some(name) {
        return Err(SourceError::Itself);
    }
    let claim = || name.to_owned();
    let from = seen
        .source
        .claim
        .as_ref()
        .ok_or_else(|| SourceError::Missing(claim()))?;
    if from.metadata.deletion_timestamp.is_some() {
        return Err(SourceError::Going(claim()));
    }
    let uid = from.metadata.uid.clone().unwrap_or_default();
    let bound = |volume: &&Arc<PersistentVolume>| {
        let of = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
        of == Some(uid.as_str())
    };
    let volume = seen.source.volume.as_ref().filter(bound);
    let volume = volume.ok_or_else(|| SourceError::Unbound(claim()))?;
    let noted = from
        .metadata
        .annotations
        .iter()
        .flatten()
        .any(|(key, _)| key == annotations::OPERATION);
    let held = from
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|held| held == finalizers::CLAIM);
    if noted || held {
        // Its volume may yet be refused, or is being changed.
        return Err(SourceError::Busy(claim()));
    }
    let pv_name = volume.metadata.name.clone().unwrap_or_default();
    if let Some(begun) = seen
        .record
        .filter(|record| !record.source.is_empty() && record.source != pv_name)
    {
        return Err(SourceError::Another {
            claim: claim(),
            volume: begun.source.clone(),
        });
    }
    if volume.metadata.deletion_timestamp.is_some() {
        return Err(SourceError::Going(claim()));
    }
    if !is_ours(volume) {
        return Err(SourceError::NotOurs(pv_name));
    }
    let made_by = volume
        .metadata
        .annotations
        .iter()
        .flatten()
        .find(|(key, _)| *key == annotations::CONFIG);
    let made_by = made_by.map(|(_, config)| config.clone()).unwrap_or_default();
    let serves = config.reference.to_string();
    if made_by != serves {
        return Err(SourceError::OtherConfig {
            volume: pv_name,
            made_by,
            serves,
        });
    }
    fits(seen, name, volume, &pv_name).and_then(|size| {
        Ok(Some(Found {
            node: node_of(seen, config, volume)?,
            source: Source {
                pv_name: pv_name.clone(),
                pvc_name: claim(),
                pvc_uid: uid.clone(),
                size,
                volume: persistent_volume::options(volume),
            },
        }))
    })
}

/// The size of the volume, if the claim asks for one that can be a copy of it.
fn fits(seen: &ObservedClaim<'_>, claim: &str, volume: &PersistentVolume, pv_name: &str) -> Result<u64, SourceError> {
    let spec = volume.spec.as_ref();
    let size = spec
        .and_then(|spec| spec.capacity.as_ref()?.get("storage"))
        .and_then(|size| capacity::bytes(size).ok())
        .ok_or_else(|| SourceError::NoSize(pv_name.to_owned()))?;
    // A size that can't be read is refused before.
    let asked = asked_bytes(seen.claim).unwrap_or(0);
    if asked < size {
        return Err(SourceError::Smaller {
            claim: claim.to_owned(),
            asked,
            size,
        });
    }
    let mode_or = |mode: Option<&String>| mode.cloned().unwrap_or_else(|| "Filesystem".to_owned());
    let mode = mode_or(spec.and_then(|spec| spec.volume_mode.as_ref()));
    let wanted = mode_or(seen.claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()));
    if wanted != mode {
        return Err(SourceError::Mode {
            claim: claim.to_owned(),
            mode,
        });
    }
    Ok(size)
}

/// The node that a volume lives on, where the ConfigMap's volumes live on nodes.
fn node_of(
    seen: &ObservedClaim<'_>,
    config: &ProvisionerConfig,
    volume: &PersistentVolume,
) -> Result<Option<Node>, SourceError> {
    match persistent_volume::host_of(volume).filter(|_| config.is_node_local()) {
        None => Ok(None),
        Some(host) => (seen.by_host)(host)
            .map(Some)
            .ok_or_else(|| SourceError::NodeGone(host.to_owned())),
    }
}

/// The record without its hold on the source, if it has one in vain: nothing runs, and nothing can be begun. `None` if
/// there is nothing to change. What an attempt may have made stays noted.
pub(super) fn let_go(seen: &ObservedClaim<'_>, config: &ProvisionerConfig, record: &Record) -> Option<Record> {
    let in_vain = record.copies(&record.source) && find(seen, config).is_err();
    in_vain.then(|| Record {
        not_before: Some(record.since),
        may_exist: true,
        ..record.clone()
    })
}

#[cfg(test)]
mod tests;
