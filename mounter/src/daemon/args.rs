//! Flags of `mounter serve`.
//!
//! # What the mounter's Pod needs
//! | | |
//! | --- | --- |
//! | host path | `/var/lib/kubelet` at the same path, `mountPropagation: Bidirectional`, wherever the kubelet's root is: see [`crate::node::kubelet_root`] |
//! | host path | `/dev`, for loop devices as they appear, and `/dev/fuse` |
//! | host path | `/var/lib/mooring` (`DirectoryOrCreate`), parent of `--pool-dir` |
//! | emptyDir in memory | `--kept-dir`: what is mounted through client containers, with its Secrets |
//! | security context | `privileged: true` (Bidirectional needs it), `hostPID: true` (to find the kubelet's namespaces and its plugin directory, where shim and socket go) |
//! | environment | `NODE_NAME`, `POD_NAME`, `POD_NAMESPACE` from the downward API |
//! | rights, own namespace | configmaps: get, list, watch; daemonsets (apps): get, for the one named by `--daemonset`; pods as client Pods need |
//! | rights, any namespace | events (events.k8s.io): create, patch; about Pods whose volumes are lost |
//! | rights, its own node | pods: list, in the node's name (`impersonate:associated-node`): which are being deleted, and who wrote a volume |
//! | rights, any | persistentvolumes: get: who wrote a volume |
//! | ports | `--listen`: `/livez`, `/readyz`, `/metrics` |
//! | grace | `terminationGracePeriodSeconds` above `--call-timeout` |

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use mooring_contract::names;
use mooring_program::log::LogArgs;
use mooring_program::time::parse_duration;

use crate::client_pods::args::ClientPodArgs;
use crate::deadlines::{LONGEST_CALL, SHORTEST_CALL};
use crate::node::args::NodeArgs;
use crate::volume::registry::Rule;

/// The socket for `mounter status`, unless said otherwise.
pub const STATUS_SOCKET: &str = "/run/mooring/status.sock";

/// Flags of `serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Where things are on the node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// The shim to install.
    #[arg(long, env = "MOORING_SHIM", default_value = "/usr/libexec/mooring/vcs")]
    pub shim: PathBuf,
    /// The node's pool: image files of local volumes.
    #[arg(long, env = "MOORING_POOL_DIR", default_value = "/var/lib/mooring/pool")]
    pub pool_dir: PathBuf,
    /// Where the mounter keeps how it mounted volumes through client containers, with their Secrets, so that another
    /// Pod can mount them again. It must be a file system in memory; otherwise the mounter keeps that only until it
    /// ends.
    #[arg(long, env = "MOORING_KEPT_DIR", default_value = "/run/mooring/kept")]
    pub kept_dir: PathBuf,
    /// Who serves a type of volume: `TYPE=IMAGE` (a client container), `TYPE=host` (the host's own mount) or
    /// `TYPE=self` (the kernel, by system call). Can be repeated, for types that Mooring has no client for, or to have
    /// another serve one; the ConfigMap `mounter-config` overrides it.
    #[arg(
        long = "mount-container",
        value_name = "TYPE=SERVER",
        env = "MOORING_MOUNT_CONTAINER",
        value_delimiter = ','
    )]
    pub mount_containers: Vec<Rule>,
    /// Longest time until the kubelet gets an answer; at most 110s, since the shim waits for 120s at most.
    #[arg(long, env = "MOORING_CALL_TIMEOUT", default_value = "100s", value_parser = parse_call_timeout)]
    pub call_timeout: Duration,
    /// Most volumes with CSI that the scheduler lets this node have. Without it there is no limit.
    #[arg(long, env = "MOORING_MAX_VOLUMES", value_name = "NUMBER")]
    pub max_volumes: Option<NonZeroU16>,
    /// Address for health and metrics.
    #[arg(long, env = "MOORING_LISTEN", default_value = "0.0.0.0:9810")]
    pub listen: SocketAddr,
    /// Socket for `mounter status`.
    #[arg(long, env = "MOORING_STATUS_SOCKET", default_value = STATUS_SOCKET)]
    pub status_socket: PathBuf,
    /// The host's mount namespace [default: that of the kubelet whose root this container shares]
    #[arg(long, env = "MOORING_HOST_MOUNT_NAMESPACE", value_name = "PATH")]
    pub host_mount_namespace: Option<PathBuf>,
    /// This node's name.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// This Pod's name.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// This Pod's namespace.
    #[arg(long, env = "POD_NAMESPACE", default_value = names::NAMESPACE)]
    pub namespace: String,
    /// The kubelet stands alone, without an API server: all its Pods are files that an administrator of the node wrote,
    /// so every volume is an administrator's. The mounter asks no Kubernetes API then, and has no client Pods.
    #[arg(long, env = "MOORING_STANDALONE")]
    pub standalone: bool,
    /// The DaemonSet of this Pod: once it is deleted, the mounter removes the shim.
    #[arg(long, env = "MOORING_DAEMONSET", default_value = "mounter")]
    pub daemonset: String,
    /// Client Pods.
    #[command(flatten)]
    pub client_pods: ClientPodArgs,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a time from {SHORTEST_CALL:?} to {LONGEST_CALL:?}")]
pub struct BadCallTimeout(String);

pub(crate) fn parse_call_timeout(text: &str) -> Result<Duration, BadCallTimeout> {
    parse_duration(text)
        .ok()
        .filter(|limit| (SHORTEST_CALL..=LONGEST_CALL).contains(limit))
        .ok_or_else(|| BadCallTimeout(text.to_owned()))
}
