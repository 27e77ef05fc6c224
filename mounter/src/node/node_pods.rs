//! The Pods of this node, as its kubelet may see them: all of them, or one that a volume is mounted for.
//!
//! RBAC has no right to read the Pods of only one node, but the node authorizer has. So the mounter impersonates its
//! own node for this one kind of request. The API server lets a client impersonate only the node in its own token (constrained
//! impersonation, `impersonate:associated-node`).

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams};
use mooring_program::error::answer_of;

use crate::api;
use crate::grant::granter::PodSeen;
use crate::volume::job::PodRef;

/// Pods in one answer.
const PAGE: u32 = 500;

/// The first minor version of Kubernetes 1 in which constrained impersonation is on by default.
const FIRST_WITH_IMPERSONATION: u32 = 36;

/// The user that a node is, without its name.
const NODE_USER: &str = "system:node:";

/// Why the Pods are not known.
#[derive(Debug, thiserror::Error)]
pub enum NodePodsError {
    #[error(
        "failed to make a client of the Kubernetes API in the name of node {node}: {}",
        answer_of(source)
    )]
    Client { node: String, source: Box<kube::Error> },
    #[error(
        "failed to list the Pods of node {node} in its own name (it takes Kubernetes 1.36, feature \
         ConstrainedImpersonation, and the ClusterRole mooring-mounter): {}",
        answer_of(source)
    )]
    Api { node: String, source: Box<kube::Error> },
    #[error(
        "failed to learn whether the API server can show the Pods of node {node} alone: {}",
        answer_of(source)
    )]
    Version { node: String, source: Box<kube::Error> },
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
    /// The mounter's own name: it may see the Pods of Mooring's namespace, and of others that an administrator lets it.
    own_client: Client,
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
        match api::client(config.clone()).and_then(|own_client| Ok((client_as(config, &node)?, own_client))) {
            Ok((client, own_client)) => Ok(Self {
                client,
                own_client,
                node,
                own,
            }),
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
    pub async fn find(&self, pod: &PodRef) -> Result<PodSeen, NodePodsError> {
        // Who wrote an inline volume may have forged both names, and they are parts of a request.
        if !is_a_name(&pod.namespace) || !is_a_name(&pod.name) {
            return Ok(PodSeen::Missing);
        }
        match self.find_as(&self.client, pod).await {
            Err(error) if is_forbidden(&error) && self.is_before_impersonation().await? => {
                match self.find_as(&self.own_client, pod).await {
                    Err(error) if is_forbidden(&error) => Ok(PodSeen::Hidden),
                    found => found,
                }
            }
            found => found,
        }
        .map_err(|source| NodePodsError::Api {
            node: self.node.clone(),
            source: Box::new(source),
        })
    }

    async fn find_as(&self, client: &Client, pod: &PodRef) -> Result<PodSeen, kube::Error> {
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
        let selector = format!("spec.nodeName={},metadata.name={}", self.node, pod.name);
        let listed = api.list(&ListParams::default().fields(&selector)).await?;
        let found = listed.items.into_iter().next();
        Ok(found.map_or(PodSeen::Missing, |pod| PodSeen::There(Box::new(pod))))
    }

    /// Whether the API server is of a version that has no constrained impersonation.
    async fn is_before_impersonation(&self) -> Result<bool, NodePodsError> {
        let version = self.own_client.apiserver_version().await;
        let version = version.map_err(|source| NodePodsError::Version {
            node: self.node.clone(),
            source: Box::new(source),
        })?;
        Ok(is_before_impersonation(&version.major, &version.minor))
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

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Vendors of Kubernetes add to the number, as in `33+`.
fn is_before_impersonation(major: &str, minor: &str) -> bool {
    let minor = minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    major == "1" && minor.parse().is_ok_and(|minor: u32| minor < FIRST_WITH_IMPERSONATION)
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
    use super::{NodePod, has, is_a_name, is_before_impersonation};
    use crate::volume::job::PodRef;

    #[test]
    fn a_forged_name_is_no_part_of_a_request() {
        assert!(is_a_name("web-0") && is_a_name("a.b"));
        for forged in ["", "..", "a/../b", "a,spec.nodeName=b", "a?b", "A", "a%2fb"] {
            assert!(!is_a_name(forged), "{forged}");
        }
    }

    #[test]
    fn only_a_server_of_before_1_36_can_t_show_the_pods_of_a_node_alone() {
        for (minor, is_before) in [("33", true), ("35+", true), ("36", false), ("37+", false), ("", false)] {
            assert_eq!(is_before_impersonation("1", minor), is_before, "{minor}");
        }
        assert!(!is_before_impersonation("2", "0"));
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
