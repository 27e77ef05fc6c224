//! The command line.

use clap::{Parser, Subcommand};

use crate::config::lint::LintArgs;
use crate::conform::args::ConformArgs;
use crate::migrate::args::{MIGRATE_HELP, MigrateArgs};
use crate::process::args::RunArgs;

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
The kit runs the image with the ConfigMap's settings in the ConfigMap's namespace, on claims of its own that no class
serves. A run takes a few seconds. If the image can delete, the kit removes all that it made. You need the rights of a
cluster's administrator; Mooring must be installed if the ConfigMap has a backend-volume.

Exits with 0 if everything passed, 1 if something failed, 2 if nothing could be tried.

Examples:
  flex-provisioner conform example.com/provisioner:2.0 my-storage.yaml
  flex-provisioner conform --unreachable server=192.0.2.1 --junit results.xml example.com/provisioner:2.0 my-storage.yaml";

const LINT_HELP: &str = "\
Exits with 0 if there are no errors (there may be warnings), 1 if there are, 2 if a file can't be read.
It ignores objects of other kinds. It checks namespaces and images only if you say which the cluster's controller
allows.

Example:
  flex-provisioner lint --allowed-images 'mooring.dev/*,custom/*' my-storage.yaml";

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
        let manifest = include_str!("../../configmaps/install/provisioner.yaml");
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

    #[test]
    fn blanks_beside_the_names_of_namespaces_are_no_part_of_them_and_no_name_is_empty() {
        for command in [&["run"][..], &["lint", "a.yaml"]] {
            let line = |list| [&["flex-provisioner"][..], command, &["--config-namespaces", list]].concat();
            let namespaces = match Cli::try_parse_from(line("mooring, admin")).unwrap().command {
                Some(Command::Run(args)) => args.config_namespaces,
                Some(Command::Lint(args)) => args.config_namespaces.unwrap(),
                _ => panic!("another command"),
            };
            assert_eq!(namespaces, ["mooring", "admin"], "{command:?}");
            for list in ["", "mooring,", "mooring, ,admin"] {
                let error = Cli::try_parse_from(line(list)).expect_err(list).to_string();
                assert!(error.contains("one comma between two"), "{error}");
            }
        }
    }
}
