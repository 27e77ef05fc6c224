//! Ends the suite when it is told to: what it prepares and its tests are ended, and its clusters are removed.

use anyhow::{Context, Result};
use mooring_testbed::command;
use mooring_testbed::progress::note;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::libtest;

/// Listens for signals from a person, a service manager, or a terminal that closes. On a second signal, the suite ends
/// at once.
pub(super) fn when_told() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let listening = runtime.block_on(async { Signals::listen() });
    let mut signals = listening.context("failed to listen for signals")?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            signals.first().await;
            note("stopped: ending what runs, and removing the clusters");
            libtest::stop();
            command::stop();
            signals.second().await;
            note("stopped at once: `cargo testbed down` removes what is left");
            #[expect(clippy::exit, reason = "asked for twice")]
            std::process::exit(130);
        });
    });
    Ok(())
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None if whoever started this program wants it to survive the terminal, as with `nohup`.
    hang_up: Option<Signal>,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let survives = ignores(&status, SignalKind::hangup());
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: (!survives).then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    async fn first(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = received(self.hang_up.as_mut()) => {}
        }
    }

    /// A terminal that closes may say so several times, so that does not count.
    async fn second(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether a process ignores a signal, by its `/proc/PID/status`.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (kind.as_raw_value() - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use tokio::signal::unix::SignalKind;

    use super::ignores;

    #[test]
    fn a_signal_that_is_ignored_is_known_by_its_bit() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SignalKind::hangup()));
        assert!(!ignores(status, SignalKind::interrupt()));
        assert!(!ignores("", SignalKind::hangup()));
    }
}
