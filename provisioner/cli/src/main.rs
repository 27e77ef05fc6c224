//! What people run beside the controller: checks ConfigMaps, tries images, moves volumes.

use std::process::ExitCode;

fn main() -> ExitCode {
    mooring::cli::main()
}
