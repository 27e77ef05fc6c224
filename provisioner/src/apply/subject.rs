//! The object that a decision is about. What differs from one kind of object to the next is decided here: a new kind is
//! an arm of each function.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use mooring_contract::attachment::AttachedNodes;
use mooring_contract::names::{FIELD_MANAGER, annotations};
use mooring_contract::request::Request;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::ApplyError;
use crate::cache::work_queue::WorkItem;
use crate::config::ProvisionerConfig;
use crate::operation::attach::nodes::VolumeNodes;
use crate::operation::decision::Start;
use crate::operation::describe::{Effect, SubjectKind, describe};
use crate::operation::record::Record;
use crate::operation::{expand, modify};
use crate::process::call::{CallError, code};
use crate::run::Run;
use crate::volume::content_view::ContentView;
use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::snapshot::VolumeSnapshotContent;

/// The object that carries the record.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    Claim(Box<PersistentVolumeClaim>),
    Volume(Box<PersistentVolume>),
    Snapshot(Box<VolumeSnapshotContent>),
    Group(Box<VolumeGroupSnapshotContent>),
    /// The metadata of a provisioner ConfigMap. Its runs are their own record, and nothing is written on it.
    Config(Box<ObjectMeta>),
    /// A run that has none of them; it is its own record, and nothing is written on it.
    Orphan(Run),
}

impl From<&PersistentVolumeClaim> for Subject {
    fn from(claim: &PersistentVolumeClaim) -> Self {
        Self::Claim(Box::new(claim.clone()))
    }
}

impl From<&PersistentVolume> for Subject {
    fn from(volume: &PersistentVolume) -> Self {
        Self::Volume(Box::new(volume.clone()))
    }
}

impl From<&VolumeSnapshotContent> for Subject {
    fn from(content: &VolumeSnapshotContent) -> Self {
        Self::Snapshot(Box::new(content.clone()))
    }
}

impl From<&VolumeGroupSnapshotContent> for Subject {
    fn from(content: &VolumeGroupSnapshotContent) -> Self {
        Self::Group(Box::new(content.clone()))
    }
}

impl From<&ProvisionerConfig> for Subject {
    fn from(config: &ProvisionerConfig) -> Self {
        Self::Config(Box::new(ObjectMeta {
            namespace: Some(config.reference.namespace.clone()),
            name: Some(config.reference.name.clone()),
            uid: Some(config.uid.clone()),
            ..ObjectMeta::default()
        }))
    }
}

impl From<&Run> for Subject {
    fn from(run: &Run) -> Self {
        Self::Orphan(run.clone())
    }
}

impl Subject {
    /// What it is, in the descriptions of the operations; an orphan is the subject of none.
    fn kind(&self) -> Option<SubjectKind> {
        match self {
            Self::Claim(_) => Some(SubjectKind::Claim),
            Self::Volume(_) => Some(SubjectKind::Volume),
            Self::Snapshot(_) => Some(SubjectKind::Snapshot),
            Self::Group(_) => Some(SubjectKind::Group),
            Self::Config(_) => Some(SubjectKind::Config),
            Self::Orphan(_) => None,
        }
    }

    /// The content of a snapshot or a group, if it is one.
    pub(super) fn content(&self) -> Option<ContentView<'_>> {
        match self {
            Self::Snapshot(content) => Some(content.as_ref().into()),
            Self::Group(content) => Some(content.as_ref().into()),
            Self::Claim(_) | Self::Volume(_) | Self::Config(_) | Self::Orphan(_) => None,
        }
    }

    /// The object that its Events are about: of a content the user's `VolumeSnapshot` or `VolumeGroupSnapshot`, once
    /// there is one, of a bound PV its claim.
    pub(super) fn reference(&self) -> ObjectReference {
        let of_user = self.content().map(|content| content.of.clone());
        let of_user = of_user.filter(|of| !of.uid.as_deref().unwrap_or_default().is_empty());
        match self {
            Self::Snapshot(content) => of_user.unwrap_or_else(|| content.object_ref(&())),
            Self::Group(content) => of_user.unwrap_or_else(|| content.object_ref(&())),
            Self::Claim(claim) => claim.object_ref(&()),
            Self::Volume(volume) => {
                let bound = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
                let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
                claim.filter(|_| bound).unwrap_or_else(|| volume.object_ref(&()))
            }
            Self::Config(meta) => config_reference(meta),
            Self::Orphan(run) => run.object_ref(),
        }
    }

    pub(super) fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Claim(claim) => &claim.metadata,
            Self::Volume(volume) => &volume.metadata,
            Self::Snapshot(content) => &content.metadata,
            Self::Group(content) => &content.metadata,
            Self::Config(meta) => meta,
            Self::Orphan(run) => run.meta(),
        }
    }

    /// Who is woken when there is a place for the run of this request.
    pub(super) fn target(&self, request: &Request) -> WorkItem {
        match self {
            Self::Claim(claim) => WorkItem::Claim(claim.namespace().unwrap_or_default(), claim.name_any()),
            Self::Volume(volume) => WorkItem::Volume(volume.name_any()),
            Self::Snapshot(content) => WorkItem::Snapshot(content.name_any()),
            Self::Group(content) => WorkItem::Group(content.name_any()),
            Self::Config(_) => WorkItem::Configs,
            Self::Orphan(_) => WorkItem::Volume(request.pv_name.clone()),
        }
    }

    /// What it has become after this patch.
    pub(super) async fn patched(&self, client: &Client, patch: Patch<Value>) -> Result<Self, ApplyError> {
        Ok(match self {
            Self::Claim(claim) => {
                let api = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
                Self::Claim(Box::new(
                    patched(&api, SubjectKind::Claim, &claim.name_any(), patch).await?,
                ))
            }
            Self::Volume(volume) => {
                let api = Api::all(client.clone());
                Self::Volume(Box::new(
                    patched(&api, SubjectKind::Volume, &volume.name_any(), patch).await?,
                ))
            }
            Self::Snapshot(content) => {
                let api = Api::all(client.clone());
                Self::Snapshot(Box::new(
                    patched(&api, SubjectKind::Snapshot, &content.name_any(), patch).await?,
                ))
            }
            Self::Group(content) => {
                let api = Api::all(client.clone());
                Self::Group(Box::new(
                    patched(&api, SubjectKind::Group, &content.name_any(), patch).await?,
                ))
            }
            Self::Config(_) | Self::Orphan(_) => {
                return Err(ApplyError::NoRecord(self.meta().name.clone().unwrap_or_default()));
            }
        })
    }

    /// What the API has of this very object now; `None` if it is gone.
    pub(super) async fn live(&self, client: &Client) -> Result<Option<ObjectMeta>, ApplyError> {
        let live = match self {
            Self::Claim(claim) => {
                let api: Api<PersistentVolumeClaim> =
                    Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
                read(&api, SubjectKind::Claim, &claim.name_any()).await?
            }
            Self::Volume(volume) => {
                let api: Api<PersistentVolume> = Api::all(client.clone());
                read(&api, SubjectKind::Volume, &volume.name_any()).await?
            }
            Self::Snapshot(content) => {
                let api: Api<VolumeSnapshotContent> = Api::all(client.clone());
                read(&api, SubjectKind::Snapshot, &content.name_any()).await?
            }
            Self::Group(content) => {
                let api: Api<VolumeGroupSnapshotContent> = Api::all(client.clone());
                read(&api, SubjectKind::Group, &content.name_any()).await?
            }
            // What has no record says nothing that could be newer.
            Self::Config(_) | Self::Orphan(_) => Some(self.meta().clone()),
        };
        Ok(live.filter(|live| live.uid == self.meta().uid))
    }

    /// The patch that writes the record, and with it the finalizer that holds the object for as long as it has one.
    pub(super) fn record_patch(&self, record: &Record) -> Value {
        let meta = self.meta();
        let mut held = meta.finalizers.clone().unwrap_or_default();
        // What is being deleted takes no new finalizer, and had it before.
        if let Some(finalizer) = self.kind().and_then(SubjectKind::finalizer)
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
        match (self, describe(record.operation).effect) {
            // Both in one write: the claim never says one without the other.
            (Self::Claim(claim), Effect::ExpandsVolume) => {
                patch["status"] = expand::of_record(claim, record, Timestamp::now());
                patch["metadata"]["annotations"][annotations::NODE_EXPANSION_NOT_REQUIRED] = Value::Null;
            }
            (Self::Claim(claim), Effect::ModifiesVolume) => {
                patch["status"] = modify::of_record(claim, record, Timestamp::now());
            }
            // What was deferred is this record now.
            (Self::Volume(volume), Effect::AttachesVolume | Effect::DetachesVolume) => {
                let nodes = VolumeNodes::of(volume);
                if nodes.deferred_of(&record.node).is_some() {
                    patch["metadata"]["annotations"][annotations::DEFERRED] =
                        json!(nodes.deferred_without(&record.node));
                }
            }
            // While the mark is there, other tools know that there may be a snapshot already.
            (Self::Snapshot(_), Effect::TakesSnapshot) => {
                patch["metadata"]["annotations"][annotations::SNAPSHOT_BEING_CREATED] = json!("yes");
            }
            (Self::Group(_), Effect::TakesSnapshot) => {
                patch["metadata"]["annotations"][annotations::GROUP_BEING_CREATED] = json!("yes");
            }
            (
                Self::Claim(_),
                Effect::MakesVolume
                | Effect::RemovesVolume
                | Effect::TakesSnapshot
                | Effect::RemovesSnapshot
                | Effect::AttachesVolume
                | Effect::DetachesVolume
                | Effect::KeepsAll,
            )
            | (
                Self::Snapshot(_) | Self::Group(_),
                Effect::MakesVolume
                | Effect::RemovesVolume
                | Effect::ExpandsVolume
                | Effect::ModifiesVolume
                | Effect::RemovesSnapshot
                | Effect::AttachesVolume
                | Effect::DetachesVolume
                | Effect::KeepsAll,
            )
            | (Self::Volume(_) | Self::Config(_) | Self::Orphan(_), _) => {}
        }
        patch
    }

    /// The patch that writes the record before a run. What is asked to take a snapshot stays on its content: by then
    /// the volume may be gone.
    pub(super) fn intent_patch(&self, start: &Start) -> Value {
        let mut patch = self.record_patch(&start.record);
        if self.content().is_some() && describe(start.run.operation).effect == Effect::TakesSnapshot {
            let notes = &mut patch["metadata"]["annotations"];
            notes[annotations::REQUEST] = json!(json!(start.request).to_string());
            notes[annotations::CONFIG] = json!(start.config.reference.to_string());
        }
        patch
    }

    /// The patch that takes record and finalizer off, if the object is as it was seen.
    pub(super) fn release_patch(&self) -> Value {
        let meta = self.meta();
        let own = self.kind().and_then(SubjectKind::finalizer);
        let others = meta.finalizers.iter().flatten();
        let others: Vec<_> = others.filter(|name| Some(name.as_str()) != own).collect();
        json!({"metadata": {
            "resourceVersion": meta.resource_version,
            "finalizers": others,
            "annotations": {annotations::OPERATION: null},
        }})
    }

    /// The patch that takes off the record of an attachment, and says which nodes have the volume.
    pub(super) fn attached_patch(&self, nodes: &AttachedNodes) -> Value {
        json!({"metadata": {
            "resourceVersion": self.meta().resource_version,
            "annotations": {
                annotations::OPERATION: null,
                annotations::ATTACHED_TO: nodes.to_text(),
            },
        }})
    }

    /// The patch that takes off only the record, of a snapshot or a group that exists now.
    pub(super) fn taken_patch(&self) -> Value {
        json!({"metadata": {
            "resourceVersion": self.meta().resource_version,
            "annotations": {annotations::OPERATION: null},
        }})
    }
}

/// The provisioner ConfigMap that has this metadata.
fn config_reference(meta: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(SubjectKind::Config.name().to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Patches an object. That it is gone, or is not as the patch expects, is [`ApplyError::Changed`].
pub(super) async fn patched<K>(
    api: &Api<K>,
    kind: SubjectKind,
    name: &str,
    patch: Patch<Value>,
) -> Result<K, ApplyError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let expects = matches!(patch, Patch::Json(_));
    // This way metadata can be written too, but no spec (`persistentvolumeclaimStatusStrategy` in
    // `pkg/registry/core/persistentvolumeclaim`).
    let by_status = match &patch {
        Patch::Merge(patch) => patch.get("status").is_some(),
        _ => false,
    };
    let answer = if by_status {
        api.patch_status(name, &params, &patch).await
    } else {
        api.patch(name, &params, &patch).await
    };
    answer.map_err(|source| match code(&source) {
        // Gone meanwhile, or another of its name in its place: what was to be done to it is settled.
        404 => ApplyError::Changed(name.to_owned()),
        // What a JSON patch expects is not so any more.
        422 if expects => ApplyError::Changed(name.to_owned()),
        _ => CallError::new("patch", kind.name(), name, source).into(),
    })
}

async fn read<K>(api: &Api<K>, kind: SubjectKind, name: &str) -> Result<Option<ObjectMeta>, ApplyError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let live = api.get_metadata_opt(name).await;
    let live = live.map_err(|source| CallError::new("read", kind.name(), name, source))?;
    Ok(live.map(|live| live.metadata))
}
