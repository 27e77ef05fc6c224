//! `mounter`: see the library.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use mooring_mounter::args::MounterArgs;
use mooring_mounter::volume::cause::chain;

fn main() -> ExitCode {
    let Err(error) = mooring_mounter::run(MounterArgs::parse()) else {
        return ExitCode::SUCCESS;
    };
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "mounter: {}", chain(&*error));
    ExitCode::FAILURE
}
