//! Operation `expand`: from a bound claim that asks for more than it has to a volume that is larger. The rules are
//! those of Kubernetes' own external-resizer (`pkg/controller/expand_and_recover.go` of
//! kubernetes-csi/external-resizer) and of `pkg/volume/util/operationexecutor/operation_generator.go`: users and other
//! tools see the same in a claim's [`status`].
//!
//! The record holds the size that is being made. While a run may still make the volume that large, another size would
//! be a lie to quotas: so a lowered request counts only when the last run is known to have ended without success.

mod status;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use mooring_contract::names::{FLEX_DRIVER, annotations};
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;
use mooring_contract::volume::clients::Growth;
use mooring_program::error::chain;
use serde_json::{Value, json};

use self::status::Resize;
pub(crate) use self::status::of_record;
use super::change::{Change, changed_after_all, refusal, refused_unless};
use super::decision::{Altered, ClaimDecision, Decision, ForClaim, Start};
use super::describe::{action, done};
use super::drive::{Operate, Progress, begin, drive};
use super::observed::ObservedClaim;
use super::record::Record;
use super::request::{self, of_size};
use super::standing::is_bound;
use crate::process::events::{Note, reasons};
use crate::run::Run;
use crate::run::outcome::Finish;
use crate::volume::acceptance::asked_bytes;
use crate::volume::capacity;
use crate::volume::persistent_volume::{self, growth};

const CANCEL: &str = "to cancel the expansion, lower the claim's request to a size above its capacity that the storage \
                      can provide";

/// Whether a bound claim asks for more than it has.
pub(crate) fn is_asked(claim: &PersistentVolumeClaim) -> bool {
    is_bound(claim) && asked_bytes(claim).is_ok_and(|asked| status::has(claim).is_some_and(|has| asked > has))
}

/// Whether the image has refused the last expansion, by the claim's status.
pub(super) fn is_infeasible(claim: &PersistentVolumeClaim) -> bool {
    Resize::of(claim) == Resize::ControllerInfeasible
}

/// Whether an expansion could begin if nothing else were open, and was not refused before.
pub(super) fn is_next(seen: &ObservedClaim<'_>, now: Timestamp) -> bool {
    !is_infeasible(seen.claim) && matches!(fresh(seen, now), Decision::Start(_))
}

/// What to do about a bound claim of which nothing is open.
pub(super) fn fresh(seen: &ObservedClaim<'_>, now: Timestamp) -> ClaimDecision {
    let Some(change) = Change::fresh(seen, Operation::Expand, now) else {
        return Decision::Rest;
    };
    let (Ok(asked), Some(has)) = (asked_bytes(seen.claim), status::has(seen.claim)) else {
        return Decision::Rest;
    };
    if asked <= has {
        return settled(&change, has);
    }
    match wanted(seen.claim, change.volume, asked) {
        None => Decision::Rest,
        size => begin(&Expansion { change, size }),
    }
}

/// What to do about a claim whose record is one of an expansion.
pub(super) fn ongoing(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> ClaimDecision {
    match Change::ongoing(seen, record, now) {
        Ok(change) => {
            let asked = asked_bytes(seen.claim).unwrap_or(0);
            let size = if change.is_free() { Some(asked) } else { record.size };
            drive(&Expansion { change, size }, record)
        }
        Err(over) => *over,
    }
}

/// A claim that has what it asks for: what is left of an expansion is taken back.
fn settled(change: &Change<'_>, has: u64) -> ClaimDecision {
    let Change { seen, volume, .. } = change;
    // Kubernetes itself takes the mark of a FlexVolume away (`isNodeExpandComplete` in `pkg/controller/volume/expand`).
    let flex = volume.spec.as_ref().is_some_and(|spec| spec.flex_volume.is_some());
    let marked = volume.annotations().contains_key(annotations::PRE_RESIZE_CAPACITY);
    let grown = persistent_volume::size(volume).is_some_and(|size| has >= size);
    let volume_patch = (marked && grown && !flex).then(|| {
        json!({"metadata": {
            "resourceVersion": volume.metadata.resource_version,
            "annotations": {annotations::PRE_RESIZE_CAPACITY: null},
        }})
    });
    let left = match Resize::of(seen.claim) {
        Resize::Controller | Resize::ControllerInfeasible => true,
        Resize::None | Resize::Node | Resize::NodeInfeasible | Resize::Unknown => false,
    };
    if volume_patch.is_none() && !left {
        return Decision::Rest;
    }
    Decision::Own(ForClaim::Altered(Box::new(Altered {
        volume_patch,
        status: left.then(|| status::taken_back(seen.claim)),
        ..Altered::of(Operation::Expand, volume)
    })))
}

/// The size to make; `None` while the kubelet is to finish an earlier expansion.
fn wanted(claim: &PersistentVolumeClaim, volume: &PersistentVolume, asked: u64) -> Option<u64> {
    let allocated = status::allocated(claim);
    let size = persistent_volume::size(volume).unwrap_or(0);
    match (Resize::of(claim), size < asked) {
        (Resize::Node, _) if is_only_called_larger(claim, volume) => Some(allocated.unwrap_or(asked)),
        (Resize::Node, true) => {
            let earlier = allocated.unwrap_or(asked);
            (size < earlier).then_some(earlier)
        }
        (Resize::Node, false) => None,
        // Begun by somebody whose record is gone: how far it came is not known.
        (Resize::NodeInfeasible | Resize::Controller, _)
        // The storage is that large already, and only that was not written down.
        | (Resize::ControllerInfeasible | Resize::None | Resize::Unknown, false) => Some(allocated.unwrap_or(asked)),
        (Resize::ControllerInfeasible | Resize::None | Resize::Unknown, true) => Some(asked),
    }
}

/// Whether Kubernetes itself has called a volume larger that no image has made larger yet. It does so with FlexVolume,
/// unless the policies of `configmaps/install` keep it from that (`expandAndRecoverFunction` in
/// `pkg/volume/util/operationexecutor`); and it leaves its mark.
fn is_only_called_larger(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let by = claim.annotations().get(annotations::STORAGE_RESIZER);
    let made = request::made_by(volume).ok().map(|made_by| made_by.size);
    by.map(String::as_str) == Some(FLEX_DRIVER) && made < status::allocated(claim) && made.is_some()
}

struct Expansion<'a> {
    change: Change<'a>,
    /// The size to make; `None` if the record of a run that may go on does not say.
    size: Option<u64>,
}

impl Operate for Expansion<'_> {
    type Own = ForClaim;

    fn progress(&self) -> &Progress<'_> {
        &self.change.progress
    }

    fn instead(&self, _record: &Record) -> Option<ClaimDecision> {
        let claim = self.change.seen.claim;
        if self.change.is_free() && status::has(claim).is_some_and(|has| self.size.unwrap_or(0) <= has) {
            let say = Note::normal(
                reasons::RESIZE_TAKEN_BACK,
                action(Operation::Expand),
                "the failed expansion is canceled: the claim asks for no more than its capacity",
            );
            return Some(self.change.taken_back(status::taken_back(claim), Some(say)));
        }
        self.change.config().err().map(|without| *without)
    }

    fn request(&self) -> Result<Start, Box<ClaimDecision>> {
        let config = self.change.config()?;
        if let Err(error) = config.check_offered(Operation::Expand) {
            let text = format!("{error}; or lower the claim's request again, to any size above its capacity");
            return Err(Box::new(self.change.refused(refusal(Operation::Expand, text))));
        }
        let mut record = self.change.progress.next(config);
        if record.size != self.size {
            record.size = self.size;
            record.last_error.clear();
        }
        self.change
            .start(config, record, "the volume is expanded", |request| match self.size {
                Some(size) => of_size(request, size),
                None => request,
            })
    }

    /// The image says that the storage has the size: the PV says so next, then the claim.
    fn apply(&self, run: &Run, record: &Record, finish: &Finish) -> Result<ClaimDecision, Finish> {
        let Change { seen, volume, progress } = &self.change;
        // What the image was asked: the record may have been rewritten by a controller that did not know of this run.
        let size = run.request().map_err(|error| finish.refused(chain(&error)))?.size;
        let growth = volume.spec.as_ref().map_or(Growth::AtServer, growth);
        let made = self.change.made(record);
        let grew = format!(
            "the volume's storage grew to {} in {} s",
            capacity::quantity(size).0,
            made.took.unwrap_or_default().as_secs()
        );
        let (status, say) = match growth {
            Growth::AtServer => (
                status::done(seen.claim, size),
                done(Operation::Expand, format!("{grew}, so it is expanded")),
            ),
            Growth::AtNode => (
                status::pending(seen.claim, progress.now),
                Some(Note::normal(
                    reasons::FS_RESIZE_REQUIRED,
                    action(Operation::Expand),
                    format!("{grew}, its file system grows where a Pod uses it"),
                )),
            ),
        };
        Ok(Decision::Own(ForClaim::Altered(Box::new(Altered {
            volume_patch: volume_patch(seen.claim, volume, size, growth),
            status: Some(status),
            at_once: Some(growth == Growth::AtServer),
            say,
            ..made
        }))))
    }

    fn ran_after_all(&self, run: &Run, record: &Record) -> Option<Record> {
        let note = |record: &mut Record, asked: Request| record.size = Some(asked.size);
        changed_after_all(run, record, note)
    }

    fn fail(&self, record: &Record, finish: &Finish) -> ClaimDecision {
        self.change.fail(record, finish, CANCEL)
    }

    fn given_up(&self, record: &Record) -> Note {
        refused_unless(record, CANCEL)
    }
}

/// What a PV has to say of its new size; `None` if it does already. It is never made smaller.
fn volume_patch(claim: &PersistentVolumeClaim, volume: &PersistentVolume, size: u64, growth: Growth) -> Option<Value> {
    let made_by = request::made_by(volume).ok();
    let has = persistent_volume::size(volume).unwrap_or(0);
    if has >= size && made_by.as_ref().is_none_or(|made_by| made_by.size >= size) {
        return None;
    }
    let mut notes = serde_json::Map::new();
    let marked = volume.annotations().contains_key(annotations::PRE_RESIZE_CAPACITY);
    match (growth, status::has(claim)) {
        (Growth::AtNode, Some(has)) if !marked => {
            notes.insert(
                annotations::PRE_RESIZE_CAPACITY.to_owned(),
                json!(capacity::quantity(has)),
            );
        }
        (Growth::AtNode | Growth::AtServer, _) => {}
    }
    if let Some(made_by) = made_by {
        // So that a later operation is told the size that the volume has.
        notes.insert(
            annotations::REQUEST.to_owned(),
            json!(json!(of_size(made_by, size)).to_string()),
        );
    }
    Some(json!({
        "metadata": {"resourceVersion": volume.metadata.resource_version, "annotations": notes},
        "spec": {"capacity": {"storage": capacity::quantity(size.max(has))}},
    }))
}

#[cfg(test)]
mod tests;
