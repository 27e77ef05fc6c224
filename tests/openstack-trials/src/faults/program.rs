//! The image's program, run as its container runs it: with a folder that says what is to be done.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::calls::Seen;
use super::fault::Fault;
use super::proxy::Proxy;
use mooring_testbed::command::command;
use mooring_testbed::layout::write_file;

/// Longest that a run may take. It would end by itself after eight minutes.
const LIMIT: Duration = Duration::from_mins(5);

const POLL: Duration = Duration::from_millis(10);

/// The exit code by which a run asks to be run again.
const AGAIN: i32 = 75;

pub(super) struct Program<'a> {
    pub(super) path: PathBuf,
    /// A folder of its own.
    pub(super) folder: PathBuf,
    pub(super) proxy: &'a Proxy,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    /// It asks to be run again, and says why.
    Again(String),
    Killed,
}

pub(super) struct Run {
    pub(super) ended: Ended,
    pub(super) seen: Seen,
    /// What it hands to Mooring.
    pub(super) answer: Value,
}

impl Program<'_> {
    /// Writes what all runs have. A property's name may end in any way.
    pub(super) fn give(&self, properties: &[(&str, String)]) -> Result<()> {
        let put = |(name, value): &(&str, String)| write_file(&self.folder.join("properties").join(name), value);
        properties.iter().try_for_each(put)
    }

    /// Carries out a request about `own`. A run that fails for good is an error.
    pub(super) fn run(&self, request: &Value, fault: Option<Fault>, own: &str) -> Result<Run> {
        write_file(&self.folder.join("request.json"), request.to_string())?;
        let message = self.folder.join("message");
        write_file(&message, "")?;
        let mut child = self.proxy.run(fault, own, || {
            let mut run = command(&self.path, [""; 0]);
            run.env_clear()
                .env("MOORING_RUN_DIR", &self.folder)
                .env("MOORING_TERMINATION_LOG", &message)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            run.spawn().context("failed to start the image's program")
        })?;
        let late = wait(&mut child)?;
        let seen = self.proxy.ended();
        let status = child.wait()?;
        let mut words = String::new();
        if let Some(mut said) = child.stderr.take() {
            said.read_to_string(&mut words)?;
        }
        let ended = match status.code() {
            _ if late => bail!("a run took longer than {} s", LIMIT.as_secs()),
            Some(0) => Ended::Done,
            Some(AGAIN) => Ended::Again(words.trim().to_owned()),
            None => Ended::Killed,
            Some(code) => bail!("a run ended with {code}, so it is not tried again: {}", words.trim()),
        };
        let answer = fs::read_to_string(&message)?;
        Ok(Run {
            ended,
            seen,
            answer: serde_json::from_str(&answer).unwrap_or_default(),
        })
    }
}

/// Waits for its end without reaping it, so that its number stays its own; returns whether it had to be ended.
fn wait(child: &mut Child) -> Result<bool> {
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    let end = Instant::now() + LIMIT;
    while waitid(Id::Pid(pid), flags)? == WaitStatus::StillAlive {
        if Instant::now() > end {
            child.kill()?;
            return Ok(true);
        }
        std::thread::sleep(POLL);
    }
    Ok(false)
}
