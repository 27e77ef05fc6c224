//! `cargo testbed test`: all checks of the repository, cheapest first, with a summary at the end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::command::{self, line};
use crate::harness::EXISTING_VARIABLE;
use crate::images::Selection;
use crate::install::install_for_tests;
use crate::layout::{Layout, repository};
use crate::node::Flavour;
use crate::progress::{fail, say, spoken};
use crate::target::{Target, TargetArgs};
use crate::{cluster, packages};

/// What `cargo testbed test` can be told.
#[derive(Debug, Clone, Args)]
pub struct TestArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Only what needs no cluster and no root: format, lints, unit tests.
    #[arg(long, conflicts_with = "end_to_end")]
    unit: bool,
    /// Only what needs a cluster.
    #[arg(long)]
    end_to_end: bool,
    /// What kind of nodes to bring the cluster up with. One that runs is taken as it is.
    #[arg(long, value_enum, default_value_t = Flavour::Plain)]
    flavour: Flavour,
    /// Leave the cluster up afterwards. One that ran before stays up in any case.
    #[arg(long)]
    keep: bool,
    /// Only end-to-end tests of files whose name begins so, such as `provision` or `mount_local`.
    prefix: Vec<String>,
}

/// Tests that get in each other's way, by the beginning of their file's name: they run one at a time, after all others.
const ALONE: &[&str] = &["chaos_", "demo_", "scale_", "vm_"];

/// How many end-to-end tests run at once: they wait more than they compute.
const AT_ONCE: &str = "--test-threads=4";

/// One check and how it went.
struct Outcome {
    name: String,
    took: Duration,
    error: Option<anyhow::Error>,
    /// The lines of `cargo test` that say how many tests passed.
    results: Vec<String>,
}

/// Runs the checks; whether all of them passed.
pub fn run(layout: &Layout, args: &TestArgs) -> Result<bool> {
    let started = Instant::now();
    let mut outcomes = Vec::new();
    if !args.end_to_end {
        for (name, arguments) in [
            ("format", &["fmt", "--all", "--check"][..]),
            (
                "lints",
                &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
            ),
            ("unit tests", &["test", "--workspace", "--exclude", "mooring-testbed"]),
            ("unit tests of the testbed", &["test", "-p", "mooring-testbed", "--lib"]),
        ] {
            outcomes.push(check_tests(name, || cargo(arguments, &[])));
        }
    }
    if !args.unit {
        end_to_end(layout, args, &mut outcomes)?;
    }
    summarise(&outcomes, started.elapsed());
    Ok(outcomes.iter().all(|outcome| outcome.error.is_none()))
}

fn end_to_end(layout: &Layout, args: &TestArgs, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let ran_before = args.target.existing || cluster::running(layout)?.is_some();
    let mut target = None;
    outcomes.push(check("cluster, images, install", || {
        if !args.target.existing {
            packages::check_machine()?;
        }
        let opened = if args.target.existing {
            args.target.open(layout)?
        } else {
            Target::own(layout, Some(args.flavour))?
        };
        install_for_tests(&opened, &opened.load_images(Selection::All)?)?;
        target = Some(opened);
        Ok(())
    }));
    if let Some(target) = &target {
        for (name, files, threads) in groups(&test_files(&repository().join("tests/tests"))?, &args.prefix) {
            outcomes.push(check_tests(name, || {
                let mut arguments = vec!["test", "-p", "mooring-testbed", "--no-fail-fast"];
                for file in &files {
                    arguments.extend(["--test", file.as_str()]);
                }
                arguments.extend(["--", threads]);
                cargo(&arguments, &environment(args, target))
            }));
        }
    }
    if !ran_before && !args.keep {
        outcomes.push(check("take the cluster away", || cluster::down(layout)));
    }
    Ok(())
}

/// What tells the tests which cluster to run on.
fn environment(args: &TestArgs, target: &Target) -> Vec<(&'static str, String)> {
    if !args.target.existing {
        return Vec::new();
    }
    let kubeconfig = target
        .kubeconfig
        .as_ref()
        .map(|path| path.to_string_lossy().into_owned());
    std::iter::once((EXISTING_VARIABLE, "1".to_owned()))
        .chain(kubeconfig.map(|path| ("KUBECONFIG", path)))
        .collect()
}

/// The files of end-to-end tests, by name without `.rs`.
fn test_files(folder: &Path) -> Result<Vec<String>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .with_context(|| format!("failed to list {}", folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    files.sort();
    Ok(files)
}

/// The wanted files in groups to run one after the other: name, files, and how many of their tests at once.
fn groups(files: &[String], prefixes: &[String]) -> Vec<(&'static str, Vec<String>, &'static str)> {
    let wanted = |file: &&String| prefixes.is_empty() || prefixes.iter().any(|prefix| file.starts_with(prefix));
    let (alone, together): (Vec<_>, Vec<_>) = files
        .iter()
        .filter(wanted)
        .cloned()
        .partition(|file| ALONE.iter().any(|prefix| file.starts_with(prefix)));
    [
        ("end-to-end tests", together, AT_ONCE),
        ("end-to-end tests, one at a time", alone, "--test-threads=1"),
    ]
    .into_iter()
    .filter(|(_, files, _)| !files.is_empty())
    .collect()
}

/// Runs a check that has no results of tests.
fn check(name: &str, run: impl FnOnce() -> Result<()>) -> Outcome {
    check_tests(name, || (Vec::new(), run()))
}

/// Runs a check, which gives the results of tests whether they are good or bad.
fn check_tests(name: &str, run: impl FnOnce() -> (Vec<String>, Result<()>)) -> Outcome {
    say(format!("== {name}"));
    let started = Instant::now();
    let (results, ended) = run();
    let error = ended.err();
    if let Some(error) = &error {
        fail(error);
    }
    Outcome {
        name: name.to_owned(),
        took: started.elapsed(),
        error,
        results,
    }
}

/// Runs cargo, showing what it says; gives the lines that say which tests failed and how many passed.
fn cargo(arguments: &[&str], environment: &[(&str, String)]) -> (Vec<String>, Result<()>) {
    let mut results = Vec::new();
    let ended = command::cargo(arguments).and_then(|mut cargo| {
        for (key, value) in environment {
            cargo.env(key, value);
        }
        shown(&mut cargo, &mut results)
    });
    (results, ended)
}

/// Runs cargo, collecting the lines that sum its tests up and those of tests that failed.
fn shown(command: &mut Command, results: &mut Vec<String>) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to run {}", line(command)))?;
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines().map_while(Result::ok) {
            say(&text);
            // A file without tests is no result.
            let result = text.starts_with("test result:") && !text.contains(" 0 passed; 0 failed;");
            if result || (text.starts_with("test ") && text.ends_with("... FAILED")) {
                results.push(text);
            }
        }
    }
    let status = child
        .wait()
        .with_context(|| format!("failed to wait for {}", line(command)))?;
    ensure!(status.success(), "{} failed: see above", line(command));
    Ok(())
}

fn summarise(outcomes: &[Outcome], took: Duration) {
    say(format!("\n== summary ({})", spoken(took)));
    for outcome in outcomes {
        let word = if outcome.error.is_none() { "ok    " } else { "FAILED" };
        say(format!("{word} {} ({})", outcome.name, spoken(outcome.took)));
    }
    for outcome in outcomes {
        if let Some(error) = &outcome.error {
            say(format!("{}: {error:#}", outcome.name));
        }
        for result in &outcome.results {
            say(format!("{}: {result}", outcome.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn tests_that_disturb_others_come_last_and_alone() {
        let files = ["chaos_node", "mount_local", "provision_local", "smoke_cluster"].map(str::to_owned);
        let all = groups(&files, &[]);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].1, ["mount_local", "provision_local", "smoke_cluster"]);
        assert_eq!((all[1].1.as_slice(), all[1].2), (&files[..1], "--test-threads=1"));
        assert_eq!(
            groups(&files, &["mount".to_owned()]),
            [("end-to-end tests", vec![files[1].clone()], "--test-threads=4")]
        );
        assert!(groups(&files, &["nothing".to_owned()]).is_empty());
    }
}
