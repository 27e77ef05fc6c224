//! The volume that a claim has, and whether a claim has a volume.

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

/// Whether Mooring made a PV for the claim of this uid and accepted it, whichever claim has it by now.
fn is_own(volume: &PersistentVolume, uid: &str) -> bool {
    made_for(volume) == Some(uid) && is_ours(volume)
}

/// Whether a PV is, or was made to be, the volume of the claim of this uid, and Mooring accepted it.
pub(crate) fn is_ready(volume: &PersistentVolume, uid: &str) -> bool {
    is_for(volume, uid) || is_own(volume, uid)
}

/// Whether Mooring accepted a PV that is not the one it makes for the claim of this uid, which may have been given it.
pub(crate) fn is_of_another(volume: &PersistentVolume, uid: &str) -> bool {
    is_ours(volume) && !is_own(volume, uid)
}

/// The PV that was made for the claim and accepted: it is neither judged nor undone again, and what becomes of it is its
/// own matter. One that was refused before is to go, unless another claim has it.
pub(super) fn accepted<'v>(seen: &ObservedClaim<'v>) -> Option<&'v PersistentVolume> {
    let is_refused = seen.record.is_some_and(|record| record.refused);
    let mut volumes = seen.volumes.iter().map(AsRef::as_ref);
    volumes.find(|volume| is_own(volume, seen.uid()) && !(is_refused && is_for(volume, seen.uid())))
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

fn phase(volume: &PersistentVolume) -> Option<&str> {
    volume.status.as_ref()?.phase.as_deref()
}

/// Whether an administrator deletes a PV, and no claim is bound to it.
pub(super) fn is_going(volume: &PersistentVolume) -> bool {
    volume.metadata.deletion_timestamp.is_some() && phase(volume) != Some("Bound")
}

/// Whether a PV shows that no claim has it any more. One whose `claimRef` an administrator has emptied may be had by
/// another claim, although kube-controller-manager has not said so yet.
pub(super) fn is_unused(volume: &PersistentVolume) -> bool {
    let had = claim_uid(volume).is_some_and(|uid| !uid.is_empty());
    is_going(volume) || (had && matches!(phase(volume), Some("Released" | "Failed")))
}

/// Whether a claim has a PV that refers to it, or may yet get it: its volume is being made, it is bound to this one, or
/// to none so far and nobody deletes this one.
pub(crate) fn is_claimed(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let meta = &claim.metadata;
    if meta.uid.is_none() || meta.uid.as_deref() != claim_uid(volume) {
        return false;
    }
    let is_held = meta.finalizers.iter().flatten().any(|name| name == finalizers::CLAIM);
    let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let is_going = volume.metadata.deletion_timestamp.is_some();
    is_held || bound.map_or(!is_going, |name| Some(name) == volume.metadata.name.as_deref())
}
