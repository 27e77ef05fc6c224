//! The `pv` command of a provisioning image.
use std::process::ExitCode;

fn main() -> ExitCode {
    pv::main()
}
