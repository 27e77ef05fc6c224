//! `mounter service …`: an image's program runs it, as `$MOORING_AGENT`, to ask the agent for a service for its volume.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::net::UnixStream;

use super::call::ServiceCall;
use crate::agent::protocol::{self, AgentAnswer, AgentRequest, Call, VERSION, WireError};

/// Environment variable: the agent's socket.
pub(super) const SOCKET: &str = "MOORING_AGENT_SOCKET";

/// Environment variable: the volume that a program is run for.
pub(super) const VOLUME: &str = "MOORING_VOLUME";

/// Flags of `mounter service`. The socket and the volume come from the environment that the agent gives to the program.
#[derive(Debug, Clone, clap::Args)]
pub struct ServiceArgs {
    /// The agent's socket.
    #[arg(long, env = SOCKET, hide_env_values = true)]
    pub socket: PathBuf,
    /// The volume.
    #[arg(long, env = VOLUME, hide_env_values = true)]
    pub volume: String,
    /// The service.
    #[command(subcommand)]
    pub service: ServiceCall,
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("failed to start a runtime")]
    Runtime(#[source] io::Error),
    #[error("failed to reach the agent at {path}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("failed to talk to the agent")]
    Wire(#[from] WireError),
    #[error("the agent's answer does not fit the request")]
    Answer,
    #[error("failed to print what the agent answered")]
    Print(#[source] io::Error),
}

/// Asks the agent. An error of the service is printed without additions: the image's program adds its own.
pub fn run(args: ServiceArgs) -> Result<ExitCode, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(CommandError::Runtime)?;
    match runtime.block_on(ask(args))? {
        AgentAnswer::Served { said } if said.is_empty() => Ok(ExitCode::SUCCESS),
        AgentAnswer::Served { said } => {
            writeln!(io::stdout(), "{said}").map_err(CommandError::Print)?;
            Ok(ExitCode::SUCCESS)
        }
        AgentAnswer::Failed(failure) => {
            writeln!(io::stderr(), "{}", failure.message).map_err(CommandError::Print)?;
            Ok(ExitCode::FAILURE)
        }
        _ => Err(CommandError::Answer),
    }
}

async fn ask(args: ServiceArgs) -> Result<AgentAnswer, CommandError> {
    let ServiceArgs {
        socket,
        volume,
        service,
    } = args;
    let connected = UnixStream::connect(&socket).await;
    let mut stream = connected.map_err(|source| CommandError::Connect { path: socket, source })?;
    // A variable that is not text is of no use to a daemon.
    let environment =
        std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let request = AgentRequest {
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
