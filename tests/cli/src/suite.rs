//! `cargo testbed test`: all checks of the repository, cheapest first, with a summary at the end.

pub(crate) mod lanes;
mod libtest;
mod outcome;
mod plan;
mod preparation;
mod programs;
mod proofs;
mod report;
mod stop;

use std::collections::BTreeSet;
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use mooring_e2e::{FILES, File, Tier};
use mooring_testbed::extra_checks::CHECKS;
use mooring_testbed::images::Form;
use mooring_testbed::layout::{Layout, repository};
use mooring_testbed::node::Flavour;
use mooring_testbed::progress::{labelled, say};
use mooring_testbed::rights::{Right, installed};
use mooring_testbed::target::TargetArgs;
use mooring_testbed::{cluster, packages};

use lanes::{Forms, Lanes};
use preparation::Prepared;
use programs::Programs;
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
    /// Everything: also virtual machines, whole matrices of faults, all kits, an upgrade, and the programs as users get
    /// them. Fails if a guarantee was not proved.
    #[arg(long)]
    all: bool,
    /// Long forms that take hours: thousands of cycles with kills, all random tests with many seeds, and half a million
    /// inputs for each fuzz target. The suite itself has their short forms.
    #[arg(long, conflicts_with_all = ["unit", "repeat"])]
    soak: bool,
    /// Run each end-to-end file this many times, on all lanes at once: a flaky test counts as fixed after thirty
    /// successes under load.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Only end-to-end tests of files whose names begin so, such as `provision` or `mount_local`, of both tiers; or only
    /// tests with these words in their names, such as `mount_hung::slow_server`.
    prefix: Vec<String>,
}

impl TestArgs {
    /// The form of the programs in the images.
    fn form(&self) -> Form {
        if self.all || self.soak {
            Form::Shipped
        } else {
            Form::Quick
        }
    }
}

/// Runs the checks; returns whether all of them passed.
pub(crate) fn run(layout: &Layout, args: &TestArgs) -> Result<bool> {
    for prefix in &args.prefix {
        ensure!(
            FILES.iter().any(|file| plan::names(prefix, file)),
            "no file of end-to-end tests begins with {prefix:?}: see tests/e2e/src/files.rs"
        );
    }
    stop::when_told()?;
    let mut report = Report::begin();
    let wanted = wanted(args);
    let only_end_to_end = args.end_to_end || args.soak || args.repeat > 1 || !args.prefix.is_empty();
    let ran_before = args.target.existing || cluster::running(layout)?.is_some();
    if !args.unit && !args.target.existing {
        packages::check_machine()?;
        report.step("Debian packages", packages::ensure_packages);
    }
    let is_prepared = !wanted.is_empty() && !args.target.existing;
    let prepare = || preparation::prepare(args, &wanted, ran_before);
    let (programs, prepared) = std::thread::scope(|scope| {
        // Compilers of Go and builds of images use the network, and at their ends one processor.
        let beside = (is_prepared && has_memory_for_two()).then(|| scope.spawn(|| labelled("cluster: ", prepare)));
        let programs = check(args, &wanted, only_end_to_end, &mut report);
        let prepared = match beside.map(ScopedJoinHandle::join) {
            Some(Ok(prepared)) => Some(prepared),
            Some(Err(_)) => {
                report.failed("clusters", &anyhow!("the thread that prepares them has panicked"));
                None
            }
            None => (is_prepared && programs.is_some()).then(prepare),
        };
        (programs, prepared)
    });
    let Prepared { built, store } = match prepared {
        Some((steps, prepared)) => {
            report.absorb(steps);
            prepared
        }
        None => Prepared::default(),
    };
    let Some(programs) = programs else {
        return Ok(report.finish());
    };
    if !wanted.is_empty() && (args.target.existing || built.is_some()) {
        let rights = installed()?;
        let used = end_to_end(
            layout,
            args,
            &wanted,
            &programs,
            &Prepared { built, store },
            &rights,
            &mut report,
        )?;
        if !only_end_to_end && !ran_before && !args.keep {
            report.check("rights of Mooring's service accounts", || {
                let unused: Vec<_> = rights.difference(&used).map(ToString::to_string).collect();
                ensure!(unused.is_empty(), "no request needed these: {}", unused.join("; "));
                Ok(())
            });
        }
    }
    if !only_end_to_end {
        let proved = proofs::report(repository(), report.ended(), args.all);
        report.check("guarantees of docs/ARCHITECTURE.md", || {
            let (text, unproved) = proved?;
            say(text);
            ensure!(
                !args.all || args.unit || unproved.is_empty(),
                "no test proved {} in this run",
                unproved.join(", ")
            );
            Ok(())
        });
    }
    Ok(report.finish())
}

/// What needs no cluster; returns the test programs if they could be compiled.
fn check(args: &TestArgs, wanted: &[&'static File], only_end_to_end: bool, report: &mut Report) -> Option<Programs> {
    if !only_end_to_end {
        for (name, check) in programs::checks() {
            report.check(name, check);
        }
    }
    let mut programs = None;
    let mut compile = |report: &mut Report| {
        report.step("compile the tests", || {
            programs = Some(programs::build(wanted, only_end_to_end && !args.soak)?);
            Ok(())
        });
    };
    if only_end_to_end {
        compile(report);
    } else {
        // On an empty machine cargo-deny is compiled, which uses one processor at its end. No two compile into one folder.
        let with = || labelled("checks: ", || extra_checks(args));
        with_checks_beside(report, with, compile);
    }
    let programs = programs?;
    if !only_end_to_end {
        report.tests("unit tests", || programs.run_unit_tests(args.all));
        report.tests("documentation tests", Programs::run_doc_tests);
    }
    if args.soak && args.prefix.is_empty() {
        report.tests("fuzz targets", || programs.run_fuzz_targets());
    }
    Some(programs)
}

/// Runs `compile`, with `checks` beside it where there is memory for both, and else before it. In the report the checks
/// come first.
fn with_checks_beside(report: &mut Report, checks: impl FnOnce() -> Report + Send, compile: impl FnOnce(&mut Report)) {
    if !has_memory_for_two() {
        report.absorb(checks());
        return compile(report);
    }
    let mut compiled = Report::begin();
    let checked = std::thread::scope(|scope| {
        let beside = scope.spawn(checks);
        compile(&mut compiled);
        beside.join()
    });
    match checked {
        Ok(checked) => report.absorb(checked),
        Err(_) => report.failed("checks", &anyhow!("the thread that runs them has panicked")),
    }
    report.absorb(compiled);
}

/// The checks that need tools besides Rust's own.
fn extra_checks(args: &TestArgs) -> Report {
    let mut report = Report::begin();
    report.step("packages for checks", packages::ensure_check_packages);
    for check in CHECKS.iter().filter(|check| args.all || check.is_quick) {
        report.verdict(check.name, check.run);
    }
    report
}

/// The files of end-to-end tests to run.
fn wanted(args: &TestArgs) -> Vec<&'static File> {
    if args.unit {
        return Vec::new();
    }
    let wanted = |file: &&File| {
        if !args.prefix.is_empty() {
            return args.prefix.iter().any(|prefix| plan::names(prefix, file));
        }
        if args.soak {
            return plan::is_for_soak(file);
        }
        args.all || file.tier == Tier::Default
    };
    FILES.iter().filter(wanted).collect()
}

fn end_to_end(
    layout: &Layout,
    args: &TestArgs,
    wanted: &[&'static File],
    programs: &Programs,
    prepared: &Prepared,
    rights: &BTreeSet<Right>,
    report: &mut Report,
) -> Result<BTreeSet<Right>> {
    let ran_before = args.target.existing || cluster::running(layout)?.is_some();
    let rounds = if args.soak { plan::SOAK_ROUNDS } else { args.repeat };
    let jobs = plan::jobs(wanted, rounds, args.all || args.soak, ran_before);
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
        built: prepared.built.as_deref(),
        store: prepared.store.as_ref(),
        programs,
        keep: args.keep || ran_before,
        forms: Forms {
            soak: args.soak,
            all: args.all || args.soak,
            prefixes: &args.prefix,
            programs: args.form(),
        },
        rights,
        count,
    };
    say(format!(
        "== end-to-end tests: {} files on {count} cluster{}",
        jobs.len(),
        if count == 1 { "" } else { "s" }
    ));
    let (started, load) = (Instant::now(), Load::now());
    let mut outcome = lanes.run(jobs);
    let used = std::mem::take(&mut outcome.used_rights);
    report.end_to_end(outcome, started.elapsed(), load.busy());
    Ok(used)
}

/// Most clusters for this machine: an empty one takes 1.2 GiB, and its tests as much again, with a virtual machine or a
/// Ceph among them. Most tests wait more than they compute, so two processors are enough for three clusters.
fn most_lanes(asked: Option<u8>) -> Result<usize> {
    const GIB_EACH: usize = 5;
    const MOST: usize = 3;
    match asked {
        Some(lanes) => Ok(usize::from(lanes)),
        None => Ok((memory_in_gib()? / GIB_EACH).clamp(1, MOST)),
    }
}

/// Whether the compilers of Rust and of Go can run at once: each takes up to 5 GiB.
fn has_memory_for_two() -> bool {
    memory_in_gib().is_ok_and(|memory| memory >= 12)
}

fn memory_in_gib() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").context("failed to read /proc/meminfo")?;
    let kib: usize = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok())
        .context("/proc/meminfo has no MemTotal")?;
    Ok(kib >> 20)
}
