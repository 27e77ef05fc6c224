//! `cargo testbed test`: all checks of the repository, cheapest first, with a summary at the end.

mod changed;
pub(crate) mod lanes;
mod libtest;
mod outcome;
mod plan;
mod programs;
mod report;
mod stop;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use mooring_e2e::{FILES, File, guarantees};
use mooring_testbed::extra_checks::CHECKS;
use mooring_testbed::image_store::ImageStore;
use mooring_testbed::images::{self, Built, Selection};
use mooring_testbed::layout::{Layout, repository};
use mooring_testbed::node::Flavour;
use mooring_testbed::progress::say;
use mooring_testbed::target::TargetArgs;
use mooring_testbed::{binaries, cluster, earlier, packages};

use lanes::Lanes;
use report::{Load, Report};

/// Arguments of `cargo testbed test`.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub(crate) struct TestArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Only what needs no cluster and no root: format, lints, unit tests.
    #[arg(long, conflicts_with = "end_to_end")]
    unit: bool,
    /// Only what needs a cluster.
    #[arg(long)]
    end_to_end: bool,
    /// Kind of nodes for new clusters, by default immutable. A running cluster is used as it is.
    #[arg(long, value_enum)]
    flavour: Option<Flavour>,
    /// Leave the clusters up afterwards. A cluster that ran before stays up in any case.
    #[arg(long)]
    keep: bool,
    /// Number of clusters to run the end-to-end tests on, side by side; by default one for each 5 GiB of memory, three
    /// at most. A running cluster is used alone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    lanes: Option<u8>,
    /// Only tests that the change since the branch `main` (or `origin/main`, on `main` itself) can affect, with
    /// uncommitted files.
    #[arg(long, conflicts_with_all = ["prefix", "soak", "repeat"])]
    changed: bool,
    /// Long forms that take hours: thousands of cycles with kills, all random tests with many seeds, and half a million
    /// inputs for each fuzz target. The suite itself has their short forms.
    #[arg(long, conflicts_with_all = ["unit", "repeat"])]
    soak: bool,
    /// Run each end-to-end file this many times, on all lanes at once: a flaky test counts as fixed after thirty
    /// successes under load.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Only end-to-end tests of files whose names begin so, such as `provision` or `mount_local`.
    prefix: Vec<String>,
}

/// Runs the checks; returns whether all of them passed.
pub(crate) fn run(layout: &Layout, args: &TestArgs) -> Result<bool> {
    for prefix in &args.prefix {
        ensure!(
            FILES.iter().any(|file| file.title().starts_with(prefix)),
            "no file of end-to-end tests begins with {prefix:?}: see tests/e2e/src/files.rs"
        );
    }
    stop::when_told()?;
    let mut report = Report::begin();
    let changed = args.changed.then(changed::Changed::look).transpose()?;
    let wanted = wanted(args, changed.as_ref());
    let only_end_to_end = args.end_to_end || args.soak || args.repeat > 1;
    let ran_before = args.target.existing || cluster::running(layout)?.is_some();
    if !args.unit && !args.target.existing {
        packages::check_machine()?;
        report.step("Debian packages", packages::ensure_packages);
    }
    if !only_end_to_end {
        for (name, check) in programs::checks() {
            report.check(name, check);
        }
        report.step("packages for checks", packages::ensure_check_packages);
        for check in CHECKS {
            report.verdict(check.name, check.run);
        }
    }
    let mut programs = None;
    report.step("compile the tests", || {
        programs = Some(programs::build(&wanted)?);
        Ok(())
    });
    let Some(programs) = programs else {
        return Ok(report.finish());
    };
    if !only_end_to_end {
        report.tests("unit tests", || programs.run_unit_tests());
        report.tests("documentation tests", programs::Programs::run_doc_tests);
    }
    if args.soak && args.prefix.is_empty() {
        report.tests("fuzz targets", || programs.run_fuzz_targets());
    }
    if !args.unit && !wanted.is_empty() {
        end_to_end(layout, args, &wanted, &programs, ran_before, &mut report)?;
    }
    if changed.is_none() && args.prefix.is_empty() && !only_end_to_end {
        report.check("guarantees of docs/ARCHITECTURE.md", || {
            say(guarantees::report(repository())?);
            Ok(())
        });
    }
    Ok(report.finish())
}

/// The files of end-to-end tests to run.
fn wanted(args: &TestArgs, changed: Option<&changed::Changed>) -> Vec<&'static File> {
    if args.unit {
        return Vec::new();
    }
    let wanted = |file: &&File| match changed {
        Some(changed) => changed.touches(file),
        None if args.soak && args.prefix.is_empty() => plan::is_for_soak(file),
        None => args.prefix.is_empty() || args.prefix.iter().any(|prefix| file.title().starts_with(prefix)),
    };
    FILES.iter().filter(wanted).collect()
}

fn end_to_end(
    layout: &Layout,
    args: &TestArgs,
    wanted: &[&'static File],
    programs: &programs::Programs,
    ran_before: bool,
    report: &mut Report,
) -> Result<()> {
    let mut built: Option<Vec<Built>> = None;
    let mut store = None;
    if !args.target.existing {
        let mut binaries = None;
        report.step("Kubernetes, etcd and containerd", || {
            binaries = Some(binaries::ensure_binaries()?);
            Ok(())
        });
        report.step("images", || {
            built = Some(images::build(Selection::All)?);
            Ok(())
        });
        let (Some(binaries), Some(built)) = (&binaries, &built) else {
            return Ok(());
        };
        if wanted.iter().any(|file| file.title() == "scale_bench") {
            report.step("what the bench compares with", || binaries::ensure_peer().map(drop));
        }
        if wanted.iter().any(|file| {
            matches!(
                file.title().as_str(),
                "provision_backup"
                    | "provision_discover"
                    | "provision_grant"
                    | "provision_group"
                    | "provision_snapshot"
            )
        }) {
            report.step("snapshot-controller", || {
                binaries::ensure_snapshot_controller().map(drop)
            });
        }
        if wanted.iter().any(|file| file.title().starts_with("chaos_upgrade")) {
            // A clone without that commit has no such programs; the test says so.
            report.step("programs of an earlier version", || match earlier::missing() {
                Some(_) => Ok(()),
                None => earlier::ensure().map(drop),
            });
        }
        if !ran_before {
            report.step("images for the nodes", || {
                store = Some(ImageStore::ensure(binaries, built)?);
                Ok(())
            });
        }
    }
    let rounds = if args.soak { plan::SOAK_ROUNDS } else { args.repeat };
    let jobs = plan::jobs(wanted, rounds);
    let count = if ran_before {
        1
    } else {
        plan::lanes(&jobs, most_lanes(args.lanes)?)
    };
    let lanes = Lanes {
        layout,
        target: &args.target,
        // What works on immutable nodes works on others.
        flavour: args.flavour.or((!ran_before).then_some(Flavour::Immutable)),
        built: built.as_deref(),
        store: store.as_ref(),
        programs,
        keep: args.keep || ran_before,
        soak: args.soak,
        count,
    };
    say(format!(
        "== end-to-end tests: {} files on {count} cluster{}",
        jobs.len(),
        if count == 1 { "" } else { "s" }
    ));
    let (started, load) = (Instant::now(), Load::now());
    let outcome = lanes.run(jobs);
    report.end_to_end(outcome, started.elapsed(), load.busy());
    Ok(())
}

/// Most clusters for this machine: an empty one takes 1.2 GiB, and its tests as much again, with a virtual machine or a
/// Ceph among them. Most tests wait more than they compute, so two processors are enough for three clusters.
fn most_lanes(asked: Option<u8>) -> Result<usize> {
    const KIB_EACH: usize = 5 << 20;
    const MOST: usize = 3;
    if let Some(lanes) = asked {
        return Ok(usize::from(lanes));
    }
    let text = std::fs::read_to_string("/proc/meminfo").context("failed to read /proc/meminfo")?;
    let kib: usize = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok())
        .context("/proc/meminfo has no MemTotal")?;
    Ok((kib / KIB_EACH).clamp(1, MOST))
}
