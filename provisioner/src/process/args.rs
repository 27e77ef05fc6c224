//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use mooring_contract::names;
use mooring_program::log::LogArgs;

use crate::config::lint::LintArgs;
use crate::config::trust::ImagePattern;
use crate::config::values;
use crate::conform::args::ConformArgs;
use crate::migrate::args::{MIGRATE_HELP, MigrateArgs};

const AFTER_HELP: &str = "\
How it fits together:
  A provisioner ConfigMap (label type=provisioner-config) names a provisioning image; its label storage-class names the
  StorageClass that Mooring makes for it. A claim of that class becomes one run of the image, which makes the volume.

Examples:
  flex-provisioner lint my-storage.yaml                    check a ConfigMap before it is applied
  flex-provisioner conform my-image:1 my-storage.yaml      try an image against the contract, on any cluster
  kubectl get configmaps -A -l type=provisioner-config \\
    -o custom-columns='NAME:.metadata.name,STATUS:.metadata.annotations.mooring\\.dev/status'
                                                           see which are in force, and what is wrong with the others
  kubectl get pods -A -l mooring.dev/component=provisioning
                                                           see what is in flight";

/// Turns claims into runs of a storage vendor's provisioning image.
///
/// Without a command it is the controller, as `run` is.
#[derive(Debug, Parser)]
#[command(name = "flex-provisioner", version, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The controller's settings, for when no command is given.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Be the controller (the default)
    Run(Box<RunArgs>),
    /// Check provisioner ConfigMaps in files, without a cluster
    #[command(after_help = LINT_HELP)]
    Lint(LintArgs),
    /// Try a provisioning image on a cluster: every operation that its ConfigMap promises, run twice, killed, at once
    #[command(after_help = CONFORM_HELP)]
    Conform(Box<ConformArgs>),
    /// Move existing volumes from FlexVolume to CSI, or from CSI to FlexVolume; claims and data stay
    #[command(after_help = MIGRATE_HELP)]
    Migrate(Box<MigrateArgs>),
}

const CONFORM_HELP: &str = "\
The image is run with the ConfigMap's settings in the ConfigMap's namespace, on claims of the kit's own that no class
serves. It takes a few seconds a run, and removes all that it makes if the image can delete. You need the rights of a
cluster's administrator; Mooring must be installed if the ConfigMap has a backend-volume.

Exits with 0 if everything passed, 1 if something failed, 2 if nothing could be tried.

Examples:
  flex-provisioner conform example.com/provisioner:2.0 my-storage.yaml
  flex-provisioner conform --unreachable server=192.0.2.1 --junit results.xml example.com/provisioner:2.0 my-storage.yaml";

const LINT_HELP: &str = "\
Exits with 0 if there are no errors (there may be warnings), 1 if there are, 2 if a file can't be read.
Objects of other kinds in the files are passed over. Namespaces and images are only checked if you say which the
cluster's controller allows.

Example:
  flex-provisioner lint --allowed-images 'mooring.dev/*,custom/*' my-storage.yaml";

/// Settings of the controller.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Namespace that Mooring runs in: where the leader election's Lease is
    #[arg(long, env = "MOORING_NAMESPACE", default_value = names::NAMESPACE)]
    pub namespace: String,
    /// Namespaces whose provisioner ConfigMaps are honoured
    ///
    /// Who can write a ConfigMap there chooses an image that runs with any service account of that namespace.
    #[arg(
        long,
        env = "MOORING_CONFIG_NAMESPACES",
        value_delimiter = ',',
        default_value = names::NAMESPACE,
        value_name = "NAMESPACE,…",
    )]
    pub config_namespaces: Vec<String>,
    /// Images that a provisioner ConfigMap may run
    ///
    /// `*` stands for anything but `/`, `**` for anything. A short name is Docker's: custom/x is docker.io/custom/x. A
    /// pattern without a tag allows every tag and digest; with a tag, that tag alone and no digest.
    #[arg(
        long,
        env = "MOORING_ALLOWED_IMAGES",
        value_delimiter = ',',
        default_value = "mooring.dev/*",
        value_name = "PATTERN,…"
    )]
    pub allowed_images: Vec<ImagePattern>,
    /// Address of the Kubernetes API that images are given as property kube-api [default: the cluster's own]
    #[arg(long, env = "MOORING_KUBE_API", value_name = "URL")]
    pub kube_api: Option<String>,
    /// Kubeconfig to use outside a cluster [default: $KUBECONFIG, else the Pod's service account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Work only while holding the Lease: needed as soon as there are two replicas
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
    /// How long the Lease is good for without renewal: a dead leader is replaced after this time
    #[arg(
        long,
        env = "MOORING_LEASE_DURATION",
        default_value = "15s",
        value_parser = parse_duration,
        value_name = "TIME",
    )]
    pub lease_duration: Duration,
    /// Name of this replica in the Lease and in Events
    #[arg(long, env = "MOORING_IDENTITY", default_value_t = default_identity(), hide_default_value = true)]
    pub identity: String,
    /// Address of /livez, /readyz and /metrics
    #[arg(long, env = "MOORING_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Claims and volumes worked on at once by each controller
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
    #[arg(long, env = "MOORING_API_TIMEOUT", default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    pub api_timeout: Duration,
    /// How often everything is looked at again, should a watch have missed something
    #[arg(long, env = "MOORING_RESYNC", default_value = "10m", value_parser = parse_duration, value_name = "TIME")]
    pub resync: Duration,
    /// How long work in progress is given to end when the controller is stopped
    #[arg(
        long,
        env = "MOORING_STOP_TIMEOUT",
        default_value = "20s",
        value_parser = parse_duration,
        value_name = "TIME",
    )]
    pub stop_timeout: Duration,
    /// Longest wait between two tries of one volume
    #[arg(long, env = "MOORING_MAX_BACKOFF", default_value = "5m", value_parser = parse_duration, value_name = "TIME")]
    pub max_backoff: Duration,
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    values::duration(text).and_then(|time| {
        if time.is_zero() {
            Err("must be longer than nothing".to_owned())
        } else {
            Ok(time)
        }
    })
}

/// The Pod's name, else the host's.
fn default_identity() -> String {
    ["POD_NAME", "HOSTNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_else(|| format!("flex-provisioner-{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command};

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_manifest_sets_no_variable_that_no_flag_reads() {
        let manifest = include_str!("../../../configmaps/install/provisioner.yaml");
        let command = Cli::command();
        let known: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_env).collect();
        let set = manifest.split(['"', ' ', '\n', ',']).filter_map(|word| {
            let word = word.split('=').next().unwrap_or(word);
            word.starts_with("MOORING_").then_some(word)
        });
        let mut count = 0;
        for variable in set {
            count += 1;
            assert!(known.iter().any(|known| *known == variable), "{variable}");
        }
        assert!(count > 3);
    }

    #[test]
    fn run_is_the_default_and_takes_the_same_flags() {
        let plain = Cli::try_parse_from(["flex-provisioner", "--config-namespaces", "a,b"]).unwrap();
        assert!(plain.command.is_none());
        assert_eq!(plain.run.config_namespaces, ["a", "b"]);
        let run = Cli::try_parse_from(["flex-provisioner", "run", "--config-namespaces", "a"]).unwrap();
        assert!(matches!(run.command, Some(Command::Run(args)) if args.config_namespaces == ["a"]));
        for bad in [
            vec!["--allowed-images", "*"],
            vec!["--lease-duration", "0s"],
            vec!["--max-in-flight", "0"],
            vec!["--api-qps", "0"],
            vec!["lint"],
        ] {
            let line = std::iter::once("flex-provisioner").chain(bad.iter().copied());
            assert!(Cli::try_parse_from(line).is_err(), "{bad:?}");
        }
    }
}
