//! Scripts beside the running machine's processes, by a port between it and qemu. A command in a Pod would need the
//! kubelet and runc: that takes a second of a processor there, and its output can be cut off.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::numbering::{MACHINE, name};
use crate::layout::Layout;

/// The port's name, which the machine's process 1 knows.
pub(super) const PORT: &str = "scripts";

/// Longest run of a script.
const LIMIT: Duration = Duration::from_mins(5);

pub(super) fn path(layout: &Layout) -> PathBuf {
    layout.machine(&name(MACHINE)).join(PORT)
}

/// Runs a script with the machine's shell, after those that run already; returns what it printed on standard output.
///
/// # Errors
/// If it ends with an exit code other than 0, or not within five minutes: then the machine runs it still.
pub fn run(layout: &Layout, script: &str) -> Result<String> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let path = path(layout);
    let what = || format!("failed to run a script by {}: {script}", path.display());
    let run = format!("{}-{}", process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let mut stream = UnixStream::connect(&path).with_context(what)?;
    stream.set_read_timeout(Some(LIMIT)).with_context(what)?;
    writeln!(stream, "{run} {}", STANDARD.encode(script)).with_context(what)?;
    for line in BufReader::new(stream).lines() {
        let line = line.with_context(what)?;
        // Another run may have given up its wait.
        if let Some(said) = line.strip_prefix(&format!("{run} ")) {
            return outcome(said).with_context(|| script.to_owned());
        }
    }
    bail!("{}: the machine has ended", what())
}

/// What the machine says of a run: its exit code, and what it printed on standard output and as errors.
fn outcome(said: &str) -> Result<String> {
    let words: Vec<_> = said.split(' ').collect();
    let [code, output, errors] = words[..] else {
        bail!("the machine's answer {said:?} is none");
    };
    let [output, errors] = [output, errors].map(|text| -> Result<_> {
        let bytes = STANDARD
            .decode(text)
            .with_context(|| format!("{text:?} is not base64"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    let (output, errors) = (output?, errors?);
    ensure!(code == "0", "exit code {code}: {output}{errors}");
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_s_output_is_returned_or_is_part_of_the_error() {
        assert_eq!(outcome("0 YQo= ").expect("an output"), "a\n");
        let error = outcome("2 YQo= YmFk").expect_err("a failure").to_string();
        assert_eq!(error, "exit code 2: a\nbad");
        for cut_off in ["", "0", "0 YQ", "0 YQ= "] {
            outcome(cut_off).expect_err(cut_off);
        }
    }
}
