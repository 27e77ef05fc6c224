//! The log of a program, which goes to standard error.

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// The environment variable of the filter, also for a process without flags of its own.
const FILTER: &str = "MOORING_LOG";

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Flags of the log.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// What to log: error, warn, info (if not said), debug, or a filter such as info,kube=debug
    #[arg(long, env = FILTER, value_name = "FILTER", value_parser = filter)]
    pub log: Option<String>,
    /// Form of the log
    #[arg(long, env = "MOORING_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

impl LogArgs {
    /// Starts the log; `filter` applies if `--log` was not given.
    pub fn start(&self, filter: &str) {
        start(self.log.as_deref().unwrap_or(filter), self.log_format);
    }
}

/// Starts the log of a process without flags of its own.
pub fn start_by_environment() {
    let filter = std::env::var(FILTER).ok().and_then(|text| filter(&text).ok());
    start(filter.as_deref().unwrap_or("info"), LogFormat::Text);
}

fn start(filter: &str, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}

fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}: write a level such as info, or target=level pairs")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{LogArgs, LogFormat};

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        log: LogArgs,
    }

    #[test]
    fn a_filter_that_is_none_is_an_error_at_once_with_what_to_write() {
        let read = |args: &[&str]| Program::try_parse_from([&["program"], args].concat());
        let log = read(&["--log", "info,kube=debug", "--log-format=json"]).unwrap().log;
        assert_eq!(
            (log.log.as_deref(), log.log_format),
            (Some("info,kube=debug"), LogFormat::Json)
        );
        let error = read(&["--log", "info,=loud=x"]).unwrap_err().to_string();
        assert!(error.contains("write a level such as info"), "{error}");
    }
}
