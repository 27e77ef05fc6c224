//! `mooring migrate`: moves existing volumes between FlexVolume and CSI (`docs/decisions/migrate.md`).
//!
//! The controller takes no part in it: it leaves claims alone that have the finalizer of a move. [`plan`] says what is
//! next for a volume, [`cluster`] looks and carries it out, [`drive`] goes on until there is nothing to do now.
//! [`source`] makes the PersistentVolume for the other way, [`record`] is what a run that is cut off leaves to the next,
//! [`users`] are the Pods that a move waits for, and [`report`] tells what has become of each volume.

pub mod args;
pub mod cluster;
pub mod drive;
#[cfg(test)]
mod fixtures;
pub mod plan;
pub mod record;
pub mod report;
mod select;
pub mod source;
pub mod users;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

pub use flex_provisioner::config::VolumeSourceKind;
use kube::Client;
use mooring_program::error::chain;

use self::args::MigrateArgs;
use self::cluster::MoveCluster;
use self::plan::Goal;
use flex_provisioner::process::call::CallError;
use flex_provisioner::process::client::{self, ClientError};

/// Exit code when nothing could be tried.
const NOT_TRIED: u8 = 2;

/// How long the API may take to answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
enum MigrateError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the cluster has no CSIDriver {0}: apply configmaps/install first")]
    NoDriver(&'static str),
    #[error(
        "the kubelet of {0} does not know the CSI driver yet, so no Pod could use a moved volume there: see \
         `kubectl get csinodes`, and the log of the mounter on it"
    )]
    NotRegistered(String),
    #[error("failed to wait for signals")]
    Signal(#[source] std::io::Error),
}

/// Moves volumes and tells what has become of each. Exits with 0 if nothing is left, 1 if something is, 2 if nothing
/// could be tried.
pub async fn run(args: MigrateArgs) -> ExitCode {
    match migrate(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {}", chain(&error));
            ExitCode::from(NOT_TRIED)
        }
    }
}

async fn migrate(args: &MigrateArgs) -> Result<bool, MigrateError> {
    let config = client::config(args.kubeconfig.as_deref(), ANSWER).await?;
    let client = Client::try_from(config).map_err(ClientError::Build)?;
    let cluster = MoveCluster::new(client, &args.mooring_namespace);
    let goal = Goal {
        to: args.to,
        may_hold: args.wait.is_some(),
    };
    select::is_ready(&cluster, goal.to).await?;
    drive::all(&cluster, goal, args).await
}
