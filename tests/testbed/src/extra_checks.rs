//! Checks of the repository that need tools besides Rust's own: shell scripts, licences, the shim for aarch64; and what
//! the workspace does not compile: the fuzz targets' programs.
//!
//! Each is an entry in [`CHECKS`]. [`crate::packages::ensure_check_packages`] installs the Debian packages that they
//! need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::binaries::host_target;
use crate::command::{cargo, command, find_program, output, watched, watched_within};
use crate::layout::{cache, repository};
use crate::progress::Step;
use crate::work_trees::leave_nothing_of_others;

#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its name in the output.
    pub name: &'static str,
    /// Whether it is part of every run; the others compile more, and run with `--all`.
    pub is_quick: bool,
    pub run: fn() -> Result<Verdict>,
}

/// The result of a check that found nothing wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is as it should be.
    Passed,
    /// It could not run here, for this reason.
    Skipped(String),
}

/// All checks, cheapest first.
pub const CHECKS: &[Check] = &[
    Check {
        name: "shellcheck",
        is_quick: true,
        run: shellcheck,
    },
    Check {
        name: "shim for aarch64",
        is_quick: false,
        run: aarch64_shim,
    },
    Check {
        name: "programs of the fuzz targets",
        is_quick: false,
        run: fuzz_programs,
    },
    Check {
        name: "cargo-deny: bans, licences, sources",
        is_quick: true,
        run: deny,
    },
    Check {
        name: "cargo-deny: advisories",
        is_quick: true,
        run: advisories,
    },
];

/// Checks that every shell script of the repository, and every file that scripts source, is free of warnings.
///
/// # Errors
/// If there are warnings; or if git or shellcheck is missing.
pub fn shellcheck() -> Result<Verdict> {
    let scripts = scripts()?;
    ensure!(scripts.len() > 20, "only {} shell scripts were found", scripts.len());
    // With the paths in their `source=`, which are relative to the repository.
    let mut run = command(
        "shellcheck",
        ["--severity=warning", "--format=gcc", "--external-sources"],
    );
    output(run.arg("--source-path=.").args(scripts).current_dir(repository()))?;
    Ok(Verdict::Passed)
}

/// The repository's shell scripts, recognized by their first line.
fn scripts() -> Result<Vec<PathBuf>> {
    let listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let files = output(command("git", listed).current_dir(repository()))?;
    let mut found: Vec<_> = files
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|file| repository().join(file).is_file())
        .map(|file| {
            let path = repository().join(&file);
            let bytes = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
            Ok(is_script(&file, &bytes).then_some(file))
        })
        .filter_map(Result::transpose)
        .collect::<Result<_>>()?;
    found.sort();
    Ok(found)
}

fn is_script(file: &Path, content: &[u8]) -> bool {
    let first = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let shells = ["sh", "bash", "dash", "ash"];
    let run_by = |word: &str| shells.contains(&word.rsplit('/').next().unwrap_or_default());
    file.extension().is_some_and(|extension| extension == "sh")
        || first.starts_with("# shellcheck shell=")
        || first
            .strip_prefix("#!")
            .is_some_and(|line| line.split_whitespace().any(run_by))
}

const DENY: &str = "0.20.2";

/// Checks that crates have licences that `deny.toml` allows, and come from crates.io.
///
/// # Errors
/// If one does not; or if cargo-deny can't be built.
pub fn deny() -> Result<Verdict> {
    // Long warnings about two versions of one crate would push the errors out of the lines that are shown. Only one of
    // the workspaces has each of the exceptions.
    let check = [
        "check",
        "--hide-inclusion-graph",
        "--allow=duplicate",
        "--allow=license-exception-not-encountered",
    ];
    for workspace in WORKSPACES {
        output(cargo_deny(workspace, &check)?.args(["bans", "licenses", "sources"]))?;
    }
    Ok(Verdict::Passed)
}

/// Checks that no crate has a known vulnerability. Skipped if the database, which is on GitHub, can't be reached.
///
/// # Errors
/// If one has; or if cargo-deny can't be built.
pub fn advisories() -> Result<Verdict> {
    let program = deny_program()?;
    // A network that drops packets would delay it by minutes.
    let mut fetch = command("timeout", ["60".as_ref(), program.as_os_str()]);
    if let Err(error) = output(fetch.args(["fetch", "db"]).current_dir(repository())) {
        let error = error.to_string();
        let why = error.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        return Ok(Verdict::Skipped(format!("the RustSec database can't be had: {why}")));
    }
    for workspace in WORKSPACES {
        output(&mut cargo_deny(workspace, &["check", "--disable-fetch", "advisories"])?)?;
    }
    Ok(Verdict::Passed)
}

/// The repository's workspaces; each has a lock file.
const WORKSPACES: [&str; 2] = ["Cargo.toml", FUZZ];

const FUZZ: &str = "tests/fuzz/Cargo.toml";

fn cargo_deny(workspace: &str, arguments: &[&str]) -> Result<Command> {
    let mut deny = command(deny_program()?, ["--locked", "--config=deny.toml", "--manifest-path"]);
    deny.arg(workspace).args(arguments).current_dir(repository());
    Ok(deny)
}

/// cargo-deny from the cache. It is built once, for a short build rather than a fast program: two minutes of one
/// processor, and two seconds for each check.
fn deny_program() -> Result<PathBuf> {
    let root = cache()?.join(format!("cargo-deny-{DENY}"));
    let program = root.join("bin/cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    let mut step = Step::begin(format!("build cargo-deny {DENY}"));
    let mut install = cargo(["install", "cargo-deny", "--locked", "--no-default-features"])?;
    install.args(["--version", DENY, "--root"]).arg(&root);
    install
        .env("CARGO_TARGET_DIR", root.join("target"))
        // An ordinary program, unlike those of this repository.
        .env("CARGO_ENCODED_RUSTFLAGS", "")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "256");
    watched(&mut install, |line| step.update(line.trim()))?;
    // Half a gigabyte that is not needed again.
    let target = root.join("target");
    std::fs::remove_dir_all(&target).with_context(|| format!("failed to remove {}", target.display()))?;
    step.done("");
    Ok(program)
}

/// Longest time to check the programs of the fuzz targets with all that they use, on a busy machine.
const FUZZ_LIMIT: Duration = Duration::from_mins(15);

/// Checks that the programs that cargo-fuzz runs compile, without the sanitizers. Skipped if their crates are
/// unavailable, or the C++ compiler that libFuzzer needs.
///
/// # Errors
/// If one does not compile; or if the lock file is not up to date.
pub fn fuzz_programs() -> Result<Verdict> {
    if find_program("c++").is_none() {
        return Ok(Verdict::Skipped("there is no C++ compiler for libFuzzer".to_owned()));
    }
    let fetch = ["fetch", "--locked", "--target", host_target()?, "--manifest-path", FUZZ];
    if let Err(error) = output(cargo(fetch)?.current_dir(repository())) {
        let error = error.to_string();
        // A lock file that is not up to date is no matter of the network.
        ensure!(!error.contains("--locked"), "{error}");
        let why = error.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        return Ok(Verdict::Skipped(format!("their crates can't be had: {why}")));
    }
    let folder = cache()?.join("fuzz-programs");
    leave_nothing_of_others(&folder, FUZZ, &[])?;
    let mut check = cargo(["check", "--quiet", "--locked", "--manifest-path", FUZZ, "--target-dir"])?;
    check.arg(&folder).current_dir(repository());
    watched_within(&mut check, FUZZ_LIMIT, |_| {})?;
    Ok(Verdict::Passed)
}

/// Longest time to compile the shim, on a busy machine.
const SHIM_LIMIT: Duration = Duration::from_mins(15);

const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// Checks that the shim for aarch64 links, and that it answers if `qemu-aarch64` can run it. Skipped if Rust's core
/// library for aarch64 is unavailable.
///
/// # Errors
/// If it does not; or if its answer is wrong.
pub fn aarch64_shim() -> Result<Verdict> {
    let core = output(command("rustc", ["--print", "target-libdir", "--target", AARCH64]).current_dir(repository()))?;
    if !Path::new(core.trim()).is_dir() {
        let Some(rustup) = find_program("rustup") else {
            return Ok(Verdict::Skipped(format!(
                "Rust has no {AARCH64} here, and there is no rustup to add it"
            )));
        };
        let mut add = command("timeout", ["120".as_ref(), rustup.as_os_str()]);
        if let Err(error) = output(add.args(["target", "add", AARCH64]).current_dir(repository())) {
            return Ok(Verdict::Skipped(format!("Rust has no {AARCH64} here: {error}")));
        }
    }
    let Some(linker) = linker()? else {
        return Ok(Verdict::Skipped(
            "this Rust comes without its linker (gcc-ld/ld.lld)".to_owned(),
        ));
    };
    let flags = format!("target.{AARCH64}.rustflags=['-Clink-arg=-fuse-ld=lld','-Clink-arg=-B{linker}',{EMULATION}]");
    let mut build = cargo([
        "build",
        "--quiet",
        // As shipped: a debug build has the standard library.
        "--profile",
        "dist",
        "--package",
        "mooring-shim",
        "--bin",
        "vcs",
        "--target",
        AARCH64,
    ])?;
    let folder = cache()?.join("shim-aarch64");
    leave_nothing_of_others(&folder, "Cargo.toml", &["--profile", "dist", "--target", AARCH64])?;
    build.args([
        "--config",
        &flags,
        "--config",
        &format!("target.{AARCH64}.linker='cc'"),
        "--target-dir",
    ]);
    watched_within(build.arg(&folder), SHIM_LIMIT, |_| {})?;
    answers(&folder.join(AARCH64).join("dist/vcs"))
}

/// This machine's C compiler passes its own architecture to the linker; the last one counts.
const EMULATION: &str = "'-Clink-arg=-Wl,-m,aarch64linux'";

/// The folder with Rust's own linker, which supports all architectures.
fn linker() -> Result<Option<String>> {
    let own = output(command("rustc", ["--print", "target-libdir"]).current_dir(repository()))?;
    let folder = Path::new(own.trim()).with_file_name("bin").join("gcc-ld");
    Ok(folder.join("ld.lld").is_file().then(|| folder.display().to_string()))
}

/// Checks that entry point, arguments, system calls and answer are right on that architecture.
fn answers(shim: &Path) -> Result<Verdict> {
    let Some(emulator) = find_program("qemu-aarch64") else {
        return Ok(Verdict::Skipped(
            "it links, and there is no qemu-aarch64 to run it with".to_owned(),
        ));
    };
    for (arguments, words) in [
        (&["init"][..], "{\"status\":\"Success\",\"capabilities\":"),
        (&["mount", "/nowhere", "{}"], "there is no socket .mounter.sock"),
    ] {
        let answer = output(command(&emulator, [shim]).args(arguments))?;
        ensure!(
            answer.contains(words) && serde_json::from_str::<serde_json::Value>(&answer).is_ok(),
            "the shim for aarch64 answers {arguments:?} with {answer:?}, without {words:?}"
        );
    }
    Ok(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{is_script, scripts};

    #[test]
    fn scripts_are_recognized_by_their_first_line() {
        for (name, content) in [
            ("a", "#!/bin/sh\n"),
            ("a", "#!/bin/busybox sh\n"),
            ("a", "#!/usr/bin/env bash\n"),
            ("a.sh", "x=1\n"),
            ("a", "# shellcheck shell=sh\n"),
        ] {
            assert!(is_script(Path::new(name), content.as_bytes()), "{content}");
        }
        for content in [
            "#!/usr/bin/perl\n",
            "FROM a\nRUN sh\n",
            "",
            "#!/bin/fish\n",
            "text\n#!/bin/sh\n",
        ] {
            assert!(!is_script(Path::new("a"), content.as_bytes()), "{content}");
        }
    }

    #[test]
    fn programs_and_what_they_read_are_among_the_scripts() {
        let found = scripts().unwrap();
        for name in [".ci/run", "images/client-block/rbd", "images/lib/file-system.sh"] {
            assert!(found.iter().any(|file| file == Path::new(name)), "{name}: {found:?}");
        }
    }
}
