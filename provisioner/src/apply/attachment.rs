//! The connections of a volume that is attached: on the PV, signed for their nodes, with secrets that only the key in
//! the volume's Secret opens.
//!
//! The nodes and their connections are one annotation, which one patch writes if the PV is as it was when this was
//! decided. The key changes only then, too. So a controller that acts on old knowledge writes neither.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use mooring_contract::attachment::{AttachedNodes, AttachedTo, CONNECTION, Connection, VolumeKey};
use mooring_contract::names::{FLEX_DRIVER, annotations, labels};
use mooring_contract::operation::Operation;
use mooring_seal::signature::signer_of;
use mooring_seal::{Purpose, new_key, open, seal};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::{Apply, ApplyError, Subject};
use crate::operation::attach::nodes::VolumeNodes;
use crate::operation::attach::secret_of;
use crate::operation::decision::{Attached, Detached};
use crate::operation::record::Record;
use crate::process::call::{CHANGED, GONE, TAKEN, Tolerant as _};
use crate::process::objects::{Objects, as_read};
use crate::run::RunId;
use crate::run::begin::answer_key;
use crate::run::error::RunError;
use crate::run::input_state::InputState;
use crate::text::owned;
use crate::volume::persistent_volume::made_for;

/// Makes the Secret, with a new key; one that exists stays as it is.
pub(super) async fn make_secret(client: &Client, namespace: &str, name: &str) -> Result<(), ApplyError> {
    let secret = Secret {
        data: Some(new_data()?),
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(owned([
                (labels::COMPONENT, labels::COMPONENT_ATTACHMENT),
                (labels::MANAGED_BY, labels::MANAGED_BY_MOORING),
            ])),
            ..ObjectMeta::default()
        },
        type_: Some(FLEX_DRIVER.to_owned()),
        ..Secret::default()
    };
    Objects::within(client, namespace).create(&secret).await.unless(TAKEN)?;
    Ok(())
}

pub(super) async fn remove_secret(client: &Client, namespace: &str, name: &str) -> Result<(), ApplyError> {
    let secrets: Objects<Secret> = Objects::within(client, namespace);
    secrets.delete(name, &DeleteParams::default()).await.unless(GONE)?;
    Ok(())
}

/// What a volume's Secret has: a key that nobody knows yet.
fn new_data() -> Result<BTreeMap<String, ByteString>, RunError> {
    let key = VolumeKey { key: new_key()? };
    Ok([(CONNECTION.to_owned(), ByteString(json!(key).to_string().into_bytes()))].into())
}

/// The key of a volume. Where somebody deleted or emptied the Secret, there is a new one, and this is to be tried
/// again.
async fn volume_key(client: &Client, namespace: &str, name: &str) -> Result<VolumeKey, ApplyError> {
    let secrets: Objects<Secret> = Objects::within(client, namespace);
    let found = secrets.read(name).await?;
    let meta = found.as_ref().map(|found| found.metadata.clone());
    let data = found.and_then(|found| found.data).unwrap_or_default();
    let key = data.get(CONNECTION).map(|key| serde_json::from_slice(&key.0));
    if let Some(Ok(key)) = key {
        return Ok(key);
    }
    if let Some(meta) = meta {
        // As it was read: another controller may have made it anew.
        secrets.delete(name, &as_read(&meta)).await.unless(CHANGED)?;
    }
    make_secret(client, namespace, name).await?;
    Err(ApplyError::Changed(name.to_owned()))
}

/// Gives the volume a new key: what its nodes were told can't be opened any more, and no node that had it can open what
/// the next one is told.
///
/// A node may have been told with the present key since this was decided, so the Secret is read first, then it is seen
/// that the PV is still as it was, and then the Secret is changed as it was read.
async fn change_key(client: &Client, volume: &PersistentVolume) -> Result<(), ApplyError> {
    let Some((namespace, name)) = secret_of(volume) else {
        return Ok(());
    };
    let secrets: Objects<Secret> = Objects::within(client, &namespace);
    let Some(found) = secrets.meta(&name).await? else {
        // The next attachment makes it.
        return Ok(());
    };
    let volumes: Objects<PersistentVolume> = Objects::all(client);
    let pv_name = volume.name_any();
    let live = volumes.meta(&pv_name).await?;
    if live.is_none_or(|live| live.resource_version != volume.metadata.resource_version) {
        return Err(ApplyError::Changed(pv_name));
    }
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": found.resource_version},
        {"op": "add", "path": "/data", "value": new_data()?},
    ]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap_or_default());
    let is_changed = match secrets.patch(&name, &patch).await.unless(CHANGED) {
        Ok(patched) => patched.is_none(),
        // Not what the patch expects any more; otherwise a policy refuses it, and goes on refusing.
        Err(error) if error.code() == 422 => {
            let live = secrets.meta(&name).await?;
            if live.and_then(|live| live.resource_version) == found.resource_version {
                return Err(error.into());
            }
            true
        }
        Err(error) => return Err(error.into()),
    };
    if is_changed {
        return Err(ApplyError::Changed(name));
    }
    Ok(())
}

/// The keys with which the connections of a volume are signed, by id.
fn signers(volume: &PersistentVolume) -> Vec<String> {
    let nodes = VolumeNodes::of(volume).attached.0;
    let signers = nodes.iter().map(|to| signer_of(&to.connection).to_owned());
    signers.collect()
}

impl Apply<'_, PersistentVolume> {
    /// Says on the PV which node has the volume, and to that node how it reaches it.
    pub(super) async fn attached(&mut self, attached: Attached) -> Result<Action, ApplyError> {
        let volume = &*self.subject;
        let secrets = match &attached.answered.sealed {
            Some(sealed) => match (self.opened(&attached, sealed).await, self.record.clone()) {
                (Ok(secrets), _) => secrets,
                // An attempt that failed: the next run seals with a new key.
                (Err(error @ ApplyError::Run(RunError::Seal(_) | RunError::NoAnswerKey(_))), Some(record)) => {
                    return self.rejected(&record, InputState::Unknown, &error).await;
                }
                (Err(error), _) => return Err(error),
            },
            None => BTreeMap::new(),
        };
        let nodes = VolumeNodes::of(volume);
        let others = if nodes.for_many {
            nodes.attached
        } else {
            AttachedNodes::default()
        };
        let to = self.signed(volume, &attached, &secrets).await?;
        let nodes = others.with(&to);
        self.patch(self.attached_patch(&nodes)).await?;
        self.say(attached.say);
        self.done(Operation::Attach, Some(attached.took), &attached.runs).await
    }

    /// Says on the PV that the node does not have the volume.
    pub(super) async fn detached(&mut self, detached: Detached) -> Result<Action, ApplyError> {
        let volume = &*self.subject;
        let nodes = VolumeNodes::of(volume);
        let lost = self.record.as_ref().map_or("", |record| record.node.as_str());
        let kept = nodes.attached.without(lost);
        if kept.0.is_empty() {
            change_key(&self.shared.context.client, volume).await?;
        }
        self.patch(self.attached_patch(&kept)).await?;
        // The watch brings the change, and the next node may be waiting for it.
        self.done(Operation::Detach, Some(detached.took), &detached.runs).await
    }

    /// Puts what is open aside for another node's turn. Its node does not count as one that has the volume.
    pub(super) async fn deferred(&mut self, record: &Record) -> Result<Action, ApplyError> {
        let volume = &*self.subject;
        let nodes = VolumeNodes::of(volume);
        let mut patch = self.attached_patch(&nodes.attached.without(&record.node));
        patch["metadata"]["annotations"][annotations::DEFERRED] = json!(nodes.deferred_with(record));
        self.patch(patch).await?;
        // The watch brings the change.
        Ok(Action::await_change())
    }

    /// The patch that takes off the record of an attachment, and says which nodes have the volume.
    fn attached_patch(&self, nodes: &AttachedNodes) -> Value {
        let mut patch = self.subject.taken_patch();
        patch["metadata"]["annotations"][annotations::ATTACHED_TO] = json!(nodes.to_text());
        patch
    }

    /// The node of an attachment, with its connection.
    async fn signed(
        &self,
        volume: &PersistentVolume,
        attached: &Attached,
        secrets: &BTreeMap<String, String>,
    ) -> Result<AttachedTo, ApplyError> {
        let pv_name = volume.name_any();
        let client = &self.shared.context.client;
        let Some((namespace, name)) = secret_of(volume) else {
            return Err(ApplyError::Changed(pv_name));
        };
        let key = volume_key(client, &namespace, &name).await?;
        let node = attached.to.node.clone();
        let purpose = Purpose {
            pv_name: &pv_name,
            node: &node,
        };
        let sealed = seal(&key.key, purpose, secrets).map_err(RunError::from)?;
        // Numbers that grow with each write, by the API's own rules.
        let version = volume.resource_version().unwrap_or_default();
        let connection = Connection {
            volume_uid: volume.uid().unwrap_or_default(),
            serial: version.parse().unwrap_or_default(),
            options: attached.answered.options.clone(),
            sealed,
            node,
            volume: pv_name,
        };
        let all = &self.shared.cache.volumes;
        let in_use = || all.state().iter().flat_map(|volume| signers(volume)).collect();
        let own_namespace = &self.shared.context.settings.namespace;
        let key = self.shared.signer.key(client, own_namespace, in_use).await?;
        let signed = key.sign(&connection).map_err(RunError::from)?;
        Ok(AttachedTo {
            connection: signed,
            ..attached.to.clone()
        })
    }

    async fn opened(&self, attached: &Attached, sealed: &str) -> Result<BTreeMap<String, String>, ApplyError> {
        let volume = &*self.subject;
        let pv_name = volume.name_any();
        let place = self.record.as_ref().and_then(|record| record.run.split_once('/'));
        let namespace = place.map_or("", |(namespace, _)| namespace);
        let id = RunId::new(Operation::Attach, made_for(volume).unwrap_or_default());
        let run = self.shared.cache.run(namespace, &id);
        let run = run.ok_or_else(|| ApplyError::Changed(id.name()))?;
        let key = answer_key(&self.shared.context.client, &self.shared.cache.workers, &run).await?;
        let purpose = Purpose {
            pv_name: &pv_name,
            node: &attached.to.node,
        };
        Ok(open(key.expose_secret(), purpose, sealed).map_err(RunError::from)?)
    }
}
