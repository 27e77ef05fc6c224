//! Why a service can't be provided, or does not end.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use mooring_program::error::chain;

use crate::agent::protocol::FailureCategory;
use crate::agent::run::{OutputLines, ProgramError};
use crate::agent::store::StoreError;
use crate::sys::SysError;

/// Why a service can't be provided, or does not end.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No program of the image is mounting the volume.
    #[error("no program of the image is mounting volume {0}: a service is for a volume that is being mounted")]
    NotMounting(String),
    #[error("no program is named: write service daemon -- PROGRAM ARGUMENTS")]
    NoProgram,
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// It has written no process id.
    #[error("{program} has gone to the background and wrote no process number to {path}")]
    PidFile {
        program: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error("failed to read the output of {program}")]
    Listen { program: String, source: io::Error },
    /// It ended before it was ready.
    #[error("{program} ended before it was ready: {last_lines}")]
    Ended { program: String, last_lines: OutputLines },
    #[error("{program} was not ready after {limit:?}: {last_lines}")]
    NotReady {
        program: String,
        limit: Duration,
        last_lines: OutputLines,
    },
    #[error("{0} does not end: its data may not be on the server yet; the agent tries again")]
    NotEnded(String),
    /// The volume has no daemon to watch.
    #[error("the volume has no daemon whose server could be watched: start it before service watch-server")]
    NoDaemon,
    #[error("failed to open {path}")]
    Open { path: PathBuf, source: io::Error },
    /// The file can't be attached to a loop device.
    #[error(transparent)]
    Loop(#[from] SysError),
    #[error("{0} is not a block device: name one, such as the one that service loop printed")]
    NoDevice(PathBuf),
    #[error("failed to attach {0} to a loop device: it does not answer")]
    LoopSilent(PathBuf),
    /// A loop device is in use.
    #[error("{0} is still in use: the agent detaches it when its data is on the server, and tries again")]
    InUse(PathBuf),
    #[error("failed to {attempted} {path}")]
    Directory {
        attempted: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The records can't be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ServiceError {
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::NotMounting(_) | Self::NoProgram | Self::NoDaemon | Self::NoDevice(_) => FailureCategory::Invalid,
            Self::Program(ProgramError::TimedOut { .. }) | Self::NotReady { .. } => FailureCategory::TimedOut,
            Self::Program(_) | Self::PidFile { .. } | Self::Ended { .. } => FailureCategory::Refused,
            Self::InUse(_) | Self::NotEnded(_) => FailureCategory::InUse,
            Self::Listen { .. }
            | Self::Open { .. }
            | Self::Loop(_)
            | Self::LoopSilent(_)
            | Self::Directory { .. }
            | Self::Store(_) => FailureCategory::System,
        }
    }

    /// The lines for the image's program: the daemon's own last lines, if there are any.
    fn last_lines(&self) -> &[String] {
        match self {
            Self::Program(ProgramError::Failed { last_lines, .. } | ProgramError::TimedOut { last_lines, .. })
            | Self::Ended { last_lines, .. }
            | Self::NotReady { last_lines, .. } => last_lines.lines(),
            _ => &[],
        }
    }

    /// [`Self::last_lines`], or else the error's message.
    pub fn report(&self) -> String {
        let last_lines = self.last_lines();
        if last_lines.is_empty() {
            return chain(self);
        }
        last_lines.join("\n")
    }
}
