//! The node daemon of Mooring: the only program that mounts.
//!
//! ```text
//! kubelet ─> shim ─> drivers::flexvolume ─> core ─┬─> worker ─> worker::clients: local, pool, self, host
//!                                                 └─> client_pods ─> agent in a client container
//! ```
//!
//! One program, and three kinds of process: the daemon (`mounter serve`), a worker (`mounter worker`), which the daemon
//! starts for whatever may block, and an agent (`mounter agent`) in each client container. A module imports only from
//! the modules below it in this table:
//!
//! | module | what it does | runs in |
//! | --- | --- | --- |
//! | [`args`] | the command line | each |
//! | [`daemon`] | puts the parts together, shows their state | the daemon |
//! | [`recovery`] | looks after volumes that fail while they are in use | the daemon |
//! | [`drivers`] | how the kubelet reaches the mounter | the daemon |
//! | [`client_pods`] | the client Pods of this node | the daemon |
//! | [`core`] | what every driver calls: mount, unmount, expand | the daemon |
//! | [`agent`] | mounts by the programs of a client image | a client container |
//! | [`worker`] | mounts, unmounts and replaces mounts, with a deadline | a worker; `process` in the daemon |
//! | [`sys`] | the system calls, behind one trait | workers, client containers |
//! | [`node`] | the kubelet, the node's Pods and pool, what can be mounted | the daemon; workers and agents look at the node |
//! | [`api`] | calls to the Kubernetes API, Events | the daemon |
//! | [`grant`] | what a call may mount, and the proof of it | the daemon; workers are handed the result |
//! | [`deadlines`] | which deadline contains which | each |
//! | [`settings`] | the administrator's settings that are in force | the daemon |
//! | [`volume`] | a mount, its target, its options, the mount table | each |
#![deny(unsafe_code)]

pub mod agent;
pub mod api;
pub mod args;
pub mod client_pods;
pub mod core;
pub mod daemon;
pub mod deadlines;
pub mod drivers;
pub mod grant;
pub mod node;
pub mod recovery;
pub mod settings;
pub mod sys;
pub mod volume;
pub mod worker;

use std::error::Error;
use std::process::ExitCode;

use args::{MounterArgs, MounterCommand};
use clap::CommandFactory as _;

pub fn run(args: MounterArgs) -> Result<ExitCode, Box<dyn Error>> {
    match args.command {
        MounterCommand::Serve(args) => daemon::run(*args, &MounterArgs::command())?,
        MounterCommand::Status(args) => daemon::status_socket::run(&args)?,
        MounterCommand::Uninstall(args) => drivers::uninstall::run(args)?,
        MounterCommand::Agent(args) => agent::run(args)?,
        MounterCommand::Service(args) => return Ok(agent::services::command::run(args)?),
        MounterCommand::MakeFileSystem(args) => agent::make_file_system::run(args)?,
        MounterCommand::GrowFileSystem(args) => agent::grow_file_system::run(args)?,
        MounterCommand::MountDevice(args) => agent::mount_device::run(args)?,
        MounterCommand::ClaimDevice(args) => agent::claims::run(args)?,
        MounterCommand::HoldDevice(args) => match agent::services::hold::run(args)? {},
        MounterCommand::InstallAgent { dir } => agent::install::install(&dir)?,
        MounterCommand::Worker => worker::main()?,
    }
    Ok(ExitCode::SUCCESS)
}
