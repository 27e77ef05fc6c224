//! From the command line to an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

use super::runtime;
use crate::config::lint;
use crate::process::args::{Cli, Command, RunArgs};

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let Cli { command, run } = Cli::parse();
    match command {
        Some(Command::Lint(args)) => lint::run(args, &mut std::io::stdin(), &mut std::io::stdout()),
        Some(Command::Run(run)) => controller(*run),
        None => controller(run),
    }
}

fn controller(args: RunArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // There is no log yet.
            let _ = writeln!(std::io::stderr(), "failed to start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(runtime::run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            runtime::report(&error);
            ExitCode::FAILURE
        }
    }
}
