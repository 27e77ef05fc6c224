//! The log of every process but workers.

use std::io;

use clap::ValueEnum;

/// Form of the log; its level is the environment variable `MOORING_LOG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// The log goes to standard error.
pub(crate) fn start(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MOORING_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}
