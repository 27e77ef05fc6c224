//! Flags about client Pods.

use std::time::Duration;

use mooring_contract::image::ImagePattern;
use mooring_contract::names;
use mooring_contract::volume::ClientName;

use super::resources::ResourceArgs;

/// Flags about client Pods.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Client containers")]
pub struct ClientPodArgs {
    /// Client images that may run, patterns separated by commas: `*` stands for any letters but `/`, `**` for any at
    /// all. The ConfigMap `allowed-client-images`, by which the admission policy goes as well, comes before it.
    #[arg(
        long,
        env = "MOORING_ALLOWED_CLIENT_IMAGES",
        default_value = "mooring.dev/*",
        value_delimiter = ','
    )]
    pub allowed_client_images: Vec<ImagePattern>,
    /// How long a client Pod without mounts stays, such as 90s, 5m or 0.
    #[arg(long, env = "MOORING_CLIENT_IDLE", default_value = "5m", value_parser = parse_duration)]
    pub client_idle: Duration,
    /// How long a client Pod that is told to end stays for the mounts that it still has.
    #[arg(long, env = "MOORING_CLIENT_GRACE", default_value = "1h", value_parser = parse_duration)]
    pub client_grace: Duration,
    /// Image that the agent in client Pods is copied from; the mounter's own unless said.
    #[arg(long, env = "MOORING_MOUNTER_IMAGE")]
    pub mounter_image: Option<String>,
    /// Service account of client Pods: it has no rights, but may have imagePullSecrets.
    #[arg(long, env = "MOORING_CLIENT_SERVICE_ACCOUNT", default_value = names::CLIENT_SERVICE_ACCOUNT)]
    pub client_service_account: String,
    /// Priority class of client Pods; empty for none.
    #[arg(long, env = "MOORING_CLIENT_PRIORITY_CLASS", default_value = "system-node-critical")]
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

/// Not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: write a whole number and s, m or h, such as 90s")]
pub struct BadDuration(String);

/// Reads `90s`, `5m`, `1h`, or a number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration(text.to_owned());
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("1h", 3600), ("0", 0), ("7", 7)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "s",
            "5 m",
            "-1s",
            "1.5h",
            "5d",
            "99999999999999999999h",
            "9999999999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
