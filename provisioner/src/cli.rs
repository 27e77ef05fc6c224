//! From the command line to an exit code.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{self, ExitCode};

use clap::Parser;

use crate::args::run::RunArgs;
use crate::args::{Cli, Command};
use crate::runtime::{self, Ended};

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let Cli { command, run } = Cli::parse();
    match command {
        Some(Command::Lint(args)) => lint(&args.arguments),
        Some(Command::Run(run)) => controller(*run),
        None => controller(run),
    }
}

/// Becomes `mooring lint`, by the program of that name in this one's folder, where the controller's image has it. Exits
/// with 2, as that program does where it can't check, if there is none.
fn lint(arguments: &[OsString]) -> ExitCode {
    let failed = |error: io::Error| {
        let _ = writeln!(
            io::stderr(),
            "failed to start the program mooring beside this one: {error}; run `mooring lint` instead"
        );
        ExitCode::from(2)
    };
    match std::env::current_exe() {
        Ok(this) => failed(
            process::Command::new(this.with_file_name("mooring"))
                .arg("lint")
                .args(arguments)
                .exec(),
        ),
        Err(error) => failed(error),
    }
}

fn controller(args: RunArgs) -> ExitCode {
    let mut is_to_begin_anew = false;
    let code = with_threads(async {
        match Box::pin(runtime::run(args)).await {
            Ok(ended) => {
                is_to_begin_anew = ended == Ended::ToBeginAnew;
                ExitCode::SUCCESS
            }
            Err(error) => {
                runtime::report(&error);
                ExitCode::FAILURE
            }
        }
    });
    if is_to_begin_anew { begin_anew() } else { code }
}

/// Becomes the same program, with the same arguments. A container that ended would be started again too, but later each
/// time.
fn begin_anew() -> ExitCode {
    let error = match std::env::current_exe() {
        Ok(this) => process::Command::new(this).args(std::env::args_os().skip(1)).exec(),
        Err(error) => error,
    };
    let _ = writeln!(io::stderr(), "flex-provisioner: failed to begin anew: {error}");
    ExitCode::FAILURE
}

/// Has the program carried out by as many threads as there are processors.
pub fn with_threads(program: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(program),
        Err(error) => {
            // There is no log yet.
            let _ = writeln!(io::stderr(), "failed to start threads: {error}");
            ExitCode::FAILURE
        }
    }
}
