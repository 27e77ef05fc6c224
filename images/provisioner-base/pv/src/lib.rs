//! `pv`: creates or removes the `PersistentVolume` of a provisioning run, so that a vendor's script needs no template,
//! no `kubectl` and no JSON of its own.
//!
//! All its input comes from `/run/mooring` ([`given`]). [`volume`] decides what the volume looks like, without input or
//! output; [`api`] has its three calls to Kubernetes. [`mod@serve`] makes a container that stays, and is given run after run.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;

pub mod answer;
pub mod api;
pub mod args;
pub mod classes;
pub mod command;
pub mod copy;
pub mod error;
pub mod expect;
pub mod given;
pub mod lock;
pub mod serve;
pub mod volume;

/// Runs the command that this process was started with.
///
/// A wrong command line is an error of the image, and no retry helps: it exits with 78 like other refusals.
#[allow(clippy::print_stderr)] // the last words of a provisioning container are for its claim's Event
pub fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // If stderr is closed, nothing can be printed.
            let _ = error.print();
            return if error.use_stderr() {
                exit_code(mooring_contract::outcome::EX_CONFIG)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match command::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pv: {}", error::chain(&error));
            exit_code(error.exit_code())
        }
    }
}

fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
