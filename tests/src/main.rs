//! `cargo testbed`: see [`mooring_testbed::cli`].
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = mooring_testbed::cli::Cli::parse();
    match mooring_testbed::cli::run(cli) {
        Ok(code) => code,
        Err(error) => {
            mooring_testbed::progress::fail(&error);
            ExitCode::FAILURE
        }
    }
}
