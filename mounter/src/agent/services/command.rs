//! `mounter service …`: what an image's program runs, by `$MOORING_AGENT`, to have the agent do something for its
//! volume.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::net::UnixStream;

use super::call::Service;
use crate::agent::protocol::{self, Answer, Call, Request, VERSION, WireError};

/// Where a program finds the agent's socket.
pub(super) const SOCKET: &str = "MOORING_AGENT_SOCKET";

/// Which volume a program is run for.
pub(super) const VOLUME: &str = "MOORING_VOLUME";

/// Flags of `mounter service`. What says whose program this is comes by the environment that the agent gives it.
#[derive(Debug, Clone, clap::Args)]
pub struct ServiceArgs {
    /// The agent's socket.
    #[arg(long, env = SOCKET, hide_env_values = true)]
    pub socket: PathBuf,
    /// The volume.
    #[arg(long, env = VOLUME, hide_env_values = true)]
    pub volume: String,
    /// What it is to have.
    #[command(subcommand)]
    pub service: Service,
}

/// Why the agent was not asked.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No runtime.
    #[error("failed to start a runtime")]
    Runtime(#[source] io::Error),
    /// No agent.
    #[error("failed to reach the agent at {path}")]
    Connect {
        /// Its socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The talk broke off.
    #[error("failed to speak with the agent")]
    Wire(#[from] WireError),
    /// Another answer than expected.
    #[error("the agent answered something else")]
    Answer,
    /// Its output is closed.
    #[error("failed to print what the agent answered")]
    Print(#[source] io::Error),
}

/// Asks the agent. What went wrong with the service is printed as it was said: the image's program has its own words
/// besides.
pub fn run(args: ServiceArgs) -> Result<ExitCode, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(CommandError::Runtime)?;
    match runtime.block_on(ask(args))? {
        Answer::Served { said } if said.is_empty() => Ok(ExitCode::SUCCESS),
        Answer::Served { said } => {
            writeln!(io::stdout(), "{said}").map_err(CommandError::Print)?;
            Ok(ExitCode::SUCCESS)
        }
        Answer::Failed(failure) => {
            writeln!(io::stderr(), "{}", failure.message).map_err(CommandError::Print)?;
            Ok(ExitCode::FAILURE)
        }
        _ => Err(CommandError::Answer),
    }
}

async fn ask(args: ServiceArgs) -> Result<Answer, CommandError> {
    let ServiceArgs {
        socket,
        volume,
        service,
    } = args;
    let connected = UnixStream::connect(&socket).await;
    let mut stream = connected.map_err(|source| CommandError::Connect { path: socket, source })?;
    // What is no text is of no use to a daemon.
    let environment =
        std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let request = Request {
        version: VERSION,
        call: Call::Service {
            volume,
            service: Box::new(service),
            environment: environment.collect::<BTreeMap<_, _>>(),
        },
    };
    protocol::send(&mut stream, &request).await?;
    Ok(protocol::receive(&mut stream).await?)
}
