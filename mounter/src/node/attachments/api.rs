//! The Kubernetes API of [`super::Attachments`]: the PV and the mounter's own Node as itself, the Secret in the name of
//! its node.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Secret};
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use mooring_contract::names::MOUNTER;
use mooring_contract::names::annotations::{NODE_ATTACHED_PREFIX, NODE_NOTES_ATTACHED};
use serde_json::{Value, json};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{AttachmentApi, Data, SecretError};

/// What a Node says whose mounter notes the volumes that it uses.
const NOTED: &str = "true";

/// How long to wait where a change can't be watched.
const BLIND: Duration = Duration::from_secs(1);

/// The API itself.
pub struct ClusterAttachments {
    client: Client,
    /// In the name of the node, if that is allowed.
    as_node: Option<Client>,
    node: String,
}

impl ClusterAttachments {
    pub fn new(client: Client, as_node: Option<Client>, node: String) -> Self {
        Self { client, as_node, node }
    }

    fn secrets(&self, namespace: &str) -> Option<Api<Secret>> {
        Some(Api::namespaced(self.as_node.clone()?, namespace))
    }

    /// Removes the annotation that this node's mounter notes which volumes it uses: the mounter goes for good. What is
    /// noted stays, since it may still be mounted.
    pub async fn withdraw(&self) {
        match self.patched(json!({NODE_NOTES_ATTACHED: Value::Null})).await {
            Ok(_) => info!("removed annotation {NODE_NOTES_ATTACHED} from the node"),
            Err(error) => warn!(%error, "failed to remove annotation {NODE_NOTES_ATTACHED} from the node"),
        }
    }

    async fn patched(&self, annotations: Value) -> Result<Node, kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let params = PatchParams {
            field_manager: Some(format!("{MOUNTER}-attachments")),
            ..PatchParams::default()
        };
        let patch = json!({"metadata": {"annotations": annotations}});
        nodes.patch(&self.node, &params, &Patch::Merge(patch)).await
    }
}

#[async_trait]
impl AttachmentApi for ClusterAttachments {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error> {
        Api::all(self.client.clone()).get_opt(name).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Data, SecretError> {
        let secrets = self.secrets(namespace).ok_or(SecretError::NotAsNode)?;
        match secrets.get(name).await {
            Ok(secret) => Ok(Data {
                version: secret.resource_version().unwrap_or_default(),
                values: secret
                    .data
                    .unwrap_or_default()
                    .into_iter()
                    .map(|(key, value)| (key, value.0))
                    .collect(),
            }),
            Err(kube::Error::Api(status)) if status.code == 403 => Err(SecretError::Forbidden(status.message)),
            Err(error) => Err(error.into()),
        }
    }

    async fn changed(&self, namespace: &str, name: &str, version: &str) {
        let Some(secrets) = self.secrets(namespace).filter(|_| !version.is_empty()) else {
            return sleep(BLIND).await;
        };
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        let Ok(events) = secrets.watch_metadata(&params, version).await else {
            return sleep(BLIND).await;
        };
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(WatchEvent::Bookmark(_)) => {}
                Ok(WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_)) => return,
                Ok(WatchEvent::Error(_)) | Err(_) => break,
            }
        }
        sleep(BLIND).await;
    }

    async fn note(&self, volume: &str, used: bool) -> Result<(), kube::Error> {
        let value = if used { json!("used") } else { Value::Null };
        self.patched(json!({NODE_NOTES_ATTACHED: NOTED, format!("{NODE_ATTACHED_PREFIX}{volume}"): value}))
            .await
            .map(drop)
    }

    async fn noted(&self) -> Result<BTreeSet<String>, kube::Error> {
        // The mounter may patch its Node, and not read it: the answer has what is there.
        let node = self.patched(json!({NODE_NOTES_ATTACHED: NOTED})).await?;
        let noted = node.annotations().keys().filter(|key| *key != NODE_NOTES_ATTACHED);
        Ok(noted
            .filter_map(|key| key.strip_prefix(NODE_ATTACHED_PREFIX).map(str::to_owned))
            .collect())
    }
}
