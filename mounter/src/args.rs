//! The command line: the flags of each command are beside it.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::agent;
use crate::agent::claims::ClaimArgs;
use crate::agent::grow_file_system::GrowFileSystemArgs;
use crate::agent::make_file_system::MakeFileSystemArgs;
use crate::agent::mount_device::MountDeviceArgs;
use crate::agent::services::command::ServiceArgs;
use crate::agent::services::hold::HoldArgs;
use crate::daemon::args::ServeArgs;
use crate::daemon::status_socket::StatusArgs;
use crate::drivers::uninstall::UninstallArgs;

/// The node daemon of Mooring.
#[derive(Debug, Parser)]
#[command(name = "mounter", version, about, propagate_version = true)]
pub struct MounterArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: MounterCommand,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum MounterCommand {
    /// Run the daemon.
    Serve(Box<ServeArgs>),
    /// Print the state of the mounter in this container: checks, mounts, servers that do not answer.
    Status(StatusArgs),
    /// Remove the shim and the socket from the kubelet's plugin directory. Refused while a volume is mounted.
    Uninstall(UninstallArgs),
    /// Run the agent of a client container.
    Agent(agent::AgentArgs),
    /// Ask the agent for a service for the volume that a program of the client image is mounting.
    Service(ServiceArgs),
    /// Make a file system on the blank device of the volume that a program of the client image is mounting.
    MakeFileSystem(MakeFileSystemArgs),
    /// Have a file system that is smaller than its device take all of it.
    GrowFileSystem(GrowFileSystemArgs),
    /// Mount a device with an SELinux label for all files: what mount(8) does not do in a container.
    MountDevice(MountDeviceArgs),
    /// Note that the volume that a program of the client image is mounting has a device of the node; fail if another
    /// volume has it.
    ClaimDevice(ClaimArgs),
    /// Keep a device open for the agent of a client container.
    #[command(hide = true)]
    HoldDevice(HoldArgs),
    /// Copy this program into a directory, for a client container to run as its agent.
    InstallAgent {
        /// The directory.
        dir: PathBuf,
    },
    /// Do one task of the daemon, read from standard input.
    #[command(hide = true)]
    Worker,
}

#[cfg(test)]
mod tests {
    use super::MounterArgs;
    use crate::daemon::args::parse_call_timeout;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_flags_are_sound_and_the_call_timeout_stays_below_the_shim_s() {
        MounterArgs::command().debug_assert();
        assert!(parse_call_timeout("100s").is_ok());
        for bad in ["0", "4s", "111s", "2m", "x"] {
            assert!(parse_call_timeout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mount_container_can_be_repeated() {
        let args = [
            "mounter",
            "serve",
            "--mount-container",
            "nfs=host",
            "--mount-container=tmpfs=self",
        ];
        MounterArgs::try_parse_from(args).unwrap();
        let error = MounterArgs::try_parse_from(["mounter", "serve", "--mount-container", "local=host"]).unwrap_err();
        assert!(error.to_string().contains("local"), "{error}");
    }
}
