//! Flags of the mounter.
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
//! | rights, its own node | pods: list, in the node's name (`impersonate:associated-node`): which are being deleted |
//! | ports | `--listen`: `/livez`, `/readyz`, `/metrics` |
//! | grace | `terminationGracePeriodSeconds` above `--call-timeout` |

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use mooring_contract::names;

use crate::agent;
use crate::client_pods::args::{ClientPodArgs, parse_duration};
use crate::daemon::status_socket::{SOCKET, StatusArgs};
use crate::node::kubelet::ROOT;
use crate::node::kubelet_root::{self, Lost};
use crate::volume::registry::Rule;

/// The node daemon of Mooring.
#[derive(Debug, Parser)]
#[command(name = "mounter", version, about, propagate_version = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon.
    Serve(Box<ServeArgs>),
    /// Print what the mounter in this container says of itself: checks, mounts, servers that do not answer.
    Status(StatusArgs),
    /// Remove the shim and the socket from the kubelet's plugin directory. Refused while a volume is mounted.
    Uninstall(UninstallArgs),
    /// Run the agent of a client container.
    Agent(agent::Args),
    /// Copy this program into a directory, for a client container to run as its agent.
    InstallAgent {
        /// The directory.
        dir: PathBuf,
    },
    /// Do one task of the daemon's, which comes on standard input.
    #[command(hide = true)]
    Worker,
}

/// Where things are on the node.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArgs {
    /// The kubelet's root directory, as its --root-dir says. Without this it is the one that this Pod's own directory is in, as the
    /// running kubelet's command line or a known distribution has it.
    #[arg(long, env = "MOORING_KUBELET_ROOT")]
    pub kubelet_root: Option<PathBuf>,
    /// The kubelet's plugin directory, by the name that the kubelet has for it. Without this the running kubelet is looked at: its
    /// command line and its volumePluginDir. Where no process of the node is seen, it is a directory of this container.
    #[arg(long, env = "MOORING_PLUGIN_DIR")]
    pub plugin_dir: Option<PathBuf>,
}

impl NodeArgs {
    /// Finds the kubelet's root if it is not given, and sees that it is mounted here. Called before there are threads.
    ///
    /// # Errors
    /// Only what the process can't go on after.
    pub fn settle(&mut self) -> Result<(), Lost> {
        self.kubelet_root = Some(kubelet_root::settle(self.kubelet_root.as_deref())?);
        Ok(())
    }

    /// The kubelet's root: what was settled, and the usual one before that.
    pub fn kubelet_root(&self) -> &Path {
        self.kubelet_root.as_deref().unwrap_or(Path::new(ROOT))
    }
}

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
    /// Where what is mounted through client containers is remembered with its Secrets, to be mounted anew in another Pod. Only a file
    /// system in memory is used; elsewhere they are remembered until the mounter ends.
    #[arg(long, env = "MOORING_KEPT_DIR", default_value = "/run/mooring/kept")]
    pub kept_dir: PathBuf,
    /// Who serves a type of volume, `TYPE=IMAGE` (a client container), `TYPE=host` (the host's own mount) or `TYPE=self`
    /// (the kernel, by system call). Can be repeated; the ConfigMap `mounter-config` goes before it.
    #[arg(
        long = "mount-container",
        value_name = "TYPE=SERVER",
        env = "MOORING_MOUNT_CONTAINER",
        value_delimiter = ','
    )]
    pub mount_containers: Vec<Rule>,
    /// Longest that the kubelet waits for an answer; at most 110s, since the shim waits no longer than 120.
    #[arg(long, env = "MOORING_CALL_TIMEOUT", default_value = "100s", value_parser = parse_call_timeout)]
    pub call_timeout: Duration,
    /// Address for health and metrics.
    #[arg(long, env = "MOORING_LISTEN", default_value = "0.0.0.0:9810")]
    pub listen: SocketAddr,
    /// Socket for `mounter status`.
    #[arg(long, env = "MOORING_STATUS_SOCKET", default_value = SOCKET)]
    pub status_socket: PathBuf,
    /// The host's mount namespace, if it is not that of the kubelet which shares its root with this container.
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
    /// The DaemonSet that this Pod is of: when it is gone, the shim is taken out again.
    #[arg(long, env = "MOORING_DAEMONSET", default_value = "mounter")]
    pub daemonset: String,
    /// Client Pods.
    #[command(flatten)]
    pub client_pods: ClientPodArgs,
    /// Form of the log.
    #[arg(long, env = "MOORING_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// Flags of `uninstall`.
#[derive(Debug, Clone, clap::Args)]
pub struct UninstallArgs {
    /// Where things are on the node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// Form of the log; its level is the environment variable `MOORING_LOG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Longest `--call-timeout` in seconds.
const MAX_CALL_TIMEOUT: u64 = 110;

// The mounter says by itself what took so long, before the shim gives up on it.
const _: () = assert!(MAX_CALL_TIMEOUT + 5 < mooring_shim::DEADLINE_SECONDS);

/// Not a time that the kubelet can be made to wait.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a time from 5s to {MAX_CALL_TIMEOUT}s")]
pub struct BadCallTimeout(String);

fn parse_call_timeout(text: &str) -> Result<Duration, BadCallTimeout> {
    parse_duration(text)
        .ok()
        .filter(|limit| (5..=MAX_CALL_TIMEOUT).contains(&limit.as_secs()))
        .ok_or_else(|| BadCallTimeout(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{Args, parse_call_timeout};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_flags_are_sound_and_the_call_timeout_stays_below_the_shim_s() {
        Args::command().debug_assert();
        assert!(parse_call_timeout("100s").is_ok());
        for bad in ["0", "4s", "111s", "2m", "x"] {
            assert!(parse_call_timeout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn who_serves_a_type_can_be_said_again_and_again() {
        let args = [
            "mounter",
            "serve",
            "--mount-container",
            "nfs=host",
            "--mount-container=tmpfs=self",
        ];
        Args::try_parse_from(args).unwrap();
        let error = Args::try_parse_from(["mounter", "serve", "--mount-container", "local=host"]).unwrap_err();
        assert!(error.to_string().contains("local"), "{error}");
    }
}
