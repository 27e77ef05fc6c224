//! SIGINT and SIGTERM while the kit is at work.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::say::say;

/// Cancels `stop` at the first of these signals, and returns at the second.
pub(super) async fn twice(stop: &CancellationToken) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut next = async || tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () };
    next().await;
    say("stopping: what has begun is finished and its volumes are removed; a second signal ends this at once");
    stop.cancel();
    next().await;
    Ok(())
}
