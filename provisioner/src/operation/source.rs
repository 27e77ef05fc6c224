//! The source of a claim's volume, and whether it can be copied: [`find`] reads the claim's
//! [`content`](super::content).

use kube::ResourceExt as _;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::names::annotations;
use mooring_contract::request::{Request, Snapshot, Source};

use super::content::{Content, Permission, SourceRef};
use super::observed::ObservedClaim;
use super::record::{Record, is_busy};
use crate::config::ProvisionerConfig;
use crate::volume::acceptance::asked_bytes;
use crate::volume::grant::{Lacking, Version};
use crate::volume::persistent_volume::{self, is_ours};
use crate::volume::snapshot::{Form, HandleError, VolumeSnapshotContent};
use crate::volume::topology::Node;

/// external-snapshotter's own, on a content: volumes of another mode may be made of it
/// (`AnnAllowVolumeModeChange` in external-provisioner's `pkg/controller/controller.go`).
const MODE_MAY_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

/// Why a claim's volume can't be made of what it names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("VolumeSnapshot {0:?}, which the claim asks to restore, does not exist: Mooring waits for it")]
    NoSnapshot(String),
    #[error(
        "VolumeSnapshot {0:?}, which the claim asks to restore, can't exist, since the cluster has no snapshot API: \
         have an administrator install the CRDs and the snapshot-controller of kubernetes-csi/external-snapshotter. \
         Mooring waits for them"
    )]
    NoSnapshotApi(String),
    #[error(
        "VolumeSnapshot {0:?}, which the claim asks to restore, is not ready yet (see its Events; it has none where no \
         snapshot-controller runs): Mooring waits for it"
    )]
    Unready(String),
    #[error(
        "VolumeSnapshot {0:?}, which the claim asks to restore, is being deleted: delete the claim, and create it \
         again with another snapshot"
    )]
    SnapshotGoing(String),
    #[error(
        "CSI driver {1:?} took VolumeSnapshot {0:?}, and the claim's class is Mooring's: ask for a class of that driver"
    )]
    OtherDriver(String, String),
    /// Its name on the storage makes no sense.
    #[error("the handle of VolumeSnapshot {0:?} can't be used: {1}")]
    Handle(String, #[source] HandleError),
    #[error(
        "VolumeSnapshot {0:?} is not the one that Mooring began to restore ({1}): delete the claim, and create it again"
    )]
    AnotherSnapshot(String, String),
    #[error(
        "ConfigMap {taken_by} took VolumeSnapshot {snapshot:?}, but ConfigMap {serves} serves the claim's class: ask \
         for a class of the same ConfigMap, or, if both have the same storage, have an administrator annotate its \
         content with mooring.dev/config={serves}"
    )]
    SnapshotOfOtherConfig {
        /// `metadata.name` of the `VolumeSnapshot`.
        snapshot: String,
        /// The ConfigMap that took it.
        taken_by: String,
        /// The ConfigMap of the claim's class.
        serves: String,
    },
    #[error(
        "the claim asks for {asked} bytes, and VolumeSnapshot {snapshot:?} is of a volume with {size}: ask for at \
         least as much"
    )]
    SmallerThanSnapshot {
        /// `metadata.name` of the `VolumeSnapshot`.
        snapshot: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes that it takes.
        size: u64,
    },
    /// It is of a volume that is used in another way.
    #[error(
        "VolumeSnapshot {snapshot:?} is of a volume with volumeMode {mode}: ask for the same, or have an administrator \
         annotate its content with {MODE_MAY_CHANGE}=true"
    )]
    SnapshotMode {
        /// `metadata.name` of the `VolumeSnapshot`.
        snapshot: String,
        mode: String,
    },
    /// Of another namespace, which does not let the claim's in.
    #[error(
        "no ReferenceGrant in namespace {:?} lets claims of namespace {:?} use {} {:?}: have somebody with write \
         access there run {}; Mooring then continues", .0.namespace, .0.by, .0.kind, .0.name, .0.command()
    )]
    NotGranted(Box<Lacking>),
    /// Of another namespace, in a cluster where none can let others in.
    #[error(
        "{} {:?} is in namespace {:?}, which has to allow claims of namespace {:?} by a ReferenceGrant, and the \
         cluster lacks that API: have an administrator install CustomResourceDefinition \
         referencegrants.gateway.networking.k8s.io of the Gateway API first, then run {}",
        .0.kind, .0.name, .0.namespace, .0.by, .0.command()
    )]
    NoGrants(Box<Lacking>),
    /// Of another namespace, before anything is known of grants.
    #[error(
        "Mooring has not read the ReferenceGrants of namespace {0:?} yet, and waits for that; if it takes long, see \
         the controller's log"
    )]
    GrantsNotKnown(String),
    #[error("the claim's dataSource is the claim itself: name another claim")]
    Itself,
    #[error("source claim {0:?} does not exist yet: Mooring waits for it")]
    Missing(String),
    #[error("source claim {0:?} is not bound to a volume yet: Mooring waits for it")]
    Unbound(String),
    /// Something is being done to it.
    #[error("source claim {0:?} has an operation in progress (see its Events): Mooring waits for its end")]
    Busy(String),
    #[error("the volume to copy is on node {0}, which is not in the cluster: Mooring waits for the node")]
    NodeGone(String),
    #[error("source claim {0:?} is being deleted: delete this claim, and create it again from another")]
    Going(String),
    /// It is not the one that was copied before.
    #[error(
        "claim {claim:?} no longer has volume {volume}, which Mooring began to copy: delete this claim, and create it \
         again"
    )]
    Another {
        claim: String,
        /// The PV that the record names.
        volume: String,
    },
    #[error("Mooring did not make source volume {0}: name the claim of a volume that it made")]
    NotOurs(String),
    #[error(
        "ConfigMap {made_by} made source volume {volume}, but ConfigMap {serves} serves this claim's class: ask for a \
         class of the same ConfigMap"
    )]
    OtherConfig {
        volume: String,
        /// The ConfigMap that made it.
        made_by: String,
        /// The ConfigMap of the claim's class.
        serves: String,
    },
    #[error("the capacity of source volume {0} can't be read: correct its PersistentVolume")]
    NoSize(String),
    #[error("the claim asks for {asked} bytes, but source claim {claim:?} has {size}: ask for at least as much")]
    Smaller {
        claim: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes that it has.
        size: u64,
    },
    /// It is used in another way.
    #[error("claim {claim:?}, which is to be copied, has volumeMode {mode}: ask for the same")]
    Mode { claim: String, mode: String },
}

impl SourceError {
    /// Whether it passes by itself.
    pub fn is_wait(&self) -> bool {
        match self {
            Self::Missing(_)
            | Self::Unbound(_)
            | Self::Busy(_)
            | Self::NodeGone(_)
            | Self::NoSnapshot(_)
            | Self::NoSnapshotApi(_)
            | Self::Unready(_)
            | Self::GrantsNotKnown(_) => true,
            Self::SnapshotGoing(_)
            | Self::OtherDriver(..)
            | Self::Handle(..)
            | Self::AnotherSnapshot(..)
            | Self::SnapshotOfOtherConfig { .. }
            | Self::SmallerThanSnapshot { .. }
            | Self::SnapshotMode { .. }
            | Self::NotGranted(_)
            | Self::NoGrants(_)
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

/// The source, and its node if it lives on one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// For the image.
    pub source: Source,
    pub node: Option<Node>,
    pub snapshot: Option<Snapshot>,
    /// What the record calls it: the PV's name, or the snapshot's handle.
    pub name: String,
}

/// The source of the claim's volume; `None` for an empty volume.
pub(super) fn find(seen: &ObservedClaim<'_>, config: &ProvisionerConfig) -> Result<Option<Found>, SourceError> {
    // First of all: without a grant, a user must not learn whether the object exists.
    may_use(seen)?;
    let named = match Content::of(seen.claim) {
        // A populated claim does not come this far.
        Content::Empty | Content::Populated => return Ok(None),
        Content::Snapshot(named) => return of_snapshot(seen, config, named).map(Some),
        Content::Claim(named) => named,
    };
    if !named.is_elsewhere && seen.claim.metadata.name.as_deref() == Some(named.name) {
        return Err(SourceError::Itself);
    }
    let claim = || named.to_string();
    let from = seen
        .source
        .claim
        .as_ref()
        .ok_or_else(|| SourceError::Missing(claim()))?;
    if from.metadata.deletion_timestamp.is_some() {
        return Err(SourceError::Going(claim()));
    }
    let uid = from.metadata.uid.clone().unwrap_or_default();
    let bound = |volume: &&Arc<PersistentVolume>| persistent_volume::claim_uid(volume) == Some(&uid);
    let volume = seen.source.volume.as_ref().filter(bound);
    let volume = volume.ok_or_else(|| SourceError::Unbound(claim()))?;
    if is_busy(from) {
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
        .annotations()
        .get(annotations::CONFIG)
        .cloned()
        .unwrap_or_default();
    let serves = config.reference.to_string();
    if made_by != serves {
        return Err(SourceError::OtherConfig {
            volume: pv_name,
            made_by,
            serves,
        });
    }
    let size = fits(seen, named, volume, &pv_name)?;
    Ok(Some(Found {
        node: node_of(seen, config, persistent_volume::host_of(volume))?,
        snapshot: None,
        name: pv_name.clone(),
        source: Source {
            pv_name,
            pvc_name: named.name.to_owned(),
            pvc_namespace: named.namespace.to_owned(),
            pvc_uid: uid,
            size,
            volume: persistent_volume::options(volume),
        },
    }))
}

/// Refuses what the claim names in another namespace and may not use.
fn may_use(seen: &ObservedClaim<'_>) -> Result<(), SourceError> {
    let Some(wanted) = Content::of(seen.claim).needs_grant(seen.claim) else {
        return Ok(());
    };
    let lacking = |version: Version| Box::new(Lacking::new(version, &wanted));
    match seen.source.access {
        Permission::Granted => Ok(()),
        Permission::Refused(version) => Err(SourceError::NotGranted(lacking(version))),
        Permission::NoApi => Err(SourceError::NoGrants(lacking(Version::default()))),
        // What is in its own namespace needs no grant, so of anything else that is never said.
        Permission::NotKnown | Permission::Own => Err(SourceError::GrantsNotKnown(wanted.namespace.to_owned())),
    }
}

/// The snapshot that the claim restores.
fn of_snapshot(
    seen: &ObservedClaim<'_>,
    config: &ProvisionerConfig,
    snapshot: SourceRef<'_>,
) -> Result<Found, SourceError> {
    let named = || snapshot.to_string();
    let (content, handle) = ready_content(seen, snapshot)?;
    let view = content.view();
    let read = view.parse(handle);
    let read = read.map_err(|error| SourceError::Handle(named(), error))?;
    let taken_by = view.config().unwrap_or(read.config);
    if taken_by != config.reference {
        return Err(SourceError::SnapshotOfOtherConfig {
            snapshot: named(),
            taken_by: taken_by.to_string(),
            serves: config.reference.to_string(),
        });
    }
    let taken_by = view.taken_by();
    let size = fits_snapshot(seen, snapshot, content, taken_by.as_ref())?;
    let node = node_of(seen, config, read.host.as_deref())?;
    let of = |read: fn(&Request) -> &String| taken_by.as_ref().map(read).cloned();
    Ok(Found {
        node,
        source: Source {
            pv_name: of(|request| &request.pv_name).unwrap_or_default(),
            pvc_name: of(|request| &request.pvc_name).unwrap_or_default(),
            pvc_namespace: of(|request| &request.pvc_namespace).unwrap_or_default(),
            pvc_uid: of(|request| &request.pvc_uid).unwrap_or_default(),
            size,
            volume: taken_by.map(|request| request.volume).unwrap_or_default(),
        },
        snapshot: Some(Snapshot {
            name: read.name,
            content_name: content.metadata.name.clone().unwrap_or_default(),
            content_uid: content.metadata.uid.clone().unwrap_or_default(),
            backup: read.form == Form::Backup,
            members: None,
        }),
        name: handle.to_owned(),
    })
}

/// The content of a snapshot that can be read, with its handle.
fn ready_content<'a>(
    seen: &'a ObservedClaim<'_>,
    snapshot: SourceRef<'_>,
) -> Result<(&'a VolumeSnapshotContent, &'a str), SourceError> {
    let named = || snapshot.to_string();
    let from = seen.source.snapshot.as_ref();
    let from = from.ok_or_else(|| match seen.source.has_snapshot_api {
        Some(false) => SourceError::NoSnapshotApi(named()),
        Some(true) | None => SourceError::NoSnapshot(named()),
    })?;
    if from.metadata.deletion_timestamp.is_some() {
        return Err(SourceError::SnapshotGoing(named()));
    }
    let content = seen.source.content.as_ref();
    // Either may say that it is the other's, so both have to.
    let content = content.filter(|content| content.is_bound_to(from));
    let content = content.ok_or_else(|| SourceError::Unready(named()))?;
    let view = content.view();
    if !view.is_ours() {
        return Err(SourceError::OtherDriver(named(), content.spec.driver.clone()));
    }
    if content.metadata.deletion_timestamp.is_some() {
        return Err(SourceError::SnapshotGoing(named()));
    }
    if view.of_group.is_some() && view.named.is_none() && view.taken_by().is_none() {
        // What its group's content remembers of its volume is not noted on its own yet.
        return Err(SourceError::Unready(named()));
    }
    let said = from
        .status
        .as_ref()
        .is_some_and(|status| status.ready_to_use == Some(true));
    let handle = view.handle().filter(|_| said && view.is_ready);
    let handle = handle.ok_or_else(|| SourceError::Unready(named()))?;
    if let Some(begun) = seen
        .record
        .filter(|record| !record.source.is_empty() && record.source != handle)
    {
        return Err(SourceError::AnotherSnapshot(named(), begun.source.clone()));
    }
    Ok((content, handle))
}

/// The size of the snapshot, if the claim asks for a volume that can be made of it.
fn fits_snapshot(
    seen: &ObservedClaim<'_>,
    snapshot: SourceRef<'_>,
    content: &VolumeSnapshotContent,
    taken_by: Option<&Request>,
) -> Result<u64, SourceError> {
    let named = || snapshot.to_string();
    let size = content.status.as_ref().and_then(|status| status.restore_size);
    let size = size.or(taken_by.map(|request| request.size)).unwrap_or(0);
    let asked = asked_bytes(seen.claim).unwrap_or(0);
    if asked < size {
        return Err(SourceError::SmallerThanSnapshot {
            snapshot: named(),
            asked,
            size,
        });
    }
    let mode = taken_by.map(|request| request.volume_mode.clone());
    let mode = content.spec.source_volume_mode.clone().or(mode);
    let may_change = content
        .annotations()
        .get(MODE_MAY_CHANGE)
        .is_some_and(|may| may == "true");
    let wanted = seen.claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    if let Some(mode) = mode.filter(|mode| !may_change && mode != wanted.unwrap_or("Filesystem")) {
        return Err(SourceError::SnapshotMode {
            snapshot: named(),
            mode,
        });
    }
    Ok(size)
}

/// The size of the volume, if the claim asks for one that can be a copy of it.
fn fits(
    seen: &ObservedClaim<'_>,
    claim: SourceRef<'_>,
    volume: &PersistentVolume,
    pv_name: &str,
) -> Result<u64, SourceError> {
    let spec = volume.spec.as_ref();
    let size = persistent_volume::size(volume).ok_or_else(|| SourceError::NoSize(pv_name.to_owned()))?;
    // A size that can't be read is refused before.
    let asked = asked_bytes(seen.claim).unwrap_or(0);
    if asked < size {
        return Err(SourceError::Smaller {
            claim: claim.to_string(),
            asked,
            size,
        });
    }
    let mode_or = |mode: Option<&String>| mode.cloned().unwrap_or_else(|| "Filesystem".to_owned());
    let mode = mode_or(spec.and_then(|spec| spec.volume_mode.as_ref()));
    let wanted = mode_or(seen.claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()));
    if wanted != mode {
        return Err(SourceError::Mode {
            claim: claim.to_string(),
            mode,
        });
    }
    Ok(size)
}

/// The node of this host name, on which the source lives, where the ConfigMap's volumes live on nodes.
fn node_of(
    seen: &ObservedClaim<'_>,
    config: &ProvisionerConfig,
    host: Option<&str>,
) -> Result<Option<Node>, SourceError> {
    let host = host.filter(|_| config.is_node_local());
    let node = host.map(|host| (seen.by_host)(host).ok_or_else(|| SourceError::NodeGone(host.to_owned())));
    node.transpose()
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
