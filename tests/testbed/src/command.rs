//! Runs other programs, each with a time limit. Errors have the command line and the program's last lines.

mod error;
mod find;
mod output;
mod watch;

use std::ffi::OsStr;
use std::process::Command;

use anyhow::Context;

pub use error::{CommandError, last_lines, line};
pub use find::{command, find_program};
pub use output::{output, output_with_input};
pub(crate) use watch::is_stopped;
pub use watch::{output_within, shown_within, stop, watched, watched_within};

use crate::layout::repository;

/// A call of cargo in the repository, as if from a shell. The testbed is started by `cargo run`, which leaves its
/// package in the environment. Build scripts that look at that would build their crates again each time.
///
/// # Errors
/// If there is no cargo.
pub fn cargo<I, S>(args: I) -> anyhow::Result<Command>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let program = find_program("cargo").context("cargo is not on the PATH: install Rust from https://rustup.rs/")?;
    let mut cargo = command(program, args);
    cargo.current_dir(repository());
    for (name, _) in std::env::vars_os() {
        if is_of_the_caller_s_package(&name) {
            cargo.env_remove(name);
        }
    }
    Ok(cargo)
}

fn is_of_the_caller_s_package(variable: &OsStr) -> bool {
    let variable = variable.to_string_lossy();
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}
