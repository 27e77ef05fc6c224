//! The programs that Containerfiles copy: Mooring's own, and a few of other projects for tests' images.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::notices::{self, notices};
use super::recipes::Recipe;
use crate::binaries::{ensure_for_image, host_target, names_for_images};
use crate::command::{cargo, command, output, watched};
use crate::layout::{cache, make_folder, repository, write_file};
use crate::progress::Step;
use crate::work_trees::leave_nothing_of_others;

/// Mooring's own programs, and the package of each.
pub(crate) const PROGRAMS: [(&str, &str); 6] = [
    ("flex-provisioner", "flex-provisioner"),
    ("mooring", "mooring"),
    ("mounter", "mooring-mounter"),
    ("provisioner-openstack", "provisioner-openstack"),
    ("pv", "pv"),
    (SHIM, "mooring-shim"),
];

/// The packages of these programs.
pub(crate) fn packages() -> [&'static str; PROGRAMS.len()] {
    PROGRAMS.map(|(_, package)| package)
}

const SHIM: &str = "vcs";

/// Environment variable: the form of the programs for the commands that a suite starts.
pub const PROGRAMS_VARIABLE: &str = "MOORING_TESTBED_PROGRAMS";

/// How the programs are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As users get them.
    Shipped,
    /// In the tests' own profile. All crates are shared with the tests, so nothing is compiled twice. The shim is
    /// as shipped even so, since in this profile it would be another program.
    Quick,
}

impl Form {
    /// The form that the suite around this process uses; by itself, it is the shipped one.
    pub fn from_env() -> Self {
        if std::env::var_os(PROGRAMS_VARIABLE).is_some_and(|form| form == Self::Quick.name()) {
            Self::Quick
        } else {
            Self::Shipped
        }
    }

    /// The value of [`PROGRAMS_VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Shipped => "shipped",
            Self::Quick => "quick",
        }
    }
}

/// The folder of programs that Containerfiles copy, relative to the repository.
pub fn program_folder() -> Result<String> {
    Ok(format!("target/{}/dist", host_target()?))
}

/// Builds Mooring's static programs that go into these images, and puts them where `cargo build --profile dist` would.
pub(super) fn build_programs(form: Form, recipes: &[Recipe]) -> Result<()> {
    let folder = repository().join(program_folder()?);
    let wanted: Vec<_> = PROGRAMS
        .into_iter()
        .map(|(program, _)| program)
        .filter(|program| recipes.iter().any(|recipe| recipe.copies(&folder.join(program))))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    make_folder(&folder)?;
    let mut step = Step::begin("build the programs for the images");
    match form {
        Form::Shipped => {
            let built = compile_shipped(&packages(), &mut step)?;
            for program in &wanted {
                put(&built.join(program), &folder.join(program))?;
            }
        }
        Form::Quick => {
            for (program, built) in compile_quickly(&wanted, &mut step)? {
                put_stripped(&built, &folder.join(program))?;
            }
            if wanted.contains(&SHIM) {
                put(
                    &compile_shipped(&["mooring-shim"], &mut step)?.join(SHIM),
                    &folder.join(SHIM),
                )?;
            }
        }
    }
    write_file(&folder.join(notices::FILE), notices()?)?;
    step.done("");
    Ok(())
}

/// Compiles packages as users get them; returns the folder with the programs. The compiled crates are kept in the
/// cache, where every work tree finds those of other projects.
fn compile_shipped(packages: &[&str], step: &mut Step) -> Result<PathBuf> {
    let (target, compiled) = (host_target()?, cache()?.join("programs"));
    leave_nothing_of_others(&compiled, "Cargo.toml", &["--profile", "dist", "--target", target])?;
    let mut build = cargo([
        "build",
        "--profile",
        "dist",
        "--target",
        target,
        "--bins",
        "--target-dir",
    ])?;
    build.arg(&compiled);
    for package in packages {
        build.args(["--package", package]);
    }
    build.arg("--config").arg(without_paths(target, &compiled)?);
    watched(&mut build, |line| step.update(line.trim()))?;
    Ok(compiled.join(target).join("dist"))
}

/// Configuration of cargo by which the paths of this machine are not in the programs: they would differ from those that
/// others compile.
fn without_paths(target: &str, compiled: &Path) -> Result<String> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => {
            PathBuf::from(std::env::var_os("HOME").context("HOME is not set: set it, or CARGO_HOME")?).join(".cargo")
        }
    };
    let paths = [(repository(), "/mooring"), (compiled, "/target"), (&home, "/cargo")];
    let flags: Vec<_> = paths
        .iter()
        .map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()))
        .collect();
    Ok(format!("target.{target}.rustflags={flags:?}"))
}

/// Compiles programs, except the shim, with the features and in the profile that the tests have; returns where cargo
/// has put each.
fn compile_quickly<'a>(programs: &[&'a str], step: &mut Step) -> Result<Vec<(&'a str, PathBuf)>> {
    let programs: Vec<_> = programs.iter().copied().filter(|program| *program != SHIM).collect();
    let mut build = cargo(["build", "--workspace", "--message-format=json-render-diagnostics"])?;
    for program in &programs {
        build.args(["--bin", program]);
    }
    let mut messages = Vec::new();
    watched(&mut build, |line| match serde_json::from_str::<Value>(line) {
        Ok(message) => messages.push(message),
        Err(_) => step.update(line.trim()),
    })?;
    let place = |program: &'a str| {
        let of = messages
            .iter()
            .find(|message| message["target"]["name"] == program && message["executable"].is_string());
        match of.and_then(|message| message["executable"].as_str()) {
            Some(executable) => Ok((program, PathBuf::from(executable))),
            None => bail!("cargo has named no program {program}"),
        }
    };
    programs.into_iter().map(place).collect()
}

/// Puts a program in place atomically: it may be running.
fn put(from: &Path, to: &Path) -> Result<()> {
    let partial = to.with_extension("partial");
    std::fs::copy(from, &partial)
        .and_then(|_| std::fs::rename(&partial, to))
        .with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))
}

/// As [`put`], without the data for debuggers, which is most of the file and would be in each image.
fn put_stripped(from: &Path, to: &Path) -> Result<()> {
    let partial = to.with_extension("partial");
    let mut strip = command("strip", ["--strip-debug", "-o"]);
    output(strip.arg(&partial).arg(from))?;
    std::fs::rename(&partial, to).with_context(|| format!("failed to put {} in place", to.display()))
}

/// Puts other projects' programs that these images copy beside Mooring's own.
pub(super) fn put_programs_of_others(recipes: &[Recipe]) -> Result<()> {
    for program in names_for_images() {
        let place = repository().join(program_folder()?).join(program);
        if recipes.iter().any(|recipe| recipe.copies(&place)) {
            let built = ensure_for_image(program)?;
            put(&built, &place)?;
        }
    }
    Ok(())
}
