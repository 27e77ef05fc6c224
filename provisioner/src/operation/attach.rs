//! Operations `attach` and `detach`: from a bound volume that a scheduled Pod uses to one that the Pod's node has, and
//! back when no Pod there uses it any more. One node has a volume at a time, or several if the volume is for that; see
//! `docs/decisions/attach.md`.
//!
//! The PV carries both the record of what is going on and, when that is done, the nodes that have the volume. So
//! whatever two controllers believe, only one of them can go on from there. There is one operation at a time; one that
//! has to wait is deferred, so that other nodes don't wait with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mooring_contract::attachment::{AttachedTo, initiator, secret_name};
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use mooring_contract::request::{Attachment, Request};
use mooring_contract::volume::clients::{self, INITIATOR_OPTION};
use mooring_contract::volume::{Speaker, Volume, VolumeError, keys};

use self::nodes::VolumeNodes;
use self::observed::{Look, NodeMounter, ObservedAttachment, ObservedNode};
use super::attempt::state_of;
use super::decision::{Attached, Decision, Detached, ForVolume, Intent, Start, VolumeDecision, removable};
use super::describe::{done, waiting};
use super::drive::{Operate, Progress, begin, drive, removed};
use super::observed::Surroundings;
use super::record::Record;
use super::request;
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::process::events::Note;
use crate::run::outcome::{Finish, State};
use crate::run::{Run, RunId};
use crate::time::elapsed;
use crate::volume::acceptance::{self, Granted, secret_ref};
use crate::volume::persistent_volume::{self, Answered};
use mooring_program::error::chain;

pub mod nodes;
pub mod observed;

/// How often the controller looks whether a node still uses a volume. It is woken by that, as a rule.
const IN_USE_PERIOD: Duration = Duration::from_secs(30);

/// The Secret for the connection of a PV that needs an attachment: namespace and name.
pub fn secret_of(volume: &PersistentVolume) -> Option<(String, String)> {
    let wanted = secret_name(volume.metadata.name.as_deref()?);
    let secret = secret_ref(volume.spec.as_ref()?)?;
    (secret.name.as_deref() == Some(&wanted)).then(|| (secret.namespace.clone().unwrap_or_default(), wanted))
}

/// Whether a node has the volume, or may have it: it is not deleted before it is detached.
pub fn is_open(volume: &PersistentVolume, record: Option<&Record>) -> bool {
    let noted = volume.annotations();
    let is_noted = |key: &str| noted.contains_key(key);
    [annotations::ATTACHED_TO, annotations::DEFERRED]
        .into_iter()
        .any(is_noted)
        || record.is_some_and(is_attachment)
}

fn is_attachment(record: &Record) -> bool {
    matches!(record.operation, Operation::Attach | Operation::Detach)
}

/// What to do about a PV whose volume has to be attached; `Err` with what has to be known first.
pub fn plan(seen: &ObservedAttachment<'_>, now: Timestamp) -> Result<VolumeDecision, Look> {
    let config = match seen.config {
        Ok(config) => config,
        Err(NoConfig::NotReadYet | NoConfig::NotOurs { .. } | NoConfig::Elsewhere { .. }) => {
            return Ok(Decision::Rest);
        }
        Err(error) if is_open(seen.volume, seen.record) || !seen.wanted.is_empty() => {
            return Ok(Decision::wait_for(waiting(Operation::Attach, error.to_string())));
        }
        Err(_) => return Ok(Decision::Rest),
    };
    let plan = Plan {
        seen,
        config,
        now,
        nodes: VolumeNodes::of(seen.volume),
    };
    match seen.record {
        Some(record) if is_attachment(record) => plan.open(record),
        Some(_) | None => plan.settled(),
    }
}

/// The connection that an image printed is not one that it may give.
#[derive(Debug, thiserror::Error)]
#[error("the connection that the image printed is refused: {0}")]
struct RefusedConnection(String);

struct Plan<'a> {
    seen: &'a ObservedAttachment<'a>,
    config: &'a Arc<ProvisionerConfig>,
    now: Timestamp,
    nodes: VolumeNodes,
}

impl Plan<'_> {
    /// No operation is open.
    fn settled(&self) -> Result<VolumeDecision, Look> {
        match self.left_over() {
            Some(decision) => Ok(decision),
            None => self.next(None),
        }
    }

    /// What can be done now for one of the nodes, but for this one; else what is waited for.
    fn next(&self, but: Option<&str>) -> Result<VolumeDecision, Look> {
        let mut waits = Decision::Rest;
        let deferred = &self.nodes.deferred;
        // Users wait for these.
        let wanted = self.seen.wanted.iter().filter(|node| !self.nodes.attached.has(node));
        let unwanted = deferred.iter().filter(|record| !self.wants(&record.node));
        let nodes = wanted
            .map(String::as_str)
            .chain(unwanted.map(|record| record.node.as_str()));
        for node in nodes.filter(|node| Some(*node) != but) {
            let decision = match self.nodes.deferred_of(node) {
                Some(record) if record.operation == Operation::Attach => self.attach_now(record)?,
                Some(record) => self.detach_now(record)?,
                None if self.nodes.have_room_for(node) => self.attach_first(node)?,
                None => continue,
            };
            if !is_wait(&decision) {
                return Ok(decision);
            }
            waits = sooner(waits, decision);
        }
        for to in self.nodes.attached.0.iter().filter(|to| Some(to.node.as_str()) != but) {
            let decision = self.held(to)?;
            if !is_wait(&decision) {
                return Ok(decision);
            }
            waits = sooner(waits, decision);
        }
        Ok(waits)
    }

    /// This node has it.
    fn held(&self, attached: &AttachedTo) -> Result<VolumeDecision, Look> {
        let node = &attached.node;
        if self.wants(node) && attached.connection.is_empty() {
            // Attached by a controller that told its node by the Secret: attached again, it is told by the PV.
            return self.attach_first(node);
        }
        if self.wants(node) {
            return Ok(match self.kept_waiting_by(node) {
                None => Decision::Rest,
                Some(other) => Decision::wait_for(held_by(node, other)),
            });
        }
        let look = self.look(node)?;
        if look.uses_it() {
            return Ok(self.still_used(node));
        }
        if let Some(decision) = self.not_offered(Operation::Detach) {
            return Ok(decision);
        }
        Ok(Decision::Record(Box::new(self.to_detach(attached))))
    }

    /// A run is to let this record's node have it, or to take it from the node.
    fn open(&self, record: &Record) -> Result<VolumeDecision, Look> {
        let seen = self.seen;
        let attaches = record.operation == Operation::Attach;
        let (run, other) = if attaches {
            (seen.attach_run, seen.detach_run)
        } else {
            (seen.detach_run, seen.attach_run)
        };
        let is_of_it = |run: &&Run| node_of(run).is_none_or(|node| node.is_same(&of_record(record)));
        if let Some(other) = other.filter(is_of_it) {
            return Ok(removed(other, record.operation, seen.limits, self.now));
        }
        // For another node it was begun late, because a controller was held up.
        if let Some(late) = run.into_iter().chain(other).find(|run| !is_of_it(run)) {
            return Ok(match done_for(late) {
                // What it did is undone first.
                Some(_) => Decision::Own(ForVolume::Deferred(Box::new(record.clone()))),
                None => removed(late, record.operation, seen.limits, self.now),
            });
        }
        match run {
            Some(run) => {
                let asked = run.request().ok().and_then(|request| request.attachment);
                let gone = asked.is_some_and(|attachment| attachment.gone);
                Ok(drive(&self.turn(record, Some(run), None, gone), record))
            }
            None if attaches => self.or_another(record, self.attach_now(record)?),
            None => self.or_another(record, self.detach_now(record)?),
        }
    }

    fn attach_now(&self, record: &Record) -> Result<VolumeDecision, Look> {
        let node = &record.node;
        let look = self.look(node)?;
        if !self.wants(node) || !self.nodes.have_room_for(node) || look.is_gone() {
            // A run of before may have let it.
            return Ok(Decision::Record(Box::new(self.to_detach(&of_record(record)))));
        }
        Ok(self.attempt(record, look))
    }

    fn detach_now(&self, record: &Record) -> Result<VolumeDecision, Look> {
        let node = &record.node;
        // Attached again, it is attached, however far the detaching came.
        if self.wants(node) && self.nodes.have_room_for(node) && !self.look(node)?.is_gone() {
            return self.attach_first(node);
        }
        // The record is there, so no mount begins any more: one that has begun is on the node.
        let look = self.look(node)?;
        if look.uses_it() {
            return Ok(self.still_used(node));
        }
        Ok(self.attempt(record, look))
    }

    /// What comes of a record without a run.
    fn attempt(&self, record: &Record, look: &ObservedNode) -> VolumeDecision {
        let turn = self.turn(record, None, Some(look), look.is_gone());
        self.not_offered(record.operation)
            .unwrap_or_else(|| drive(&turn, record))
    }

    fn turn<'t>(
        &'t self,
        record: &'t Record,
        run: Option<&'t Run>,
        look: Option<&'t ObservedNode>,
        gone: bool,
    ) -> Turn<'t> {
        let state = state_of(self.config, None, self.seen.class);
        Turn {
            plan: self,
            look,
            progress: Progress {
                id: self.run(record.operation),
                record: Some(record),
                // One that is deferred, or new, is not that of the PV yet.
                recorded: if self.seen.record == Some(record) {
                    Intent::Recorded
                } else {
                    Intent::ToRecord
                },
                run,
                config: Some(self.config),
                // If the node has gone since, that ends the waiting too.
                state: if gone { state.with("gone") } else { state },
                limits: self.seen.limits,
                now: self.now,
            },
        }
    }

    /// What is open has to wait: the other nodes of a volume that several can have do not wait with it.
    fn or_another(&self, record: &Record, decision: VolumeDecision) -> Result<VolumeDecision, Look> {
        if !self.nodes.for_many || !is_wait(&decision) {
            return Ok(decision);
        }
        let other = self.next(Some(&record.node))?;
        if is_wait(&other) {
            return Ok(sooner(decision, other));
        }
        Ok(Decision::Own(ForVolume::Deferred(Box::new(record.clone()))))
    }

    /// The first attempt to let a node have the volume.
    fn attach_first(&self, node: &str) -> Result<VolumeDecision, Look> {
        if let Some(decision) = self.not_offered(Operation::Attach) {
            return Ok(decision);
        }
        let look = self.look(node)?;
        let Some(facts) = look.there.as_ref().filter(|node| !node.out_of_service) else {
            let text = format!(
                "node {node} is out of service or not in the cluster: Mooring does not attach the volume to it"
            );
            return Ok(Decision::wait_for(waiting(Operation::Attach, text)));
        };
        if facts.mounter != NodeMounter::Current {
            let text = format!(
                "the mounter on node {node} is missing, or older than the controller: upgrade it; Mooring attaches the \
                 volume as soon as the mounter is there"
            );
            return Ok(Decision::Wait {
                after: Some(IN_USE_PERIOD),
                say: Some(waiting(Operation::Attach, text)),
            });
        }
        let record = self.to_attach(&AttachedTo {
            node: node.to_owned(),
            initiator: initiator(node, &facts.uid),
            provider_id: facts.provider_id.clone(),
            connection: String::new(),
        });
        Ok(begin(&self.turn(&record, None, Some(look), false)))
    }

    fn to_attach(&self, to: &AttachedTo) -> Record {
        self.first(Operation::Attach, to)
    }

    fn to_detach(&self, from: &AttachedTo) -> Record {
        self.first(Operation::Detach, from)
    }

    fn first(&self, operation: Operation, about: &AttachedTo) -> Record {
        Record {
            node: about.node.clone(),
            initiator: about.initiator.clone(),
            provider_id: about.provider_id.clone(),
            ..Record::first(operation, self.place(operation), self.now, self.config)
        }
    }

    /// The image says that the node has the volume.
    fn attached(&self, record: &Record, finish: &Finish) -> Result<ForVolume, Finish> {
        let mut answered = Answered::parse(&finish.message).map_err(|error| finish.refused(chain(&error)))?;
        let options = persistent_volume::options(self.seen.volume);
        self.check_connection(&options, &answered.options)
            .map_err(|error| finish.refused(chain(&error)))?;
        // The storage may have the node reach the volume by another client.
        let said = |key: &str| {
            let said = answered.options.get(key).or_else(|| options.get(key));
            said.cloned().unwrap_or_default()
        };
        let (client, fs_type) = (said(keys::CLIENT), said(keys::FS_TYPE));
        if clients::has_option(&client, &fs_type, INITIATOR_OPTION) && said(INITIATOR_OPTION).is_empty() {
            // What the storage was told.
            let named = answered.options.entry(INITIATOR_OPTION.to_owned());
            named.or_insert_with(|| record.initiator.clone());
        }
        let took = elapsed(record.since, self.now);
        let text = format!("node {} has the volume, after {} s", record.node, took.as_secs());
        Ok(ForVolume::Attached(Box::new(Attached {
            to: of_record(record),
            answered,
            runs: removable([self.seen.attach_run]),
            say: done(Operation::Attach, text),
            took,
        })))
    }

    /// Whether the volume may be as an image says that a node reaches it: `connection` beside the PV's own options,
    /// which were accepted with the PV.
    fn check_connection(
        &self,
        options: &BTreeMap<String, String>,
        connection: &BTreeMap<String, String>,
    ) -> Result<(), RefusedConnection> {
        if connection.is_empty() {
            return Ok(());
        }
        let refused = |error: VolumeError| RefusedConnection(error.to_string());
        let own = Volume::from_options(options).map_err(refused)?;
        let connected = own.connected(connection.clone()).map_err(refused)?;
        let granted = Granted {
            pv_name: self.seen.volume.metadata.name.as_deref().unwrap_or_default(),
            mount_options: &own.mount_options,
            client_image: match connection.get(keys::CLIENT_IMAGE) {
                Some(_) => self.config.client_image.as_deref(),
                None => own.client_image.as_deref(),
            },
        };
        match acceptance::check_volume(&connected, Speaker::Attach, &granted).as_slice() {
            [] => Ok(()),
            refusals => {
                let texts: Vec<_> = refusals.iter().map(ToString::to_string).collect();
                Err(RefusedConnection(texts.join("; ")))
            }
        }
    }

    /// Runs of what is over. One that a controller began late, because it was held up, may have let a node in that is
    /// not to have the volume, or have taken it from one that has it.
    fn left_over(&self) -> Option<VolumeDecision> {
        let there = [self.seen.attach_run, self.seen.detach_run];
        let holders = &self.nodes.attached.0;
        let holds = |late: &AttachedTo| holders.iter().any(|holder| holder.is_same(late));
        if let Some(late) = self.seen.attach_run.and_then(done_for)
            && !holds(&late)
        {
            return Some(Decision::Record(Box::new(self.to_detach(&late))));
        }
        if let Some(late) = self.seen.detach_run.and_then(done_for)
            && holds(&late)
        {
            return Some(Decision::Record(Box::new(self.to_attach(&late))));
        }
        let runs = removable(there);
        if !runs.is_empty() {
            return Some(Decision::Stop(runs));
        }
        let going = there.into_iter().flatten().next()?;
        Some(removed(going, Operation::Attach, self.seen.limits, self.now))
    }

    fn not_offered(&self, operation: Operation) -> Option<VolumeDecision> {
        (!self.config.offers(operation)).then(|| {
            let text = format!(
                "key operations of ConfigMap {} lacks {operation}, which this volume needs: add it again",
                self.config.reference,
                operation = operation.as_str(),
            );
            Decision::wait_for(waiting(operation, text))
        })
    }

    fn look(&self, node: &str) -> Result<&ObservedNode, Look> {
        let found = self.seen.nodes.iter().find(|seen| seen.name == node);
        found.ok_or_else(|| Look { node: node.to_owned() })
    }

    fn still_used(&self, node: &str) -> VolumeDecision {
        Decision::Wait {
            after: Some(IN_USE_PERIOD),
            say: self.kept_waiting_by(node).map(|other| held_by(node, other)),
        }
    }

    fn wants(&self, node: &str) -> bool {
        self.seen.wanted.iter().any(|wanted| wanted == node)
    }

    /// The node that can't have the volume while this one has it.
    fn kept_waiting_by(&self, node: &str) -> Option<&str> {
        if self.nodes.for_many {
            return None;
        }
        let mut wanted = self.seen.wanted.iter().map(String::as_str);
        wanted.find(|wanted| *wanted != node)
    }

    fn uid(&self) -> &str {
        persistent_volume::made_for(self.seen.volume).unwrap_or_default()
    }

    fn run(&self, operation: Operation) -> RunId {
        RunId::new(operation, self.uid())
    }

    fn place(&self, operation: Operation) -> String {
        self.run(operation).in_namespace(&self.config.reference.namespace)
    }
}

/// An attempt to attach the volume to a node, or to detach it from one.
struct Turn<'a> {
    plan: &'a Plan<'a>,
    progress: Progress<'a>,
    /// The node as it is now; known where no run is there.
    look: Option<&'a ObservedNode>,
}

impl Operate for Turn<'_> {
    type Own = ForVolume;

    fn progress(&self) -> &Progress<'_> {
        &self.progress
    }

    fn request(&self) -> Result<Start, Box<VolumeDecision>> {
        let (seen, config) = (self.plan.seen, self.plan.config);
        let operation = self.progress.id.operation;
        let made_by = request::made_by(seen.volume)
            .map_err(|error| Box::new(Decision::wait_for(waiting(operation, error.to_string()))))?;
        let mut record = self.progress.next(config);
        if record.provider_id.is_empty() {
            // A controller of before did not ask for it, or nobody had said it.
            let known = self.look.map(ObservedNode::provider_id).unwrap_or_default();
            known.clone_into(&mut record.provider_id);
        }
        let around = Surroundings::new(seen.class, config, seen.kube_api);
        let options = persistent_volume::options(seen.volume);
        let request = Request {
            node_name: record.node.clone(),
            topology: BTreeMap::new(),
            attachment: Some(Attachment {
                addresses: self.look.map(ObservedNode::addresses).unwrap_or_default(),
                initiator: record.initiator.clone(),
                provider_id: record.provider_id.clone(),
                gone: operation == Operation::Detach && self.look.is_some_and(ObservedNode::is_gone),
            }),
            ..request::remembered(operation, made_by, options, around)
        };
        Ok(self.progress.start(config, record, request))
    }

    fn apply(&self, run: &Run, record: &Record, finish: &Finish) -> Result<VolumeDecision, Finish> {
        Ok(Decision::Own(if record.operation == Operation::Attach {
            self.plan.attached(record, finish)?
        } else {
            ForVolume::Detached(Box::new(Detached {
                runs: removable([Some(run)]),
                took: elapsed(record.since, self.progress.now),
            }))
        }))
    }

    fn meanwhile(&self, record: &Record) -> Option<VolumeDecision> {
        let Progress { run, limits, now, .. } = self.progress;
        let is_wanted = record.operation == Operation::Detach || self.plan.wants(&record.node);
        // What runs already is not stopped half-way.
        let idle = run.filter(|run| !is_wanted && matches!(run.state(), State::Waiting { .. }))?;
        Some(removed(idle, record.operation, limits, now))
    }
}

/// The node that a record is about.
fn of_record(record: &Record) -> AttachedTo {
    AttachedTo {
        node: record.node.clone(),
        initiator: record.initiator.clone(),
        provider_id: record.provider_id.clone(),
        connection: String::new(),
    }
}

/// The node for which a run did what it is for, or may have.
fn done_for(run: &Run) -> Option<AttachedTo> {
    match run.state() {
        State::Finished(finish) if finish.may_have_run => {}
        State::Running => {}
        State::Finished(_) | State::Waiting { .. } | State::Leaving => return None,
    }
    node_of(run)
}

/// The node that a run is about.
fn node_of(run: &Run) -> Option<AttachedTo> {
    let request = run.request().ok()?;
    let attachment = request.attachment?;
    Some(AttachedTo {
        node: request.node_name,
        initiator: attachment.initiator,
        provider_id: attachment.provider_id,
        connection: String::new(),
    })
}

/// Whether nothing can be done now.
fn is_wait(decision: &VolumeDecision) -> bool {
    matches!(decision, Decision::Rest | Decision::Wait { .. })
}

/// Two decisions to wait, as one.
fn sooner(first: VolumeDecision, second: VolumeDecision) -> VolumeDecision {
    let parts = |decision| match decision {
        Decision::Wait { after, say } => (after, say),
        _ => (None, None),
    };
    let ((first, says), (second, also_says)) = (parts(first), parts(second));
    match (first.into_iter().chain(second).min(), says.or(also_says)) {
        (None, None) => Decision::Rest,
        (after, say) => Decision::Wait { after, say },
    }
}

/// What the claim of a volume that another node waits for is told.
fn held_by(node: &str, other: &str) -> Note {
    let text = format!(
        "a Pod on node {other} waits for the volume, which is attached to node {node}: Mooring detaches it when no Pod \
         there uses it; if that node does not come back, taint it with node.kubernetes.io/out-of-service"
    );
    waiting(Operation::Attach, text)
}

#[cfg(test)]
mod tests;
