//! What [`expand`](super::expand) and [`modify`](super::modify) share, the operations that change an existing volume:
//! which volume it is, what they wait for, and how a change ends that can't go on.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mooring_contract::names::finalizers;
use mooring_contract::names::labels::HOSTNAME;
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;

use super::decision::{Altered, ClaimDecision, Decision, ForClaim};
use super::describe::waiting;
use super::observed::ObservedClaim;
use super::record::Record;
use super::request;
use super::step::{Step, removed, step};
use crate::config::ProvisionerConfig;
use crate::process::events::Note;
use crate::run::Run;
use crate::run::outcome::{Category, Finish};
use crate::volume::persistent_volume::{self, claim_uid, is_ours};

/// How often the controller looks whether a node is back, or a copy is made. It is woken by both, as a rule.
const AWAY_PERIOD: Duration = Duration::from_secs(30);

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

/// The PV of the claim that a plan is about.
pub(super) fn volume<'v>(seen: &ObservedClaim<'v>) -> Option<&'v PersistentVolume> {
    volume_of(seen.claim, seen.volumes.iter().map(AsRef::as_ref))
}

/// Whether the claim's volume moves between FlexVolume and CSI just now ([`crate::migrate`]).
pub(crate) fn is_moving(claim: &PersistentVolumeClaim) -> bool {
    claim.finalizers().iter().any(|held| held == finalizers::MIGRATION)
}

pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// Whether a run that changes the volume is there, even one that leaves: its going wakes the plan again.
pub(super) fn has_run(seen: &ObservedClaim<'_>) -> bool {
    seen.expand_run.is_some() || seen.modify_run.is_some()
}

/// The request that made the volume, and the only node that a run may be on, where the volume lives on one.
pub(super) type Ready = (Request, Option<String>);

/// What a run on the volume uses; `Err` with what to wait for first. `then` is what follows.
pub(super) fn ready(
    seen: &ObservedClaim<'_>,
    operation: Operation,
    volume: &PersistentVolume,
    config: &ProvisionerConfig,
    then: &str,
) -> Result<Ready, Box<ClaimDecision>> {
    let wait = |text: String| {
        Box::new(Decision::Wait {
            after: Some(AWAY_PERIOD),
            say: Some(waiting(operation, text)),
        })
    };
    if let Some(copy) = seen.copied_by {
        return Err(wait(format!(
            "Mooring is copying the claim's volume for {copy}: it waits for the end of the copy"
        )));
    }
    let node = match persistent_volume::host_of(volume).filter(|_| config.is_node_local()) {
        None => None,
        Some(host) => match (seen.by_host)(host) {
            Some(node) => Some(node.name),
            None => {
                return Err(wait(format!(
                    "node {host} ({HOSTNAME}), on which the volume is, is not in the cluster: {then} when it is back"
                )));
            }
        },
    };
    match request::made_by(volume) {
        Ok(made_by) => Ok((request::on_behalf_of(made_by, seen.claim), node)),
        Err(error) => Err(Box::new(Decision::wait_for(waiting(operation, error.to_string())))),
    }
}

/// Whether the storage may have changed, or may still change, after a run that failed. An image that ended by itself
/// says that it has not.
pub(super) fn is_uncertain(finish: &Finish) -> bool {
    let by_itself = match finish.category {
        Category::Done
        | Category::Temporary
        | Category::Config
        | Category::Failed
        | Category::NotStarted
        | Category::Api => true,
        Category::Refused | Category::OutOfMemory | Category::Timeout | Category::Node => false,
    };
    finish.may_have_run && !by_itself
}

/// Ends a change that can't go on: its run first, if there is one, so that nothing else is run on the volume beside it.
pub(super) fn give_up(
    seen: &ObservedClaim<'_>,
    run: Option<&Run>,
    record: &Record,
    say: Option<Note>,
    now: Timestamp,
) -> ClaimDecision {
    if let Some(run) = run {
        return match step(Some(run), record, seen.limits, now) {
            Step::Leaving(say) => Decision::Wait {
                after: Some(seen.limits.overdue),
                say,
            },
            Step::None | Step::Leftover(_) | Step::Waiting { .. } | Step::Running(_) | Step::Ended(_) => {
                removed(run, record.operation, seen.limits, now)
            }
        };
    }
    give_up_without_run(seen, record, say)
}

/// Ends a change of which no run is there. What the claim's status says of it stays.
pub(super) fn give_up_without_run(seen: &ObservedClaim<'_>, record: &Record, say: Option<Note>) -> ClaimDecision {
    Decision::Own(ForClaim::Altered(Box::new(Altered {
        release: true,
        without: Some((record.run.clone(), seen.run(record.operation))),
        say,
        ..Altered::nothing(record.operation)
    })))
}
