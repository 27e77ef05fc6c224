//! From the command line to an exit code.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use flex_provisioner::cli::with_threads;
use mooring_program::error::chain;

use crate::args::{Cli, Command};
use crate::{NOT_TRIED, conform, lint, migrate};

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Lint(args) => lint::run(args, &mut io::stdin(), &mut io::stdout()),
        Command::Conform(args) => with_threads(async { exit_code(conform::run(&args).await) }),
        Command::Migrate(args) => with_threads(async { exit_code(migrate::run(&args).await) }),
    }
}

/// Success if all is well; if a command could not do its work, it says why.
fn exit_code(is_well: Result<bool, impl Error>) -> ExitCode {
    match is_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {}", chain(&error));
            ExitCode::from(NOT_TRIED)
        }
    }
}
