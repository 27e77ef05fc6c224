//! `cargo testbed bench`: see [`mooring_bench`].

use std::process::ExitCode;

use clap::Parser;
use mooring_testbed::layout::Layout;
use mooring_testbed::progress::fail;

/// Measure what Mooring costs, side by side with bare Pods, mount(8) and local-path-provisioner.
#[derive(Debug, Parser)]
#[command(name = "cargo testbed bench", bin_name = "cargo testbed bench")]
struct Line {
    #[command(flatten)]
    bench: mooring_bench::Bench,
}

fn main() -> ExitCode {
    let line = Line::parse();
    match Layout::from_env().and_then(|layout| line.bench.run(&layout)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            fail(&error);
            ExitCode::FAILURE
        }
    }
}
