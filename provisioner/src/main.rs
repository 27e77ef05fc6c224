//! Turns claims into runs of a storage vendor's provisioning image.

use std::process::ExitCode;

fn main() -> ExitCode {
    flex_provisioner::cli::main()
}
