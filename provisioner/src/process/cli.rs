//! From the command line to an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

use super::runtime::{self, Controllers};
use crate::config::lint;
use crate::process::args::{Cli, Command, RunArgs};

/// Reads the command line and does what it says, with these controllers.
pub fn main(controllers: Controllers) -> ExitCode {
    let Cli { command, run } = Cli::parse();
    match command {
        Some(Command::Lint(args)) => lint::run(args, &mut std::io::stdin(), &mut std::io::stdout()),
        Some(Command::Run(run)) => controller(*run, controllers),
        None => controller(run, controllers),
    }
}

fn controller(args: RunArgs, controllers: Controllers) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // There is no log yet.
            let _ = writeln!(std::io::stderr(), "failed to start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(runtime::run(args, controllers)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            runtime::report(&error);
            ExitCode::FAILURE
        }
    }
}
