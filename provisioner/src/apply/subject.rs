//! The object that a decision is about. What differs from one kind of object to the next is decided here: a new kind is
//! one more [`Subject`].

use std::convert::Infallible;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt};
use mooring_contract::names::annotations;
use mooring_contract::request::Request;
use serde_json::{Value, json};

use super::Apply;
use super::error::ApplyError;
use crate::cache::work_queue::WorkItem;
use crate::config::ProvisionerConfig;
use crate::operation::attach::nodes::VolumeNodes;
use crate::operation::decision::{ForClaim, ForVolume, Start};
use crate::operation::describe::{Effect, SubjectKind, describe};
use crate::operation::record::Record;
use crate::operation::{expand, modify};
use crate::process::call::{GONE, Tolerant as _};
use crate::process::objects::{Kind, Objects};
use crate::run::Run;
use crate::volume::content_view::ContentView;
use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::snapshot::VolumeSnapshotContent;

/// An object that asks for operations, and carries their record. What has none, as a ConfigMap and an orphaned run,
/// leaves out all that is about writing one.
pub(crate) trait Subject: Clone + Send + Sync {
    /// The steps that only such objects have.
    type Own: Send;

    /// What it is, in the descriptions of the operations; an orphan is the subject of none.
    const KIND: Option<SubjectKind>;

    fn meta(&self) -> &ObjectMeta;

    /// The object that its Events are about.
    fn reference(&self) -> ObjectReference;

    /// Who is woken when there is a place for the run of this request.
    fn target(&self, request: &Request) -> WorkItem;

    fn take(own: Self::Own, apply: &mut Apply<'_, Self>) -> impl Future<Output = Result<Action, ApplyError>> + Send;

    /// What it has become after this patch.
    fn patched(&self, _client: &Client, _patch: Patch<Value>) -> impl Future<Output = Result<Self, ApplyError>> + Send {
        let name = self.meta().name.clone().unwrap_or_default();
        std::future::ready(Err(ApplyError::NoRecord(name)))
    }

    /// What the API has of this name now. What has no record says nothing that could be newer.
    fn read(&self, _client: &Client) -> impl Future<Output = Result<Option<Self>, ApplyError>> + Send {
        std::future::ready(Ok(Some(self.clone())))
    }

    /// The PV, if it is one.
    fn volume(&self) -> Option<&PersistentVolume> {
        None
    }

    /// The content of a snapshot or a group, if it is one.
    fn content(&self) -> Option<ContentView<'_>> {
        None
    }

    /// Has the patch that writes this record say the same in other words: in one write, so that the object never says
    /// one without the other.
    fn complete(&self, _record: &Record, _patch: &mut Value) {}

    /// The patch that writes the record, and with it the finalizer that holds the object for as long as it has one.
    fn record_patch(&self, record: &Record) -> Value {
        let meta = self.meta();
        let mut held = meta.finalizers.clone().unwrap_or_default();
        // What is being deleted takes no new finalizer, and had it before.
        if let Some(finalizer) = Self::KIND.and_then(SubjectKind::finalizer)
            && !held.iter().any(|name| name == finalizer)
            && meta.deletion_timestamp.is_none()
        {
            held.push(finalizer.to_owned());
        }
        let mut patch = json!({"metadata": {
            "resourceVersion": meta.resource_version,
            "finalizers": held,
            "annotations": {annotations::OPERATION: record.to_text()},
        }});
        self.complete(record, &mut patch);
        patch
    }

    /// The patch that writes the record before a run. What is asked to take a snapshot stays on its content: by then
    /// the volume may be gone.
    fn intent_patch(&self, start: &Start) -> Value {
        let mut patch = self.record_patch(&start.record);
        if self.content().is_some() && describe(start.run.operation).effect == Effect::TakesSnapshot {
            let notes = &mut patch["metadata"]["annotations"];
            notes[annotations::REQUEST] = json!(json!(start.request).to_string());
            notes[annotations::CONFIG] = json!(start.config.reference.to_string());
        }
        patch
    }

    /// The patch that takes record and finalizer off, if the object is as it was seen.
    fn release_patch(&self) -> Value {
        let own = Self::KIND.and_then(SubjectKind::finalizer);
        let others = self.meta().finalizers.iter().flatten();
        let others: Vec<_> = others.filter(|name| Some(name.as_str()) != own).collect();
        let mut patch = self.taken_patch();
        patch["metadata"]["finalizers"] = json!(others);
        patch
    }

    /// The patch that takes off only the record.
    fn taken_patch(&self) -> Value {
        json!({"metadata": {
            "resourceVersion": self.meta().resource_version,
            "annotations": {annotations::OPERATION: null},
        }})
    }
}

impl Subject for PersistentVolumeClaim {
    type Own = ForClaim;
    const KIND: Option<SubjectKind> = Some(SubjectKind::Claim);

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn reference(&self) -> ObjectReference {
        self.object_ref(&())
    }

    fn target(&self, _request: &Request) -> WorkItem {
        WorkItem::Claim(self.namespace().unwrap_or_default(), self.name_any())
    }

    async fn take(own: ForClaim, apply: &mut Apply<'_, Self>) -> Result<Action, ApplyError> {
        apply.claim_step(own).await
    }

    async fn patched(&self, client: &Client, patch: Patch<Value>) -> Result<Self, ApplyError> {
        patched(&claims(self, client), &self.name_any(), patch).await
    }

    async fn read(&self, client: &Client) -> Result<Option<Self>, ApplyError> {
        Ok(claims(self, client).read(&self.name_any()).await?)
    }

    fn complete(&self, record: &Record, patch: &mut Value) {
        let effect = describe(record.operation).effect;
        if effect == Effect::ExpandsVolume {
            patch["status"] = expand::of_record(self, record, Timestamp::now());
            patch["metadata"]["annotations"][annotations::NODE_EXPANSION_NOT_REQUIRED] = Value::Null;
        }
        if effect == Effect::ModifiesVolume {
            patch["status"] = modify::of_record(self, record, Timestamp::now());
        }
    }
}

fn claims(claim: &PersistentVolumeClaim, client: &Client) -> Objects<PersistentVolumeClaim> {
    Objects::within(client, &claim.namespace().unwrap_or_default())
}

impl Subject for PersistentVolume {
    type Own = ForVolume;
    const KIND: Option<SubjectKind> = Some(SubjectKind::Volume);

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    /// Of a bound PV its claim.
    fn reference(&self) -> ObjectReference {
        let bound = self.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let claim = self.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
        claim.filter(|_| bound).unwrap_or_else(|| self.object_ref(&()))
    }

    fn target(&self, _request: &Request) -> WorkItem {
        WorkItem::Volume(self.name_any())
    }

    async fn take(own: ForVolume, apply: &mut Apply<'_, Self>) -> Result<Action, ApplyError> {
        apply.volume_step(own).await
    }

    async fn patched(&self, client: &Client, patch: Patch<Value>) -> Result<Self, ApplyError> {
        patched(&Objects::all(client), &self.name_any(), patch).await
    }

    async fn read(&self, client: &Client) -> Result<Option<Self>, ApplyError> {
        Ok(Objects::all(client).read(&self.name_any()).await?)
    }

    fn volume(&self) -> Option<&PersistentVolume> {
        Some(self)
    }

    /// What was deferred is this record now.
    fn complete(&self, record: &Record, patch: &mut Value) {
        let is_of_node = matches!(
            describe(record.operation).effect,
            Effect::AttachesVolume | Effect::DetachesVolume
        );
        let nodes = VolumeNodes::of(self);
        if is_of_node && nodes.deferred_of(&record.node).is_some() {
            patch["metadata"]["annotations"][annotations::DEFERRED] = json!(nodes.deferred_without(&record.node));
        }
    }
}

/// The content of a snapshot, or of a group.
macro_rules! content {
    ($kind:ident, $subject:ident, $item:ident) => {
        impl Subject for $kind {
            type Own = Infallible;
            const KIND: Option<SubjectKind> = Some(SubjectKind::$subject);

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            /// The user's `VolumeSnapshot` or `VolumeGroupSnapshot`, once there is one.
            fn reference(&self) -> ObjectReference {
                let of_user = ContentView::from(self).of.clone();
                if of_user.uid.as_deref().unwrap_or_default().is_empty() {
                    self.object_ref(&())
                } else {
                    of_user
                }
            }

            fn target(&self, _request: &Request) -> WorkItem {
                WorkItem::$item(self.name_any())
            }

            async fn take(own: Infallible, _apply: &mut Apply<'_, Self>) -> Result<Action, ApplyError> {
                match own {}
            }

            async fn patched(&self, client: &Client, patch: Patch<Value>) -> Result<Self, ApplyError> {
                patched(&Objects::all(client), &self.name_any(), patch).await
            }

            async fn read(&self, client: &Client) -> Result<Option<Self>, ApplyError> {
                Ok(Objects::all(client).read(&self.name_any()).await?)
            }

            fn content(&self) -> Option<ContentView<'_>> {
                Some(self.into())
            }

            /// While the mark is there, other tools know that there may be a snapshot already.
            fn complete(&self, record: &Record, patch: &mut Value) {
                if describe(record.operation).effect == Effect::TakesSnapshot {
                    patch["metadata"]["annotations"][ContentView::from(self).being_created()] = json!("yes");
                }
            }
        }
    };
}

content!(VolumeSnapshotContent, Snapshot, Snapshot);
content!(VolumeGroupSnapshotContent, Group, Group);

/// The metadata of a provisioner ConfigMap. Its runs are their own record, and nothing is written on it.
#[derive(Debug, Clone)]
pub(crate) struct ConfigMeta(ObjectMeta);

impl From<&ProvisionerConfig> for ConfigMeta {
    fn from(config: &ProvisionerConfig) -> Self {
        Self(ObjectMeta {
            namespace: Some(config.reference.namespace.clone()),
            name: Some(config.reference.name.clone()),
            uid: Some(config.uid.clone()),
            ..ObjectMeta::default()
        })
    }
}

impl Subject for ConfigMeta {
    type Own = Infallible;
    const KIND: Option<SubjectKind> = Some(SubjectKind::Config);

    fn meta(&self) -> &ObjectMeta {
        &self.0
    }

    fn reference(&self) -> ObjectReference {
        let Self(meta) = self;
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(SubjectKind::Config.name().to_owned()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        }
    }

    fn target(&self, _request: &Request) -> WorkItem {
        WorkItem::Configs
    }

    async fn take(own: Infallible, _apply: &mut Apply<'_, Self>) -> Result<Action, ApplyError> {
        match own {}
    }
}

/// A run that belongs to nothing; it is its own record, and nothing is written on it.
impl Subject for Run {
    type Own = Infallible;
    const KIND: Option<SubjectKind> = None;

    fn meta(&self) -> &ObjectMeta {
        self.meta()
    }

    fn reference(&self) -> ObjectReference {
        self.object_ref()
    }

    fn target(&self, request: &Request) -> WorkItem {
        WorkItem::Volume(request.pv_name.clone())
    }

    async fn take(own: Infallible, _apply: &mut Apply<'_, Self>) -> Result<Action, ApplyError> {
        match own {}
    }
}

/// What the API has of this very object now; `None` if it is gone.
pub(super) async fn live<K: Subject>(subject: &K, client: &Client) -> Result<Option<K>, ApplyError> {
    let live = subject.read(client).await?;
    Ok(live.filter(|live| live.meta().uid == subject.meta().uid))
}

/// Patches an object. That it is gone is [`ApplyError::Changed`]: what was to be done to it is settled, also if another
/// has its name by now.
pub(super) async fn patched<K: Kind>(objects: &Objects<K>, name: &str, patch: Patch<Value>) -> Result<K, ApplyError> {
    // This way metadata can be written too, but no spec (`persistentvolumeclaimStatusStrategy` in
    // `pkg/registry/core/persistentvolumeclaim`).
    let by_status = matches!(&patch, Patch::Merge(patch) if patch.get("status").is_some());
    let patched = if by_status {
        objects.patch_status(name, &patch).await
    } else {
        objects.patch(name, &patch).await
    };
    patched
        .unless(GONE)?
        .ok_or_else(|| ApplyError::Changed(name.to_owned()))
}
