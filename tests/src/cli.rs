//! The command line of `cargo testbed`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::checks::TestArgs;
use crate::images::Selection;
use crate::layout::Layout;
use crate::namespaces::INIT_COMMAND;
use crate::node::Flavour;
use crate::progress::say;
use crate::target::TargetArgs;
use crate::{cluster, install};

/// A real Kubernetes cluster from nothing, on this machine, and Mooring on it.
///
/// Kubernetes, etcd and containerd are built once from pinned Go modules (about 12 minutes on two cores) and kept in
/// ~/.cache/mooring. Needs root, since nodes are namespaces; `down` takes all of it away again.
#[derive(Debug, Parser)]
#[command(name = "cargo testbed", bin_name = "cargo testbed", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring the cluster up, or take up the one that runs.
    ///
    /// The first time, missing Debian packages are installed and the programs are built; after that it takes seconds.
    /// With more --nodes than the running cluster has, the missing ones are added.
    Up {
        /// Number of nodes, 1 to 3: each has its own kubelet, containerd, network and mount namespace.
        #[arg(long, default_value_t = cluster::USUAL_NODES)]
        nodes: u8,
        /// Make nodes with a root that is read-only and has neither a shell nor a mount helper, as on Talos or Bottlerocket.
        #[arg(long)]
        immutable: bool,
    },
    /// Add a node in a virtual machine, machine-1, or start it anew: Debian's stock kernel, with NFS, SMB, iSCSI, Ceph and the like.
    ///
    /// Mooring has to be installed. Pods come there if nothing else will do, or by name. It is seen as other nodes are: logs machine-1/kubelet, kubectl get nodes.
    Machine {
        /// Images that it is to have beside mounter and busybox, by the last parts of their names, such as client-sshfs.
        images: Vec<String>,
        /// Take it away instead; the cluster stays.
        #[arg(long, conflicts_with = "images")]
        remove: bool,
    },
    /// Take the cluster away: processes, mounts, links, control groups and files, whatever a crash left.
    Down,
    /// Show how the cluster stands: processes, nodes, Pods.
    Status,
    /// Show a log: of a part of the testbed (etcd, kube-apiserver, node-1/kubelet, ...) or of a Pod; without a name, list them.
    Logs {
        /// A part of the testbed, or a Pod of any namespace.
        name: Option<String>,
        /// How many lines from the end.
        #[arg(long, short = 'n', default_value_t = 100)]
        lines: usize,
    },
    /// Build Mooring's images and bring them to the cluster; only what changed.
    Images(TargetArgs),
    /// Build and load the images, apply configmaps/install, and wait until Mooring is ready.
    Install(TargetArgs),
    /// Take Mooring off the cluster again; the cluster stays.
    Uninstall(TargetArgs),
    /// See Mooring at work: a Pod on one node writes, a Pod on another reads, each step told in words.
    ///
    /// Brings the cluster up, builds and installs Mooring, and leaves all of it there to look at.
    Demo {
        #[command(flatten)]
        target: TargetArgs,
        /// Take the demo's objects away instead; cluster and Mooring stay.
        #[arg(long)]
        remove: bool,
    },
    /// Run all checks: format, lints, unit tests, then end-to-end tests on a cluster that is taken away again.
    Test(TestArgs),
    /// Measure what Mooring costs, side by side with bare Pods, mount(8) and local-path-provisioner.
    Bench(crate::bench::Bench),
    /// Run the built kubectl against the cluster, as in `cargo testbed kubectl get pods -A`.
    #[command(disable_help_flag = true)]
    Kubectl {
        /// Arguments of kubectl, passed on as they are.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    #[command(name = INIT_COMMAND, hide = true)]
    InternalInit { state: std::path::PathBuf, role: String },
}

/// Runs a command line.
pub fn run(cli: Cli) -> Result<ExitCode> {
    let layout = Layout::from_env()?;
    match cli.command {
        Command::Up { nodes, immutable } => {
            cluster::up(&layout, nodes, immutable.then_some(Flavour::Immutable))?;
        }
        Command::Machine { images, remove } => machine(&layout, &images, remove)?,
        Command::Down => cluster::down(&layout)?,
        Command::Status => {
            if !cluster::status(&layout)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Logs { name, lines } => crate::logs::show(&layout, name.as_deref(), lines)?,
        Command::Images(target) => {
            target.open(&layout)?.load_images(Selection::All)?;
        }
        Command::Install(target) => {
            let target = target.open(&layout)?;
            let images = target.load_images(Selection::All)?;
            install::install(&target, &images)?;
        }
        Command::Uninstall(target) => install::uninstall(&target.open(&layout)?)?,
        Command::Demo { target, remove } => crate::demo::run(&layout, &target, remove)?,
        Command::Test(args) => {
            if !crate::checks::run(&layout, &args)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Bench(what) => what.run(&layout)?,
        Command::Kubectl { args } => return kubectl(&layout, args),
        Command::InternalInit { state, role } => crate::init::run(&Layout::of(state), &role)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn machine(layout: &Layout, images: &[String], remove: bool) -> Result<()> {
    let cluster = cluster::connect(layout)?;
    if remove {
        let removed = cluster.remove_machine()?;
        say(if removed {
            "The machine is gone."
        } else {
            "There was no machine."
        });
        return Ok(());
    }
    let names: Vec<_> = images.iter().map(String::as_str).collect();
    cluster.start_machine(&names)
}

/// Becomes kubectl, so that terminals, signals and exit codes are its own.
fn kubectl(layout: &Layout, args: Vec<String>) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    let cluster = cluster::connect(layout)?;
    let error = cluster.kubectl(args).exec();
    Err(anyhow::Error::new(error).context("failed to run kubectl"))
}
