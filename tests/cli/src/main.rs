//! `cargo testbed`: see [`cli`].
#![forbid(unsafe_code)]

mod cli;
mod suite;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match cli::run(cli) {
        Ok(code) => code,
        Err(error) => {
            mooring_testbed::progress::fail(&error);
            ExitCode::FAILURE
        }
    }
}
