//! The command line of `cargo testbed`.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::suite::TestArgs;
use crate::suite::lanes::left_over;
use mooring_openstack_trials::{self as openstack, Trials};
use mooring_testbed::binaries::{Release, Releases};
use mooring_testbed::cluster::{self, Wanted};
use mooring_testbed::command::cargo;
use mooring_testbed::images::{self, Form, Selection};
use mooring_testbed::layout::Layout;
use mooring_testbed::namespaces::INIT_COMMAND;
use mooring_testbed::node::Flavour;
use mooring_testbed::progress::say;
use mooring_testbed::target::TargetArgs;
use mooring_testbed::{conform, demo, install, packages, release};

/// A real Kubernetes cluster from nothing, on this machine, and Mooring on it.
///
/// Kubernetes, etcd and containerd are built once from pinned Go modules (about six minutes on two cores) and kept in
/// ~/.cache/mooring. Needs root, since nodes are namespaces; `down` removes everything again.
#[derive(Debug, Parser)]
#[command(name = "cargo testbed", bin_name = "cargo testbed", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the cluster, or continue with the running one.
    ///
    /// The first time, missing Debian packages are installed and the programs are built; after that it takes seconds.
    /// With more --nodes than the running cluster has, the missing ones are added.
    Up {
        /// Number of nodes, 1 to 3: each has its own kubelet, containerd, network and mount namespace.
        #[arg(long, default_value_t = cluster::USUAL_NODES)]
        nodes: u8,
        /// Make nodes with a root that is read-only and has neither a shell nor a mount helper, as on Talos or
        /// Bottlerocket.
        #[arg(long)]
        immutable: bool,
        /// Version of Kubernetes. One that was not built before is built once, which takes some ten minutes.
        #[arg(long, value_enum, value_name = "VERSION")]
        kubernetes: Option<Release>,
        /// Version of the nodes' kubelet and kube-proxy, if it is another one.
        #[arg(long, value_enum, value_name = "VERSION", requires = "kubernetes")]
        kubelet: Option<Release>,
    },
    /// Add a node in a virtual machine, machine-1, or restart it: Debian's stock kernel, with NFS, SMB, iSCSI, Ceph and
    /// others.
    ///
    /// Mooring has to be installed. Pods run there if no other node fits, or by name. Look at it as at other nodes:
    /// logs machine-1/kubelet, kubectl get nodes.
    Machine {
        /// Images for it besides mounter and busybox, by the last parts of their names, such as client-sshfs.
        images: Vec<String>,
        /// Remove it instead; the cluster stays.
        #[arg(long, conflicts_with = "images")]
        remove: bool,
    },
    /// Remove the cluster: processes, mounts, links, control groups and files, also after a crash.
    Down,
    /// Show the state of the cluster: processes, nodes, Pods.
    Status,
    /// Show a log: of a part of the testbed (etcd, kube-apiserver, node-1/kubelet, ...) or of a Pod; without a name,
    /// list them.
    Logs {
        /// A part of the testbed, or a Pod of any namespace.
        name: Option<String>,
        /// How many lines from the end.
        #[arg(long, short = 'n', default_value_t = 100)]
        lines: usize,
    },
    /// Build Mooring's images and bring those that changed to the cluster.
    Images {
        #[command(flatten)]
        target: TargetArgs,
        /// Only build them; this needs no cluster.
        #[arg(long, conflicts_with = "existing")]
        build_only: bool,
    },
    /// Make a release of this commit: images, Helm chart and manifests, in a registry and in a folder.
    ///
    /// Builds all images with labels, with the time of the commit and without anything of this machine, so that a commit
    /// always makes the same ones from the same packages of Debian. Each gets a bill of materials (SPDX), as an artifact
    /// beside it and as a file. Nothing is pushed before all is built, and no tag that has other content is replaced.
    /// The folder has what people download: the chart, mooring.yaml with the registry's name in it, the same for
    /// Kubernetes before 1.36, the list of images, their digests, notices, changelog, and checksums.
    ///
    /// On a machine of another architecture, the same command adds its images to those that are there. Log in with
    /// `buildah login` or `docker login` first.
    Release(release::ReleaseArgs),
    /// Print the notices of the crates in Mooring's programs, as the images have them.
    Notices,
    /// Build and load the images, apply configmaps/install, and wait until Mooring is ready.
    Install(TargetArgs),
    /// Remove Mooring from the cluster; the cluster stays.
    Uninstall(TargetArgs),
    /// See Mooring at work: a Pod on one node writes, a Pod on another reads, and each step is explained.
    ///
    /// Starts the cluster, builds and installs Mooring, and leaves everything there to look at.
    Demo {
        #[command(flatten)]
        target: TargetArgs,
        /// Remove the demo's objects instead; cluster and Mooring stay.
        #[arg(long)]
        remove: bool,
    },
    /// Draw docs/demo.svg anew, from the output of the demo in docs/demo.md.
    Picture,
    /// Run OpenStack's storage services, on Mooring's own volumes: docs/openstack.md.
    ///
    /// Starts the cluster, builds and installs Mooring and the services, and waits for each.
    Openstack {
        #[command(flatten)]
        target: TargetArgs,
        /// A kustomization to apply instead of configmaps/openstack-services, such as one with your own settings.
        #[arg(long, value_name = "FOLDER", default_value = openstack::FOLDER)]
        kustomization: std::path::PathBuf,
        /// Remove the services instead; their volumes, the Secret to use them with, cluster and Mooring stay.
        #[arg(long, conflicts_with_all = ["test", "volumes", "faults", "back_ends", "nova", "upgrade"])]
        remove: bool,
        /// With --remove: remove the volumes and the Secret, too.
        #[arg(long, requires = "remove")]
        data: bool,
        /// Then have Pods use volumes of Cinder and shares of Manila, and look that nothing of them is left.
        #[arg(long)]
        volumes: bool,
        /// Then have each call that the image makes to Cinder and Manila go wrong in each way, and look that nothing is
        /// left and nothing there twice: a quarter of an hour.
        #[arg(long, conflicts_with_all = ["existing", "kustomization", "test", "upgrade"])]
        faults: bool,
        /// Give Cinder and Manila further back ends, and have Pods use volumes of those: by iSCSI, with the node's kernel
        /// and without, by NFS and by CIFS.
        #[arg(long, conflicts_with_all = ["existing", "kustomization", "test", "volumes", "faults", "upgrade"])]
        back_ends: bool,
        /// Add Nova, with its fake driver, and have it attach volumes of Cinder to a node that is a server of its own.
        #[arg(
            long,
            conflicts_with_all = ["existing", "kustomization", "test", "volumes", "faults", "back_ends", "upgrade"]
        )]
        nova: bool,
        /// Then use the services, kill each of their Pods and nodes, and change and break their settings: half an hour.
        #[arg(long, conflicts_with = "kustomization")]
        test: bool,
        /// Begin with the packages of Debian's release before, and upgrade to these while Pods use volumes of Cinder
        /// and Manila.
        #[arg(long, conflicts_with = "kustomization")]
        upgrade: bool,
        /// Run the services with a Ceph in another namespace instead, use them, and remove both.
        #[arg(long, conflicts_with_all = ["kustomization", "remove", "test", "volumes", "faults", "back_ends", "nova", "upgrade"])]
        external_ceph: bool,
    },
    /// Run all checks: format, lints, unit tests, then end-to-end tests on clusters that are removed afterwards.
    Test(TestArgs),
    /// Measure what Mooring costs, side by side with bare Pods, mount(8) and local-path-provisioner.
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments of the bench: see `cargo testbed bench --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Have Mooring judged by others' tests.
    #[command(subcommand)]
    Conform(Conform),
    /// Run the built kubectl against the cluster, as in `cargo testbed kubectl get pods -A`.
    #[command(disable_help_flag = true)]
    Kubectl {
        /// Arguments of kubectl, passed on unchanged.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    #[command(name = INIT_COMMAND, hide = true)]
    InternalInit { state: std::path::PathBuf, role: String },
}

#[derive(Debug, Subcommand)]
enum Conform {
    /// Run Kubernetes' own storage suite on one of Mooring's classes.
    Kubernetes(conform::KubernetesArgs),
    /// Run csi-sanity of kubernetes-csi on a node's driver.
    Csi(conform::CsiArgs),
}

pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    let layout = Layout::from_env()?;
    match cli.command {
        Command::Up {
            nodes,
            immutable,
            kubernetes,
            kubelet,
        } => {
            let wanted = Wanted {
                flavour: immutable.then_some(Flavour::Immutable),
                releases: kubernetes.map(|control_plane| Releases {
                    control_plane,
                    nodes: kubelet.unwrap_or(control_plane),
                }),
            };
            cluster::up(&layout, nodes, wanted, None)?;
        }
        Command::Machine { images, remove } => machine(&layout, &images, remove)?,
        Command::Down => {
            for lane in left_over(&layout) {
                cluster::down(&lane)?;
            }
            cluster::down(&layout)?;
        }
        Command::Status => {
            if !cluster::status::show(&layout)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Logs { name, lines } => mooring_testbed::logs::show(&layout, name.as_deref(), lines)?,
        Command::Images { build_only: true, .. } => {
            packages::ensure_packages()?;
            images::build(Selection::All, Form::Shipped)?;
        }
        Command::Images { target, .. } => {
            target.open(&layout)?.load_images(Selection::All)?;
        }
        Command::Release(args) => release::run(&args)?,
        Command::Notices => say(images::notices()?),
        Command::Install(target) => {
            let target = target.open(&layout)?;
            let images = target.load_images(Selection::All)?;
            install::install(&target, &images)?;
        }
        Command::Uninstall(target) => install::uninstall(&target.open(&layout)?)?,
        Command::Demo { target, remove } => demo::run(&layout, &target, remove)?,
        Command::Picture => demo::picture::draw()?,
        Command::Openstack {
            target,
            kustomization,
            remove,
            data,
            volumes,
            faults,
            back_ends,
            nova,
            test,
            upgrade,
            external_ceph,
        } => {
            if remove {
                openstack::remove(&target.open(&layout)?, data)?;
            } else if external_ceph {
                openstack::run_with_external_ceph(&layout, &target)?;
            } else {
                let trials = Trials {
                    upgrade,
                    services: test,
                    volumes,
                    faults,
                    back_ends,
                    nova,
                };
                openstack::run(&layout, &target, &kustomization, trials)?;
            }
        }
        Command::Test(args) => {
            if !crate::suite::run(&layout, &args)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Bench { args } => return bench(args),
        Command::Conform(Conform::Kubernetes(args)) => {
            let services = conform::Services {
                start: openstack::conform::start,
                remove: openstack::conform::remove,
            };
            if !conform::kubernetes(&layout, &args, services)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Conform(Conform::Csi(args)) => {
            if !conform::csi(&layout, &args)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Kubectl { args } => return kubectl(&layout, args),
        Command::InternalInit { state, role } => mooring_testbed::init::run(&Layout::of(state), &role)?,
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

/// Replaces this process with the bench, which is compiled only when it is needed.
fn bench(args: Vec<String>) -> Result<ExitCode> {
    let mut run = cargo(["run", "--quiet", "--package", "mooring-bench", "--"])?;
    Err(anyhow::Error::new(run.args(args).exec()).context("failed to run the bench"))
}

/// Replaces this process with kubectl, so that terminals, signals and exit codes are kubectl's own.
fn kubectl(layout: &Layout, args: Vec<String>) -> Result<ExitCode> {
    let cluster = cluster::connect(layout)?;
    let error = cluster.kubectl(args).exec();
    Err(anyhow::Error::new(error).context("failed to run kubectl"))
}
