//! Begins a run: the record, the run, its properties, in this order. A controller that stops in between goes on where
//! it was.
//!
//! The record names what carries the run out, a Pod of its own or a worker. One of them has it: whoever goes on from a
//! record of before writes its own first and then looks whether anything has the run, and whoever gives something the
//! run first writes that on it and then reads the record. A controller that may not write on a worker goes on in the
//! same way, from its own record that names the worker.
//!
//! Without a record, what carries a run out is the record. Whoever gives something such a run first writes that on it and
//! then looks whether anything else has the run, and takes it back if so.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Client;
use kube::runtime::controller::Action;
use mooring_contract::operation::Operation;
use mooring_program::error::chain;
use tracing::{debug, info, warn};

use super::live::{Fresh, copied_by, is_there_to_copy, is_there_to_restore, is_there_to_snapshot, restored_by};
use super::subject::{Subject, live};
use super::{Apply, ApplyError, remove_worker, report_refusal};
use crate::cache::expectations::Fact;
use crate::cache::limiter::{Patience, Place, Waiter};
use crate::config::ProvisionerConfig;
use crate::operation::decision::{Intent, Start};
use crate::operation::describe::{Effect, Reads, describe, waiting};
use crate::operation::reclaim::{may_delete_snapshot, may_delete_volume};
use crate::operation::record::Record;
use crate::operation::standing::is_claimed;
use crate::process::call::CallError;
use crate::process::events::Note;
use crate::process::objects::Objects;
use crate::run::Run;
use crate::run::begin::{Made, Prepared};
use crate::run::end::find;
use crate::run::error::RunError;
use crate::run::order::{Order, Owner};
use crate::run::worker::Worker;
use crate::run::worker_set::WorkerSet;

/// Longest wait for a place: a safeguard, since the end of every run wakes those that wait.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// What to run, in the form of module `run`.
fn order(start: &Start) -> Order<'_> {
    let description = describe(start.run.operation);
    Order {
        id: &start.run,
        request: &start.request,
        config: &start.config,
        attempt: start.record.attempt,
        state: &start.state,
        node: start.node.as_deref(),
        allowed: &start.allowed,
        owner: start.owner.as_ref().map(|(name, uid)| Owner {
            kind: description.subject.name(),
            name,
            uid,
        }),
        seals: description.seals(),
        backups_read_only: describe(start.request.operation).only_reads_backups(),
    }
}

impl<K: Subject> Apply<'_, K> {
    /// Begins a run, if there is a place for it.
    pub(super) async fn start(&mut self, mut start: Start) -> Result<Action, ApplyError> {
        let config = start.config.clone();
        let place = start.run.in_namespace(&config.reference.namespace);
        let shared = self.shared;
        let waiter = Waiter {
            run: place.clone(),
            operation: start.run.operation,
            object: self.subject.meta().uid.clone().unwrap_or_default(),
            namespace: start.request.pvc_namespace.clone(),
            item: self.subject.target(&start.request),
            workers: order(&start).worker_set(),
        };
        let set = waiter.workers.clone();
        let mut worker = None;
        let taken = shared.limiter.take(
            &waiter,
            &config.reference.to_string(),
            config.max_parallel.map(std::num::NonZeroUsize::get),
            || shared.cache.in_flight(shared.limits.overdue),
            |since| {
                let set = set.as_ref()?;
                worker = shared.cache.take_worker(&config, set, is_waited_for(&start));
                // An orphan has nobody who would wake it.
                if worker.is_some() || !is_waited_for(&start) || K::KIND.is_none() {
                    return None;
                }
                let patience = shared.limits.worker_patience;
                shared.cache.worker_patience(&config, set, since, patience)
            },
        );
        match taken {
            Place::Free => {}
            Place::Full => return Ok(self.wait_for_place(&start, &place)),
            // That a worker is free again wakes us.
            Place::HeldUp(left) => {
                if let Some(set) = set {
                    self.want_worker(&start, &place, set);
                }
                return Ok(Action::requeue(left));
            }
            Place::Begun(left) => return Ok(Action::requeue(left)),
        }
        match (&worker, set) {
            (Some(worker), _) => name_carrier(&mut start, worker.place()),
            (None, Some(set)) => self.want_worker(&start, &place, set),
            (None, None) => {}
        }
        let begun = match (self.begin(&start, worker.as_ref()).await, &worker) {
            (Err(ApplyError::Run(RunError::NoLoan(refusal))), Some(worker)) => {
                shared.cache.give_back(worker);
                Box::pin(self.refused(&config, worker, &refusal)).await;
                name_carrier(&mut start, place.clone());
                self.begin(&start, None).await
            }
            (begun, _) => begun,
        };
        // One that is there keeps its place until its watch shows it.
        if !matches!(begun, Ok(Begun::Made | Begun::Found)) {
            shared.limiter.seen(&place);
            shared.limiter.wake();
        }
        if !matches!(begun, Ok(Begun::Made))
            && let Some(worker) = &worker
        {
            shared.cache.give_back(worker);
        }
        match begun {
            Ok(_) => Ok(Action::await_change()),
            // Nothing has been written yet that says so: the record would be one of an attempt.
            Err(error) if error.is_rejection() && self.record.is_some() => {
                let record = self.record.clone().unwrap_or_else(|| start.record.clone());
                self.rejected(&record, start.state, &error).await
            }
            Err(error) => {
                self.report_failure(start.run.operation, &error);
                Err(error)
            }
        }
    }

    /// Waits for a place. The end of every run wakes those that wait; users are told once, if that takes long.
    fn wait_for_place(&self, start: &Start, place: &str) -> Action {
        let after = match self.shared.limiter.patience(place, self.shared.limits.place_grace) {
            Patience::Left(left) => left,
            Patience::Told => LOOK_AGAIN,
            Patience::Over => {
                let limit = match start.config.max_parallel {
                    Some(max) => format!("max-parallel: \"{max}\" of ConfigMap {}", start.config.reference),
                    None => format!(
                        "the controller's --max-pods, of which ConfigMap {} has its share",
                        start.config.reference
                    ),
                };
                let text = format!(
                    "waits for other runs to end, since {limit} allows no more at a time: raise it if the storage can do \
                     more at once"
                );
                self.say(waiting(start.run.operation, text));
                LOOK_AGAIN
            }
        };
        Action::requeue(after.min(LOOK_AGAIN))
    }

    /// Has there be a worker more of a set, if the image allows it: this run has found none.
    fn want_worker(&self, start: &Start, place: &str, set: WorkerSet) {
        let (cache, config) = (&self.shared.cache, &start.config);
        if !is_waited_for(start) {
            return;
        }
        // Where the image has not stated that it can be one, its answer to this run may.
        let is_news = cache.workers.demand.note(place, set);
        if is_news && config.workers(cache.workers.capable.has(&config.fingerprint)) > 0 {
            cache.wake_keeper();
        }
    }

    /// The API does not let a run be written on this worker. Either the controller has not the right, as before the
    /// installation is upgraded; or this Pod may not be as it is, since somebody has labelled it, and goes.
    async fn refused(&self, config: &ProvisionerConfig, worker: &Worker, refusal: &CallError) {
        let shared = self.shared;
        let lacks_right = refusal.lacks_right();
        if shared.cache.workers.refusals.note(worker, lacks_right) {
            let (worker, answer) = (worker.place(), refusal.answer());
            warn!(config = %config.reference, worker, answer, "a worker can't be given a run");
        }
        report_refusal(shared, config, worker, "be given a run", refusal);
        if !lacks_right && let Err(error) = remove_worker(shared, worker).await {
            debug!(
                error = chain(&error),
                worker = worker.place(),
                "failed to remove a worker"
            );
        }
    }

    /// After the record was written: whether the run is there already, on whatever carries it out. A first record says
    /// that it is not.
    async fn is_there(&self, before: Option<&Record>, start: &Start) -> Result<bool, ApplyError> {
        let Some((namespace, _)) = before.and_then(|before| before.run.split_once('/')) else {
            return Ok(false);
        };
        let found = find(&self.shared.context.client, namespace, &start.run).await?;
        Ok(!found.is_empty())
    }

    /// Whether nothing else has this run, as the API has it now.
    async fn is_alone(&self, run: &Run, start: &Start) -> Result<bool, ApplyError> {
        let namespace = run.namespace().unwrap_or_default();
        let found = find(&self.shared.context.client, namespace, &start.run).await?;
        Ok(found.iter().all(|other| other.uid() == run.uid()))
    }

    /// Hands a run that exists its properties, if it has none. Returns the run's uid.
    pub(super) async fn supply(&mut self, start: Start) -> Result<Option<String>, ApplyError> {
        let Some(run) = self.shared.cache.run(&start.config.reference.namespace, &start.run) else {
            return Ok(None);
        };
        let uid = run.uid().into_owned();
        if self.shared.expectations.is(&uid, Fact::Supplied) {
            return Ok(Some(uid));
        }
        let supplied = async {
            if !Box::pin(self.still_wanted(&start)).await? || !self.is_alone(&run, &start).await? {
                // What was watched is old; or the source's deletion has not seen this run, which was not there then.
                self.remove(&run.to_remove()).await?;
                return Ok(());
            }
            let (client, workers) = (&self.shared.context.client, &self.shared.cache.workers);
            let prepared = Prepared::new(client, workers, order(&start)).await?;
            prepared.hand_over(&run, false).await?;
            Ok(())
        };
        let supplied: Result<(), ApplyError> = supplied.await;
        match supplied {
            Ok(()) => {
                self.shared.expectations.note(&uid, Fact::Supplied);
                Ok(Some(uid))
            }
            Err(error) => {
                self.report_failure(start.run.operation, &error);
                Err(error)
            }
        }
    }

    fn report_failure(&self, operation: Operation, error: &ApplyError) {
        // A conflict is the normal end of acting on old knowledge: users need not know.
        if error.category() != "conflict" {
            let events = describe(operation).events;
            self.say(Note::warning(events.failed, events.action, error.chain()));
        }
    }

    async fn begin(&mut self, start: &Start, worker: Option<&Worker>) -> Result<Begun, ApplyError> {
        let client = self.shared.context.client.clone();
        let workers = self.shared.cache.workers.clone();
        // All that can be wrong with the input is found before anything is written.
        let prepared = Prepared::new(&client, &workers, order(start)).await?;
        let before = self.record.clone();
        match start.intent {
            Intent::ToRecord => {
                self.patch(self.subject.intent_patch(start)).await?;
                self.record = Some(start.record.clone());
            }
            // What fails from here on is an attempt that failed, and is written down as one.
            Intent::Released => self.record = Some(start.record.clone()),
            Intent::Recorded | Intent::Run | Intent::Configured => {}
        }
        if self.is_there(before.as_ref(), start).await? {
            // Its watch wakes us.
            return Ok(Begun::Found);
        }
        let made = match worker {
            Some(worker) => Made::New(prepared.lend(worker).await?),
            None => prepared.make().await?,
        };
        let (run, begun) = match made {
            Made::New(run) => (run, Begun::Made),
            Made::Found(run) => (run, Begun::Found),
            // An earlier attempt that is still going: its end wakes us.
            Made::Occupied => return Ok(Begun::Found),
        };
        // The run starts when it is handed its properties, so this is the last moment to see that it is not wanted any
        // more.
        let is_recorded = start.intent.is_recorded();
        if !Box::pin(self.still_wanted(start)).await? || !is_recorded && !self.is_alone(&run, start).await? {
            // What was watched was old, or this process was held up: another replica has gone on.
            self.remove(&run.to_remove()).await?;
            return Ok(Begun::Unwanted);
        }
        prepared.hand_over(&run, true).await?;
        self.shared.expectations.note(&run.uid(), Fact::Supplied);
        info!(
            run = run.place(),
            operation = %start.request.operation,
            attempt = start.record.attempt,
            config = %start.config.reference,
            "began a run"
        );
        let events = describe(start.run.operation).events;
        // The failure of the attempt before tells users about a later one.
        if let Some((reason, does)) = events.begun
            && start.record.attempt == 1
        {
            let text = format!("{run} {does} with {}", start.config.image);
            self.say(Note::beginning(reason, events.action, text));
        }
        Ok(begun)
    }

    /// Whether what a run reads is there and stays for as long as the run is there.
    async fn is_source_there(&self, start: &Start) -> Result<bool, ApplyError> {
        let (client, request) = (&self.shared.context.client, &start.request);
        match describe(start.run.operation).reads {
            Reads::SourceVolume => match &request.source {
                Some(source) => is_there_to_copy(client, &request.pvc_namespace, source).await,
                None => Ok(true),
            },
            Reads::Snapshot => match &request.snapshot {
                Some(snapshot) => is_there_to_restore(client, snapshot).await,
                None => Ok(true),
            },
            Reads::SnapshotVolume => is_there_to_snapshot(client, request).await,
            Reads::Nothing => Ok(true),
        }
    }

    /// What is being made of the volume that a run removes or changes, or of the snapshot that it removes, as the API has
    /// it now.
    async fn reader(&self, start: &Start, live: &K) -> Result<Option<String>, ApplyError> {
        let namespace = &start.config.reference.namespace;
        let effect = describe(start.run.operation).effect;
        match (live.volume(), live.content()) {
            (Some(volume), _) if effect.removes_volume() => {
                copied_by(self.shared, volume, Some(namespace), Fresh::Now).await
            }
            (_, Some(content)) if effect == Effect::RemovesSnapshot => {
                restored_by(self.shared, &content, namespace, Fresh::Now).await
            }
            _ if effect.changes_volume() => match self.volumes().read(&start.request.pv_name).await? {
                Some(volume) => copied_by(self.shared, &volume, Some(namespace), Fresh::Now).await,
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Whether what a PV or a content asks to be deleted may still be deleted: its policy says so, and nobody uses it.
    async fn may_still_delete(&self, start: &Start, live: &K) -> Result<bool, ApplyError> {
        let operation = start.run.operation;
        let kept = match (describe(operation).effect, live.volume(), live.content()) {
            (Effect::RemovesVolume, Some(volume), _) => {
                let claim = claim_of(&self.shared.context.client, volume).await?;
                may_delete_volume(volume, claim.is_some_and(|claim| is_claimed(volume, &claim)))
            }
            (Effect::RemovesSnapshot, _, Some(content)) => may_delete_snapshot(&content, operation),
            _ => Ok(()),
        };
        if let Err(kept) = &kept {
            info!(%kept, run = %start.run.name(), "what the run deletes is to stay, which was not seen before");
        }
        Ok(kept.is_ok())
    }

    /// Whether the API still has the intent of this run.
    async fn still_wanted(&self, start: &Start) -> Result<bool, ApplyError> {
        let live = live(&*self.subject, &self.shared.context.client).await?;
        let Some(live) = live else { return Ok(false) };
        let text = Record::text_in(live.meta());
        let is_intended = match start.intent {
            Intent::ToRecord | Intent::Recorded => {
                let record = text.and_then(|text| Record::parse(text).ok());
                record.is_some_and(|record| record == start.record)
            }
            Intent::Released => text.is_none(),
            // That it is an orphan was seen just now, and its run only deletes. That of a ConfigMap only reads, and
            // goes with it.
            Intent::Run | Intent::Configured => true,
        };
        if !is_intended || !self.is_source_there(start).await? || !Box::pin(self.may_still_delete(start, &live)).await?
        {
            return Ok(false);
        }
        let reader = Box::pin(self.reader(start, &live)).await?;
        if let Some(reader) = &reader {
            info!(reader, run = %start.run.name(), "what the run changes is being read, which was not seen before");
        }
        Ok(reader.is_none())
    }
}

/// The claim that a PV refers to by name, as the API has it now.
async fn claim_of(client: &Client, volume: &PersistentVolume) -> Result<Option<PersistentVolumeClaim>, ApplyError> {
    let of = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let named = of.and_then(|of| of.namespace.as_deref().zip(of.name.as_deref()));
    let Some((namespace, name)) = named else {
        return Ok(None);
    };
    Ok(Objects::within(client, namespace).read(name).await?)
}

/// Whether somebody waits for a run. For a discovery nobody does: it neither has a worker started nor keeps one.
fn is_waited_for(start: &Start) -> bool {
    start.intent != Intent::Configured
}

/// Has the record of a run, if it has one, say what carries it out.
fn name_carrier(start: &mut Start, place: String) {
    if start.intent.is_recorded() {
        start.record.run = place;
        start.intent = Intent::ToRecord;
    }
}

/// Whether the run was made now.
#[derive(Debug)]
enum Begun {
    Made,
    Found,
    /// It was removed again: nobody wants it any more.
    Unwanted,
}
