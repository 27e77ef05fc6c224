//! From the command line to an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::config::lint;
use crate::conform;
use crate::migrate;
use crate::process::args::RunArgs;
use crate::process::runtime::{self, Controllers};

/// Reads the command line and does what it says, with these controllers.
pub fn main(controllers: Controllers) -> ExitCode {
    let Cli { command, run } = Cli::parse();
    match command {
        Some(Command::Lint(args)) => lint::run(args, &mut std::io::stdin(), &mut std::io::stdout()),
        Some(Command::Conform(args)) => with_threads(conform::run(*args)),
        Some(Command::Migrate(args)) => with_threads(migrate::run(*args)),
        Some(Command::Run(run)) => controller(*run, controllers),
        None => controller(run, controllers),
    }
}

fn controller(args: RunArgs, controllers: Controllers) -> ExitCode {
    with_threads(async {
        match runtime::run(args, controllers).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                runtime::report(&error);
                ExitCode::FAILURE
            }
        }
    })
}

fn with_threads(program: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(program),
        Err(error) => {
            // There is no log yet.
            let _ = writeln!(std::io::stderr(), "failed to start threads: {error}");
            ExitCode::FAILURE
        }
    }
}
