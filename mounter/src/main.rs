//! `mounter`: see the library.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use mooring_mounter::args::MounterArgs;

fn main() -> ExitCode {
    let Err(error) = mooring_mounter::run(MounterArgs::parse()) else {
        return ExitCode::SUCCESS;
    };
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "mounter: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        let _ = write!(stderr, ": {source}");
        cause = source.source();
    }
    let _ = writeln!(stderr);
    ExitCode::FAILURE
}
