//! Carries out what a plan decided. Every write names what it expects to find (a resource version or a uid), so that a
//! decision on old knowledge fails instead of harming.

mod attachment;
pub mod error;
pub mod live;
pub mod signer;
pub mod snapshot_class;
pub mod start;
pub mod storage_capacity;
mod subject;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch};
use kube::runtime::controller::Action;
use mooring_contract::attachment::secret_name;
use mooring_contract::names::{annotations, finalizers};
use mooring_contract::operation::Operation;
use serde_json::{Value, json};
use tracing::info;

pub use self::error::ApplyError;
use self::signer::Signer;
pub(crate) use self::subject::{ConfigMeta, Subject};
use self::subject::{live, patched};
use crate::cache::expectations::{Expectations, Fact};
use crate::cache::limiter::Limiter;
use crate::cache::store::Cache;
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::context::Context;
use crate::operation::attach::secret_of;
use crate::operation::attempt::failed;
use crate::operation::decision::{
    Accept, Altered, Decision, Failed, ForAccepted, ForClaim, ForVolume, LetGo, NotStarted, Refuse, Reschedule,
    Settled, Undone,
};
use crate::operation::describe::{Effect, describe, waiting};
use crate::operation::limits::Limits;
use crate::operation::record::Record;
use crate::operation::snapshot::error_status;
use crate::process::call::{CallError, TAKEN, Tolerant as _};
use crate::process::events::{Note, reasons};
use crate::process::metrics::OperationResult;
use crate::process::objects::{Objects, only};
use crate::run::RunRef;
use crate::run::end::{Ended, end, find};
use crate::run::error::RunError;
use crate::run::input_state::InputState;
use crate::run::outcome::{Category, Finish};
use crate::run::worker::Worker;
use crate::time::elapsed;

/// What both controllers work with.
#[derive(Clone)]
pub struct Shared {
    /// The process's handles and settings.
    pub context: Context,
    pub cache: Cache,
    /// Places for runs.
    pub limiter: Arc<Limiter>,
    /// What this process has done and the watches have not shown yet.
    pub expectations: Arc<Expectations>,
    pub limits: Limits,
    /// What this process signs connections with.
    pub signer: Signer,
}

/// Carries out what was decided for an object, as it was seen, with this record.
pub(crate) async fn carry_out<K: Subject>(
    shared: &Shared,
    subject: &K,
    record: Option<Record>,
    decision: Decision<K::Own>,
) -> Result<Action, ApplyError> {
    let mut apply = Apply {
        shared,
        subject: Box::new(subject.clone()),
        record,
    };
    let action = match decision {
        Decision::Own(own) => K::take(own, &mut apply).await?,
        Decision::Rest => Action::await_change(),
        Decision::Wait { after, say } => apply.wait(after, say),
        Decision::Start(start) => apply.start(*start).await?,
        Decision::Supply { start, after, say } => {
            let run = apply.supply(*start).await?;
            apply.wait(after, say.and_then(|wait| apply.unless_told(run.as_deref()?, wait)))
        }
        Decision::Record(record) => {
            apply.write_record(&record).await?;
            Action::await_change()
        }
        Decision::Cancel { record, run } => apply.cancel(&record, &run).await?,
        Decision::Fail(failed) => apply.fail(*failed).await?,
        Decision::Stop(runs) => apply.stop(&runs).await?,
        Decision::Tidy(runs) => apply.remove_all(&runs).await?,
        Decision::Settle(settled) => apply.settled(*settled).await?,
    };
    Ok(action)
}

pub fn report_config(shared: &Shared, config: &ProvisionerConfig, note: Note) {
    shared
        .context
        .events
        .publish(&ConfigMeta::from(config).reference(), note);
}

/// Tells on a ConfigMap what is wrong with its workers.
pub fn report_workers(shared: &Shared, config: &ProvisionerConfig, text: String) {
    report_config(shared, config, Note::warning(reasons::WORKER_FAILED, "Work", text));
}

/// Tells on a ConfigMap that the API has refused a change of its worker's Pod: the controller may lack the right, as
/// before the installation is upgraded; or this Pod may not be as it is, since somebody has labelled it, and goes.
fn report_refusal(shared: &Shared, config: &ProvisionerConfig, worker: &Worker, to: &str, refusal: &CallError) {
    let then = if refusal.lacks_right() {
        "Apply configmaps/install of this version, which has the right to do that"
    } else {
        "Mooring puts another in its place"
    };
    let (worker, answer) = (worker.place(), refusal.answer().unwrap_or_default());
    let text = format!("worker {worker} can't {to}: {answer}. {then}; until then each run has a Pod of its own");
    report_workers(shared, config, text);
}

/// Removes a worker that has no run, unless anything about it has changed since it was seen.
pub async fn remove_worker(shared: &Shared, worker: &Worker) -> Result<(), RunError> {
    end(&shared.context.client, &worker.to_remove_as_it_is()).await?;
    shared.expectations.note(worker.uid(), Fact::Deleted);
    info!(worker = worker.place(), "removed a worker");
    Ok(())
}

/// One decision being carried out.
pub(crate) struct Apply<'a, K> {
    shared: &'a Shared,
    subject: Box<K>,
    record: Option<Record>,
}

impl<K: Subject> Apply<'_, K> {
    /// What users have to be told of a run that does not start: that it is late, and that it can't, each once. Its node
    /// changes its words all the time. One that can't start is late, too.
    fn unless_told(&self, run: &str, wait: NotStarted) -> Option<Note> {
        let told = &self.shared.expectations;
        let mut is_news = told.note(run, Fact::ToldLate);
        if wait.is_blocked {
            is_news = told.note(run, Fact::ToldBlocked);
        }
        is_news.then_some(wait.note)
    }

    fn wait(&self, after: Option<Duration>, say: Option<Note>) -> Action {
        self.say(say);
        // A moment later than due, so that the clock has surely passed it.
        after.map_or_else(Action::await_change, |after| {
            Action::requeue(after.max(Duration::from_millis(100)) + Duration::from_millis(50))
        })
    }

    fn say(&self, note: impl Into<Option<Note>>) {
        if let Some(note) = note.into() {
            self.shared.context.events.publish(&self.subject.reference(), note);
        }
    }

    fn volumes(&self) -> Objects<PersistentVolume> {
        Objects::all(&self.shared.context.client)
    }

    /// Changes the subject, and keeps what it has become.
    async fn patch(&mut self, patch: Value) -> Result<(), ApplyError> {
        self.patch_by(Patch::Merge(patch)).await
    }

    async fn patch_by(&mut self, patch: Patch<Value>) -> Result<(), ApplyError> {
        let tests = matches!(patch, Patch::Json(_));
        let error = match self.subject.patched(&self.shared.context.client, patch).await {
            Ok(subject) => {
                *self.subject = subject;
                self.shared.expectations.written(self.subject.meta());
                return Ok(());
            }
            Err(error) => error,
        };
        if tests && error.category() == "invalid" && !Box::pin(self.is_as_seen()).await? {
            // What the patch expects is not so any more. Otherwise a policy or the API's rules refuse what it writes.
            let name = self.subject.meta().name.clone();
            return Err(ApplyError::Changed(name.unwrap_or_default()));
        }
        Err(error)
    }

    /// Writes the record, and with it the finalizer.
    async fn write_record(&mut self, record: &Record) -> Result<(), ApplyError> {
        self.patch(self.subject.record_patch(record)).await?;
        self.record = Some(record.clone());
        Ok(())
    }

    /// Once the run is gone, nobody could say any more that it has made nothing: that is written whatever else has
    /// changed on the subject.
    async fn cancel(&mut self, record: &Record, run: &RunRef) -> Result<Action, ApplyError> {
        self.remove(run).await?;
        let meta = self.subject.meta();
        let seen = Record::text_in(meta);
        let path = Record::path();
        self.patch_by(json_patch(json!([
            {"op": "test", "path": "/metadata/uid", "value": meta.uid},
            {"op": "test", "path": path, "value": seen},
            {"op": "replace", "path": path, "value": record.to_text()},
        ])))
        .await?;
        Ok(Action::await_change())
    }

    async fn fail(&mut self, failed: Failed) -> Result<Action, ApplyError> {
        let later = self.remove_first(failed.run).await?;
        let started = self.record.as_ref().map(|record| record.since);
        // First, since the record ends the attempt: the image's message must not be lost.
        let effect = describe(failed.record.operation).effect;
        let content = self.subject.content().filter(|_| effect == Effect::TakesSnapshot);
        let status = content.and_then(|content| error_status(&content, &failed.say.text, Timestamp::now()));
        if let Some(status) = status {
            self.write_status(status).await?;
        }
        self.write_record(&failed.record).await?;
        let result = if failed.record.gave_up {
            OperationResult::GivenUp
        } else {
            OperationResult::Retry
        };
        self.count(failed.record.operation, result, failed.category, started.map(since));
        self.say(failed.say);
        if let Some(run) = later {
            self.remove(&run).await?;
        }
        Ok(self.wait(failed.after, None))
    }

    /// Removes a run of which the record will say that it never ran: it must not begin any more. Gives back any other,
    /// which is removed once the record is written.
    async fn remove_first(&self, run: Option<RunRef>) -> Result<Option<RunRef>, ApplyError> {
        match run {
            Some(run) if run.is_exact() => self.remove(&run).await.map(|()| None),
            run => Ok(run),
        }
    }

    fn count(&self, operation: Operation, result: OperationResult, category: Category, took: Option<Duration>) {
        let category = if result == OperationResult::Done {
            ""
        } else {
            category.as_str()
        };
        let took = took.unwrap_or_default();
        self.shared
            .context
            .metrics
            .operation_ended(operation, result, category, took);
    }

    /// Whether the run has been asked to go. That says nothing of one that is to be removed only as it was seen.
    fn is_asked_to_go(&self, run: &RunRef) -> bool {
        !run.is_exact() && self.shared.expectations.is(run.uid(), Fact::Deleted)
    }

    async fn remove(&self, run: &RunRef) -> Result<(), ApplyError> {
        if self.is_asked_to_go(run) {
            return Ok(());
        }
        let shared = self.shared;
        let ended = Box::pin(end(&shared.context.client, run)).await?;
        if let Ended::WithWorker(worker, refusal) = &ended
            && let Ok(config) = worker.config().parse::<ConfigRef>()
            && let Some(config) = shared.context.configs.get(&config)
        {
            report_refusal(
                shared,
                &config,
                worker,
                "be freed of its run, and goes with it",
                refusal,
            );
        }
        if !matches!(ended, Ended::Gone) {
            shared.expectations.note(run.uid(), Fact::Deleted);
        }
        Ok(())
    }

    /// Removes runs that nobody wants any more, if the subject is as it was seen.
    async fn stop(&self, runs: &[RunRef]) -> Result<Action, ApplyError> {
        if runs.iter().all(|run| self.is_asked_to_go(run)) {
            return Ok(Action::await_change());
        }
        if !self.is_as_seen().await? {
            return Ok(Action::requeue(Duration::from_secs(1)));
        }
        self.remove_all(runs).await
    }

    async fn is_as_seen(&self) -> Result<bool, ApplyError> {
        let live = live(&*self.subject, &self.shared.context.client).await?;
        let seen = &self.subject.meta().resource_version;
        Ok(live.is_some_and(|live| live.meta().resource_version == *seen))
    }

    /// The end of an operation: counted if something was run, and its runs removed.
    async fn done(&self, operation: Operation, took: Option<Duration>, runs: &[RunRef]) -> Result<Action, ApplyError> {
        if let Some(took) = took {
            self.count(operation, OperationResult::Done, Category::Done, Some(took));
        }
        self.remove_all(runs).await
    }

    async fn remove_all(&self, runs: &[RunRef]) -> Result<Action, ApplyError> {
        for run in runs {
            self.remove(run).await?;
        }
        Ok(Action::await_change())
    }

    async fn write_status(&mut self, status: Value) -> Result<(), ApplyError> {
        let version = self.subject.meta().resource_version.clone();
        self.patch(json!({"metadata": {"resourceVersion": version}, "status": status}))
            .await
    }

    async fn settled(&mut self, settled: Settled) -> Result<Action, ApplyError> {
        if let Some(status) = settled.status {
            self.write_status(status).await?;
        }
        if settled.release {
            // By the other way: that of the status writes nothing else of what a CRD defines.
            let mut patch = if settled.let_go {
                self.subject.release_patch()
            } else {
                self.subject.taken_patch()
            };
            if let Some(content) = self.subject.content() {
                patch["metadata"]["annotations"][content.being_created()] = Value::Null;
            }
            self.patch(patch).await?;
        }
        if let Some(notes) = settled.notes {
            let version = self.subject.meta().resource_version.clone();
            self.patch(json!({"metadata": {"resourceVersion": version, "annotations": notes}}))
                .await?;
        }
        if let Some(run) = &settled.reclaimed {
            self.shared.expectations.note(run, Fact::Reclaimed);
        }
        self.say(settled.say);
        if let Some((operation, took)) = settled.done {
            self.count(operation, OperationResult::Done, Category::Done, Some(took));
        }
        self.remove_all(&settled.runs).await?;
        Ok(self.wait(settled.after, None))
    }

    async fn delete_volume(&self, name: &str, uid: &str) -> Result<(), ApplyError> {
        let volumes = self.volumes();
        let this = DeleteParams::default().preconditions(only(Some(uid.to_owned()), None));
        let done = volumes.delete(name, &this).await;
        Ok(volumes.unless_gone(done, name, uid).await?)
    }

    /// An attempt that the API did not let begin: told and tried again like one that the image failed.
    async fn rejected(&mut self, record: &Record, state: InputState, error: &ApplyError) -> Result<Action, ApplyError> {
        let uid = self.subject.meta().uid.clone();
        let finish = Finish::unseen(Category::Api, error.chain(), false);
        let now = Timestamp::now();
        let failed = failed(
            record,
            &finish,
            &uid.unwrap_or_default(),
            state,
            &self.shared.limits,
            now,
            None,
        );
        self.fail(failed).await
    }
}

impl Apply<'_, PersistentVolumeClaim> {
    async fn claim_step(&mut self, step: ForClaim) -> Result<Action, ApplyError> {
        match step {
            // That is done before a decision is carried out, and a plan asks for it once.
            ForClaim::LookUp => Ok(Action::requeue(Duration::from_secs(1))),
            ForClaim::Accept(accept) => self.accept(*accept).await,
            ForClaim::Refuse(refuse) => self.refuse(*refuse).await,
            ForClaim::Reschedule(reschedule) => self.reschedule(*reschedule).await,
            ForClaim::Undone(undone) => self.undone(*undone).await,
            ForClaim::Altered(altered) => self.altered(*altered).await,
        }
    }

    async fn accept(&mut self, accept: Accept) -> Result<Action, ApplyError> {
        match accept.volume {
            ForAccepted::Make(volume) => {
                if self.volumes().create(&volume).await.unless(TAKEN)?.is_none() {
                    // It is judged like any other when its watch shows it.
                    return Ok(Action::requeue(Duration::from_secs(1)));
                }
            }
            ForAccepted::Patch(patch) => {
                patched(&self.volumes(), &accept.pv_name, Patch::Merge(patch)).await?;
            }
            ForAccepted::Nothing => {}
        }
        if let Some((namespace, name)) = &accept.connection {
            // Before the claim is let go: soon after that kubelets read it.
            attachment::make_secret(&self.shared.context.client, namespace, name).await?;
        }
        // Before it is written: an answer may be lost.
        let claim = self.subject.meta().uid.as_deref().unwrap_or_default();
        self.shared.expectations.note(claim, Fact::Ready);
        self.patch_by(json_patch(accept.claim_patch)).await?;
        self.say(accept.say);
        self.done(accept.operation, Some(accept.took), &accept.runs).await
    }

    async fn refuse(&mut self, refuse: Refuse) -> Result<Action, ApplyError> {
        let since_begin = self.record.as_ref().map(|record| since(record.since));
        if self.record.as_ref() != Some(&refuse.record) {
            self.write_record(&refuse.record).await?;
            if refuse.say.is_some() {
                self.count(
                    refuse.record.operation,
                    OperationResult::Retry,
                    Category::Refused,
                    since_begin,
                );
            }
        } else if !self.is_as_seen().await? {
            return Ok(Action::requeue(Duration::from_secs(1)));
        }
        // First, since the removal may be refused.
        self.say(refuse.say);
        self.remove_volumes(&refuse.volumes).await?;
        if let Some(run) = &refuse.run {
            self.remove(run).await?;
        }
        Ok(Action::requeue(Duration::from_secs(1)))
    }

    async fn reschedule(&mut self, reschedule: Reschedule) -> Result<Action, ApplyError> {
        let later = self.remove_first(reschedule.run).await?;
        let mut patch = match &reschedule.record {
            Some(record) => self.subject.record_patch(record),
            None => json!({"metadata": {"resourceVersion": self.subject.meta().resource_version}}),
        };
        patch["metadata"]["annotations"][annotations::SELECTED_NODE] = Value::Null;
        self.patch(patch).await?;
        self.say(reschedule.say);
        if let Some(run) = later {
            self.remove(&run).await?;
        }
        Ok(Action::await_change())
    }

    async fn undone(&mut self, undone: Undone) -> Result<Action, ApplyError> {
        self.remove_volumes(&undone.volumes).await?;
        self.say(undone.say);
        let mut patch = match &undone.next {
            Some(record) => self.subject.record_patch(record),
            None => self.subject.release_patch(),
        };
        if undone.reschedule {
            patch["metadata"]["annotations"][annotations::SELECTED_NODE] = Value::Null;
        }
        self.patch(patch).await?;
        self.done(Operation::Delete, undone.took, &undone.runs).await?;
        Ok(self.wait(undone.after, None))
    }

    async fn altered(&mut self, altered: Altered) -> Result<Action, ApplyError> {
        if let Some((place, id)) = &altered.without {
            let namespace = place.split_once('/').map_or("", |(namespace, _)| namespace);
            let found = find(&self.shared.context.client, namespace, id).await?;
            for run in &found {
                self.remove(&run.to_remove()).await?;
            }
            if !found.is_empty() {
                return Ok(Action::requeue(Duration::from_secs(1)));
            }
        }
        if let Some(patch) = altered.volume_patch {
            patched(&self.volumes(), &altered.pv_name, Patch::Merge(patch)).await?;
        }
        let mut patch = if altered.release {
            self.subject.release_patch()
        } else {
            json!({"metadata": {"resourceVersion": self.subject.meta().resource_version}})
        };
        if let Some(at_once) = altered.at_once {
            patch["metadata"]["annotations"][annotations::NODE_EXPANSION_NOT_REQUIRED] =
                if at_once { json!("true") } else { Value::Null };
        }
        let writes = altered.release || altered.status.is_some();
        if let Some(status) = altered.status {
            patch["status"] = status;
        }
        if writes {
            self.patch(patch).await?;
        }
        self.say(altered.say);
        self.done(altered.operation, altered.took, &altered.runs).await
    }

    /// Removes PVs that must not be bound. Users are told of one that the API server does not let Mooring remove: its
    /// name and annotations don't say that it is Mooring's, and it stays until somebody acts.
    async fn remove_volumes(&self, volumes: &[(String, String)]) -> Result<(), ApplyError> {
        for (name, uid) in volumes {
            if let Some((namespace, name)) = self.connection_of(name) {
                attachment::remove_secret(&self.shared.context.client, &namespace, &name).await?;
            }
            if let Err(error) = self.remove_volume(name, uid).await {
                if error.is_rejection() {
                    let text = format!(
                        "PersistentVolume {name} names this claim, but can't be accepted, and Mooring may not remove \
                         it: delete it by hand (kubectl delete pv {name}), and have the image name its volumes after \
                         the property pv-name; {}",
                        error.chain()
                    );
                    self.say(waiting(Operation::Delete, text));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The Secret that the PV of this name has for its connection, where its ConfigMap has volumes attached.
    fn connection_of(&self, pv_name: &str) -> Option<(String, String)> {
        let reference = self.record.as_ref()?.config.parse().ok()?;
        let config = self.shared.context.configs.get(&reference)?;
        let attaches = config.offers(Operation::Attach);
        attaches.then(|| (reference.namespace, secret_name(pv_name)))
    }

    /// Removes a PV that must not be bound, whatever holds it.
    async fn remove_volume(&self, name: &str, uid: &str) -> Result<(), ApplyError> {
        self.delete_volume(name, uid).await?;
        // Kubernetes' own protection would keep a PV that has been bound meanwhile, and Pods could use it.
        let patch = json!({"metadata": {"uid": uid, "finalizers": null}});
        let volumes = self.volumes();
        let done = volumes.patch(name, &Patch::Merge(patch)).await;
        Ok(volumes.unless_gone(done, name, uid).await?)
    }
}

impl Apply<'_, PersistentVolume> {
    async fn volume_step(&mut self, step: ForVolume) -> Result<Action, ApplyError> {
        match step {
            ForVolume::LetGo(let_go) => self.let_go(*let_go).await,
            ForVolume::Attached(attached) => self.attached(*attached).await,
            ForVolume::Detached(detached) => self.detached(*detached).await,
            ForVolume::Deferred(record) => self.deferred(&record).await,
        }
    }

    async fn let_go(&mut self, let_go: LetGo) -> Result<Action, ApplyError> {
        let meta = self.subject.meta();
        let name = meta.name.clone().unwrap_or_default();
        let uid = meta.uid.clone().unwrap_or_default();
        let is_going = meta.deletion_timestamp.is_some();
        self.say(let_go.say);
        if let Some((namespace, name)) = secret_of(&self.subject) {
            attachment::remove_secret(&self.shared.context.client, &namespace, &name).await?;
        }
        if let_go.delete && !is_going {
            self.delete_volume(&name, &uid).await?;
        }
        // Kubernetes takes its own finalizer off at the same time: so the API server is told which one to take, not
        // what is to be left, and of which PV, not of which version of it.
        let patch = json!({"metadata": {
            "uid": uid,
            "$deleteFromPrimitiveList/finalizers": [finalizers::VOLUME],
            "annotations": {annotations::OPERATION: null},
        }});
        let volumes = self.volumes();
        let done = volumes.patch(&name, &Patch::Strategic(patch)).await;
        volumes.unless_gone(done, &name, &uid).await?;
        if let Some(run) = &let_go.reclaimed {
            self.shared.expectations.note(run, Fact::Reclaimed);
        }
        self.shared.expectations.note(&uid, Fact::LetGo);
        if !self.shared.cache.has_volume(&name, &uid) {
            self.shared.expectations.gone(&uid);
        }
        self.done(Operation::Delete, let_go.took, &let_go.runs).await
    }
}

/// A JSON patch, which can say what it expects to find.
fn json_patch(operations: Value) -> Patch<Value> {
    Patch::Json(serde_json::from_value(operations).unwrap_or_default())
}

fn since(begin: Timestamp) -> Duration {
    elapsed(begin, Timestamp::now())
}
