//! The node daemon of Mooring: the only program that mounts.
//!
//! ```text
//! kubelet ─> shim ─> drivers::flexvolume ─> core ─┬─> worker ─> worker::clients: local, pool, self, host
//!                                                 └─> client_pods ─> agent in a client container
//! ```
//!
//! One program, and three kinds of process:
//!
//! | process | command | rooms |
//! | --- | --- | --- |
//! | the daemon | `serve` | [`daemon`], [`drivers`], [`core`], [`client_pods`], [`recovery`], [`node`], [`api`], and of [`worker`] what starts one |
//! | a worker | `worker` | [`worker`] |
//! | an agent, in a client container | `agent` | [`agent`] |
//!
//! [`volume`] and [`sys`] are what all three build on. A room imports only from rooms below it: [`args`] lists the commands at the top,
//! [`volume`] is the ground.
#![deny(unsafe_code)]

pub mod agent;
pub mod api;
pub mod args;
pub mod client_pods;
pub mod core;
pub mod daemon;
pub mod drivers;
pub mod log;
pub mod node;
pub mod recovery;
pub mod sys;
pub mod volume;
pub mod worker;

use std::error::Error;

use args::{Args, Command};

/// Does what the command line says.
pub fn run(args: Args) -> Result<(), Box<dyn Error>> {
    match args.command {
        Command::Serve(args) => daemon::run(*args)?,
        Command::Status(args) => daemon::status_socket::run(&args)?,
        Command::Uninstall(args) => drivers::uninstall::run(args)?,
        Command::Agent(args) => agent::run(args)?,
        Command::InstallAgent { dir } => agent::install::install(&dir)?,
        Command::Worker => worker::main()?,
    }
    Ok(())
}
