//! Why something did not pass, or could not be tried.

use std::time::Duration;

use flex_provisioner::operation::claim_error::ClaimError;
use flex_provisioner::process::call::CallError;
use flex_provisioner::process::client::ClientError;
use flex_provisioner::run::error::RunError;
use flex_provisioner::volume::capacity::CapacityError;

/// Why something did not pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum KitError {
    #[error("{0}")]
    Image(String),
    #[error("it could not be tried")]
    Rig(#[from] RigError),
}

impl KitError {
    /// The same, with other words for a fault of the image.
    pub(super) fn reworded(self, words: impl FnOnce(&str) -> String) -> Self {
        match self {
            Self::Image(text) => Self::Image(words(&text)),
            rig @ Self::Rig(_) => rig,
        }
    }
}

/// A fault of the image.
pub(super) fn fault(text: impl Into<String>) -> KitError {
    KitError::Image(text.into())
}

/// Why a run could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum RigError {
    #[error("--size {0:?} is not the size of a volume: write one such as 16Mi")]
    Size(String, #[source] CapacityError),
    /// No usable cluster.
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Call(#[from] CallError),
    /// A run that could not be begun.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A claim that no request can be made of.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(
        "no node can run the image: its volumes live on a node's disk, and none is ready for client {client}: {nodes}"
    )]
    NoNode {
        client: String,
        /// Each node, and why it is not.
        nodes: String,
    },
    #[error("Pod {name} has not ended within {} s: {state}", limit.as_secs())]
    NoEnd {
        name: String,
        limit: Duration,
        state: String,
    },
    #[error("the cluster, and not the image, ended {name} {times} times, at last so: {why}")]
    Lost {
        /// The run, or the worker.
        name: String,
        times: u32,
        why: String,
    },
    #[error("failed to listen on this machine for what is to be passed on to a worker")]
    Tunnel(#[source] std::io::Error),
    #[error("Pod {0} exists already: delete it, and try again")]
    Occupied(String),
}
