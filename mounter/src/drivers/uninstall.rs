//! Taking Mooring off a node: by the mounter itself when its DaemonSet is deleted, or by hand.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{Api, Client};
use mooring_program::error::chain;
use tracing::{info, warn};

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
    #[error("failed to remove the sockets of the CSI driver beneath {root:?}")]
    Csi { root: PathBuf, source: std::io::Error },
}

/// `mounter uninstall`.
pub fn run(mut args: UninstallArgs) -> Result<(), UninstallError> {
    args.node.settle()?;
    remove(&args.node, Vec::new())
}

/// Removes shim and sockets, from the directories in which they are now, if the DaemonSet is gone or going, and nothing
/// is mounted any more; whether it is gone.
pub async fn if_unwanted(
    client: Client,
    namespace: &str,
    daemonset: &str,
    node: &NodeArgs,
    plugins: Vec<PluginDirectory>,
) -> bool {
    if !is_unwanted(client, namespace, daemonset).await {
        return false;
    }
    match remove(node, plugins) {
        Ok(()) => info!("DaemonSet {daemonset} is deleted: the shim is removed from the kubelet's plugin directory"),
        Err(error) => warn!(
            "DaemonSet {daemonset} is deleted, but the shim stays: {}",
            chain(&error)
        ),
    }
    true
}

fn remove(node: &NodeArgs, plugins: Vec<PluginDirectory>) -> Result<(), UninstallError> {
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

async fn is_unwanted(client: Client, namespace: &str, daemonset: &str) -> bool {
    let api: Api<DaemonSet> = Api::namespaced(client, namespace);
    match tokio::time::timeout(API_LIMIT, api.get_metadata_opt(daemonset)).await {
        Ok(Ok(None)) => true,
        Ok(Ok(Some(found))) => found.metadata.deletion_timestamp.is_some(),
        // The account or its rights were deleted before the Pod. If it is wanted after all, the next mounter installs
        // the shim again.
        Ok(Err(kube::Error::Api(status))) if [401, 403].contains(&status.code) => true,
        Ok(Err(error)) => {
            warn!(
                error = %chain(&error),
                "failed to see whether DaemonSet {daemonset} is still wanted: the shim stays"
            );
            false
        }
        Err(_) => {
            warn!(
                "the API did not answer within {API_LIMIT:?} whether DaemonSet {daemonset} still exists: the shim stays"
            );
            false
        }
    }
}
