//! What cargo builds for the suite: the checks of the sources, and the test programs, all compiled in one go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use mooring_e2e::File;
use mooring_testbed::command::{cargo, line, shown_within, watched_within};
use mooring_testbed::layout::repository;
use mooring_testbed::progress::say;
use serde_json::Value;

use super::lanes::ALL_VARIABLE;
use super::libtest::{self, Results};

/// The package whose test programs need a cluster.
const END_TO_END: &str = "mooring-e2e";

/// The fuzz targets, which get their seeds and inputs derived from them: a number for each that takes some seconds. A
/// build with coverage takes minutes; `docs/testing.md` says how to do that.
const FUZZ_TARGETS: &str = "mooring_fuzz_targets";
const FUZZ_CASES: &str = "2000";

/// The number of inputs that `--soak` gives each, and the time limit: they take part of an hour. The inputs are other
/// random ones each time.
const SOAK_FUZZ_CASES: &str = "500000";
const SOAK_FUZZ_LIMIT: Duration = Duration::from_hours(4);

/// Time limit of one unit test program: they take seconds, and with `--all` the controller's model takes many minutes.
const UNIT_LIMIT: Duration = Duration::from_mins(5);
const LONG_UNIT_LIMIT: Duration = Duration::from_hours(1);

/// Time limit of a check of the sources, and of compiling everything, on a busy machine.
const CHECK_LIMIT: Duration = Duration::from_mins(30);
const COMPILE_LIMIT: Duration = Duration::from_mins(45);

type Check = (&'static str, fn() -> Result<()>);

/// The checks that only read the sources.
pub(super) fn checks() -> [Check; 2] {
    [
        ("format", || shown(&["fmt", "--all", "--check"])),
        ("lints", || {
            shown(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
        }),
    ]
}

/// Runs cargo, and shows all of its output.
fn shown(arguments: &[&str]) -> Result<()> {
    let mut cargo = cargo(arguments)?;
    shown_within(&mut cargo, CHECK_LIMIT)?;
    Ok(())
}

#[derive(Debug, Default)]
pub(super) struct Programs {
    /// Programs with unit tests, each with its package's folder and its name.
    unit: Vec<(PathBuf, String, PathBuf)>,
    /// Programs with end-to-end tests, by group.
    end_to_end: BTreeMap<String, PathBuf>,
}

/// Compiles test programs: only those of the wanted files, or all of them, with the features of the whole workspace in
/// both cases. For one package, cargo would compile shared crates again with other features.
pub(super) fn build(wanted: &[&'static File], only_wanted: bool) -> Result<Programs> {
    let mut build = cargo([
        "test",
        "--workspace",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ])?;
    if only_wanted {
        let groups: BTreeSet<_> = wanted.iter().map(|file| file.group).collect();
        build.args(groups.into_iter().flat_map(|group| ["--test", group]));
    }
    let mut programs = Programs::default();
    watched_within(&mut build, COMPILE_LIMIT, |text| {
        // Messages are JSON; what is for a person is not.
        if text.starts_with('{') {
            programs.note(text);
        } else {
            say(text);
        }
    })?;
    ensure!(
        only_wanted || !programs.unit.is_empty(),
        "{} has told of no test program",
        line(&build)
    );
    for file in wanted {
        programs.end_to_end(file.group)?;
    }
    Ok(programs)
}

impl Programs {
    /// Notes the program that one of cargo's messages reports.
    fn note(&mut self, message: &str) {
        let Ok(message) = serde_json::from_str::<Value>(message) else {
            return;
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (Some(program), Some(name), Some(manifest)) = (
            text(&message["executable"]),
            text(&message["target"]["name"]),
            text(&message["manifest_path"]),
        ) else {
            return;
        };
        if message["profile"]["test"] != true {
            return;
        }
        let folder = Path::new(&manifest).parent().unwrap_or(Path::new("/")).to_owned();
        let kinds = &message["target"]["kind"];
        let is_integration = kinds
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|kind| kind == "test"));
        if is_integration && folder.ends_with("tests/e2e") {
            self.end_to_end.insert(name, PathBuf::from(program));
        } else {
            self.unit.push((folder, name, PathBuf::from(program)));
        }
    }

    pub(super) fn end_to_end(&self, group: &str) -> Result<&PathBuf> {
        let program = self.end_to_end.get(group);
        program.with_context(|| format!("{END_TO_END} has no test program {group}"))
    }

    /// Runs the unit tests, one program after the other: each uses all processors. `all` asks for their long forms.
    pub(super) fn run_unit_tests(&self, all: bool) -> Results {
        let limit = if all { LONG_UNIT_LIMIT } else { UNIT_LIMIT };
        self.run_unit(|_| true, FUZZ_CASES, limit, all)
    }

    /// Runs only the fuzz targets, for a long time.
    pub(super) fn run_fuzz_targets(&self) -> Results {
        let results = self.run_unit(|name| name == FUZZ_TARGETS, SOAK_FUZZ_CASES, SOAK_FUZZ_LIMIT, false);
        if results == Results::default() {
            return Results::broken(FUZZ_TARGETS, &anyhow!("there is no such test program"));
        }
        results
    }

    fn run_unit(&self, wanted: impl Fn(&str) -> bool, fuzz_cases: &str, limit: Duration, long: bool) -> Results {
        let mut all = Results::default();
        for (folder, name, program) in self.unit.iter().filter(|(_, name, _)| wanted(name)) {
            let mut command = Command::new(program);
            // As cargo runs them. Tests that pass need no line of their own.
            command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
            if name == FUZZ_TARGETS {
                command.env("PROPTEST_CASES", fuzz_cases);
            }
            if long {
                command.env(ALL_VARIABLE, "1");
            }
            let results = Results::told(name, libtest::run_quietly(command, name, limit));
            if results != Results::default() {
                say(format!("{name}: {}", results.counts()));
            }
            let package = folder.strip_prefix(repository()).unwrap_or(folder);
            all.add(name, results.of(package));
        }
        all
    }

    /// Runs the examples in the documentation of the shared crates.
    pub(super) fn run_doc_tests() -> Results {
        let title = "documentation";
        let command = cargo(["test", "--quiet", "--doc", "--workspace"]);
        let results = command.and_then(|command| libtest::run_documentation(command, title, UNIT_LIMIT));
        Results::told(title, results)
    }
}

#[cfg(test)]
mod tests {
    use super::Programs;

    fn message(manifest: &str, kind: &str, name: &str, test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "manifest_path": format!("/r/{manifest}/Cargo.toml"),
            "target": {"kind": [kind], "name": name}, "profile": {"test": test}, "executable": format!("/r/target/{name}"),
        })
        .to_string()
    }

    #[test]
    fn programs_are_distinguished_by_their_package_and_kind() {
        let mut programs = Programs::default();
        for text in [
            message("mounter", "lib", "mooring_mounter", true),
            message("mounter", "test", "junk", true),
            message("mounter", "bin", "mounter", false),
            message("tests/e2e", "lib", "mooring_e2e", true),
            message("tests/e2e", "test", "chaos", true),
            "{}".to_owned(),
            "no JSON".to_owned(),
        ] {
            programs.note(&text);
        }
        let units: Vec<_> = programs.unit.iter().map(|(_, name, _)| name.as_str()).collect();
        assert_eq!(units, ["mooring_mounter", "junk", "mooring_e2e"]);
        assert_eq!(programs.end_to_end("chaos").unwrap().to_str(), Some("/r/target/chaos"));
        assert!(programs.end_to_end("vm").unwrap_err().to_string().contains("vm"));
        // A soak run that finds no fuzz targets has not passed.
        assert_eq!(programs.run_fuzz_targets().failed.len(), 1);
    }
}
