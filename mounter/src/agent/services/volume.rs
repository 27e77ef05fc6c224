//! What is known of a volume's services.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::Run;
use super::process::{GRACE, Identity, Process};

/// A service as it is found again after the agent was started again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Record {
    Daemon {
        program: String,
        process: Identity,
        /// The pipe with its words, if it is in the foreground.
        said: Option<PathBuf>,
    },
    Loop {
        device: PathBuf,
        /// As the kernel names the file behind it.
        file: String,
    },
    Watch {
        file: PathBuf,
        limit: Duration,
        source: String,
    },
}

/// What a service has in this process.
#[derive(Debug)]
pub(super) enum Live {
    Daemon {
        process: Arc<Process>,
        _watcher: AbortOnDropHandle<()>,
    },
    /// Keeps the device until it is mounted.
    Loop(Option<OwnedFd>),
    Watch {
        _task: AbortOnDropHandle<()>,
    },
    /// What was there before the agent and is not any more.
    Gone,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) record: Record,
    pub(super) live: Live,
}

/// What is known of a volume.
#[derive(Debug, Default)]
pub(super) struct Volume {
    /// While a program of the image mounts it.
    pub(super) run: Option<Run>,
    /// In the order of their beginning.
    pub(super) kept: Vec<Kept>,
    /// They are being ended: none ends by itself.
    pub(super) ending: bool,
}

impl Volume {
    pub(super) fn daemons(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.kept.iter().filter_map(|kept| match &kept.live {
            Live::Daemon { process, .. } => Some(process),
            _ => None,
        })
    }

    /// Whether a daemon has ended that an earlier agent had started.
    pub(super) fn has_lost_one(&self) -> bool {
        self.kept.iter().any(|kept| matches!(kept.live, Live::Gone))
    }
}

/// Ends a process without waiting for that.
pub(super) fn end_apart(process: &Arc<Process>) {
    let process = Arc::clone(process);
    tokio::spawn(async move { process.end(GRACE).await });
}
