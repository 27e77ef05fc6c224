//! What can go wrong when a decision is carried out.

use mooring_program::error;

use crate::process::call::CallError;
use crate::run::error::RunError;

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Run(#[from] RunError),
    /// An object changed while it was being dealt with.
    #[error("{0} has changed meanwhile")]
    Changed(String),
    /// A defect: nothing is written on what has no record.
    #[error("{0} has no record to write")]
    NoRecord(String),
}

impl ApplyError {
    /// Bounded name for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Call(error) => error.category(),
            Self::Run(error) => error.category(),
            Self::Changed(_) => "conflict",
            Self::NoRecord(_) => "defect",
        }
    }

    /// The API will say the same until somebody changes something.
    pub fn is_rejection(&self) -> bool {
        self.is_refusal() || self.category() == "not-found"
    }

    /// The API server wants none of it: by its rights, its policies or its rules.
    pub fn is_refusal(&self) -> bool {
        matches!(self.category(), "forbidden" | "invalid")
    }

    /// It stays until somebody changes something: the API's answer, or what a run would be given.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Run(RunError::Call(_)) | Self::Call(_) => self.is_rejection(),
            Self::Run(RunError::Changed(_) | RunError::Worker(_)) | Self::Changed(_) => false,
            Self::Run(_) | Self::NoRecord(_) => true,
        }
    }

    /// The whole chain in one line; of an answer of the API server, only its message.
    pub fn chain(&self) -> String {
        if let Self::Call(call) | Self::Run(RunError::Call(call)) = self
            && let Some(answer) = call.answer()
        {
            return format!("{self}: {answer}");
        }
        error::chain(self)
    }
}
