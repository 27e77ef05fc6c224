//! The command line.

use clap::{Parser, Subcommand};

use crate::conform::args::ConformArgs;
use crate::lint::LintArgs;
use crate::migrate::args::{MIGRATE_HELP, MigrateArgs};

const AFTER_HELP: &str = "\
How it fits together:
  A provisioner ConfigMap (label type=provisioner-config) names a provisioning image; its label storage-class names the
  StorageClass that Mooring makes for it. A claim of that class becomes one run of the image, which makes the volume.
  `lint` checks the ConfigMap, `conform` the image, and `migrate` moves the volumes that claims have.

  `lint` needs no cluster. The others use your kubeconfig and need the rights of a cluster's administrator. This program
  is also in the controller's image, as /mooring.

Examples:
  mooring lint my-storage.yaml                    check a ConfigMap before it is applied
  mooring conform my-image:1 my-storage.yaml      try an image against the contract, on any cluster
  mooring migrate --to csi --dry-run              see which volumes would move to CSI";

/// Checks provisioner ConfigMaps, tries provisioning images, and moves volumes between FlexVolume and CSI.
#[derive(Debug, Parser)]
#[command(name = "mooring", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
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
  mooring conform example.com/provisioner:2.0 my-storage.yaml
  mooring conform --unreachable server=192.0.2.1 --junit results.xml example.com/provisioner:2.0 my-storage.yaml";

const LINT_HELP: &str = "\
Exits with 0 if there are no errors (there may be warnings), 1 if there are, 2 if a file can't be read.
It ignores objects of other kinds. It checks namespaces and images only if you say which the cluster's controller
allows.

Example:
  mooring lint --allowed-images 'mooring.dev/*,custom/*' my-storage.yaml";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command};

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn blanks_beside_the_names_of_namespaces_are_no_part_of_them_and_no_name_is_empty() {
        let line = |list| ["mooring", "lint", "a.yaml", "--config-namespaces", list];
        let Command::Lint(args) = Cli::try_parse_from(line("mooring, admin")).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(args.config_namespaces.unwrap(), ["mooring", "admin"]);
        for list in ["", "mooring,", "mooring, ,admin"] {
            let error = Cli::try_parse_from(line(list)).expect_err(list).to_string();
            assert!(error.contains("one comma between two"), "{error}");
        }
    }

    #[test]
    fn a_command_is_needed_and_lint_needs_a_file() {
        for bad in [&["mooring"][..], &["mooring", "lint"]] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
