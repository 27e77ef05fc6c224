//! `cargo testbed bench`: what Mooring costs, measured side by side with alternatives.
//!
//! These are not tests, since the numbers depend on the machine and on its other load. So the bench measures the
//! alternatives in turn in one run, and reports ratios. [`report`] is the result, [`systems`] are the alternatives;
//! `docs/performance.md` says how to read the numbers.

#![forbid(unsafe_code)]

mod audit;
mod burst;
mod claims;
mod go_image;
mod hung;
mod memory;
mod mounts;
mod observer;
mod operations;
mod options;
mod peer;
mod pods;
mod processes;
pub mod report;
mod run;
mod shim;
mod sidecars;
mod summary;
mod systems;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use tokio::runtime::Runtime;

use mooring_testbed::cluster::Wanted;
use mooring_testbed::images::Selection;
use mooring_testbed::install::install_for_tests;
use mooring_testbed::layout::{Layout, repository, write_file};
use mooring_testbed::progress::{note, say};
use mooring_testbed::target::Target;

pub use options::Options;
pub use run::measure;

use operations::many::Amounts;
use options::at_least_one;

const AFTER_HELP: &str = "\
What is compared:
  A bare Pod of the same image, created and run to its end, is the floor of any design that runs a Pod for a volume.
  local-path-provisioner v0.0.30 is built from its Go module and runs on the same cluster with the same helper image,
  as it comes and with --worker-threads raised.
  Mounts are compared with the same system calls in a loop, and with mount(8).

Examples:
  cargo testbed bench                                      all of it: about half an hour
  cargo testbed bench --claims 5 --pods 3 --bursts 20 --skip-peer
                                                           a look at Mooring alone: about three minutes
  cargo testbed bench shim                                 one call-out of the kubelet
  cargo testbed bench hung                                 volumes beside a server that hangs: about five minutes
  cargo testbed bench memory                               a client container's memory: about two minutes
  cargo testbed bench operations                           each operation beside kubernetes-csi's sidecars: about
                                                           half an hour, and five minutes to build them once

The cluster is brought up if none runs, and Mooring is built and installed from this tree. Everything else
that the bench made is gone when it ends.";

const IMAGES: &[&str] = &["flex-provisioner", "mounter", "provisioner-local", "testbed-scripted"];

/// Those for volumes of hanging servers.
const HUNG_IMAGES: &[&str] = &["flex-provisioner", "mounter", "client-sshfs", "testbed-sshd"];

/// Those for the memory of client containers.
const MEMORY_IMAGES: &[&str] = &[
    "flex-provisioner",
    "mounter",
    "client-sshfs",
    "testbed-sshd",
    "client-glusterfs",
    "testbed-glusterfs",
];

/// Those for operations on volumes.
const OPERATIONS_IMAGES: &[&str] = &[
    "flex-provisioner",
    "mounter",
    "client-sshfs",
    "provisioner-local",
    "testbed-scripted",
    "testbed-sshd",
];

/// What can be measured.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub struct Bench {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    all: AllArgs,
}

/// A part that can be measured on its own.
#[derive(Debug, Clone, Copy, Subcommand)]
enum Part {
    /// What one call of the kubelet costs compared with starting /bin/true: the shim installed on node-1, called with
    /// `getvolumename`, which goes to the mounter and back.
    Shim {
        /// How many runs of each.
        #[arg(long, default_value_t = 2000)]
        runs: usize,
    },
    /// Whether a hanging server delays other volumes: their mounts, statistics and unmounts on node-1, with and without
    /// one.
    Hung {
        /// How many rounds of each.
        #[arg(long, default_value_t = 500, value_parser = at_least_one)]
        rounds: usize,
    },
    /// How much memory a client container takes for each further volume, by client.
    Memory {
        /// How many further volumes.
        #[arg(long, default_value_t = 8, value_parser = at_least_one)]
        volumes: usize,
    },
    /// What each operation on a volume costs: time, API writes, and memory, beside kubernetes-csi's sidecars with a
    /// driver that answers at once. Mooring's image does nothing either. Ends with exit code 1 where an aim is missed.
    Operations {
        /// How many rounds of each; of those without workers, a quarter.
        #[arg(long, default_value_t = 40, value_parser = at_least_one)]
        rounds: usize,
        #[command(flatten)]
        amounts: Amounts,
    },
}

/// Settings of the complete bench.
#[derive(Debug, Clone, Args)]
struct AllArgs {
    #[command(flatten)]
    options: Options,
    /// Where to store the numbers as JSON.
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    json: PathBuf,
}

impl Bench {
    pub fn run(self, layout: &Layout) -> Result<()> {
        match self.part {
            Some(Part::Shim { runs }) => shim::run(runs.max(10)),
            Some(Part::Hung { rounds }) => {
                let target = installed(layout, HUNG_IMAGES)?;
                runtime()?.block_on(hung::run(&target, rounds))
            }
            Some(Part::Memory { volumes }) => {
                let target = installed(layout, MEMORY_IMAGES)?;
                runtime()?.block_on(memory::run(&target, volumes))
            }
            Some(Part::Operations { rounds, amounts }) => {
                let target = installed(layout, OPERATIONS_IMAGES)?;
                let figures = runtime()?.block_on(operations::run(&target, rounds, amounts))?;
                say(figures.show());
                let missed = figures.aims().iter().filter(|aim| !aim.met).count();
                ensure!(missed == 0, "{missed} aims are missed: see the last table");
                Ok(())
            }
            None => all(layout, &self.all),
        }
    }
}

/// The cluster, with Mooring and these images built from this tree.
fn installed(layout: &Layout, images: &'static [&'static str]) -> Result<Target> {
    let target = Target::own(layout, Wanted::default(), None)?;
    install_for_tests(&target, &target.load_images(Selection::Named(images))?)?;
    Ok(target)
}

fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.context("failed to start the runtime")
}

fn all(layout: &Layout, args: &AllArgs) -> Result<()> {
    let target = installed(layout, IMAGES)?;
    let report = runtime()?.block_on(measure(&target, &args.options))?;
    let text = serde_json::to_string_pretty(&report).context("failed to write the numbers as JSON")?;
    let path = if args.json.is_absolute() || args.json.parent().is_some_and(|folder| folder.as_os_str().is_empty()) {
        args.json.clone()
    } else {
        repository().join(&args.json)
    };
    write_file(&path, text)?;
    say(table::show(&report));
    note(format!("All numbers are kept in {}.", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{AllArgs, Bench};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    fn read(line: &str) -> Result<AllArgs, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let parsed = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(parsed.bench.all)
    }

    #[test]
    fn bursts_are_a_list_and_nothing_is_measured_zero_times() {
        assert_eq!(read("").unwrap().options.bursts, [50, 200]);
        let given = read("--claims 3 --bursts 5,6,6 --skip-peer").unwrap().options;
        assert_eq!((given.claims, given.bursts, given.skip_peer), (3, vec![5, 6, 6], true));
        for bad in [
            "--claims 0",
            "--bursts 5,0",
            "--bursts x",
            "--mounts 0",
            "--claims 3 shim",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
