//! Taking Mooring off a node: the mounter does it when its DaemonSet is deleted or does not select the node any more, or
//! somebody by hand.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use mooring_program::error::chain;
use mooring_program::node_selector;
use tracing::{info, warn};

use crate::agent::claims::{self, ClaimError};
use crate::api::own_node;
use crate::drivers::csi;
use crate::drivers::install::{ShimInstallError, uninstall};
use crate::drivers::plugin_directories::{PluginDirectory, PluginsError};
use crate::node::args::NodeArgs;
use crate::node::kubelet_root::KubeletRootError;
use crate::volume::mount_table::{Table, UnknownOwner};

/// Flags of `uninstall`.
#[derive(Debug, Clone, clap::Args)]
pub struct UninstallArgs {
    /// Where things are on the node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// Longest that the API may take to tell whether the DaemonSet is still wanted: the Pod's grace is running.
const API_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    #[error("{count} volumes are mounted on this node, such as {example:?}: delete the Pods that use them first")]
    Mounted { count: usize, example: PathBuf },
    #[error("failed to read the mount table: {0}")]
    Table(std::io::Error),
    #[error(transparent)]
    Owner(#[from] UnknownOwner),
    /// In the kubelet's mount namespace.
    #[error(transparent)]
    KubeletRoot(#[from] KubeletRootError),
    /// It is not known where they are.
    #[error(transparent)]
    Plugins(#[from] PluginsError),
    #[error(transparent)]
    Install(#[from] ShimInstallError),
    #[error(transparent)]
    Claims(#[from] ClaimError),
    #[error("failed to remove the sockets of the CSI driver beneath {root:?}")]
    Csi { root: PathBuf, source: std::io::Error },
}

/// `mounter uninstall`.
pub fn run(mut args: UninstallArgs) -> Result<(), UninstallError> {
    args.node.settle()?;
    remove(&args.node, Vec::new(), Unwanted::Deleted)
}

/// Why no mounter is to follow this one on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unwanted {
    Deleted,
    Unselected,
}

/// What a mounter that ends leaves on its node.
#[derive(Debug)]
pub enum Left {
    /// All: the next mounter uses it.
    All,
    Nothing,
    /// Nothing, on a node of which the scheduler has to know that no mounter is there any more, and why.
    NoMounter(String),
    /// What the kubelet has of Mooring, for this reason, and no mounter follows.
    Driver(String),
}

/// Removes shim and sockets, from the directories in which they are now, if the DaemonSet is gone or going or does not
/// select the node any more, and nothing is mounted.
pub async fn if_unwanted(
    client: Client,
    namespace: &str,
    daemonset: &str,
    node: &NodeArgs,
    node_name: Option<&str>,
    plugins: Vec<PluginDirectory>,
) -> Left {
    let asked = tokio::time::timeout(API_LIMIT, unwanted(client, namespace, daemonset, node_name)).await;
    let unwanted = match asked {
        Ok(Ok(None)) => return Left::All,
        Ok(Ok(Some(unwanted))) => unwanted,
        Ok(Err(error)) => {
            warn!(
                error = %chain(&error),
                "failed to see whether DaemonSet {daemonset} is still wanted here: the shim stays"
            );
            return Left::All;
        }
        Err(_) => {
            warn!(
                "the API did not answer within {API_LIMIT:?} whether DaemonSet {daemonset} is still wanted here: the \
                 shim stays"
            );
            return Left::All;
        }
    };
    let why = match unwanted {
        Unwanted::Deleted => format!("DaemonSet {daemonset} is deleted"),
        Unwanted::Unselected => {
            format!("DaemonSet {daemonset} does not select this node any more (nodeSelector, affinity)")
        }
    };
    match (remove(node, plugins, unwanted), unwanted) {
        (Err(error), _) => {
            let why = format!(
                "{why}, but the kubelet keeps Mooring's driver, which fails without a mounter: {}. Have a mounter run here \
                 until then",
                chain(&error)
            );
            warn!("{why}");
            Left::Driver(why)
        }
        (Ok(()), unwanted) => {
            info!("{why}: the shim is removed from the kubelet's plugin directory");
            match unwanted {
                Unwanted::Deleted => Left::Nothing,
                Unwanted::Unselected => Left::NoMounter(why),
            }
        }
    }
}

fn remove(node: &NodeArgs, plugins: Vec<PluginDirectory>, unwanted: Unwanted) -> Result<(), UninstallError> {
    let table = Table::read().map_err(UninstallError::Table)?;
    let mounted = table
        .volumes(node.kubelet_root())
        .map(|entry| entry.map(|entry| entry.mount_point.clone()));
    let mounted: Vec<_> = mounted.collect::<Result<_, _>>()?;
    if let Some(example) = mounted.first() {
        return Err(UninstallError::Mounted {
            count: mounted.len(),
            example: example.clone(),
        });
    }
    let root = node.kubelet_root();
    // Client Pods of a node that is not selected go on for a while, and hold locks there.
    if unwanted == Unwanted::Deleted {
        claims::remove_all(root)?;
    }
    csi::endpoint::remove(root).map_err(|source| UninstallError::Csi {
        root: root.to_owned(),
        source,
    })?;
    let found = if plugins.is_empty() {
        vec![PluginDirectory::find(node, None)?]
    } else {
        plugins
    };
    Ok(found.iter().try_for_each(uninstall)?)
}

async fn unwanted(
    client: Client,
    namespace: &str,
    daemonset: &str,
    node_name: Option<&str>,
) -> kube::Result<Option<Unwanted>> {
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let found = match api.get_opt(daemonset).await {
        Ok(Some(found)) if found.metadata.deletion_timestamp.is_none() => found,
        Ok(_) => return Ok(Some(Unwanted::Deleted)),
        // The account or its rights were deleted before the Pod. If it is wanted after all, the next mounter installs
        // the shim again.
        Err(kube::Error::Api(status)) if [401, 403].contains(&status.code) => return Ok(Some(Unwanted::Deleted)),
        Err(error) => return Err(error),
    };
    let Some(node_name) = node_name else { return Ok(None) };
    let there = own_node::read(&client, node_name).await?;
    let of_pods = found.spec.template.spec;
    let is_selected = of_pods.is_none_or(|pod| selects(&pod, &there));
    Ok((!is_selected).then_some(Unwanted::Unselected))
}

/// Whether a Pod may be on a node, by its `nodeSelector` and its required affinity: else the DaemonSet's controller
/// deletes it.
fn selects(pod: &PodSpec, node: &ObjectMeta) -> bool {
    let (labels, name) = (node.labels.clone().unwrap_or_default(), node.name.as_deref());
    let affinity = pod
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let mut selector = pod.node_selector.iter().flatten();
    selector.all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|required| node_selector::selects(required, name.unwrap_or_default(), &labels))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::selects;

    fn is_selected(pod: Value) -> bool {
        let node = json!({"name": "node-1", "labels": {"pool": "storage"}});
        let (mut pod, node) = (pod, serde_json::from_value(node).unwrap());
        pod["containers"] = json!([]);
        selects(&serde_json::from_value(pod).unwrap(), &node)
    }

    #[test]
    fn a_node_is_selected_by_its_labels_and_its_name_as_the_daemonset_s_controller_sees_it() {
        let by = |field: &str, key: &str, value: &str| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{field: [{"key": key, "operator": "In", "values": [value]}]}]}}}})
        };
        let mut both = by("matchExpressions", "pool", "storage");
        both["nodeSelector"] = json!({"pool": "other"});
        for (pod, expected) in [
            (json!({}), true),
            (json!({"nodeSelector": {"pool": "storage"}}), true),
            (json!({"nodeSelector": {"pool": "other"}}), false),
            (json!({"nodeSelector": {"pool": "storage", "disk": "ssd"}}), false),
            (by("matchExpressions", "pool", "storage"), true),
            (by("matchExpressions", "pool", "other"), false),
            (by("matchFields", "metadata.name", "node-1"), true),
            (by("matchFields", "metadata.name", "node-2"), false),
            (both, false),
        ] {
            assert_eq!(is_selected(pod.clone()), expected, "{pod}");
        }
    }
}
