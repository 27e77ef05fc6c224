//! From the command line to an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::{conform, lint, migrate};

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Lint(args) => lint::run(args, &mut std::io::stdin(), &mut std::io::stdout()),
        Command::Conform(args) => with_threads(conform::run(*args)),
        Command::Migrate(args) => with_threads(migrate::run(*args)),
    }
}

fn with_threads(program: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(program),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: failed to start threads: {error}");
            ExitCode::FAILURE
        }
    }
}
