//! What can go wrong when a decision is carried out.

use std::error::Error as _;

use crate::run::properties::PropertiesError;

/// What was attempted on what.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A call to the API.
    #[error("failed to {what} {name}")]
    Api {
        /// What was attempted.
        what: &'static str,
        /// On what.
        name: String,
        /// What the API said.
        source: Box<kube::Error>,
    },
    /// Properties that can't be handed over.
    #[error(transparent)]
    Properties(#[from] PropertiesError),
    /// The ConfigMap's Secret.
    #[error("secret {name:?} (key \"secret-name\" of the ConfigMap) is not in namespace {namespace:?}: create it")]
    NoSecret {
        /// Its name.
        name: String,
        /// The ConfigMap's namespace.
        namespace: String,
    },
    /// A name that is taken.
    #[error("{what} {name} is there already and is not Mooring's: remove it")]
    Taken {
        /// Its kind.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A token that the API did not give.
    #[error("the API gave no token for service account {0}")]
    NoToken(String),
    /// An object changed while it was being dealt with.
    #[error("{0} has changed meanwhile")]
    Changed(String),
}

impl ApplyError {
    pub(crate) fn api(what: &'static str, name: &str, source: kube::Error) -> Self {
        Self::Api {
            what,
            name: name.to_owned(),
            source: Box::new(source),
        }
    }

    /// Bounded name for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Api { source, .. } => match **source {
                kube::Error::Api(ref status) => match status.code {
                    403 => "forbidden",
                    404 => "not-found",
                    409 => "conflict",
                    422 | 400 => "invalid",
                    429 => "throttled",
                    _ => "api",
                },
                _ => "unreachable",
            },
            Self::Properties(_) => "properties",
            Self::NoSecret { .. } => "no-secret",
            Self::Taken { .. } => "taken",
            Self::NoToken(_) => "no-token",
            Self::Changed(_) => "conflict",
        }
    }

    /// The API will say the same until somebody changes something.
    pub fn is_rejection(&self) -> bool {
        matches!(self.category(), "forbidden" | "not-found" | "invalid")
    }

    /// The whole chain in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        if let Self::Api { source, .. } = self
            && let kube::Error::Api(status) = source.as_ref()
        {
            return format!("{text}: {}", status.message);
        }
        let mut source = self.source();
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        text
    }
}
