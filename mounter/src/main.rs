//! `mounter`: see the library.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use mooring_mounter::args::MounterArgs;
use mooring_program::error::chain;

fn main() -> ExitCode {
    let error = match mooring_mounter::run(MounterArgs::parse()) {
        Ok(code) => return code,
        Err(error) => error,
    };
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "mounter: {}", chain(&*error));
    ExitCode::FAILURE
}
