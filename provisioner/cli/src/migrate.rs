//! `mooring migrate`: moves existing volumes between FlexVolume and CSI (`docs/decisions/migrate.md`).
//!
//! The controller takes no part in it: it leaves claims alone that have the finalizer of a move. [`plan`] says what is
//! next for a volume, [`cluster`] looks and carries it out, [`drive`] goes on until there is nothing to do now.
//! [`source`] makes the PersistentVolume for the other way, [`record`] is what a run that is cut off leaves to the
//! next, [`users`] are the Pods that a move waits for, and [`report`] tells what has become of each volume.

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

use std::error::Error;

pub use flex_provisioner::config::VolumeSourceKind;
use flex_provisioner::process::call::CallError;
use flex_provisioner::process::client::{self, ClientError};
use kube::Client;

use self::args::MigrateArgs;
use self::cluster::MoveCluster;
use self::plan::Goal;
use crate::ANSWER;

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
    #[error("failed to listen for signals")]
    Signals(#[source] std::io::Error),
}

/// Moves volumes and tells what has become of each; whether nothing is left.
pub(crate) async fn run(args: &MigrateArgs) -> Result<bool, impl Error> {
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
