//! Taking Mooring off a node: by the mounter itself when its DaemonSet is deleted, or by hand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{Api, Client};
use tracing::{info, warn};

use crate::args::UninstallArgs;
use crate::install::{InstallError, uninstall};
use crate::mount_table::Table;

/// Longest that the API may take to tell whether the DaemonSet is still wanted: the Pod's grace is running.
const API_LIMIT: Duration = Duration::from_secs(5);

/// Why the shim was not removed.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// Volumes are mounted, and only the mounter can unmount them.
    #[error("{count} volumes are mounted on this node, such as {example:?}: delete the Pods that use them first")]
    Mounted {
        /// How many.
        count: usize,
        /// One of them.
        example: PathBuf,
    },
    /// The mount table can't be read.
    #[error("failed to read the mount table: {0}")]
    Table(std::io::Error),
    /// The files can't be removed.
    #[error(transparent)]
    Install(#[from] InstallError),
}

/// `mounter uninstall`.
pub fn run(args: &UninstallArgs) -> Result<(), UninstallError> {
    remove(&args.node.plugin_dir, &args.node.kubelet_root)
}

/// Removes shim and socket if the DaemonSet is gone or going, and nothing is mounted any more; whether it is gone.
pub async fn if_unwanted(
    client: Client,
    namespace: &str,
    daemonset: &str,
    plugin_dir: &Path,
    kubelet_root: &Path,
) -> bool {
    if !is_unwanted(client, namespace, daemonset).await {
        return false;
    }
    match remove(plugin_dir, kubelet_root) {
        Ok(()) => info!("DaemonSet {daemonset} is deleted: the shim is removed from the kubelet's plugin directory"),
        Err(error) => warn!("DaemonSet {daemonset} is deleted, but the shim stays: {error}"),
    }
    true
}

fn remove(plugin_dir: &Path, kubelet_root: &Path) -> Result<(), UninstallError> {
    let table = Table::read().map_err(UninstallError::Table)?;
    let mounted: Vec<_> = table
        .volumes(kubelet_root)
        .map(|entry| entry.mount_point.clone())
        .collect();
    if let Some(example) = mounted.first() {
        return Err(UninstallError::Mounted {
            count: mounted.len(),
            example: example.clone(),
        });
    }
    Ok(uninstall(plugin_dir)?)
}

async fn is_unwanted(client: Client, namespace: &str, daemonset: &str) -> bool {
    let api: Api<DaemonSet> = Api::namespaced(client, namespace);
    match tokio::time::timeout(API_LIMIT, api.get_metadata_opt(daemonset)).await {
        Ok(Ok(None)) => true,
        Ok(Ok(Some(found))) => found.metadata.deletion_timestamp.is_some(),
        // The account or its rights were deleted before the Pod. If it is wanted after all, the next mounter installs the
        // shim again.
        Ok(Err(kube::Error::Api(status))) if [401, 403].contains(&status.code) => true,
        Ok(Err(error)) => {
            warn!(%error, "failed to see whether DaemonSet {daemonset} is still wanted: the shim stays");
            false
        }
        Err(_) => {
            warn!(
                "the API did not say within {API_LIMIT:?} whether DaemonSet {daemonset} is still wanted: the shim stays"
            );
            false
        }
    }
}
