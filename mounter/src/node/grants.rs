//! The Kubernetes API of [`crate::grant::granter`]: a PersistentVolume by its name, and a Pod of this node.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client};

use super::node_pods::NodePods;
use crate::grant::granter::{ApiError, GrantApi, PodSeen};
use crate::volume::job::PodRef;

/// The mounter was not told which node it is on.
#[derive(Debug, thiserror::Error)]
#[error("the mounter does not know its node and Pod: set --node-name and --pod-name (NODE_NAME, POD_NAME)")]
struct NoNode;

/// The API itself.
pub struct ClusterGrants {
    volumes: Api<PersistentVolume>,
    pods: Option<Arc<NodePods>>,
}

impl ClusterGrants {
    pub fn new(client: Client, pods: Option<Arc<NodePods>>) -> Self {
        Self {
            volumes: Api::all(client),
            pods,
        }
    }
}

#[async_trait]
impl GrantApi for ClusterGrants {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, ApiError> {
        Ok(self.volumes.get_opt(name).await?)
    }

    async fn pod(&self, pod: &PodRef) -> Result<PodSeen, ApiError> {
        let pods = self.pods.as_ref().ok_or(NoNode)?;
        Ok(pods.find(pod).await?)
    }
}
