//! The flags of the controller itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mooring_contract::names;
use mooring_program::log::LogArgs;
use mooring_program::time::parse_duration;

use super::settings::SettingsArgs;

/// Settings of the controller.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Namespace that Mooring runs in: where the leader election's Lease is
    #[arg(long, env = "MOORING_NAMESPACE", default_value = names::NAMESPACE)]
    pub namespace: String,
    /// The administrator's.
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// Address of the Kubernetes API that images get as property kube-api [default: the cluster's own]
    #[arg(long, env = "MOORING_KUBE_API", value_name = "URL")]
    pub kube_api: Option<String>,
    /// Kubeconfig to use outside a cluster [default: $KUBECONFIG, else the Pod's service account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Work only while holding the Lease: needed with two or more replicas
    #[arg(
        long,
        env = "MOORING_LEADER_ELECT",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false",
    )]
    pub leader_elect: bool,
    /// Name of the Lease
    #[arg(long, env = "MOORING_LEASE_NAME", default_value = "flex-provisioner")]
    pub lease_name: String,
    /// How long the Lease is valid without renewal: another replica replaces a dead leader after this time
    #[arg(
        long,
        env = "MOORING_LEASE_DURATION",
        default_value = "15s",
        value_parser = positive_duration,
        value_name = "TIME",
    )]
    pub lease_duration: Duration,
    /// Name of this replica in the Lease and in Events
    #[arg(long, env = "MOORING_IDENTITY", default_value_t = default_identity(), hide_default_value = true)]
    pub identity: String,
    /// Address of /livez, /readyz and /metrics
    #[arg(long, env = "MOORING_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// How many objects each controller works on at once
    #[arg(
        long,
        env = "MOORING_MAX_IN_FLIGHT",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    pub max_in_flight: u16,
    /// Provisioning Pods at once, over all ConfigMaps; one ConfigMap has at most half of what the others leave
    ///
    /// A ConfigMap that has none may always start one.
    #[arg(long, env = "MOORING_MAX_PODS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_pods: u16,
    /// Requests to the API server a second, in the long run; watches do not count
    #[arg(long, env = "MOORING_API_QPS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub api_qps: u32,
    /// Requests to the API server at once, after a quiet time
    #[arg(long, env = "MOORING_API_BURST", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub api_burst: u32,
    /// How long the API server may take to begin an answer; watches do not count
    #[arg(long, env = "MOORING_API_TIMEOUT", default_value = "30s", value_parser = positive_duration, value_name = "TIME")]
    pub api_timeout: Duration,
    /// How often the controller looks at everything again, in case a watch missed something
    #[arg(long, env = "MOORING_RESYNC", default_value = "10m", value_parser = positive_duration, value_name = "TIME")]
    pub resync: Duration,
    /// How long work in progress may take to end after SIGTERM
    #[arg(
        long,
        env = "MOORING_STOP_TIMEOUT",
        default_value = "20s",
        value_parser = positive_duration,
        value_name = "TIME",
    )]
    pub stop_timeout: Duration,
    /// Longest wait between two tries of one volume
    #[arg(long, env = "MOORING_MAX_BACKOFF", default_value = "5m", value_parser = positive_duration, value_name = "TIME")]
    pub max_backoff: Duration,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(time) if time.is_zero() => Err("write a time above 0, such as 10s".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// The Pod's name, else the host's.
fn default_identity() -> String {
    ["POD_NAME", "HOSTNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_else(|| format!("flex-provisioner-{}", std::process::id()))
}
