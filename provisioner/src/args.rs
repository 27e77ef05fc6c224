//! The command line.

pub mod run;
pub mod settings;

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};

use crate::args::run::RunArgs;

const AFTER_HELP: &str = "\
How it fits together:
  A provisioner ConfigMap (label type=provisioner-config) names a provisioning image; its label storage-class names the
  StorageClass that Mooring makes for it. A claim of that class becomes one run of the image, which makes the volume.

Examples:
  mooring lint my-storage.yaml                           check a ConfigMap before it is applied
  mooring conform my-image:1 my-storage.yaml             try an image against the contract, on any cluster
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
    /// Check provisioner ConfigMaps in files: the same as `mooring lint`, by the program beside this one
    #[command(disable_help_flag = true)]
    Lint(PassedOn),
}

/// What another program is given as it stands.
#[derive(Debug, Args)]
pub struct PassedOn {
    /// Flags and files of `mooring lint`
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use mooring_program::environment::unknown;

    use super::{Cli, Command};

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_manifest_sets_no_variable_that_no_flag_reads() {
        let manifest = include_str!("../../configmaps/install/provisioner.yaml");
        let words = manifest.split(['"', ' ', '\n', ',']);
        let set: Vec<_> = words
            .map(|word| word.split('=').next().unwrap_or(word).to_owned())
            .collect();
        assert!(set.iter().filter(|name| name.starts_with("MOORING_")).count() > 1);
        assert_eq!(unknown(&Cli::command(), &set), []);
    }

    #[test]
    fn run_is_the_default_and_takes_the_same_flags() {
        let plain = Cli::try_parse_from(["flex-provisioner", "--config-namespaces", "a,b"]).unwrap();
        assert!(plain.command.is_none());
        assert_eq!(plain.run.settings.config_namespaces.unwrap(), ["a", "b"]);
        let run = Cli::try_parse_from(["flex-provisioner", "run", "--config-namespaces", "a"]).unwrap();
        let Some(Command::Run(args)) = run.command else {
            panic!("another command")
        };
        assert_eq!(args.settings.config_namespaces.unwrap(), ["a"]);
        for bad in [
            vec!["--allowed-images", "*"],
            vec!["--registry", "a/"],
            vec!["--lease-duration", "0s"],
            vec!["--max-in-flight", "0"],
            vec!["--api-qps", "0"],
        ] {
            let line = std::iter::once("flex-provisioner").chain(bad.iter().copied());
            assert!(Cli::try_parse_from(line).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn blanks_beside_the_names_of_namespaces_are_no_part_of_them_and_no_name_is_empty() {
        for command in [&[][..], &["run"]] {
            let line = |list| [&["flex-provisioner"][..], command, &["--config-namespaces", list]].concat();
            let Cli { command: named, run } = Cli::try_parse_from(line("mooring, admin")).unwrap();
            let namespaces = match named {
                Some(Command::Run(args)) => args.settings.config_namespaces,
                Some(Command::Lint(_)) => panic!("another command"),
                None => run.settings.config_namespaces,
            };
            assert_eq!(namespaces.unwrap(), ["mooring", "admin"], "{command:?}");
            for list in ["", "mooring,", "mooring, ,admin"] {
                let error = Cli::try_parse_from(line(list)).expect_err(list).to_string();
                assert!(error.contains("one comma between two"), "{error}");
            }
        }
    }

    #[test]
    fn lint_is_passed_on_unread() {
        let line = ["flex-provisioner", "lint", "--help", "--allowed-images", "a/*", "-"];
        let Some(Command::Lint(passed)) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(passed.arguments, line[2..]);
    }
}
