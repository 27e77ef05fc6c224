//! Operations `snapshot` and `delete-snapshot`: from a `VolumeSnapshotContent` to a snapshot on the storage, and to
//! none. Where its class says so, `backup` and `delete-backup` do the same with a copy elsewhere. And `snapshot-group`
//! and `delete-group`: from a `VolumeGroupSnapshotContent` to snapshots of all its volumes, and to none.
//!
//! snapshot-controller makes the contents, binds them and copies their status to the user's objects. Of a group that
//! exists, it also makes the content of each snapshot. What is done here is what csi-snapshotter does (`syncContent` in
//! `pkg/sidecar-controller/snapshot_controller.go` and `syncGroupSnapshotContent` in `groupsnapshot_helper.go` beside
//! it, of kubernetes-csi/external-snapshotter), by the same rules. [`asked`] says what the image is asked, [`group`]
//! what differs for a group, and [`member`] what is done about each snapshot of one.

mod asked;
mod group;
mod member;
mod refusal;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;
use serde_json::{Value, json};

use self::asked::{asked, to_delete};
pub use self::refusal::SnapshotRefusal;
use super::attempt::state_of;
use super::decision::{Decision, Intent, Settled, SnapshotDecision, Start, removable};
use super::delete::away;
use super::describe::{describe, waiting};
use super::drive::{Operate, Progress, begin, drive, taken_back};
use super::observed::ObservedSnapshot;
use super::reclaim::may_delete_snapshot;
use super::record::Record;
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::process::events::Note;
use crate::run::Run;
use crate::run::input_state::InputState;
use crate::run::outcome::Finish;
use crate::time::elapsed;
use crate::volume::content_view::ContentView;
use crate::volume::snapshot::{DeletionPolicy, Form, Handle, VolumeSnapshotClass};

/// What a content represents: what its handle says, or that of an attempt that has begun, and else its class.
pub fn form_of(content: &ContentView<'_>, record: Option<&Record>, class: Option<&VolumeSnapshotClass>) -> Form {
    if content.is_group {
        return Form::Group;
    }
    let begun = record.map(|record| record.source.as_str());
    let handle = content.handle().or(begun).and_then(|handle| handle.parse().ok());
    let by_class = || class.and_then(|class| class.form().ok());
    let form = handle
        .map(|handle: Handle| handle.form)
        .filter(|form| *form != Form::Group);
    form.or_else(by_class).unwrap_or(Form::Snapshot)
}

/// What to do about a `VolumeSnapshotContent` or a `VolumeGroupSnapshotContent`.
pub fn plan_snapshot(seen: &ObservedSnapshot<'_>, now: Timestamp) -> SnapshotDecision {
    let content = seen.content;
    if !content.is_ours() {
        return Decision::Rest;
    }
    if content.is_over() {
        return if content.of_group.is_some() {
            member::leave(seen)
        } else {
            removal(seen, now)
        };
    }
    if content.named.is_none() && content.of_group.is_some() {
        return member::plan(seen);
    }
    if content.is_ready {
        return rest(seen);
    }
    match content.named {
        Some(handle) => known(seen, handle, now),
        None => take(seen, now),
    }
}

/// A snapshot that exists: removes what is left of taking it.
fn rest(seen: &ObservedSnapshot<'_>) -> SnapshotDecision {
    let runs = removable([seen.snapshot_run, seen.delete_run]);
    let marked = seen.content.annotation(seen.content.being_created()).is_some();
    if seen.record.is_some() || marked {
        return Decision::Settle(Box::new(Settled {
            release: true,
            runs,
            ..Settled::default()
        }));
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
    if let Err(error) = seen.content.parse(handle) {
        return refuse(seen, &error.into(), now);
    }
    match seen.config {
        Ok(_) => {}
        Err(NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => return Decision::Rest,
        Err(error) => return Decision::wait_for(waiting(seen.form.take(), no_config(seen, error))),
    }
    let status = if seen.content.is_group {
        group::ready(handle, now, &[])
    } else {
        let size = seen.content.taken_by().map(|request| request.size);
        member::of_group(ready(handle, now, size), seen)
    };
    Decision::Settle(Box::new(Settled {
        status: Some(status),
        ..Settled::default()
    }))
}

/// A content of which the snapshot is still to be taken.
fn take(seen: &ObservedSnapshot<'_>, now: Timestamp) -> SnapshotDecision {
    let Some(record) = seen.record else {
        let leftovers = removable([seen.snapshot_run, seen.delete_run]);
        return if leftovers.is_empty() {
            begin(&taking(seen, None, now))
        } else {
            Decision::Stop(leftovers)
        };
    };
    drive(&taking(seen, Some(record), now), record)
}

fn progress<'a>(
    seen: &'a ObservedSnapshot<'a>,
    operation: Operation,
    record: Option<&'a Record>,
    run: Option<&'a Run>,
    now: Timestamp,
) -> Progress<'a> {
    let config = seen.config.as_ref().ok();
    Progress {
        id: seen.run(operation),
        record,
        recorded: Intent::Recorded,
        run,
        config,
        state: config.map_or(InputState::Unknown, |config| state(seen, config)),
        limits: seen.limits,
        now,
    }
}

/// From a content to its snapshot.
struct Taking<'a> {
    seen: &'a ObservedSnapshot<'a>,
    progress: Progress<'a>,
}

fn taking<'a>(seen: &'a ObservedSnapshot<'a>, record: Option<&'a Record>, now: Timestamp) -> Taking<'a> {
    let progress = progress(seen, seen.form.take(), record, seen.snapshot_run, now);
    Taking { seen, progress }
}

impl Operate for Taking<'_> {
    type Own = Infallible;

    fn progress(&self) -> &Progress<'_> {
        &self.progress
    }

    fn instead(&self, _record: &Record) -> Option<SnapshotDecision> {
        matches!(self.seen.config, Err(NoConfig::NotReadYet)).then_some(Decision::Rest)
    }

    fn request(&self) -> Result<Start, Box<SnapshotDecision>> {
        let seen = self.seen;
        let config = match seen.config {
            Err(NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => return Err(Box::new(Decision::Rest)),
            other => other.as_ref().ok(),
        };
        let wait = |text: String| Box::new(Decision::wait_for(waiting(seen.form.take(), text)));
        let asked = match asked(seen, config) {
            Ok(Some(asked)) => asked,
            Ok(None) => {
                let text = seen.config.as_ref().err().map(ToString::to_string);
                return Err(wait(text.unwrap_or_default()));
            }
            Err(error) if error.is_wait() => return Err(wait(error.to_string())),
            Err(error) => return Err(Box::new(refuse(seen, &error, self.progress.now))),
        };
        let node = asked.node.map(|node| node.name);
        let next = Record {
            source: asked.handle.to_string(),
            node: node.clone().unwrap_or_default(),
            ..self.progress.next(&asked.config)
        };
        Ok(Start {
            node,
            ..self.progress.start(&asked.config, next, asked.request)
        })
    }

    /// The image says that the snapshot is there.
    fn apply(&self, run: &Run, record: &Record, _finish: &Finish) -> Result<SnapshotDecision, Finish> {
        // What the run was asked, unless somebody changed its annotation.
        let asked = run.request().ok();
        // All that was written before the run was made is in the snapshot.
        let status = if self.seen.content.is_group {
            let Some(request) = asked.filter(|request| !request.members().is_empty()) else {
                return Ok(Decision::Stop(vec![run.to_remove()]));
            };
            group::ready(&record.source, run.made(), request.members())
        } else {
            ready(&record.source, run.made(), asked.map(|request| request.size))
        };
        Ok(Decision::Settle(Box::new(Settled {
            status: Some(status),
            release: true,
            runs: removable([Some(run)]),
            done: Some((self.seen.form.take(), elapsed(record.since, self.progress.now))),
            ..Settled::default()
        })))
    }
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
pub(crate) fn error_status(content: &ContentView<'_>, message: &str, now: Timestamp) -> Option<Value> {
    let status = || json!({"readyToUse": false, "error": {"time": now.to_string(), "message": message}});
    (content.error != Some(message)).then(status)
}

/// There can be no snapshot: its content says why.
fn refuse(seen: &ObservedSnapshot<'_>, error: &SnapshotRefusal, now: Timestamp) -> SnapshotDecision {
    let text = error.to_string();
    let events = describe(seen.form.take()).events;
    let say = Note::warning(events.failed, events.action, text.clone());
    match error_status(seen.content, &text, now) {
        None => Decision::wait_for(say),
        status => Decision::Settle(Box::new(Settled {
            status,
            say: Some(say),
            ..Settled::default()
        })),
    }
}

/// A hash of all that decides a run.
fn state(seen: &ObservedSnapshot<'_>, config: &ProvisionerConfig) -> InputState {
    let class = seen.class.map(|class| StorageClass {
        parameters: class.parameters.clone(),
        ..StorageClass::default()
    });
    state_of(config, None, class.as_ref())
}

/// What to do while a claim's volume is made of it. The end of that run wakes this.
fn held_by_restore(seen: &ObservedSnapshot<'_>) -> Option<SnapshotDecision> {
    let claim = seen.restored_by.filter(|_| seen.delete_run.is_none())?;
    let what = seen.form.noun();
    let text = format!("Mooring is restoring the {what} for claim {claim}: it deletes the {what} after that");
    Some(Decision::wait_for(waiting(seen.form.delete(), text)))
}

/// A content that goes: its snapshot first, unless that is to stay.
fn removal(seen: &ObservedSnapshot<'_>, now: Timestamp) -> SnapshotDecision {
    let content = seen.content;
    if !content.is_held() && seen.record.is_none() {
        let left = seen.snapshot_run.filter(|run| run.leaving_since().is_none());
        return match left.filter(|_| content.deletion_policy == DeletionPolicy::Retain) {
            Some(run) => Decision::Tidy(vec![run.to_remove()]),
            None => Decision::Rest,
        };
    }
    if let Some(wait) = held_by_restore(seen) {
        return wait;
    }
    let half_made = seen
        .record
        .filter(|record| record.operation == seen.form.take() && !content.is_ready);
    if let Some(record) = half_made
        && let Some(run) = seen.snapshot_run
    {
        return taken_back(run, record, seen.limits, now);
    }
    let unmade = half_made
        .is_some_and(|record| record.cancelled || (record.not_before.is_some() || record.gave_up) && !record.may_exist);
    let going = seen.record.filter(|record| record.operation == seen.form.delete());
    let may_exist = (going.is_some() || half_made.is_some() || content.handle().is_some()) && !unmade;
    if may_exist && may_delete_snapshot(content, seen.form.delete()).is_ok() {
        return deletion(seen, going, half_made, now);
    }
    // What was to delete it before somebody decided otherwise, and what took it: without the content, the request of that
    // would say what the deletion policy once was.
    let left = removable([seen.snapshot_run, seen.delete_run]);
    if left.is_empty() {
        Decision::Settle(let_go(seen, None, None))
    } else {
        Decision::Tidy(left)
    }
}

/// The content's finalizer goes, and with it the content.
fn let_go(seen: &ObservedSnapshot<'_>, say: Option<Note>, took: Option<Duration>) -> Box<Settled> {
    // It was deleted, or went with its node.
    let reclaimed = seen.snapshot_run.filter(|_| say.is_some() || took.is_some());
    Box::new(Settled {
        release: true,
        let_go: true,
        reclaimed: reclaimed.map(|run| run.uid().into_owned()),
        runs: removable([seen.snapshot_run, seen.delete_run]),
        say,
        done: took.map(|took| (seen.form.delete(), took)),
        ..Settled::default()
    })
}

/// One deletion, over all its attempts.
fn deletion(
    seen: &ObservedSnapshot<'_>,
    going: Option<&Record>,
    half_made: Option<&Record>,
    now: Timestamp,
) -> SnapshotDecision {
    let before = going.or(half_made);
    let recorded = before.map(|record| record.source.as_str());
    let (config, handle, node) = match what_to_delete(seen, recorded, now) {
        Ok(found) => found,
        Err(decision) => return *decision,
    };
    let operation = seen.form.delete();
    let request = match to_delete(seen, config, &handle) {
        Ok(request) => request,
        Err(error) => return Decision::wait_for(waiting(operation, error.to_string())),
    };
    let removal = Removing {
        seen,
        progress: progress(seen, operation, going, seen.delete_run, now),
        config,
        request,
        before,
        handle,
        node,
    };
    match (going, seen.delete_run) {
        (Some(record), _) => drive(&removal, record),
        (None, Some(leftover)) => Decision::Stop(vec![leftover.to_remove()]),
        (None, None) => begin(&removal),
    }
}

/// From a snapshot to none.
struct Removing<'a> {
    seen: &'a ObservedSnapshot<'a>,
    progress: Progress<'a>,
    config: &'a Arc<ProvisionerConfig>,
    request: Request,
    handle: Handle,
    /// The record of this, or of the snapshot that it removes half-made.
    before: Option<&'a Record>,
    /// The only node that it may run on.
    node: Option<String>,
}

impl Operate for Removing<'_> {
    type Own = Infallible;

    fn progress(&self) -> &Progress<'_> {
        &self.progress
    }

    fn request(&self) -> Result<Start, Box<SnapshotDecision>> {
        let next = Record {
            node: self.node.clone().unwrap_or_default(),
            last_error: self.before.map(|record| record.last_error.clone()).unwrap_or_default(),
            may_exist: true,
            source: self.handle.to_string(),
            ..self.progress.next(self.config)
        };
        Ok(Start {
            node: self.node.clone(),
            ..self.progress.start(self.config, next, self.request.clone())
        })
    }

    fn apply(&self, _run: &Run, record: &Record, _finish: &Finish) -> Result<SnapshotDecision, Finish> {
        let took = elapsed(record.since, self.progress.now);
        Ok(Decision::Settle(let_go(self.seen, None, Some(took))))
    }
}

/// The ConfigMap of a removal, what is removed, and the only node that it may run on.
type Removal<'a> = (&'a Arc<ProvisionerConfig>, Handle, Option<String>);

/// By which ConfigMap which snapshot is removed, and on which node; `Err` with what to do while that is not known.
/// `recorded` is the handle in the record, if there is one.
fn what_to_delete<'a>(
    seen: &ObservedSnapshot<'a>,
    recorded: Option<&str>,
    now: Timestamp,
) -> Result<Removal<'a>, Box<SnapshotDecision>> {
    let operation = seen.form.delete();
    let wait = |text: String| Box::new(Decision::wait_for(waiting(operation, text)));
    let config = match seen.config {
        Ok(config) => config,
        Err(NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => return Err(Box::new(Decision::Rest)),
        Err(error) => return Err(wait(no_config(seen, error))),
    };
    if let Err(error) = config.check_offered(operation) {
        let what = seen.form.noun();
        return Err(wait(format!(
            "{error}; or set the content's deletionPolicy to Retain, and delete the {what} by hand"
        )));
    }
    let handle = seen.content.handle().or(recorded).unwrap_or_default();
    let handle = seen.content.parse(handle).map_err(|error| wait(error.to_string()))?;
    let Some(host) = handle.host.as_deref().filter(|_| config.is_node_local()) else {
        return Ok((config, handle, None));
    };
    if let Some(node) = (seen.by_host)(host) {
        return Ok((config, handle, Some(node.name)));
    }
    let lost = |say| Decision::Settle(let_go(seen, Some(say), None));
    Err(Box::new(away(operation, host, seen.away_since, seen.limits, now, lost)))
}

/// Why there is no ConfigMap for a snapshot that exists, and what to do other than bring it back.
fn no_config(seen: &ObservedSnapshot<'_>, error: &NoConfig) -> String {
    format!(
        "{error}; if a ConfigMap of the same storage has another name, annotate the {} with {}=NAMESPACE/NAME",
        describe(seen.form.take()).subject.name(),
        annotations::CONFIG
    )
}

#[cfg(test)]
mod tests;
