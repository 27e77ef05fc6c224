//! `cargo testbed test`: all checks of the repository, cheapest first, with a summary at the end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
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
    /// What kind of nodes to bring the cluster up with: immutable ones, unless said otherwise. One that runs is taken as it is.
    #[arg(long, value_enum)]
    flavour: Option<Flavour>,
    /// Leave the cluster up afterwards. One that ran before stays up in any case.
    #[arg(long)]
    keep: bool,
    /// Only end-to-end tests of files whose name begins so, such as `provision` or `mount_local`.
    prefix: Vec<String>,
}

/// Tests that get in each other's way, by the beginning of their file's name: they run one at a time, after all others.
const ALONE: &[&str] = &["chaos_", "demo_", "scale_", "vm_"];

/// How many files of the others run at once, and how many tests of each: they wait more than they compute.
const FILES_AT_ONCE: usize = 2;
const TESTS_AT_ONCE: &str = "--test-threads=4";

/// Files of end-to-end tests that are run in the same way.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    name: &'static str,
    files: Vec<String>,
    files_at_once: usize,
    tests_at_once: &'static str,
}

/// One check and how it went.
struct Outcome {
    name: String,
    took: Duration,
    error: Option<anyhow::Error>,
    /// The lines of `cargo test` that say how many tests passed, which failed, and why.
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
            outcomes.push(check_tests(name, || cargo(arguments, &[], None)));
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
            // What works on hosts with nothing works on others.
            let usual = (!ran_before).then_some(Flavour::Immutable);
            Target::own(layout, args.flavour.or(usual))?
        };
        install_for_tests(&opened, &opened.load_images(Selection::All)?)?;
        target = Some(opened);
        Ok(())
    }));
    if let Some(target) = &target {
        let files = test_files(&repository().join("tests/tests"))?;
        for group in groups(&files, &args.prefix) {
            outcomes.push(check_tests(group.name, || {
                run_group(&group, &environment(args, target))
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

/// The wanted files in groups to run one after the other.
fn groups(files: &[String], prefixes: &[String]) -> Vec<Group> {
    let wanted = |file: &&String| prefixes.is_empty() || prefixes.iter().any(|prefix| file.starts_with(prefix));
    let (alone, together): (Vec<_>, Vec<_>) = files
        .iter()
        .filter(wanted)
        .cloned()
        .partition(|file| ALONE.iter().any(|prefix| file.starts_with(prefix)));
    [
        Group {
            name: "end-to-end tests",
            files: together,
            files_at_once: FILES_AT_ONCE,
            tests_at_once: TESTS_AT_ONCE,
        },
        Group {
            name: "end-to-end tests, one at a time",
            files: alone,
            files_at_once: 1,
            tests_at_once: "--test-threads=1",
        },
    ]
    .into_iter()
    .filter(|group| !group.files.is_empty())
    .collect()
}

/// Runs a group's files, each in a cargo of its own, so that one that takes long keeps no other waiting.
fn run_group(group: &Group, environment: &[(&str, String)]) -> (Vec<String>, Result<()>) {
    let mut build = vec!["test", "-p", "mooring-testbed", "--no-run"];
    for file in &group.files {
        build.extend(["--test", file.as_str()]);
    }
    if let (results, Err(error)) = cargo(&build, &[], None) {
        return (results, Err(error));
    }
    let waiting = Mutex::new(group.files.iter());
    let lane = || {
        let mut results = Vec::new();
        let mut failed = Vec::new();
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(file) = next else {
                return (results, failed);
            };
            let arguments = [
                "test",
                "-p",
                "mooring-testbed",
                "--test",
                file,
                "--",
                group.tests_at_once,
            ];
            let (of_file, ended) = cargo(&arguments, environment, Some(file));
            results.extend(of_file);
            failed.extend(ended.err().map(|_| file.as_str()));
        }
    };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..group.files_at_once).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut results = Vec::new();
    let mut failed = Vec::new();
    for end in ends {
        match end {
            Ok((of_lane, failed_of_lane)) => {
                results.extend(of_lane);
                failed.extend(failed_of_lane);
            }
            Err(_) => failed.push("the testbed itself"),
        }
    }
    let ended = if failed.is_empty() {
        Ok(())
    } else {
        Err(anyhow!("{} failed: see above", failed.join(", ")))
    };
    (results, ended)
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

/// Runs cargo, showing what it says, each line with the name of the file of tests where there is one; gives the lines that say
/// which tests failed, why, and how many passed.
fn cargo(arguments: &[&str], environment: &[(&str, String)], file: Option<&str>) -> (Vec<String>, Result<()>) {
    let mut results = Vec::new();
    let ended = command::cargo(arguments).and_then(|mut cargo| {
        cargo.envs(environment.iter().map(|(key, value)| (key, value)));
        shown(cargo, file, &mut results)
    });
    (results, ended)
}

/// Runs cargo, collecting the lines that sum its tests up and those of tests that failed, with what their panics say.
fn shown(mut command: Command, file: Option<&str>, results: &mut Vec<String>) -> Result<()> {
    let line = line(&command);
    let (printed, output) = std::io::pipe().context("failed to make a pipe")?;
    if file.is_some() {
        // Of several at once, what each complains of must have its name as well.
        command.stderr(output.try_clone().context("failed to share a pipe")?);
    }
    command.stdin(Stdio::null()).stdout(output);
    let mut child = command.spawn().with_context(|| format!("failed to run {line}"))?;
    // It holds this side's ends of the pipe, which would never be at its end.
    drop(command);
    let mut panics = false;
    for text in BufReader::new(printed).lines().map_while(Result::ok) {
        // A file without tests is no result.
        let result = text.starts_with("test result:") && !text.contains(" 0 passed; 0 failed;");
        let failed = text.starts_with("test ") && text.ends_with("... FAILED");
        panics = is_of_panic(&text, panics);
        let text = file.map_or_else(|| text.clone(), |file| format!("{file}: {text}"));
        say(&text);
        if result || failed || panics {
            results.push(text);
        }
    }
    let status = child.wait().with_context(|| format!("failed to wait for {line}"))?;
    ensure!(status.success(), "{line} failed: see above");
    Ok(())
}

/// Whether a line is the first of a panic, or belongs to the one that the line before is of: what comes before its backtrace.
fn is_of_panic(text: &str, before_is: bool) -> bool {
    let begins = text.starts_with("thread '") && text.contains(" panicked at ");
    let ends = text.is_empty() || text == "stack backtrace:" || text.starts_with("note: ");
    begins || (before_is && !ends)
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
    use super::{groups, is_of_panic};

    #[test]
    fn what_a_panic_says_is_kept_and_its_backtrace_is_not() {
        let printed = [
            "running 1 test",
            "thread 'a_volume' (7) panicked at tests/src/harness.rs:101:9:",
            "it: waited 60 s in vain",
            "and more",
            "stack backtrace:",
            "   0: __rustc::rust_begin_unwind",
            "test a_volume ... FAILED",
        ];
        let mut panics = false;
        let kept: Vec<_> = printed
            .iter()
            .filter(|text| {
                panics = is_of_panic(text, panics);
                panics
            })
            .collect();
        assert_eq!(kept, printed[1..4].iter().collect::<Vec<_>>());
    }

    #[test]
    fn tests_that_disturb_others_come_last_and_alone() {
        let files = ["chaos_node", "mount_local", "provision_local", "smoke_cluster"].map(str::to_owned);
        let all = groups(&files, &[]);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].files, ["mount_local", "provision_local", "smoke_cluster"]);
        assert_eq!(all[1].files, files[..1]);
        assert_eq!((all[1].files_at_once, all[1].tests_at_once), (1, "--test-threads=1"));
        let mounts = groups(&files, &["mount".to_owned()]);
        assert_eq!((mounts.len(), &mounts[0].files), (1, &vec![files[1].clone()]));
        assert!(groups(&files, &["nothing".to_owned()]).is_empty());
    }
}
