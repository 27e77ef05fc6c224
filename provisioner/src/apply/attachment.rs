//! The connection of a volume that is attached: a Secret that its nodes alone read, and what the PV says of it.
//!
//! The Secret has no record of its own. So each write to it first reads it, then sees that the PV is still as it was
//! when this was decided, and then expects the Secret as it was read. A controller that acts on old knowledge fails at
//! one of the two: a controller that acted in between changed the PV first and the Secret second.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use mooring_contract::attachment::{AttachedNodes, CONNECTION, Connection, NodeConnection};
use mooring_contract::names::{FIELD_MANAGER, FLEX_DRIVER, annotations, labels};
use mooring_contract::operation::Operation;
use mooring_seal::{Purpose, new_key, open};
use secrecy::ExposeSecret;
use serde_json::json;

use super::{Apply, ApplyError, Shared, Subject};
use crate::operation::attach::nodes::VolumeNodes;
use crate::operation::attach::secret_of;
use crate::operation::decision::{Attached, Detached};
use crate::operation::record::Record;
use crate::process::call::{CallError, code, is_conflict, is_not_found};
use crate::process::metrics::OperationResult;
use crate::run::RunId;
use crate::run::begin::answer_key;
use crate::run::error::RunError;
use crate::run::outcome::Category;
use crate::volume::persistent_volume::made_for;

/// Makes the Secret, with a connection of no node; one that exists stays as it is.
pub(super) async fn make_secret(client: &Client, namespace: &str, name: &str) -> Result<(), ApplyError> {
    let connection = Connection {
        proof: new_key().map_err(RunError::from)?,
        ..Connection::default()
    };
    let connection = ByteString(json!(connection).to_string().into_bytes());
    let secret = Secret {
        data: Some([(CONNECTION.to_owned(), connection)].into()),
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(
                [
                    (labels::COMPONENT, labels::COMPONENT_ATTACHMENT),
                    (labels::MANAGED_BY, labels::MANAGED_BY_MOORING),
                ]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ),
            ..ObjectMeta::default()
        },
        type_: Some(FLEX_DRIVER.to_owned()),
        ..Secret::default()
    };
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match api.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(()),
        Err(error) if is_conflict(&error) => Ok(()),
        Err(source) => Err(CallError::new("create", "Secret", name, source).into()),
    }
}

pub(super) async fn remove_secret(client: &Client, namespace: &str, name: &str) -> Result<(), ApplyError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(source) => Err(CallError::new("delete", "Secret", name, source).into()),
    }
}

/// The connection in a Secret's data, if there is one that can be read.
fn connection_in(data: &BTreeMap<String, ByteString>) -> Option<Connection> {
    serde_json::from_slice(&data.get(CONNECTION)?.0).ok()
}

/// What the Secret of a volume says: the connection, and the secrets of the only node that it is for.
#[derive(Default)]
struct Told {
    connection: Connection,
    secrets: BTreeMap<String, String>,
}

/// Has the Secret of a volume say what `change` makes of the connection there, and nothing else.
async fn write(
    shared: &Shared,
    volume: &PersistentVolume,
    change: impl FnOnce(Connection) -> Told,
) -> Result<(), ApplyError> {
    let Some((namespace, name)) = secret_of(volume) else {
        return Ok(());
    };
    let client = &shared.context.client;
    let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let found = api.get_opt(&name).await;
    let found = found.map_err(|source| CallError::new("read", "Secret", &name, source))?;
    let old = found.as_ref().and_then(|found| connection_in(found.data.as_ref()?));
    let (Some(found), Some(old)) = (found, old) else {
        // Somebody deleted or emptied it.
        remove_secret(client, &namespace, &name).await?;
        make_secret(client, &namespace, &name).await?;
        return Err(ApplyError::Changed(name));
    };
    let proof = old.proof.clone();
    let told = change(old);
    let connection = Connection {
        proof,
        ..told.connection
    };
    let data: BTreeMap<_, _> = told
        .secrets
        .into_iter()
        .chain([(CONNECTION.to_owned(), json!(connection).to_string())])
        .map(|(key, text)| (key, ByteString(text.into_bytes())))
        .collect();
    if found.data.as_ref() == Some(&data) {
        return Ok(());
    }
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let pv_name = volume.name_any();
    let live = volumes.get_metadata_opt(&pv_name).await;
    let live = live.map_err(|source| CallError::new("read", "PersistentVolume", &pv_name, source))?;
    if live.is_none_or(|live| live.metadata.resource_version != volume.metadata.resource_version) {
        return Err(ApplyError::Changed(pv_name));
    }
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version},
        {"op": "add", "path": "/data", "value": data},
    ]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap_or_default());
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    match api.patch(&name, &params, &patch).await {
        Ok(_) => Ok(()),
        // Gone, changed meanwhile, or not what the patch expects any more.
        Err(error) if matches!(code(&error), 404 | 409 | 422) => Err(ApplyError::Changed(name)),
        Err(source) => Err(CallError::new("patch", "Secret", &name, source).into()),
    }
}

/// A connection of several nodes, with what this one is told.
fn with_node(
    old: Connection,
    node: String,
    options: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
) -> Told {
    let mut nodes = old.nodes;
    nodes.insert(node, NodeConnection { options, secrets });
    of_nodes(nodes)
}

fn without_node(old: Connection, node: &str) -> Told {
    let mut nodes = old.nodes;
    nodes.remove(node);
    of_nodes(nodes)
}

fn of_nodes(nodes: BTreeMap<String, NodeConnection>) -> Told {
    Told {
        connection: Connection {
            nodes,
            ..Connection::default()
        },
        ..Told::default()
    }
}

impl Apply<'_> {
    /// Hands the connection to the node, then says on the PV which node has the volume.
    pub(super) async fn attached(&mut self, attached: Attached) -> Result<Action, ApplyError> {
        let Subject::Volume(volume) = &self.subject else {
            return Ok(Action::await_change());
        };
        let secrets = match &attached.answered.sealed {
            Some(sealed) => match (self.opened(&attached, sealed).await, self.record.clone()) {
                (Ok(secrets), _) => secrets,
                // An attempt that failed: the next run seals with a new key.
                (Err(error @ ApplyError::Run(RunError::Seal(_) | RunError::NoAnswerKey(_))), Some(record)) => {
                    return self.rejected(&record, String::new(), &error).await;
                }
                (Err(error), _) => return Err(error),
            },
            None => BTreeMap::new(),
        };
        let VolumeNodes {
            attached: others,
            for_many,
            ..
        } = VolumeNodes::of(volume);
        let node = attached.to.node.clone();
        let options = attached.answered.options.clone();
        let nodes = if for_many {
            write(self.shared, volume, |old| with_node(old, node, options, secrets)).await?;
            others.with(&attached.to)
        } else {
            let connection = Connection {
                node,
                options,
                ..Connection::default()
            };
            write(self.shared, volume, |_| Told { connection, secrets }).await?;
            AttachedNodes::default().with(&attached.to)
        };
        self.patch(self.subject.attached_patch(&nodes)).await?;
        self.say(attached.say);
        self.count(
            Operation::Attach,
            OperationResult::Done,
            Category::Done,
            Some(attached.took),
        );
        for run in &attached.runs {
            self.remove(run).await?;
        }
        Ok(Action::await_change())
    }

    /// Takes the connection away, then says on the PV that the node does not have the volume.
    pub(super) async fn detached(&mut self, detached: Detached) -> Result<Action, ApplyError> {
        let Subject::Volume(volume) = &self.subject else {
            return Ok(Action::await_change());
        };
        let nodes = VolumeNodes::of(volume);
        let lost = self.record.as_ref().map_or("", |record| record.node.as_str());
        let kept = nodes.attached.without(lost);
        if nodes.for_many {
            write(self.shared, volume, |old| without_node(old, lost)).await?;
        } else if kept.0.is_empty() {
            // Else it is one that had the volume beside the node that it is attached to.
            write(self.shared, volume, |_| Told::default()).await?;
        }
        self.patch(self.subject.attached_patch(&kept)).await?;
        self.count(
            Operation::Detach,
            OperationResult::Done,
            Category::Done,
            Some(detached.took),
        );
        for run in &detached.runs {
            self.remove(run).await?;
        }
        // The watch brings the change, and the next node may be waiting for it.
        Ok(Action::await_change())
    }

    /// Puts what is open aside for another node's turn. Its node does not count as one that has the volume.
    pub(super) async fn deferred(&mut self, record: &Record) -> Result<Action, ApplyError> {
        let Subject::Volume(volume) = &self.subject else {
            return Ok(Action::await_change());
        };
        let nodes = VolumeNodes::of(volume);
        let mut patch = self.subject.attached_patch(&nodes.attached.without(&record.node));
        patch["metadata"]["annotations"][annotations::DEFERRED] = json!(nodes.deferred_with(record));
        self.patch(patch).await?;
        // The watch brings the change.
        Ok(Action::await_change())
    }

    async fn opened(&self, attached: &Attached, sealed: &str) -> Result<BTreeMap<String, String>, ApplyError> {
        let Subject::Volume(volume) = &self.subject else {
            return Ok(BTreeMap::new());
        };
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
