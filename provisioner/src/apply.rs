//! Carries out what a plan decided. Every write names what it expects to find (a resource version or a uid), so that a
//! decision on old knowledge fails instead of harming.

pub mod error;
pub mod live;
pub mod start;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use mooring_contract::names::{FIELD_MANAGER, annotations, finalizers};
use mooring_contract::outcome::Outcome;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::error::ApplyError;
use crate::cache::expectations::Expectations;
use crate::cache::limiter::Limiter;
use crate::cache::store::Cache;
use crate::operation::attempt::failed;
use crate::operation::decision::{
    Accept, ClaimDecision, Decision, Failed, ForClaim, ForVolume, LetGo, OrphanDecision, PodRef, Refuse, Reschedule,
    Undone, VolumeDecision,
};
use crate::operation::observed::Limits;
use crate::operation::record::Record;
use crate::operation::time::elapsed;
use crate::process::context::Context;
use crate::process::events::Note;
use crate::process::metrics::OperationResult;
use crate::run::kind::Kind;
use crate::run::outcome::Category;

/// What both controllers work with.
#[derive(Clone)]
pub struct Shared {
    /// The process's handles and settings.
    pub context: Context,
    /// What is known of the cluster.
    pub cache: Cache,
    /// Places for Pods.
    pub limiter: Arc<Limiter>,
    /// What this process has done and the watches have not shown yet.
    pub expectations: Arc<Expectations>,
    /// Limits of waiting.
    pub limits: Limits,
}

/// Carries out what was decided for a claim, as it was seen, with this record.
pub async fn claim(
    shared: &Shared,
    claim: &PersistentVolumeClaim,
    record: Option<Record>,
    decision: ClaimDecision,
) -> Result<Action, ApplyError> {
    let mut apply = Apply {
        shared,
        subject: Subject::Claim(Box::new(claim.clone())),
        record,
    };
    match apply.common(decision).await? {
        ControlFlow::Break(action) => Ok(action),
        ControlFlow::Continue(own) => match own {
            ForClaim::Accept(accept) => apply.accept(*accept).await,
            ForClaim::Refuse(refuse) => apply.refuse(*refuse).await,
            ForClaim::Reschedule(reschedule) => apply.reschedule(*reschedule).await,
            ForClaim::Undone(undone) => apply.undone(*undone).await,
        },
    }
}

/// Carries out what was decided for a PV, as it was seen, with this record.
pub async fn volume(
    shared: &Shared,
    volume: &PersistentVolume,
    record: Option<Record>,
    decision: VolumeDecision,
) -> Result<Action, ApplyError> {
    let mut apply = Apply {
        shared,
        subject: Subject::Volume(Box::new(volume.clone())),
        record,
    };
    match apply.common(decision).await? {
        ControlFlow::Break(action) => Ok(action),
        ControlFlow::Continue(ForVolume::LetGo(let_go)) => apply.let_go(*let_go).await,
    }
}

/// Carries out what was decided for a Pod that has neither claim nor PV.
pub async fn orphan(shared: &Shared, pod: &Pod, decision: OrphanDecision) -> Result<Action, ApplyError> {
    let mut apply = Apply {
        shared,
        subject: Subject::Orphan(Box::new(pod.clone())),
        record: None,
    };
    match apply.common(decision).await? {
        ControlFlow::Break(action) => Ok(action),
        ControlFlow::Continue(none) => match none {},
    }
}

/// The object that carries the record.
#[derive(Debug, Clone)]
enum Subject {
    /// A claim.
    Claim(Box<PersistentVolumeClaim>),
    /// A PV.
    Volume(Box<PersistentVolume>),
    /// A Pod without either; it has no record but itself.
    Orphan(Box<Pod>),
}

impl Subject {
    fn reference(&self) -> ObjectReference {
        match self {
            Self::Claim(claim) => claim.object_ref(&()),
            Self::Volume(volume) => volume.object_ref(&()),
            Self::Orphan(pod) => pod.object_ref(&()),
        }
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Claim(claim) => &claim.metadata,
            Self::Volume(volume) => &volume.metadata,
            Self::Orphan(pod) => &pod.metadata,
        }
    }
}

/// One decision being carried out.
struct Apply<'a> {
    shared: &'a Shared,
    subject: Subject,
    record: Option<Record>,
}

impl Apply<'_> {
    /// Carries out what can be decided for an object of any kind; gives back what is for its kind only.
    async fn common<Own>(&mut self, decision: Decision<Own>) -> Result<ControlFlow<Action, Own>, ApplyError> {
        let action = match decision {
            Decision::Own(own) => return Ok(ControlFlow::Continue(own)),
            Decision::Rest => Action::await_change(),
            Decision::Wait { after, say } => self.wait(after, say),
            Decision::Start(start) => self.start(*start).await?,
            Decision::Supply { start, after, say } => {
                let pod = self.supply(*start).await?;
                // The kubelet changes its words all the time; once is enough.
                let say = say.filter(|_| pod.is_some_and(|uid| self.shared.expectations.is_news(&uid)));
                self.wait(after, say)
            }
            Decision::Note(record) => {
                self.write_record(&record).await?;
                Action::await_change()
            }
            Decision::Fail(failed) => self.fail(*failed).await?,
            Decision::Stop(pod) => {
                self.delete_pod(&pod).await?;
                Action::await_change()
            }
            Decision::Tidy(pods) => self.tidy(&pods).await?,
        };
        Ok(ControlFlow::Break(action))
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

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.shared.context.client.clone(), namespace)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.shared.context.client.clone())
    }

    /// Changes the subject, and keeps what it has become.
    async fn patch(&mut self, patch: Value) -> Result<(), ApplyError> {
        self.patch_by(Patch::Merge(patch)).await
    }

    async fn patch_by(&mut self, patch: Patch<Value>) -> Result<(), ApplyError> {
        self.subject = match &self.subject {
            Subject::Claim(claim) => {
                let api = self.api(&claim.namespace().unwrap_or_default());
                Subject::Claim(Box::new(patched_by(&api, &claim.name_any(), patch).await?))
            }
            Subject::Volume(volume) => {
                Subject::Volume(Box::new(patched_by(&self.volumes(), &volume.name_any(), patch).await?))
            }
            Subject::Orphan(_) => return Ok(()),
        };
        self.shared.expectations.written(self.subject.meta());
        Ok(())
    }

    /// Writes the record, and with it the finalizer that holds a claim for as long as it has one.
    async fn write_record(&mut self, record: &Record) -> Result<(), ApplyError> {
        self.patch(self.record_patch(record)).await?;
        self.record = Some(record.clone());
        Ok(())
    }

    fn record_patch(&self, record: &Record) -> Value {
        let meta = self.subject.meta();
        let finalizer = match &self.subject {
            Subject::Claim(_) => finalizers::CLAIM,
            Subject::Volume(_) | Subject::Orphan(_) => finalizers::VOLUME,
        };
        let mut held = meta.finalizers.clone().unwrap_or_default();
        // What is being deleted takes no new finalizer, and had it before.
        if !held.iter().any(|name| name == finalizer) && meta.deletion_timestamp.is_none() {
            held.push(finalizer.to_owned());
        }
        json!({"metadata": {
            "resourceVersion": meta.resource_version,
            "finalizers": held,
            "annotations": {annotations::OPERATION: record.to_text()},
        }})
    }

    async fn fail(&mut self, failed: Failed) -> Result<Action, ApplyError> {
        let started = self.record.as_ref().map(|record| record.since);
        self.write_record(&failed.record).await?;
        let result = if failed.record.gave_up {
            OperationResult::GivenUp
        } else {
            OperationResult::Retry
        };
        self.count(failed.record.operation, result, failed.category, started.map(since));
        self.say(failed.say);
        if let Some(pod) = &failed.pod {
            self.delete_pod(pod).await?;
        }
        Ok(self.wait(failed.after, None))
    }

    fn count(&self, operation: Kind, result: OperationResult, category: Category, took: Option<Duration>) {
        let category = if result == OperationResult::Done {
            ""
        } else {
            category.as_str()
        };
        let took = took.unwrap_or_default();
        self.shared
            .context
            .metrics
            .operation_ended(operation.into(), result, category, took);
    }

    async fn delete_pod(&self, pod: &PodRef) -> Result<(), ApplyError> {
        if self.shared.expectations.is_deleted(&pod.uid) {
            return Ok(());
        }
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: pod.resource_version.clone(),
            }),
            ..DeleteParams::background()
        };
        let api: Api<Pod> = self.api(&pod.namespace);
        match api.delete(&pod.name, &params).await {
            Ok(_) => {
                self.shared.expectations.deleted(&pod.uid);
                Ok(())
            }
            Err(error) if is_not_found(&error) => Ok(()),
            // Usually another of its name is in its place by now; but a conflict is no proof of that.
            Err(error) if is_conflict(&error) && !self.is_there(&api, &pod.name, &pod.uid).await? => Ok(()),
            Err(error) if is_conflict(&error) => Err(ApplyError::Changed(pod.name.clone())),
            Err(source) => Err(ApplyError::api("delete Pod", &pod.name, source)),
        }
    }

    /// Whether the object of this name and uid is there, read from the API.
    async fn is_there<K>(&self, api: &Api<K>, name: &str, uid: &str) -> Result<bool, ApplyError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let live = api.get_metadata_opt(name).await;
        let live = live.map_err(|source| ApplyError::api("read", name, source))?;
        Ok(live.is_some_and(|live| live.metadata.uid.as_deref() == Some(uid)))
    }

    /// Removes Pods of operations that are over. What was watched of the claim may be older than its Pod, so it is read.
    async fn tidy(&self, pods: &[PodRef]) -> Result<Action, ApplyError> {
        let known = |pod: &PodRef| self.shared.expectations.is_deleted(&pod.uid);
        if pods.iter().all(known) {
            return Ok(Action::await_change());
        }
        if let Subject::Claim(claim) = &self.subject {
            let api: Api<PersistentVolumeClaim> = self.api(&claim.namespace().unwrap_or_default());
            let name = claim.name_any();
            let live = api
                .get_opt(&name)
                .await
                .map_err(|source| ApplyError::api("read claim", &name, source))?;
            let newer = live.is_some_and(|live| live.metadata.resource_version != claim.metadata.resource_version);
            if newer {
                return Ok(Action::requeue(Duration::from_secs(1)));
            }
        }
        for pod in pods {
            self.delete_pod(pod).await?;
        }
        Ok(Action::await_change())
    }

    async fn accept(&mut self, accept: Accept) -> Result<Action, ApplyError> {
        if let Some(patch) = accept.volume_patch {
            patched(&self.volumes(), &accept.pv_name, patch).await?;
        }
        self.patch_by(json_patch(accept.claim_patch)).await?;
        self.say(accept.say);
        self.count(
            Kind::Provision,
            OperationResult::Done,
            Category::Done,
            Some(accept.took),
        );
        for pod in &accept.pods {
            self.delete_pod(pod).await?;
        }
        Ok(Action::await_change())
    }

    async fn refuse(&mut self, refuse: Refuse) -> Result<Action, ApplyError> {
        let since_begin = self.record.as_ref().map(|record| since(record.since));
        if self.record.as_ref() != Some(&refuse.record) {
            self.write_record(&refuse.record).await?;
            if refuse.say.is_some() {
                self.count(Kind::Provision, OperationResult::Retry, Category::Refused, since_begin);
            }
        }
        for (name, uid) in &refuse.volumes {
            self.remove_volume(name, uid).await?;
        }
        self.say(refuse.say);
        if let Some(pod) = &refuse.pod {
            self.delete_pod(pod).await?;
        }
        Ok(Action::requeue(Duration::from_secs(1)))
    }

    async fn reschedule(&mut self, reschedule: Reschedule) -> Result<Action, ApplyError> {
        let mut patch = match &reschedule.record {
            Some(record) => self.record_patch(record),
            None => json!({"metadata": {"resourceVersion": self.subject.meta().resource_version}}),
        };
        patch["metadata"]["annotations"][annotations::SELECTED_NODE] = Value::Null;
        self.patch(patch).await?;
        self.say(reschedule.say);
        if let Some(pod) = &reschedule.pod {
            self.delete_pod(pod).await?;
        }
        Ok(Action::await_change())
    }

    async fn undone(&mut self, undone: Undone) -> Result<Action, ApplyError> {
        for (name, uid) in &undone.volumes {
            self.remove_volume(name, uid).await?;
        }
        self.say(undone.say);
        let mut patch = match &undone.next {
            Some(record) => self.record_patch(record),
            None => release(self.subject.meta()),
        };
        if undone.reschedule {
            patch["metadata"]["annotations"][annotations::SELECTED_NODE] = Value::Null;
        }
        self.patch(patch).await?;
        if let Some(took) = undone.took {
            self.count(Kind::Delete, OperationResult::Done, Category::Done, Some(took));
        }
        for pod in &undone.pods {
            self.delete_pod(pod).await?;
        }
        Ok(self.wait(undone.after, None))
    }

    async fn let_go(&mut self, let_go: LetGo) -> Result<Action, ApplyError> {
        let meta = self.subject.meta();
        let name = meta.name.clone().unwrap_or_default();
        let uid = meta.uid.clone().unwrap_or_default();
        let is_going = meta.deletion_timestamp.is_some();
        self.say(let_go.say);
        if let_go.delete && !is_going {
            self.delete_volume(&name, &uid).await?;
        }
        // Kubernetes takes its own finalizer off at the same time: so the API server is told which one to take, not what is
        // to be left, and of which PV, not of which version of it.
        let patch = json!({"metadata": {
            "uid": uid,
            "$deleteFromPrimitiveList/finalizers": [finalizers::VOLUME],
            "annotations": {annotations::OPERATION: null},
        }});
        match patched_by(&self.volumes(), &name, Patch::Strategic(patch)).await {
            Ok(_) | Err(ApplyError::Changed(_)) => {}
            Err(error) => match &error {
                ApplyError::Api { source, .. } if is_conflict(source) => {
                    if self.is_there(&self.volumes(), &name, &uid).await? {
                        return Err(error);
                    }
                }
                _ => return Err(error),
            },
        }
        self.shared.expectations.let_go(&uid);
        if !self.shared.cache.has_volume(&name, &uid) {
            self.shared.expectations.gone(&uid);
        }
        if let Some(took) = let_go.took {
            self.count(Kind::Delete, OperationResult::Done, Category::Done, Some(took));
        }
        for pod in &let_go.pods {
            self.delete_pod(pod).await?;
        }
        Ok(Action::await_change())
    }

    /// Removes a PV that must not be bound, whatever holds it.
    async fn remove_volume(&self, name: &str, uid: &str) -> Result<(), ApplyError> {
        self.delete_volume(name, uid).await?;
        // Kubernetes' own protection would keep a PV that has been bound meanwhile, and Pods could use it.
        let patch = json!({"metadata": {"uid": uid, "finalizers": null}});
        match patched(&self.volumes(), name, patch).await {
            Err(ApplyError::Changed(_)) => Ok(()),
            Err(ApplyError::Api { source, .. })
                if is_conflict(&source) && !self.is_there(&self.volumes(), name, uid).await? =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    async fn delete_volume(&self, name: &str, uid: &str) -> Result<(), ApplyError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.volumes().delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(source) if is_conflict(&source) && !self.is_there(&self.volumes(), name, uid).await? => Ok(()),
            Err(source) => Err(ApplyError::api("delete PersistentVolume", name, source)),
        }
    }

    /// An attempt that the API did not let begin: told and tried again like one that the image failed.
    async fn rejected(&mut self, record: &Record, state: String, error: &ApplyError) -> Result<Action, ApplyError> {
        let uid = self.subject.meta().uid.clone();
        let finish = crate::run::outcome::Finish {
            outcome: Outcome::Retry,
            category: Category::Api,
            words: error.chain(),
            may_have_run: false,
            started: false,
            message: String::new(),
        };
        let now = k8s_openapi::jiff::Timestamp::now();
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

/// Takes Mooring's record and finalizer off a claim, if it is as it was seen.
fn release(claim: &ObjectMeta) -> Value {
    let finalizers: Vec<_> = claim
        .finalizers
        .iter()
        .flatten()
        .filter(|name| *name != finalizers::CLAIM)
        .collect();
    json!({"metadata": {
        "resourceVersion": claim.resource_version,
        "finalizers": finalizers,
        "annotations": {annotations::OPERATION: null},
    }})
}

async fn patched<K>(api: &Api<K>, name: &str, patch: Value) -> Result<K, ApplyError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    patched_by(api, name, Patch::Merge(patch)).await
}

async fn patched_by<K>(api: &Api<K>, name: &str, patch: Patch<Value>) -> Result<K, ApplyError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let expects = matches!(patch, Patch::Json(_));
    let what = if K::kind(&()) == "PersistentVolume" {
        "patch PersistentVolume"
    } else {
        "patch claim"
    };
    api.patch(name, &params, &patch)
        .await
        .map_err(|source| match code(&source) {
            // Gone meanwhile, or another of its name in its place: what was to be done to it is settled.
            404 => ApplyError::Changed(name.to_owned()),
            // What a JSON patch expects is not so any more.
            422 if expects => ApplyError::Changed(name.to_owned()),
            _ => ApplyError::api(what, name, source),
        })
}

/// A JSON patch, which can say what it expects to find.
fn json_patch(operations: Value) -> Patch<Value> {
    Patch::Json(serde_json::from_value(operations).unwrap_or_default())
}

fn since(begin: k8s_openapi::jiff::Timestamp) -> Duration {
    elapsed(begin, k8s_openapi::jiff::Timestamp::now())
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    code(error) == 404
}

fn is_conflict(error: &kube::Error) -> bool {
    code(error) == 409
}
