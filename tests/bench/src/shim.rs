//! What one call of the kubelet costs compared with starting another program.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_contract::names::FLEX_EXECUTABLE;

use mooring_harness::nodes::driver_directory_outside;
use mooring_testbed::progress::say;

/// A call that only the mounter can answer, and for which it has nothing to do.
pub(super) const CALL: [&str; 2] = ["getvolumename", r#"{"kubernetes.io/pvOrVolumeName":"pvc-1"}"#];

/// Runs the shim and /bin/true in turn, so that other load on the machine affects both alike.
pub(super) fn run(runs: usize) -> Result<()> {
    let shim = driver_directory_outside("node-1")?.join(FLEX_EXECUTABLE);
    ensure!(
        shim.exists(),
        "there is no shim on node-1: run `cargo testbed install` first"
    );
    let (mut of_true, mut of_shim) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
    for _ in 0..runs {
        of_true.push(time(Path::new("/bin/true"), &[])?);
        of_shim.push(time(&shim, &CALL)?);
    }
    for (name, times) in [("/bin/true", &mut of_true), ("vcs", &mut of_shim)] {
        times.sort();
        let [low, median, high] = [5, 50, 95].map(|percent| micros(times[(times.len() - 1) * percent / 100]));
        say(format!(
            "{name:<10} median {median} µs (5 % below {low}, 5 % above {high}; {runs} runs)"
        ));
    }
    let (plain, ours) = (micros(of_true[runs / 2]), micros(of_shim[runs / 2]));
    let more = i128::try_from(ours)? - i128::try_from(plain)?;
    say(format!("The shim's median is {more} µs above that of /bin/true."));
    Ok(())
}

/// From before its start until it has ended.
pub(super) fn time(program: &Path, args: &[&str]) -> Result<Duration> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("failed to run {}", program.display()))?;
    let took = started.elapsed();
    ensure!(status.success(), "{} failed ({status})", program.display());
    Ok(took)
}

fn micros(time: Duration) -> u128 {
    time.as_micros()
}
