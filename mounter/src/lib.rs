//! The node daemon of Mooring: the only program that mounts.
//!
//! ```text
//! kubelet ─> shim ─> flex (socket, call, answer) ─> core ─┬─> worker ─> clients: local, pool, self, host
//!                                                         └─> client_pods ─> agent in a client container
//! ```
//!
//! [`core`] is where both doors lead (`FlexVolume` through the shim now, CSI later); [`client`] is what passes between it
//! and whoever makes a mount; [`target`] is the only way to a volume's directory; [`sys`] has every system call that
//! mounting takes. [`kubelet_root`] and [`plugins`] find the kubelet's directories, and [`door`] keeps shim and socket there. [`publish`] tells the cluster what the
//! node can mount. [`revive`] looks after volumes whose FUSE daemon ended, [`give_up`] after those that keep a deleted Pod from going. Whatever may block is done by a [`worker`], a process of its own; [`api`] ends calls to the Kubernetes API in time, and [`events`] makes those
//! that nobody waits for.
#![deny(unsafe_code)]

pub mod agent;
pub mod api;
pub mod args;
pub mod client;
pub mod client_pods;
pub mod clients;
pub mod config_watch;
pub mod core;
pub mod daemon;
pub mod door;
pub mod events;
pub mod flex;
pub mod give_up;
pub mod graft;
pub mod guard;
mod held;
pub mod http;
pub mod install;
mod kubelet;
pub mod kubelet_root;
pub mod metrics;
pub mod mount_options;
pub mod mount_table;
pub mod node_pods;
pub mod origin;
pub mod plugins;
pub mod pool_usage;
pub mod privilege;
pub mod publish;
pub mod readiness;
pub mod revive;
pub mod status;
pub mod status_socket;
pub mod sys;
pub mod target;
pub mod thread;
pub mod trip;
pub mod uninstall;
pub mod unmount;
pub mod waits;
pub mod worker;

use std::error::Error;

use args::{Args, Command};

/// Does what the command line says.
pub fn run(args: Args) -> Result<(), Box<dyn Error>> {
    match args.command {
        Command::Serve(args) => daemon::run(*args)?,
        Command::Status(args) => status_socket::run(&args)?,
        Command::Uninstall(args) => uninstall::run(args)?,
        Command::Agent(args) => agent::run(args)?,
        Command::InstallAgent { dir } => agent::install::install(&dir)?,
        Command::Worker => worker::main()?,
    }
    Ok(())
}
