//! Operation `delete`: of a PV whose claim is gone. One `Deletion` of it serves [`undo`](super::undo) too.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::finalizers;
use mooring_contract::names::labels::HOSTNAME;
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;

use super::attempt::{given_up, state_of};
use super::decision::{Decision, ForVolume, Intent, LetGo, Start, VolumeDecision, name_and_uid, removable};
use super::describe::{Effect, SubjectKind, action, describe, waiting};
use super::drive::{Operate, Progress, begin, drive, removed};
use super::limits::Limits;
use super::observed::{ObservedVolume, Surroundings};
use super::reclaim::{Kept, ReclaimPolicy, may_delete, may_delete_volume};
use super::record::Record;
use super::request::{self, NoHistory};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::process::events::{Note, reasons};
use crate::run::outcome::{Finish, State};
use crate::run::{Run, RunId, RunRef};
use crate::time::elapsed;
use crate::volume::persistent_volume;

/// How often the controller looks whether a node is back.
const NODE_PERIOD: Duration = Duration::from_secs(30);

/// What to do about a PV of Mooring's that nothing else is done with.
pub(super) fn plan(seen: &ObservedVolume<'_>, now: Timestamp) -> VolumeDecision {
    let going = is_going(seen.volume);
    match may_delete_volume(seen.volume, seen.claimed) {
        Ok(()) => {}
        Err(Kept::Policy(..) | Kept::Unknown(_)) if going => {
            let making_run = seen.run(Effect::makes_volume);
            return match making_run.filter(|run| run.leaving_since().is_none()) {
                // Without the PV, its request would say what the policy once was.
                Some(run) => Decision::Tidy(vec![run.to_remove()]),
                None => let_go(seen, false, None, None),
            };
        }
        Err(_) => return stay(seen),
    }
    if let Err(NoHistory::Copy { original, .. }) = request::made_by(seen.volume) {
        return copy(seen, &original, going);
    }
    let uid = persistent_volume::made_for(seen.volume).unwrap_or_default();
    if seen.config.is_err()
        && let Some(run) = seen.run(Effect::removes_volume)
    {
        let own_uid = seen.volume.metadata.uid.as_deref().unwrap_or_default();
        let is_its_own = match seen.record.filter(|record| record.is_delete()) {
            Some(record) => record.attempt == run.attempt(),
            None => run.belongs_to(own_uid),
        };
        if is_its_own && run.is_done() {
            return let_go(seen, true, None, Some(elapsed(run.made(), now)));
        }
    }
    let gone = |took| let_go(seen, true, None, took);
    match deletion(seen, uid, &gone, now) {
        Err(decision) => *decision,
        Ok(deletion) => deletion.plan(),
    }
}

fn phase(volume: &PersistentVolume) -> Option<&str> {
    volume.status.as_ref()?.phase.as_deref()
}

/// Whether an administrator deletes a PV, and no claim is bound to it.
fn is_going(volume: &PersistentVolume) -> bool {
    volume.metadata.deletion_timestamp.is_some() && phase(volume) != Some("Bound")
}

/// A volume that stays. What is left of its runs goes: one that was to delete it before somebody decided otherwise, and
/// the one that made it and those that changed it, if the claim is gone that they were for.
fn stay(seen: &ObservedVolume<'_>) -> VolumeDecision {
    let volume = seen.volume;
    let uid = volume.metadata.uid.as_deref().unwrap_or_default();
    let is_left = |run: &&Run| !seen.claimed && run.state() != State::Running;
    let is_of_gone = !seen.claimed || persistent_volume::made_for(volume) != persistent_volume::claim_uid(volume);
    let left = removable([
        seen.run(Effect::makes_volume).filter(|_| is_of_gone),
        seen.run(Effect::removes_volume).filter(|run| run.belongs_to(uid)),
        seen.run(Effect::changes_volume).filter(is_left),
    ]);
    if left.is_empty() {
        Decision::Rest
    } else {
        Decision::Tidy(left)
    }
}

/// Whether a PV shows that no claim has it any more. One whose `claimRef` an administrator has emptied may be had by
/// another claim, although kube-controller-manager has not said so yet.
pub fn is_unused(volume: &PersistentVolume) -> bool {
    let had = persistent_volume::claim_uid(volume).is_some_and(|uid| !uid.is_empty());
    is_going(volume) || (had && matches!(phase(volume), Some("Released" | "Failed")))
}

/// Whether a claim has a PV that refers to it, or may yet get it: its volume is being made, it is bound to this one, or
/// to none so far and nobody deletes this one.
pub fn is_claimed(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let meta = &claim.metadata;
    if meta.uid.is_none() || meta.uid.as_deref() != persistent_volume::claim_uid(volume) {
        return false;
    }
    let is_held = meta.finalizers.iter().flatten().any(|name| name == finalizers::CLAIM);
    let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let is_going = volume.metadata.deletion_timestamp.is_some();
    is_held || bound.map_or(!is_going, |name| Some(name) == volume.metadata.name.as_deref())
}

/// A copy of another PV: its volume is that one's, so the copy goes without a run. Without that one, the copy is the
/// last that tells of the volume, and stays until somebody deletes it.
fn copy(seen: &ObservedVolume<'_>, original: &str, going: bool) -> VolumeDecision {
    let (name, _) = name_and_uid(seen.volume);
    let copy = format!("PersistentVolume {name} is a copy of {original}");
    let text = if seen.has_original {
        format!("{copy}, so its data stays: Mooring removes the copy only")
    } else if going {
        format!("{copy}, which is gone, so its data stays on the storage: delete it there if nobody needs it")
    } else {
        let text = format!(
            "{copy}, which is gone, and Mooring does not delete the data of a copy: if nobody needs the data, delete it \
             on the storage, then the PersistentVolume (kubectl delete pv {name})"
        );
        return Decision::wait_for(waiting(Operation::Delete, text));
    };
    let say = Note::warning(reasons::KEPT, action(Operation::Delete), text);
    let_go(seen, true, Some(say), None)
}

/// Removes the PV's finalizer, and deletes the PV if it has to go.
fn let_go(seen: &ObservedVolume<'_>, delete: bool, say: Option<Note>, took: Option<Duration>) -> VolumeDecision {
    let reclaimed = seen.run(Effect::makes_volume).filter(|_| delete);
    Decision::Own(ForVolume::LetGo(Box::new(LetGo {
        delete,
        reclaimed: reclaimed.map(|run| run.uid().into_owned()),
        runs: left_behind(seen),
        say,
        took,
    })))
}

/// The deletion of a volume that nobody wants any more; `Err` with what comes before it, or in place of it.
fn deletion<'a>(
    seen: &ObservedVolume<'a>,
    uid: &str,
    gone: &'a dyn Fn(Option<Duration>) -> VolumeDecision,
    now: Timestamp,
) -> Result<Deletion<'a, ForVolume>, Box<VolumeDecision>> {
    if let Some(copy) = seen.copied_by.filter(|_| seen.run(Effect::removes_volume).is_none()) {
        // Whatever becomes of the copy, its change wakes this.
        let text = format!("Mooring is copying the volume for {copy}: it deletes the volume after that");
        return Err(Box::new(Decision::wait_for(waiting(Operation::Delete, text))));
    }
    let config = config(seen, now)?;
    let node = node(seen, config, now)?;
    if let Some(run) = seen.run(Effect::changes_volume) {
        // The claim was held until it had ended, unless somebody took the finalizer off.
        return Err(Box::new(removed(run, Operation::Delete, seen.limits, now)));
    }
    let made_by = match request::made_by(seen.volume) {
        Ok(made_by) => made_by,
        Err(error) => {
            let text = format!("{error}, or {}", give_up(seen.volume));
            return Err(Box::new(Decision::wait_for(waiting(Operation::Delete, text))));
        }
    };
    let around = Surroundings::new(seen.class, config, seen.kube_api);
    Ok(Deletion {
        progress: Progress {
            id: RunId::new(Operation::Delete, uid),
            record: seen.record.filter(|record| record.is_delete()),
            recorded: Intent::Recorded,
            run: seen.run(Effect::removes_volume),
            config: Some(config),
            state: state_of(config, None, seen.class),
            limits: seen.limits,
            now,
        },
        asked_by: SubjectKind::Volume,
        policy: ReclaimPolicy::of_volume(seen.volume),
        config,
        node,
        request: request::remembered(
            Operation::Delete,
            made_by,
            persistent_volume::options(seen.volume),
            around,
        ),
        refused: false,
        before: None,
        owner: Some(name_and_uid(seen.volume)),
        gone,
        // Its server may be gone for good.
        or: format!("; or {}", give_up(seen.volume)),
    })
}

/// The ConfigMap of the deletion; `Err` with what to do without one.
fn config<'a>(seen: &ObservedVolume<'a>, now: Timestamp) -> Result<&'a Arc<ProvisionerConfig>, Box<VolumeDecision>> {
    let no_config = |error: &NoConfig| {
        let text = format!("{error}; or {}", give_up(seen.volume));
        Decision::wait_for(waiting(Operation::Delete, text))
    };
    let without = match seen.config {
        Ok(config) => return Ok(config),
        Err(NoConfig::NotReadYet) => Decision::Rest,
        Err(error @ NoConfig::Elsewhere { .. }) => {
            let status = seen.volume.status.as_ref();
            let since = status.and_then(|status| status.last_phase_transition_time.as_ref());
            let left = since.map_or(Duration::ZERO, |since| {
                seen.limits.elsewhere_grace.saturating_sub(elapsed(since.0, now))
            });
            if left.is_zero() {
                no_config(error)
            } else {
                Decision::wait(left)
            }
        }
        Err(error) => no_config(error),
    };
    Err(Box::new(without))
}

/// How an administrator gives up a volume that can't be deleted, in the words that end an Event.
fn give_up(volume: &PersistentVolume) -> String {
    let (name, _) = name_and_uid(volume);
    format!(
        "give the volume up, which leaves its data on the storage: kubectl patch pv {name} -p \
         '{{\"spec\":{{\"persistentVolumeReclaimPolicy\":\"Retain\"}}}}' && kubectl delete pv {name}"
    )
}

/// The node that the volume lives on, if it lives on one; `Err` with what to do while that is away.
fn node(
    seen: &ObservedVolume<'_>,
    config: &ProvisionerConfig,
    now: Timestamp,
) -> Result<Option<String>, Box<VolumeDecision>> {
    let Some(host) = persistent_volume::host_of(seen.volume).filter(|_| config.is_node_local()) else {
        return Ok(None);
    };
    if let Some(node) = (seen.by_host)(host) {
        return Ok(Some(node.name));
    }
    let lost = |say| let_go(seen, true, Some(say), None);
    Err(Box::new(away(
        Operation::Delete,
        host,
        seen.away_since,
        seen.limits,
        now,
        lost,
    )))
}

/// What to do while the node is not in the cluster that has what is to be deleted by this operation. It is lost once
/// that has been so for long.
pub(super) fn away<Own>(
    operation: Operation,
    host: &str,
    since: Option<Timestamp>,
    limits: &Limits,
    now: Timestamp,
    lost: impl FnOnce(Note) -> Decision<Own>,
) -> Decision<Own> {
    let what = match describe(operation).effect {
        Effect::RemovesSnapshot => "snapshot",
        _ => "volume",
    };
    let away = since.map_or(Duration::ZERO, |since| elapsed(since, now));
    let left = limits.node_grace.saturating_sub(away);
    if left.is_zero() {
        let text = format!("node {host} ({HOSTNAME}) has left the cluster, and the {what} with it");
        return lost(Note::warning(reasons::NODE_GONE, action(operation), text));
    }
    let text = format!(
        "node {host} ({HOSTNAME}), on which the {what} is, is not in the cluster: if it is not back within {} \
         minutes, Mooring considers the {what} lost",
        limits.node_grace.as_secs() / 60
    );
    Decision::Wait {
        after: Some(left.min(NODE_PERIOD)),
        say: Some(waiting(operation, text)),
    }
}

/// The run of a PV that is released, unless it goes with its PV anyway: Kubernetes collects what belongs to it.
fn left_behind(seen: &ObservedVolume<'_>) -> Vec<RunRef> {
    let meta = &seen.volume.metadata;
    let passing = [finalizers::VOLUME, finalizers::PV_PROTECTION];
    let held = meta
        .finalizers
        .iter()
        .flatten()
        .any(|name| !passing.contains(&name.as_str()));
    let uid = meta.uid.as_deref().unwrap_or_default();
    let collected = |run: &&Run| !held && run.goes_with(uid);
    removable([seen.run(Effect::removes_volume).filter(|run| !collected(run))])
}

/// One deletion, whatever it is for.
pub(super) struct Deletion<'a, Own> {
    /// With a record if that is one of a deletion already.
    pub(super) progress: Progress<'a>,
    /// The object that it is for, which carries the record.
    pub(super) asked_by: SubjectKind,
    pub(super) policy: ReclaimPolicy,
    pub(super) config: &'a Arc<ProvisionerConfig>,
    pub(super) node: Option<String>,
    pub(super) request: Request,
    /// The volume was refused: the record stays one of the provisioning.
    pub(super) refused: bool,
    /// The record of what is being undone.
    pub(super) before: Option<&'a Record>,
    /// The PV that is being deleted, by name and uid, if it is one.
    pub(super) owner: Option<(String, String)>,
    /// What to do when the volume is gone, with the time that it took if something was run.
    pub(super) gone: &'a dyn Fn(Option<Duration>) -> Decision<Own>,
    /// What users can do about a failure, in the words that end its Event.
    pub(super) or: String,
}

impl<Own> Deletion<'_, Own> {
    pub(super) fn plan(self) -> Decision<Own> {
        if may_delete(&self.policy, Operation::Delete, Some(self.config)).is_err() {
            // There is nothing to run.
            return (self.gone)(None);
        }
        let owner = self.owner.as_ref();
        let is_its_own = |run: &Run| owner.is_some_and(|(_, uid)| run.belongs_to(uid));
        let intent = describe(Operation::Delete).intent_on(self.asked_by);
        match (self.progress.record, self.progress.run) {
            (Some(record), _) => drive(&self, record),
            // The run of a finished operation.
            (None, Some(run)) if !is_its_own(run) => Decision::Stop(vec![run.to_remove()]),
            (None, None) if intent == Intent::ToRecord => begin(&self),
            // The record that a released PV without one amounts to.
            (None, run) => {
                let first = self.first();
                let record = Record {
                    attempt: run.map_or(1, Run::attempt).max(1),
                    since: run.map_or(first.since, Run::made),
                    ..first
                };
                let progress = Progress {
                    record: Some(&record),
                    recorded: intent,
                    ..self.progress
                };
                drive(&Deletion { progress, ..self }, &record)
            }
        }
    }

    /// The record of a first attempt.
    fn first(&self) -> Record {
        Record {
            node: self.node.clone().unwrap_or_default(),
            last_error: self.before.map(|record| record.last_error.clone()).unwrap_or_default(),
            may_exist: true,
            ..self.progress.next(self.config)
        }
    }

    fn start(&self, record: Record) -> Start {
        Start {
            owner: self.owner.clone(),
            node: self.node.clone(),
            ..self.progress.start(self.config, record, self.request.clone())
        }
    }
}

impl<Own> Operate for Deletion<'_, Own> {
    type Own = Own;

    fn progress(&self) -> &Progress<'_> {
        &self.progress
    }

    fn request(&self) -> Result<Start, Box<Decision<Own>>> {
        let next = match self.progress.record {
            None => self.first(),
            Some(record) if self.refused => Record {
                run: record.run.clone(),
                ..self.progress.next(self.config)
            },
            Some(_) => Record {
                operation: Operation::Delete,
                ..self.progress.next(self.config)
            },
        };
        Ok(self.start(next))
    }

    fn apply(&self, _run: &Run, record: &Record, _finish: &Finish) -> Result<Decision<Own>, Finish> {
        Ok((self.gone)(Some(elapsed(record.since, self.progress.now))))
    }

    fn supplied(&self, record: &Record) -> Option<Box<Start>> {
        Some(Box::new(self.start(record.clone())))
    }

    fn fail(&self, record: &Record, finish: &Finish) -> Decision<Own> {
        let mut failed = self.progress.failed(&of_delete(record), finish);
        failed.record.operation = record.operation;
        failed.say.text.push_str(&self.or);
        Decision::Fail(failed)
    }

    fn given_up(&self, record: &Record) -> Note {
        let mut say = given_up(&of_delete(record));
        say.text.push_str(&self.or);
        say
    }
}

/// A record that may be one of what is undone, as one of the deletion.
fn of_delete(record: &Record) -> Record {
    Record {
        operation: Operation::Delete,
        ..record.clone()
    }
}

#[cfg(test)]
mod tests;
