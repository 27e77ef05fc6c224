//! Operations `snapshot` and `delete-snapshot`: from a `VolumeSnapshotContent` to a snapshot on the storage, and to
//! none. Where its class says so, `backup` and `delete-backup` do the same with a copy elsewhere.
//!
//! snapshot-controller makes the content, binds it and copies its status to the `VolumeSnapshot`. What is done here is
//! what csi-snapshotter does (`syncContent` in `pkg/sidecar-controller/snapshot_controller.go` of
//! kubernetes-csi/external-snapshotter), by the same rules.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mooring_contract::names::{annotations, finalizers};
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::{Request, Snapshot};
use serde_json::{Value, json};

use super::attempt::{begun, failed, held_back, state_of};
use super::decision::{Decision, Intent, Settled, SnapshotDecision, Start, removable};
use super::describe::{action, describe, waiting};
use super::observed::{ObservedSnapshot, Surroundings};
use super::parameters::parameters_of;
use super::record::{Record, is_busy};
use super::request;
use super::step::{Step, step};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::process::events::{Note, reasons};
use crate::run::Run;
use crate::run::outcome::{Finish, State};
use crate::time::elapsed;
use crate::volume::persistent_volume::{self, is_ours};
use crate::volume::snapshot::{
    DeletionPolicy, Form, FormError, Handle, HandleError, VolumeSnapshotClass, VolumeSnapshotContent, name_for,
};
use crate::volume::topology::{HOSTNAME, Node};

/// external-snapshotter's own, on a content: it belongs to a group, which is not taken one by one.
const OF_GROUP: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// How often the controller looks whether a node is back.
const NODE_PERIOD: Duration = Duration::from_secs(30);

/// Why there can be no snapshot, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotRefusal {
    #[error("there is no PersistentVolume {0:?} to take the snapshot of: delete the snapshot")]
    NoVolume(String),
    #[error("Mooring did not make volume {0}, so it can't take a snapshot of it: use the means of its storage")]
    NotOurs(String),
    #[error("volume {0} has no claim any more, so Mooring can't take a snapshot of it: bind a claim to it")]
    Unclaimed(String),
    /// Something is being done to it.
    #[error("claim {0:?} has an operation in progress (see its Events): Mooring takes the snapshot after that")]
    Busy(String),
    /// The node that it is on is not there.
    #[error("the volume is on node {0}, which is not in the cluster: Mooring waits for the node")]
    NodeGone(String),
    /// What made it is not known.
    #[error(
        "annotation mooring.dev/request of PersistentVolume {0} can't be read, or is about another claim's volume: \
         restore it"
    )]
    Unknown(String),
    #[error("VolumeSnapshotClass {0:?} does not exist: Mooring waits for it")]
    NoClass(String),
    /// The ConfigMap does not offer it.
    #[error("ConfigMap {0} does not list {1:?} in its key \"operations\": add it if the image can do that")]
    NoOperation(String, &'static str),
    /// A name that no administrator should have written.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// A class that no administrator should have written.
    #[error(transparent)]
    Form(#[from] FormError),
}

impl SnapshotRefusal {
    /// Whether it passes by itself.
    fn is_wait(&self) -> bool {
        match self {
            Self::Busy(_) | Self::NodeGone(_) | Self::NoClass(_) => true,
            Self::NoVolume(_)
            | Self::NotOurs(_)
            | Self::Unclaimed(_)
            | Self::Unknown(_)
            | Self::NoOperation(..)
            | Self::Handle(_)
            | Self::Form(_) => false,
        }
    }
}

/// What a content stands for: what its handle says, or that of an attempt that has begun, and else its class.
pub fn form_of(content: &VolumeSnapshotContent, record: Option<&Record>, class: Option<&VolumeSnapshotClass>) -> Form {
    let begun = record.map(|record| record.source.as_str());
    let handle = content.handle().or(begun).and_then(|handle| handle.parse().ok());
    let by_class = || class.and_then(|class| class.form().ok());
    let form = handle.map(|handle: Handle| handle.form);
    form.or_else(by_class).unwrap_or(Form::Snapshot)
}

/// What to do about a `VolumeSnapshotContent`.
pub fn plan_snapshot(seen: &ObservedSnapshot<'_>, now: Timestamp) -> SnapshotDecision {
    let content = seen.content;
    if !content.is_ours() || content.annotations().contains_key(OF_GROUP) {
        return Decision::Rest;
    }
    if content.is_over() {
        return removal(seen, now);
    }
    if content.is_ready() {
        return rest(seen);
    }
    match &content.spec.source.snapshot_handle {
        Some(handle) => known(seen, handle, now),
        None => taking(seen, now),
    }
}

/// A snapshot that is there: what is left of taking it goes.
fn rest(seen: &ObservedSnapshot<'_>) -> SnapshotDecision {
    let runs = removable([seen.snapshot_run, seen.delete_run]);
    let marked = seen
        .content
        .annotations()
        .contains_key(annotations::SNAPSHOT_BEING_CREATED);
    if seen.record.is_some() || marked {
        return Decision::Own(Settled {
            release: true,
            runs,
            ..Settled::default()
        });
    }
    if runs.is_empty() {
        Decision::Rest
    } else {
        Decision::Tidy(runs)
    }
}

/// A snapshot that an administrator has named: it is believed to be there, as it is of a CSI driver that lists none
/// (`GetSnapshotStatus` in `pkg/snapshotter/snapshotter.go` of external-snapshotter).
fn known(seen: &ObservedSnapshot<'_>, handle: &str, now: Timestamp) -> SnapshotDecision {
    if let Err(error) = handle.parse::<Handle>() {
        return refuse(seen, &error.into(), now);
    }
    match seen.config {
        Ok(_) => {}
        Err(NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => return Decision::Rest,
        Err(error) => return Decision::wait_for(waiting(seen.form.take(), no_config(error))),
    }
    let size = seen.content.taken_by().map(|request| request.size);
    Decision::Own(Settled {
        status: Some(ready(handle, now, size)),
        ..Settled::default()
    })
}

/// A content of which the snapshot is still to be taken.
fn taking(seen: &ObservedSnapshot<'_>, now: Timestamp) -> SnapshotDecision {
    let Some(record) = seen.record else {
        let leftovers = removable([seen.snapshot_run, seen.delete_run]);
        return if leftovers.is_empty() {
            begin(seen, None, now)
        } else {
            Decision::Tidy(leftovers)
        };
    };
    match step(seen.snapshot_run, record, seen.limits, now) {
        Step::None => again(seen, record, now),
        Step::Leftover(run) => Decision::Stop(run.to_remove()),
        Step::Leaving(say) => Decision::Wait {
            after: Some(seen.limits.overdue),
            say,
        },
        Step::Running(left) => Decision::wait(left),
        Step::Waiting { after, say } => {
            let (run, config) = (seen.run(record.operation), seen.config.as_ref().ok());
            Decision::supply(seen.snapshot_run, run, config, record, after, say)
        }
        Step::Ended(finish) if finish.outcome == Outcome::Done => taken(seen, record, now),
        Step::Ended(finish) => fail(seen, seen.snapshot_run, record, &finish, now),
    }
}

/// What to do without a run: begin the next attempt if it is time.
fn again(seen: &ObservedSnapshot<'_>, record: &Record, now: Timestamp) -> SnapshotDecision {
    let state = match seen.config {
        Ok(config) => state(seen, config),
        Err(NoConfig::NotReadYet) => return Decision::Rest,
        Err(_) => String::new(),
    };
    match held_back(record, &state, now) {
        Some(Duration::MAX) => Decision::Rest,
        Some(left) => Decision::wait(left),
        None => begin(seen, Some(record), now),
    }
}

/// What the image is asked, and the only node where it can do that.
struct Asked {
    config: Arc<ProvisionerConfig>,
    request: Request,
    node: Option<Node>,
    handle: Handle,
}

fn begin(seen: &ObservedSnapshot<'_>, record: Option<&Record>, now: Timestamp) -> SnapshotDecision {
    let config = match seen.config {
        Err(NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => return Decision::Rest,
        other => other.as_ref().ok(),
    };
    let kind = seen.form.take();
    let asked = match asked(seen, config) {
        Ok(Some(asked)) => asked,
        Ok(None) => {
            let text = seen.config.as_ref().err().map(ToString::to_string);
            return Decision::wait_for(waiting(kind, text.unwrap_or_default()));
        }
        Err(error) if error.is_wait() => return Decision::wait_for(waiting(kind, error.to_string())),
        Err(error) => return refuse(seen, &error, now),
    };
    let run = seen.run(kind);
    let place = run.in_namespace(&asked.config.reference.namespace);
    let mut next = record.map_or_else(|| Record::first(kind, place.clone(), now, &asked.config), begun);
    next.config = asked.config.reference.to_string();
    next.config_uid.clone_from(&asked.config.uid);
    next.run = place;
    next.source = asked.handle.to_string();
    next.node = asked.node.as_ref().map(|node| node.name.clone()).unwrap_or_default();
    Decision::Start(Box::new(Start {
        run,
        request: asked.request,
        node: asked.node.map(|node| node.name),
        state: state(seen, &asked.config),
        config: asked.config,
        allowed: Vec::new(),
        intent: if record == Some(&next) {
            Intent::Recorded
        } else {
            describe(kind).intent
        },
        owner: None,
        record: next,
    }))
}

/// What the image is asked to take; `None` if there is no ConfigMap to go by.
fn asked(
    seen: &ObservedSnapshot<'_>,
    config: Option<&Arc<ProvisionerConfig>>,
) -> Result<Option<Asked>, SnapshotRefusal> {
    let wanted = seen.content.spec.source.volume_handle.clone().unwrap_or_default();
    let volume = seen.volume.ok_or_else(|| SnapshotRefusal::NoVolume(wanted.clone()))?;
    let name = volume.name_any();
    if !is_ours(volume) {
        return Err(SnapshotRefusal::NotOurs(name));
    }
    let claim = seen.claim.filter(|_| volume.metadata.deletion_timestamp.is_none());
    let claim = claim.ok_or_else(|| SnapshotRefusal::Unclaimed(name.clone()))?;
    if is_busy(claim) {
        return Err(SnapshotRefusal::Busy(claim.name_any()));
    }
    if let Some(class) = seen
        .content
        .spec
        .volume_snapshot_class_name
        .as_ref()
        .filter(|_| seen.class.is_none())
    {
        return Err(SnapshotRefusal::NoClass(class.clone()));
    }
    // Once begun, it stays what it was begun as.
    if let Some(class) = seen.class.filter(|_| seen.record.is_none()) {
        class.form()?;
    }
    let Some(config) = config else { return Ok(None) };
    let (take, delete) = (seen.form.take(), seen.form.delete());
    let deletes = seen.content.spec.deletion_policy == DeletionPolicy::Delete;
    for kind in [take, delete] {
        // What could never be deleted again is not begun.
        if (kind == take || deletes) && !config.operations.contains(&kind) {
            return Err(SnapshotRefusal::NoOperation(
                config.reference.to_string(),
                kind.as_str(),
            ));
        }
    }
    let node = node_of(seen, config, volume)?;
    let made_by = request::made_by(volume, claim.metadata.uid.as_deref().unwrap_or_default());
    let made_by = made_by.ok_or_else(|| SnapshotRefusal::Unknown(name.clone()))?;
    let host = persistent_volume::host_of(volume).filter(|_| config.is_node_local());
    let handle = Handle {
        form: seen.form,
        config: config.reference.clone(),
        name: name_for(seen.content, seen.form),
        // A backup is elsewhere.
        host: host.filter(|_| seen.form == Form::Snapshot).map(str::to_owned),
    };
    let size = persistent_volume::size(volume).unwrap_or(made_by.size);
    let options = persistent_volume::options(volume);
    let request = request::of_size(request::remembered(take, made_by, options, around(seen, config)), size);
    Ok(Some(Asked {
        config: config.clone(),
        request: about(seen, &handle.name, request),
        node,
        handle,
    }))
}

fn around<'a>(seen: &'a ObservedSnapshot<'_>, config: &'a ProvisionerConfig) -> Surroundings<'a> {
    Surroundings {
        class: None,
        config,
        kube_api: seen.kube_api,
    }
}

/// The request with the snapshot that it is about, and the parameters of its class.
fn about(seen: &ObservedSnapshot<'_>, name: &str, request: Request) -> Request {
    let mut parameters = request.parameters;
    parameters.extend(parameters_of(seen.class.and_then(|class| class.parameters.as_ref())));
    Request {
        parameters,
        snapshot: Some(Snapshot {
            name: name.to_owned(),
            content_name: seen.content.name_any(),
            content_uid: seen.uid().to_owned(),
            backup: seen.form == Form::Backup,
        }),
        ..request
    }
}

/// The node that the volume lives on, where the ConfigMap's volumes live on nodes.
fn node_of(
    seen: &ObservedSnapshot<'_>,
    config: &ProvisionerConfig,
    volume: &PersistentVolume,
) -> Result<Option<Node>, SnapshotRefusal> {
    match persistent_volume::host_of(volume).filter(|_| config.is_node_local()) {
        None => Ok(None),
        Some(host) => (seen.by_host)(host)
            .map(Some)
            .ok_or_else(|| SnapshotRefusal::NodeGone(host.to_owned())),
    }
}

/// The image says that the snapshot is there.
fn taken(seen: &ObservedSnapshot<'_>, record: &Record, now: Timestamp) -> SnapshotDecision {
    let Some(run) = seen.snapshot_run else {
        return Decision::Rest;
    };
    // The annotation of the intent; what the run was asked, unless somebody changed it.
    let size = run.request().ok().map(|request| request.size);
    Decision::Own(Settled {
        // All that was written before the run was made is in the snapshot.
        status: Some(ready(&record.source, run.made(), size)),
        release: true,
        runs: removable([seen.snapshot_run]),
        done: Some((seen.form.take(), elapsed(record.since, now))),
        ..Settled::default()
    })
}

/// The status of a content whose snapshot is there.
fn ready(handle: &str, taken: Timestamp, size: Option<u64>) -> Value {
    let mut status = json!({
        "snapshotHandle": handle,
        "readyToUse": true,
        "creationTime": i64::try_from(taken.as_nanosecond()).unwrap_or_default(),
        "error": null,
    });
    if let Some(size) = size {
        status["restoreSize"] = json!(size);
    }
    status
}

/// The status that says why there is no snapshot; snapshot-controller shows it to users on theirs.
pub(crate) fn error_status(content: &VolumeSnapshotContent, message: &str, now: Timestamp) -> Option<Value> {
    let said = content.status.as_ref().and_then(|status| status.error.as_ref());
    let same = said.and_then(|error| error.message.as_deref()) == Some(message);
    (!same).then(|| json!({"readyToUse": false, "error": {"time": now.to_string(), "message": message}}))
}

/// There can be no snapshot: its content says why.
fn refuse(seen: &ObservedSnapshot<'_>, error: &SnapshotRefusal, now: Timestamp) -> SnapshotDecision {
    let text = error.to_string();
    let say = Note::warning(reasons::SNAPSHOT_FAILED, action(seen.form.take()), text.clone());
    match error_status(seen.content, &text, now) {
        None => Decision::wait_for(say),
        status => Decision::Own(Settled {
            status,
            say: Some(say),
            ..Settled::default()
        }),
    }
}

fn fail(
    seen: &ObservedSnapshot<'_>,
    run: Option<&Run>,
    record: &Record,
    finish: &Finish,
    now: Timestamp,
) -> SnapshotDecision {
    let state = match seen.config {
        Ok(config) => state(seen, config),
        Err(_) => String::new(),
    };
    let run = run.map(Run::to_remove);
    let mut failed = failed(record, finish, seen.uid(), state, seen.limits, now, run);
    // external-snapshotter has one reason for all of them.
    failed.say.reason = describe(record.operation).words.failed;
    Decision::Fail(Box::new(failed))
}

/// A hash of all that decides a run.
fn state(seen: &ObservedSnapshot<'_>, config: &ProvisionerConfig) -> String {
    let class = seen.class.map(|class| StorageClass {
        parameters: class.parameters.clone(),
        ..StorageClass::default()
    });
    state_of(config, None, class.as_ref())
}

/// A content that goes: its snapshot first, unless that is to stay.
fn removal(seen: &ObservedSnapshot<'_>, now: Timestamp) -> SnapshotDecision {
    let content = seen.content;
    let held = content
        .finalizers()
        .iter()
        .any(|name| name == finalizers::SNAPSHOT_CONTENT);
    if !held && seen.record.is_none() {
        return Decision::Rest;
    }
    if let Some(claim) = seen.restored_by.filter(|_| seen.delete_run.is_none()) {
        // The end of that run wakes this.
        let what = seen.form.noun();
        let text = format!("Mooring is restoring the {what} for claim {claim}: it deletes the {what} after that");
        return Decision::wait_for(waiting(seen.form.delete(), text));
    }
    // What was not ready yet is nothing that anybody could want to retain.
    let half_made = seen
        .record
        .filter(|record| record.operation == seen.form.take() && !content.is_ready());
    if let Some(record) = half_made
        && let Some(run) = seen.snapshot_run
    {
        return stop(seen, record, run, now);
    }
    let unmade = half_made
        .is_some_and(|record| record.cancelled || (record.not_before.is_some() || record.gave_up) && !record.may_exist);
    let going = seen.record.filter(|record| record.operation == seen.form.delete());
    let to_delete = going.is_some()
        || half_made.is_some() && !unmade
        || content.spec.deletion_policy == DeletionPolicy::Delete && content.handle().is_some() && !unmade;
    if to_delete {
        deletion(seen, going, half_made, now)
    } else {
        Decision::Own(let_go(seen, None, None))
    }
}

/// Stops a run whose snapshot is not wanted any more.
fn stop(seen: &ObservedSnapshot<'_>, record: &Record, run: &Run, now: Timestamp) -> SnapshotDecision {
    let never_ran = matches!(run.state(), State::Waiting { never_ran: true, .. });
    if run.leaving_since().is_some() {
        let say = match step(Some(run), record, seen.limits, now) {
            Step::Leaving(say) => say,
            Step::None | Step::Leftover(_) | Step::Waiting { .. } | Step::Running(_) | Step::Ended(_) => None,
        };
        return Decision::Wait {
            after: Some(seen.limits.overdue),
            say,
        };
    }
    // Its image, which perhaps nobody can pull, is not needed to delete what it has not made.
    let cancelled = never_ran && run.attempt() == record.attempt && !record.may_exist;
    if record.cancelled != cancelled {
        return Decision::Note(Box::new(Record {
            cancelled,
            ..record.clone()
        }));
    }
    Decision::Stop(if cancelled {
        run.to_remove_as_it_is()
    } else {
        run.to_remove()
    })
}

/// The content's finalizer goes, and with it the content.
fn let_go(seen: &ObservedSnapshot<'_>, say: Option<Note>, took: Option<Duration>) -> Settled {
    Settled {
        release: true,
        let_go: true,
        runs: removable([seen.snapshot_run, seen.delete_run]),
        say,
        done: took.map(|took| (seen.form.delete(), took)),
        ..Settled::default()
    }
}

/// One deletion, over all its attempts.
fn deletion(
    seen: &ObservedSnapshot<'_>,
    going: Option<&Record>,
    half_made: Option<&Record>,
    now: Timestamp,
) -> SnapshotDecision {
    let kind = seen.form.delete();
    let recorded = going.or(half_made).map(|record| record.source.as_str());
    let (config, handle, node) = match what_to_delete(seen, recorded, now) {
        Ok(found) => found,
        Err(decision) => return *decision,
    };
    let run = seen.run(kind);
    let place = run.in_namespace(&config.reference.namespace);
    let request = match seen.content.taken_by() {
        Some(taken_by) => {
            let options = taken_by.volume.clone();
            request::remembered(kind, taken_by, options, around(seen, config))
        }
        None => request::unremembered(kind, around(seen, config)),
    };
    let request = about(seen, &handle.name, request);
    let start = |record: Record, intent: Intent| Start {
        run: run.clone(),
        request: request.clone(),
        config: config.clone(),
        node: node.clone(),
        state: state(seen, config),
        allowed: Vec::new(),
        owner: None,
        intent,
        record,
    };
    let Some(record) = going else {
        if let Some(leftover) = seen.delete_run {
            return Decision::Tidy(vec![leftover.to_remove()]);
        }
        let first = Record {
            node: node.clone().unwrap_or_default(),
            last_error: half_made.map(|record| record.last_error.clone()).unwrap_or_default(),
            may_exist: true,
            source: handle.to_string(),
            ..Record::first(kind, place, now, config)
        };
        return Decision::Start(Box::new(start(first, describe(kind).intent)));
    };
    match step(seen.delete_run, record, seen.limits, now) {
        Step::None => {
            match held_back(record, &state(seen, config), now) {
                Some(Duration::MAX) => return Decision::Rest,
                Some(left) => return Decision::wait(left),
                None => {}
            }
            let next = Record {
                config: config.reference.to_string(),
                config_uid: config.uid.clone(),
                run: place,
                ..begun(record)
            };
            let intent = if next == *record {
                Intent::Recorded
            } else {
                describe(kind).intent
            };
            Decision::Start(Box::new(start(next, intent)))
        }
        Step::Leftover(run) => Decision::Stop(run.to_remove()),
        Step::Leaving(say) => Decision::Wait {
            after: Some(seen.limits.overdue),
            say,
        },
        Step::Running(left) => Decision::wait(left),
        Step::Waiting { after, say } => {
            let (run, config) = (seen.run(record.operation), seen.config.as_ref().ok());
            Decision::supply(seen.delete_run, run, config, record, after, say)
        }
        Step::Ended(finish) if finish.outcome == Outcome::Done => {
            Decision::Own(let_go(seen, None, Some(elapsed(record.since, now))))
        }
        Step::Ended(finish) => fail(seen, seen.delete_run, record, &finish, now),
    }
}

/// The ConfigMap that a removal goes by, what is removed, and the only node that it may run on.
type Removal<'a> = (&'a Arc<ProvisionerConfig>, Handle, Option<String>);

/// By which ConfigMap which snapshot is removed, and on which node; `Err` with what to do while that is not known.
/// `recorded` is the handle in the record, if there is one.
fn what_to_delete<'a>(
    seen: &ObservedSnapshot<'a>,
    recorded: Option<&str>,
    now: Timestamp,
) -> Result<Removal<'a>, Box<SnapshotDecision>> {
    let kind = seen.form.delete();
    let wait = |text: String| Box::new(Decision::wait_for(waiting(kind, text)));
    let config = match seen.config {
        Ok(config) => config,
        Err(NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => return Err(Box::new(Decision::Rest)),
        Err(error) => return Err(wait(no_config(error))),
    };
    if !config.operations.contains(&kind) {
        let error = SnapshotRefusal::NoOperation(config.reference.to_string(), kind.as_str());
        let what = seen.form.noun();
        return Err(wait(format!(
            "{error}; else set the content's deletionPolicy to Retain, and delete the {what} by hand"
        )));
    }
    let handle = seen.content.handle().or(recorded).unwrap_or_default();
    let handle: Handle = handle.parse().map_err(|error: HandleError| wait(error.to_string()))?;
    let Some(host) = handle.host.as_deref().filter(|_| config.is_node_local()) else {
        return Ok((config, handle, None));
    };
    match (seen.by_host)(host) {
        Some(node) => Ok((config, handle, Some(node.name))),
        None => Err(Box::new(away(seen, host, now))),
    }
}

/// Why there is no ConfigMap for a snapshot that is there, and what else to do than to bring it back.
fn no_config(error: &NoConfig) -> String {
    format!(
        "{error}; if a ConfigMap of the same storage has another name, annotate the VolumeSnapshotContent with \
         {}=NAMESPACE/NAME",
        annotations::CONFIG
    )
}

/// The node that the snapshot lives on is not in the cluster.
fn away(seen: &ObservedSnapshot<'_>, host: &str, now: Timestamp) -> SnapshotDecision {
    let away = seen.away_since.map_or(Duration::ZERO, |since| elapsed(since, now));
    let left = seen.limits.node_grace.saturating_sub(away);
    if left.is_zero() {
        let text = format!("node {host} ({HOSTNAME}) has left the cluster, and the snapshot with it");
        let say = Note::warning(reasons::NODE_GONE, action(Operation::DeleteSnapshot), text);
        return Decision::Own(let_go(seen, Some(say), None));
    }
    let text = format!(
        "node {host} ({HOSTNAME}), on which the snapshot is, is not in the cluster: if it is not back within {} \
         minutes, Mooring considers the snapshot lost",
        seen.limits.node_grace.as_secs() / 60
    );
    Decision::Wait {
        after: Some(left.min(NODE_PERIOD)),
        say: Some(waiting(Operation::DeleteSnapshot, text)),
    }
}

#[cfg(test)]
mod tests;
