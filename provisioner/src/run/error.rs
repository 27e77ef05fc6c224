//! Why a run could not be begun or removed.

use mooring_seal::SealError;

use super::connection::WorkerError;
use super::properties::PropertiesError;
use crate::process::call::CallError;

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Call(#[from] CallError),
    /// Properties that can't be handed over.
    #[error(transparent)]
    Properties(#[from] PropertiesError),
    #[error("secret {name:?} (key \"secret-name\" of the ConfigMap) is not in namespace {namespace:?}: create it")]
    NoSecret {
        /// The value of key `secret-name`.
        name: String,
        namespace: String,
    },
    #[error("{what} {name} exists already and is not Mooring's: delete it")]
    Taken {
        /// The kind of the object, such as `Pod`.
        what: &'static str,
        /// `metadata.name`, without a namespace.
        name: String,
    },
    /// A token that the API did not give.
    #[error("the API gave no token for service account {0}")]
    NoToken(String),
    /// The key that a run's answer was sealed with is gone.
    #[error("Secret {0} no longer has answer-key, so Mooring can't open the image's answer: it runs the image again")]
    NoAnswerKey(String),
    #[error("failed to open the image's answer: {0}")]
    Seal(#[from] SealError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The API refuses to have a run written on a worker, so none has it.
    #[error(transparent)]
    NoLoan(CallError),
    /// An object changed while it was being dealt with.
    #[error("{0} has changed meanwhile")]
    Changed(String),
}

impl RunError {
    /// Bounded name for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Call(error) | Self::NoLoan(error) => error.category(),
            Self::Properties(_) => "properties",
            Self::NoSecret { .. } => "no-secret",
            Self::Taken { .. } => "taken",
            Self::NoToken(_) => "no-token",
            Self::NoAnswerKey(_) | Self::Seal(_) => "answer",
            Self::Worker(_) => "worker",
            Self::Changed(_) => "conflict",
        }
    }
}
