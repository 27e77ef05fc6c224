//! Operation `delete`: of a PV whose claim is gone, of what was begun for a claim that is being deleted, and of a volume
//! that was refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::{PROVISIONER, annotations, finalizers};
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;

use super::provision::{Refuse, name_and_uid};
use super::record::Record;
use super::{
    Decision, Intent, Limits, ObservedClaim, PodRef, Start, Step, action, begun, elapsed, failed, held_back, later,
    request, state_of, step, waiting,
};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::process::events::{Note, reasons};
use crate::run::outcome::{PodState, created, observe};
use crate::run::pod;
use crate::volume::persistent_volume;
use crate::volume::topology::{HOSTNAME, Node};

/// What comes after a claim's volume is gone.
#[derive(Debug, Clone)]
pub struct Undone {
    /// The PVs to remove first, by name and uid.
    pub volumes: Vec<(String, String)>,
    /// The record with which provisioning begins anew; `None` to let the claim go.
    pub next: Option<Record>,
    /// Another node is to be selected.
    pub reschedule: bool,
    /// The Pods to remove.
    pub pods: Vec<PodRef>,
    /// What to tell, if anything.
    pub say: Option<Note>,
    /// How long it took, if something was run.
    pub took: Option<Duration>,
    /// When to come back.
    pub after: Option<Duration>,
}

/// A PV that is let go.
#[derive(Debug, Clone)]
pub struct LetGo {
    /// The PV is deleted too (it may be already).
    pub delete: bool,
    /// The Pods to remove.
    pub pods: Vec<PodRef>,
    /// What to tell, if anything.
    pub say: Option<Note>,
    /// How long it took, if something was run.
    pub took: Option<Duration>,
}

/// How often it is looked whether a node is back.
const NODE_PERIOD: Duration = Duration::from_secs(30);

/// What is known of a PV and all that belongs to it.
pub struct ObservedVolume<'a> {
    /// The PV.
    pub volume: &'a PersistentVolume,
    /// Its record.
    pub record: Option<&'a Record>,
    /// Its class, if it is still there.
    pub class: Option<&'a StorageClass>,
    /// The ConfigMap in force for it.
    pub config: &'a Result<Arc<ProvisionerConfig>, NoConfig>,
    /// The Pod named for its deletion.
    pub delete_pod: Option<&'a Pod>,
    /// The claim that it is for is still there.
    pub claimed: bool,
    /// The node with this value of the label `kubernetes.io/hostname`.
    pub by_host: &'a dyn Fn(&str) -> Option<Node>,
    /// Since when the node that the volume lives on has been seen to be missing, if it is.
    pub away_since: Option<Timestamp>,
    /// Address of the Kubernetes API, for the image.
    pub kube_api: &'a str,
    /// Limits of waiting.
    pub limits: &'a Limits,
}

/// Whether Mooring accepted a PV and holds it.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    let meta = &volume.metadata;
    let by = meta
        .annotations
        .as_ref()
        .and_then(|all| all.get(annotations::PROVISIONED_BY));
    by.map(String::as_str) == Some(PROVISIONER)
        && meta.finalizers.iter().flatten().any(|name| name == finalizers::VOLUME)
}

/// What to do about a PV.
pub fn plan_volume(seen: &ObservedVolume<'_>, now: Timestamp) -> Decision {
    if !is_ours(seen.volume) {
        return Decision::Rest;
    }
    let spec = seen.volume.spec.clone().unwrap_or_default();
    let phase = seen.volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let released = matches!(phase, Some("Released" | "Failed"));
    let uid = spec
        .claim_ref
        .as_ref()
        .and_then(|claim| claim.uid.clone())
        .unwrap_or_default();
    if spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete") {
        let going = seen.volume.metadata.deletion_timestamp.is_some();
        return if going && phase != Some("Bound") {
            Decision::LetGo(Box::new(LetGo {
                delete: false,
                pods: left_behind(seen),
                say: None,
                took: None,
            }))
        } else {
            Decision::Rest
        };
    }
    if !released || seen.claimed || uid.is_empty() {
        return Decision::Rest;
    }
    let let_go = |text: String| {
        Decision::LetGo(Box::new(LetGo {
            delete: true,
            pods: left_behind(seen),
            say: Some(Note::warning(reasons::NODE_GONE, action(Operation::Delete), text)),
            took: None,
        }))
    };
    let config = match seen.config {
        Ok(config) => config,
        Err(NoConfig::NotReadYet) => return Decision::Rest,
        Err(error @ NoConfig::Elsewhere { .. }) => {
            let status = seen.volume.status.as_ref();
            let since = status.and_then(|status| status.last_phase_transition_time.as_ref());
            let left = since.map_or(Duration::ZERO, |since| {
                seen.limits.elsewhere_grace.saturating_sub(elapsed(since.0, now))
            });
            return if left.is_zero() {
                Decision::wait_for(waiting(Operation::Delete, error.to_string()))
            } else {
                Decision::wait(left)
            };
        }
        Err(error) => return Decision::wait_for(waiting(Operation::Delete, error.to_string())),
    };
    let host = persistent_volume::host_of(seen.volume);
    let node = match host {
        Some(host) if config.is_node_local() => {
            let Some(node) = (seen.by_host)(host) else {
                let away = seen.away_since.map_or(Duration::ZERO, |since| elapsed(since, now));
                let left = seen.limits.node_grace.saturating_sub(away);
                if left.is_zero() {
                    return let_go(format!(
                        "node {host} ({HOSTNAME}) has left the cluster, and the volume with it"
                    ));
                }
                let text = format!(
                    "node {host} ({HOSTNAME}), on which the volume is, is not in the cluster: if it is not back within {} minutes, \
                     the volume is taken to be gone with it",
                    seen.limits.node_grace.as_secs() / 60
                );
                return Decision::Wait {
                    after: Some(left.min(NODE_PERIOD)),
                    say: Some(waiting(Operation::Delete, text)),
                };
            };
            Some(node.name)
        }
        _ => None,
    };
    let annotation = |key: &str| seen.volume.metadata.annotations.as_ref()?.get(key).cloned();
    // The annotation says what is deleted, so it must be about this volume.
    let about_this = |request: &Request| {
        request.pvc_uid == uid
            && request.pv_name == pod::pv_name(&uid)
            && seen.volume.metadata.name.as_deref() == Some(request.pv_name.as_str())
    };
    let Some(made_by) = annotation(annotations::REQUEST)
        .and_then(|text| serde_json::from_str::<Request>(&text).ok())
        .filter(about_this)
    else {
        return Decision::wait_for(waiting(
            Operation::Delete,
            format!(
                "annotation {} of the PersistentVolume can't be read, or is about another volume: restore it, or delete the volume by \
                     hand and then the finalizer {}",
                annotations::REQUEST,
                finalizers::VOLUME
            ),
        ));
    };
    let run = Run {
        uid: &uid,
        config,
        record: seen.record.filter(|record| record.operation == Operation::Delete),
        pod: seen.delete_pod,
        node,
        state: state_of(config, None, seen.class),
        request: request::delete(
            made_by,
            seen.class,
            config,
            seen.kube_api,
            persistent_volume::options(seen.volume),
        ),
        limits: seen.limits,
        refused: false,
        before: None,
        owner: Some(name_and_uid(seen.volume)),
    };
    match run.plan(now) {
        Ok(decision) => decision,
        Err(took) => Decision::LetGo(Box::new(LetGo {
            delete: true,
            pods: left_behind(seen),
            say: None,
            took,
        })),
    }
}

/// What to do about a claim that is being deleted, or was bound elsewhere, while its volume was being made.
pub fn plan_undo(seen: &ObservedClaim<'_>, now: Timestamp) -> Decision {
    let finalizers = seen.claim.metadata.finalizers.as_deref().unwrap_or_default();
    if !finalizers.iter().any(|name| name == finalizers::CLAIM) {
        return Decision::Rest;
    }
    let Some(record) = seen.record else {
        let nothing = seen.provision_pod.is_none() && seen.delete_pod.is_none() && seen.volumes.is_empty();
        if nothing {
            return let_claim_go(seen, None, None);
        }
        return Decision::wait_for(waiting(
            Operation::Delete,
            format!(
                "annotation {} is missing: delete the volume by hand, then the finalizer {}",
                annotations::OPERATION,
                finalizers::CLAIM
            ),
        ));
    };
    if let Some(pod) = seen.provision_pod {
        return stop(seen, record, pod, now);
    }
    let departed = seen.departed.filter(|pod| pod.attempt == record.attempt);
    let never_ran = !record.may_exist
        && record.operation == Operation::Provision
        && seen.volumes.is_empty()
        && departed.is_none_or(|pod| !pod.end.started);
    let unmade = departed.is_some_and(|pod| !pod.end.may_have_run);
    if never_ran && (record.cancelled || record.not_before.is_some() || unmade) {
        return let_claim_go(seen, None, None);
    }
    if record.operation == Operation::Delete && !record.may_exist && record.not_before.is_some() {
        return let_claim_go(seen, None, None);
    }
    run_for_claim(seen, record, now)
}

/// What to do about a claim whose volume was refused: delete it, then begin anew.
pub fn plan_refused(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> Decision {
    if !seen.volumes.is_empty() {
        // The controller may have been stopped between the record and this; a refused PV must not be bound.
        return Decision::Refuse(Box::new(Refuse {
            record: record.clone(),
            volumes: seen.volumes.iter().map(|volume| name_and_uid(volume)).collect(),
            say: None,
            pod: seen.provision_pod.map(PodRef::of),
        }));
    }
    if let Some(pod) = seen.provision_pod {
        return if pod.metadata.deletion_timestamp.is_some() {
            Decision::wait(seen.limits.overdue)
        } else {
            Decision::Stop(PodRef::of(pod))
        };
    }
    run_for_claim(seen, record, now)
}

/// Stops a provisioning Pod whose volume is not wanted any more.
fn stop(seen: &ObservedClaim<'_>, record: &Record, pod: &Pod, now: Timestamp) -> Decision {
    let state = observe(pod);
    let current = pod::attempt(pod) == record.attempt && record.operation == Operation::Provision;
    let ran = match &state {
        PodState::Running => true,
        PodState::Finished(finish) => finish.started,
        PodState::Waiting { .. } | PodState::Leaving => false,
    };
    let local = seen.config.as_ref().is_ok_and(|config| config.is_node_local());
    let node = pod::node(pod).filter(|node| local && current && record.node != *node);
    if record.cancelled && ran || node.is_some() {
        // It ran after all, or it is not yet known where.
        return Decision::Note(Box::new(Record {
            cancelled: record.cancelled && !ran,
            node: node.map_or_else(|| record.node.clone(), str::to_owned),
            ..record.clone()
        }));
    }
    let earlier = pod::attempt(pod) < record.attempt && record.operation == Operation::Provision;
    let unmade = current && matches!(&state, PodState::Finished(finish) if !finish.may_have_run);
    if (earlier || unmade) && !record.may_exist && !record.cancelled {
        // One Pod at a time: while the last attempt's is there, this one's can't have been. And a Pod that ended before its
        // container was made has made nothing: its image, which may not be had, is not needed to delete that.
        return Decision::Note(Box::new(Record {
            cancelled: true,
            ..record.clone()
        }));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        let say = match step(Some(pod), record, seen.limits, now) {
            Step::Leaving(say) => say,
            _ => None,
        };
        return Decision::Wait {
            after: Some(seen.limits.overdue),
            say,
        };
    }
    let never_ran = matches!(state, PodState::Waiting { never_ran: true, .. });
    if never_ran && current && !record.may_exist {
        if record.cancelled {
            return Decision::Stop(PodRef::exactly(pod));
        }
        return Decision::Note(Box::new(Record {
            cancelled: true,
            ..record.clone()
        }));
    }
    Decision::Stop(PodRef::of(pod))
}

/// Runs `delete` for a claim that stands.
fn run_for_claim(seen: &ObservedClaim<'_>, record: &Record, now: Timestamp) -> Decision {
    let config = match seen.config {
        Ok(config) => config,
        Err(NoConfig::NotReadYet) => return Decision::Rest,
        Err(error) => return Decision::wait_for(waiting(Operation::Delete, error.to_string())),
    };
    let mut node = None;
    if config.is_node_local() && !record.node.is_empty() {
        node = (seen.nodes)(&record.node);
        if node.is_none() {
            let text = format!("node {} has left the cluster, and the volume with it", record.node);
            let say = Note::warning(reasons::NODE_GONE, action(Operation::Delete), text);
            return over(seen, record, Some(say), None, now);
        }
    }
    let volume = seen
        .volumes
        .first()
        .map_or_else(BTreeMap::new, |volume| persistent_volume::options(volume));
    let run = Run {
        uid: seen.uid(),
        config,
        record: (record.operation == Operation::Delete || record.refused).then_some(record),
        pod: seen.delete_pod,
        request: request::undo(seen.claim, seen.class, config, node.as_ref(), seen.kube_api, volume),
        node: node.map(|node| node.name),
        state: state_of(config, Some(seen.claim), seen.class),
        limits: seen.limits,
        refused: record.refused && seen.claim.metadata.deletion_timestamp.is_none(),
        before: Some(record),
        owner: None,
    };
    match run.plan(now) {
        Ok(decision) => decision,
        Err(took) => over(seen, record, None, took, now),
    }
}

/// The volume of a claim that stands is gone.
fn over(
    seen: &ObservedClaim<'_>,
    record: &Record,
    say: Option<Note>,
    took: Option<Duration>,
    now: Timestamp,
) -> Decision {
    let deleting = seen.claim.metadata.deletion_timestamp.is_some();
    if deleting || !record.refused {
        return let_claim_go(seen, say, took);
    }
    let delay = seen.limits.backoff.delay(record.attempt, seen.uid());
    let reschedule = seen.waits_for_consumer() && seen.config.as_ref().is_ok_and(|config| config.is_node_local());
    Decision::Undone(Box::new(Undone {
        volumes: vec![],
        next: Some(Record {
            attempt: record.attempt.saturating_add(1),
            not_before: Some(later(now, delay)),
            node: String::new(),
            may_exist: false,
            refused: false,
            ..record.clone()
        }),
        reschedule,
        pods: pods([seen.provision_pod, seen.delete_pod]),
        say,
        took,
        after: Some(delay),
    }))
}

fn let_claim_go(seen: &ObservedClaim<'_>, say: Option<Note>, took: Option<Duration>) -> Decision {
    Decision::Undone(Box::new(Undone {
        volumes: seen.volumes.iter().map(|volume| name_and_uid(volume)).collect(),
        next: None,
        reschedule: false,
        pods: pods([seen.provision_pod, seen.delete_pod]),
        say,
        took,
        after: None,
    }))
}

fn pods<const N: usize>(pods: [Option<&Pod>; N]) -> Vec<PodRef> {
    pods.into_iter()
        .flatten()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(PodRef::of)
        .collect()
}

/// The Pod of a PV that is let go, unless it goes with its PV anyway: Kubernetes collects what belongs to it.
fn left_behind(seen: &ObservedVolume<'_>) -> Vec<PodRef> {
    let meta = &seen.volume.metadata;
    let passing = [finalizers::VOLUME, finalizers::PV_PROTECTION];
    let held = meta
        .finalizers
        .iter()
        .flatten()
        .any(|name| !passing.contains(&name.as_str()));
    let uid = meta.uid.as_deref().unwrap_or_default();
    let collected = |pod: &&Pod| !held && pod::is_owned_by(pod, uid);
    pods([seen.delete_pod.filter(|pod| !collected(pod))])
}

/// One deletion, whatever it is for.
struct Run<'a> {
    uid: &'a str,
    config: &'a Arc<ProvisionerConfig>,
    /// The record, if it is one of a deletion already.
    record: Option<&'a Record>,
    pod: Option<&'a Pod>,
    node: Option<String>,
    state: String,
    request: Request,
    limits: &'a Limits,
    /// The volume was refused: the record stays one of the provisioning.
    refused: bool,
    /// The record of what is being undone.
    before: Option<&'a Record>,
    /// The PV that is being deleted, by name and uid, if it is one.
    owner: Option<(String, String)>,
}

impl Run<'_> {
    /// What to do; `Err` when the volume is gone, with the time it took if something was run.
    fn plan(self, now: Timestamp) -> Result<Decision, Option<Duration>> {
        if !self.config.operations.contains(&Operation::Delete) {
            // The ConfigMap says that there is nothing to run.
            return Err(None);
        }
        let owner = self.owner.as_ref();
        let goes_with_it = |pod: &&Pod| owner.is_some_and(|(_, uid)| pod::is_owned_by(pod, uid));
        let (record, unchanged) = match (self.record, self.pod) {
            (Some(record), _) => (record.clone(), Intent::Recorded),
            // Of an operation that is over.
            (None, Some(pod)) if !goes_with_it(&pod) => return Ok(Decision::Tidy(vec![PodRef::of(pod)])),
            (None, None) if owner.is_none() => {
                let record = self.first(now);
                return Ok(self.start(record, Intent::ToRecord));
            }
            (None, pod) => (self.implied(pod, now), Intent::Released),
        };
        let record = &record;
        match step(self.pod, record, self.limits, now) {
            Step::None => {
                match held_back(record, &self.state, now) {
                    Some(Duration::MAX) => return Ok(Decision::Rest),
                    Some(left) => return Ok(Decision::wait(left)),
                    None => {}
                }
                let mut next = begun(record);
                next.config = self.config.reference.to_string();
                next.config_uid.clone_from(&self.config.uid);
                if !self.refused {
                    next.refused = false;
                    next.operation = Operation::Delete;
                    next.pod = self.pod_name();
                }
                let intent = if next == *record { unchanged } else { Intent::ToRecord };
                Ok(self.start(next, intent))
            }
            Step::Leftover(pod) => Ok(Decision::Stop(PodRef::of(pod))),
            Step::Leaving(say) => Ok(Decision::Wait {
                after: Some(self.limits.overdue),
                say,
            }),
            Step::Running(left) => Ok(Decision::wait(left)),
            Step::Waiting { after, say } => {
                let record = record.clone();
                let Decision::Start(start) = self.start(record, unchanged) else {
                    return Ok(Decision::Rest);
                };
                Ok(Decision::Supply {
                    start,
                    after: Some(after),
                    say,
                })
            }
            Step::Ended(finish) if finish.outcome == Outcome::Done => Err(Some(elapsed(record.since, now))),
            Step::Ended(finish) => {
                let pod = self.pod.map(PodRef::of);
                let of_delete = Record {
                    operation: Operation::Delete,
                    ..record.clone()
                };
                let mut failed = failed(&of_delete, &finish, self.uid, self.state, self.limits, now, pod);
                failed.record.operation = record.operation;
                Ok(Decision::Fail(Box::new(failed)))
            }
        }
    }

    fn pod_name(&self) -> String {
        format!(
            "{}/{}",
            self.config.reference.namespace,
            pod::name(Operation::Delete, self.uid)
        )
    }

    /// The record of a first attempt.
    fn first(&self, now: Timestamp) -> Record {
        Record {
            operation: Operation::Delete,
            attempt: 1,
            pod: self.pod_name(),
            since: Timestamp::from_second(now.as_second()).unwrap_or(now),
            config: self.config.reference.to_string(),
            config_uid: self.config.uid.clone(),
            node: self.node.clone().unwrap_or_default(),
            not_before: None,
            last_error: self.before.map(|record| record.last_error.clone()).unwrap_or_default(),
            tried: String::new(),
            gave_up: false,
            may_exist: true,
            cancelled: false,
            refused: false,
        }
    }

    /// The record that a released PV without one amounts to.
    fn implied(&self, pod: Option<&Pod>, now: Timestamp) -> Record {
        let first = self.first(now);
        match pod {
            None => first,
            Some(pod) => Record {
                attempt: pod::attempt(pod).max(1),
                since: created(pod),
                ..first
            },
        }
    }

    fn start(self, record: Record, intent: Intent) -> Decision {
        Decision::Start(Box::new(Start {
            request: self.request,
            config: self.config.clone(),
            record,
            intent,
            owner: self.owner,
            node: self.node,
            state: self.state,
        }))
    }
}

#[cfg(test)]
mod tests;
