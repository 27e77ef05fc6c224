//! What is known of a volume that has to be attached, and of the nodes that it is about.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;

use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::operation::limits::Limits;
use crate::operation::record::Record;
use crate::run::Run;

/// What is known of a PV whose volume has to be attached.
pub struct ObservedAttachment<'a> {
    pub volume: &'a PersistentVolume,
    pub record: Option<&'a Record>,
    pub class: Option<&'a StorageClass>,
    /// The ConfigMap in force for it.
    pub config: &'a Result<Arc<ProvisionerConfig>, NoConfig>,
    pub attach_run: Option<&'a Run>,
    pub detach_run: Option<&'a Run>,
    /// Nodes with Pods that use it, the one that has waited longest first. None of a volume that is not bound.
    pub wanted: &'a [String],
    /// The nodes that were asked for.
    pub nodes: &'a [ObservedNode],
    /// Address of the Kubernetes API, for the image.
    pub kube_api: &'a str,
    pub limits: &'a Limits,
}

/// A node as the API has it now, in answer to a [`Look`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedNode {
    pub name: String,
    /// What there is of it; `None` if its Node is gone.
    pub there: Option<NodeFacts>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub uid: String,
    pub addresses: Vec<String>,
    /// What its cloud calls it; empty where its Node does not say.
    pub provider_id: String,
    /// Its administrator says that it is gone for good.
    pub out_of_service: bool,
    /// Its mounter says that the volume is mounted there, or is about to be.
    pub in_use: bool,
    pub mounter: NodeMounter,
}

/// What a node's mounter says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NodeMounter {
    /// It is missing, or of a version that does not say which volumes it uses.
    #[default]
    Silent,
    /// It says so, and takes connections from Secrets.
    Older,
    /// It takes connections that a controller signed.
    Current,
}

/// What has to be known before anything can be decided: a node, read from the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub node: String,
}

impl ObservedNode {
    /// Whether the node is gone for good: what its mounter said last counts for nothing.
    pub fn is_gone(&self) -> bool {
        self.there.as_ref().is_none_or(|node| node.out_of_service)
    }

    /// Whether the volume is used there, as far as is known.
    pub fn uses_it(&self) -> bool {
        // Where nothing is said, nothing is known.
        !self.is_gone()
            && self
                .there
                .as_ref()
                .is_some_and(|node| node.in_use || node.mounter == NodeMounter::Silent)
    }

    /// What its cloud calls it; empty if nobody says, or the Node does not exist.
    pub fn provider_id(&self) -> &str {
        self.there.as_ref().map_or("", |node| &node.provider_id)
    }

    /// Its addresses; none if the Node does not exist.
    pub fn addresses(&self) -> Vec<String> {
        self.there
            .as_ref()
            .map(|node| node.addresses.clone())
            .unwrap_or_default()
    }
}
