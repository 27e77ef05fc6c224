//! The state of a volume's services.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::process::{GRACE, Process, ProcessIdentity};
use super::silence::WatchedServer;
use crate::agent::store::{self, StoreError};
use crate::volume::mount_table::DeviceNumber;
use crate::volume::selinux_label::SelinuxLabel;
use crate::volume::volume_id::VolumeId;

/// The purpose of a run of an image's program.
#[derive(Debug, Clone)]
pub struct ServiceRun {
    pub volume_id: VolumeId,
    /// The label that its mount is to give to all files.
    pub label: Option<SelinuxLabel>,
    /// Where it mounts.
    pub directory: PathBuf,
    pub source: String,
    /// Its deadline.
    pub until: Instant,
}

/// The record of a service, by which a restarted agent finds it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ServiceRecord {
    Daemon {
        program: String,
        process: ProcessIdentity,
        /// The pipe with its output, if it is in the foreground.
        output: Option<PathBuf>,
    },
    Loop {
        device: PathBuf,
        /// The file behind it, as the kernel names it.
        file: String,
    },
    Watch {
        file: PathBuf,
        limit: Duration,
        source: String,
    },
}

/// The live part of a service, in this process.
#[derive(Debug)]
pub(super) enum Live {
    Daemon {
        process: Arc<Process>,
        _watcher: AbortOnDropHandle<()>,
    },
    /// Keeps the device attached until it is mounted.
    Loop(Option<OwnedFd>),
    Watch {
        server: Arc<WatchedServer>,
        _task: AbortOnDropHandle<()>,
    },
    /// It existed before the agent restarted, and has ended.
    Gone,
}

#[derive(Debug)]
pub(super) struct KeptService {
    pub(super) record: ServiceRecord,
    pub(super) live: Live,
}

#[derive(Debug, Default)]
pub(super) struct VolumeServices {
    /// Set while a program of the image mounts it.
    pub(super) run: Option<ServiceRun>,
    /// Its services, in the order of their start.
    pub(super) kept: Vec<KeptService>,
    /// The device that its program gave, if it is a raw block volume.
    pub(super) given: Option<DeviceNumber>,
    /// Its services are being ended, so none of them counts as having ended by itself.
    pub(super) ending: bool,
}

impl VolumeServices {
    pub(super) fn daemons(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.kept.iter().filter_map(|kept| match &kept.live {
            Live::Daemon { process, .. } => Some(process),
            _ => None,
        })
    }

    /// The servers that are watched.
    pub(super) fn servers(&self) -> impl Iterator<Item = &WatchedServer> {
        self.kept.iter().filter_map(|kept| match &kept.live {
            Live::Watch { server, .. } => Some(&**server),
            _ => None,
        })
    }

    /// Whether a daemon that an earlier agent had started has ended.
    pub(super) fn has_lost_one(&self) -> bool {
        self.kept.iter().any(|kept| matches!(kept.live, Live::Gone))
    }
}

/// The volumes that have records in a directory, each with the records of its services.
pub(super) fn recorded(dir: &Path) -> Vec<Result<(String, Vec<ServiceRecord>), StoreError>> {
    let paths = match store::list(dir) {
        Ok(paths) => paths,
        Err(error) => return vec![Err(error)],
    };
    paths
        .into_iter()
        // The directory also has daemons' pipes, and opening one to read would block.
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let volume = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok((volume, store::read(&path)?))
        })
        .collect()
}

/// Ends a process without waiting for it.
pub(super) fn end_apart(process: &Arc<Process>) {
    let process = Arc::clone(process);
    tokio::spawn(async move { process.end(GRACE).await });
}
