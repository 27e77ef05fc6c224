//! The Kubernetes API of [`super::Attachments`]: the PV, the controllers' public keys, and the mounter's own Node.

use std::collections::BTreeSet;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use mooring_contract::names::annotations::{NODE_ATTACHED_PREFIX, NODE_NOTES_ATTACHED, TAKES_SIGNED};
use mooring_contract::names::{CONNECTION_KEYS, MOUNTER};
use mooring_seal::signature::PublicKeys;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::AttachmentApi;

/// The API itself.
pub struct ClusterAttachments {
    client: Client,
    /// Mooring's.
    namespace: String,
    node: String,
}

impl ClusterAttachments {
    pub fn new(client: Client, namespace: String, node: String) -> Self {
        Self {
            client,
            namespace,
            node,
        }
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

    async fn keys(&self) -> Result<PublicKeys, kube::Error> {
        let configs: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let published = configs.get_opt(CONNECTION_KEYS).await?;
        Ok(PublicKeys::published(
            published.and_then(|published| published.data).unwrap_or_default(),
        ))
    }

    async fn note(&self, volume: &str, used: bool) -> Result<(), kube::Error> {
        let value = if used { json!("used") } else { Value::Null };
        self.patched(json!({NODE_NOTES_ATTACHED: TAKES_SIGNED, format!("{NODE_ATTACHED_PREFIX}{volume}"): value}))
            .await
            .map(drop)
    }

    async fn noted(&self) -> Result<BTreeSet<String>, kube::Error> {
        // The mounter may patch its Node, and not read it: the answer has what is there.
        let node = self.patched(json!({NODE_NOTES_ATTACHED: TAKES_SIGNED})).await?;
        let noted = node.annotations().keys().filter(|key| *key != NODE_NOTES_ATTACHED);
        Ok(noted
            .filter_map(|key| key.strip_prefix(NODE_ATTACHED_PREFIX).map(str::to_owned))
            .collect())
    }
}
