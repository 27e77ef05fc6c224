//! The Pods of this node, as its kubelet may see them: all of them, or one that a volume is mounted for.
//!
//! RBAC has no right to read the Pods of only one node, but the node authorizer has. So the mounter impersonates its
//! own node for this one kind of request. The API server lets a client impersonate only the node in its own token (constrained
//! impersonation, `impersonate:associated-node`).

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams};

use crate::api;
use crate::volume::job::PodRef;

/// Pods in one answer.
const PAGE: u32 = 500;

/// The user that a node is, without its name.
const NODE_USER: &str = "system:node:";

/// Why the Pods are not known.
#[derive(Debug, thiserror::Error)]
pub enum NodePodsError {
    #[error("failed to make a client of the Kubernetes API in the name of node {node}: {source}")]
    Client { node: String, source: Box<kube::Error> },
    #[error(
        "failed to list the Pods of node {node} in its own name (it takes Kubernetes 1.36, feature \
         ConstrainedImpersonation, and the ClusterRole mooring-mounter): {source}"
    )]
    Api { node: String, source: Box<kube::Error> },
    #[error("the API's list of the Pods of node {node} lacks this Pod, so it may lack others: it is not used")]
    Incomplete { node: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePod {
    pub pod: PodRef,
    /// When its grace period ends, if it is being deleted.
    pub ends: Option<Timestamp>,
}

/// Asks for the Pods of this node in the node's name.
pub struct NodePods {
    client: Client,
    node: String,
    /// This Pod's namespace and name.
    own: (String, String),
}

/// A client in the name of `node`, which has to be the node in the configuration's token.
pub(super) fn client_as(mut config: kube::Config, node: &str) -> Result<Client, kube::Error> {
    config.auth_info.impersonate = Some(format!("{NODE_USER}{node}"));
    api::client(config)
}

impl NodePods {
    /// The Pods of `node`, which has to be the node in the configuration's token. `own` are namespace and name of this
    /// Pod.
    pub fn new(config: kube::Config, node: String, own: (String, String)) -> Result<Self, NodePodsError> {
        match client_as(config, &node) {
            Ok(client) => Ok(Self { client, node, own }),
            Err(source) => Err(NodePodsError::Client {
                node,
                source: Box::new(source),
            }),
        }
    }

    /// All of them, as they are now.
    ///
    /// # Errors
    /// Also if this Pod is not among them: a Pod that is missing counts as deleted.
    pub async fn list(&self) -> Result<Vec<NodePod>, NodePodsError> {
        let node = &self.node;
        match self.pages().await {
            Ok(seen) if has(&seen, &self.own) => Ok(seen),
            Ok(_) => Err(NodePodsError::Incomplete { node: node.clone() }),
            Err(source) => Err(NodePodsError::Api {
                node: node.clone(),
                source: Box::new(source),
            }),
        }
    }

    /// The one of this name, whatever its uid.
    pub async fn find(&self, pod: &PodRef) -> Result<Option<Pod>, NodePodsError> {
        // Who wrote an inline volume may have forged both names, and they are parts of a request.
        if !is_a_name(&pod.namespace) || !is_a_name(&pod.name) {
            return Ok(None);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let selector = format!("spec.nodeName={},metadata.name={}", self.node, pod.name);
        let listed = api.list(&ListParams::default().fields(&selector)).await;
        let listed = listed.map_err(|source| NodePodsError::Api {
            node: self.node.clone(),
            source: Box::new(source),
        })?;
        Ok(listed.items.into_iter().next())
    }

    async fn pages(&self) -> Result<Vec<NodePod>, kube::Error> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let mut params = ListParams::default()
            .fields(&format!("spec.nodeName={}", self.node))
            .limit(PAGE);
        let mut seen = Vec::new();
        loop {
            let page = api.list_metadata(&params).await?;
            seen.extend(page.items.into_iter().filter_map(|pod| {
                Some(NodePod {
                    pod: PodRef {
                        name: pod.metadata.name?,
                        namespace: pod.metadata.namespace?,
                        uid: pod.metadata.uid?,
                    },
                    ends: pod.metadata.deletion_timestamp.map(|time| time.0),
                })
            }));
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => return Ok(seen),
            }
        }
    }
}

/// Whether a text can be the name of a Pod or a namespace.
fn is_a_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
        && text.bytes().any(|b| b != b'.')
}

/// Whether the Pod with this namespace and name is among them.
fn has(seen: &[NodePod], (namespace, name): &(String, String)) -> bool {
    seen.iter()
        .any(|seen| seen.pod.namespace == *namespace && seen.pod.name == *name)
}

#[cfg(test)]
mod tests {
    use super::{NodePod, has, is_a_name};
    use crate::volume::job::PodRef;

    #[test]
    fn a_forged_name_is_no_part_of_a_request() {
        assert!(is_a_name("web-0") && is_a_name("a.b"));
        for forged in ["", "..", "a/../b", "a,spec.nodeName=b", "a?b", "A", "a%2fb"] {
            assert!(!is_a_name(forged), "{forged}");
        }
    }

    #[test]
    fn an_answer_that_lacks_this_pod_is_ignored() {
        let seen = |namespace: &str, name: &str| NodePod {
            pod: PodRef {
                name: name.into(),
                namespace: namespace.into(),
                uid: "u-1".into(),
            },
            ends: None,
        };
        let own = ("mooring".to_owned(), "mounter-x".to_owned());
        assert!(has(&[seen("shop", "web"), seen("mooring", "mounter-x")], &own));
        assert!(!has(&[seen("shop", "mounter-x"), seen("mooring", "mounter-y")], &own));
        assert!(!has(&[], &own));
    }
}
