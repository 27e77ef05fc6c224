//! The volume that a claim has.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use mooring_contract::names::finalizers;

use super::observed::ObservedClaim;
use crate::volume::persistent_volume::{claim_uid, is_ours, made_for};

/// The PV that a claim is bound to, if it is one that Mooring accepted for it.
pub(crate) fn volume_of<'v>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'v PersistentVolume>,
) -> Option<&'v PersistentVolume> {
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    let uid = claim.metadata.uid.as_deref()?;
    volumes
        .into_iter()
        .find(|volume| volume.metadata.name.as_deref() == Some(name) && is_for(volume, uid))
}

/// Whether Mooring accepted a PV, and it is for the claim of this uid.
pub(crate) fn is_for(volume: &PersistentVolume, uid: &str) -> bool {
    claim_uid(volume) == Some(uid) && is_ours(volume)
}

/// Whether Mooring made a PV for another claim than that of this uid, which may have been given it since.
pub(crate) fn is_of_another(volume: &PersistentVolume, uid: &str) -> bool {
    is_ours(volume) && made_for(volume).is_some_and(|of| of != uid)
}

/// The PV of the claim that a plan is about.
pub(super) fn volume<'v>(seen: &ObservedClaim<'v>) -> Option<&'v PersistentVolume> {
    volume_of(seen.claim, seen.volumes.iter().map(AsRef::as_ref))
}

/// Whether the claim's volume moves between FlexVolume and CSI just now (`mooring migrate`).
pub(crate) fn is_moving(claim: &PersistentVolumeClaim) -> bool {
    claim.finalizers().iter().any(|held| held == finalizers::MIGRATION)
}

pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Bound")
}
