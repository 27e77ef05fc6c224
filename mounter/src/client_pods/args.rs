//! Flags about client Pods.

use std::time::Duration;

use mooring_contract::names;
use mooring_contract::volume::ClientName;
use mooring_program::time::parse_duration;

use super::resources::ResourceArgs;

/// Flags about client Pods.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Client containers")]
pub struct ClientPodArgs {
    /// How long a client Pod without mounts stays, such as 90s, 5m or 0
    #[arg(long, env = "MOORING_CLIENT_IDLE", default_value = "5m", value_parser = parse_duration)]
    pub client_idle: Duration,
    /// How long a client Pod that is being deleted may stay for the mounts that it still has.
    #[arg(long, env = "MOORING_CLIENT_GRACE", default_value = "1h", value_parser = parse_duration)]
    pub client_grace: Duration,
    /// Image from which client Pods get the agent [default: the mounter's own image]
    #[arg(long, env = "MOORING_MOUNTER_IMAGE")]
    pub mounter_image: Option<String>,
    /// Service account of client Pods: it has no rights, but may have imagePullSecrets.
    #[arg(long, env = "MOORING_CLIENT_SERVICE_ACCOUNT", default_value = names::CLIENT_SERVICE_ACCOUNT)]
    pub client_service_account: String,
    /// Priority class of client Pods; empty for none. For a Pod of a critical one, the kubelet ends other Pods where the
    /// node has no room.
    #[arg(long, env = "MOORING_CLIENT_PRIORITY_CLASS", default_value = names::CLIENT_PRIORITY_CLASS)]
    pub client_priority_class: String,
    /// Clients that get one Pod per volume instead of one Pod for all volumes. This costs much more memory, but a crash
    /// of one volume's program affects no other volume.
    #[arg(
        long,
        env = "MOORING_CLIENT_POD_PER_VOLUME",
        value_name = "CLIENT",
        value_delimiter = ','
    )]
    pub client_pod_per_volume: Vec<ClientName>,
    /// What client Pods request and may use.
    #[command(flatten)]
    pub resources: ResourceArgs,
}
