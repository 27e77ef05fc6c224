//! The task of a worker and its report, as JSON over pipes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use mooring_contract::volume::Volume;
use serde::{Deserialize, Serialize};

use crate::grant::Grant;
use crate::sys::look::LookedAt;
use crate::volume::job::{MountError, Secrets};
use crate::volume::mount_table::DeviceNumber;
use crate::volume::selinux_label::SelinuxLabel;
use crate::volume::target::Target;
use crate::worker::graft::GraftTask;
use crate::worker::usage::Usage;

/// One thing for a worker to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Mount an image file of the pool.
    Local { pool: PathBuf, mount: MountTask },
    /// Give a Pod an image file of the pool as a device.
    Show {
        pool: PathBuf,
        /// Which file, and where.
        mount: MountTask,
    },
    /// Give a Pod a device that a client container has.
    ShowGiven {
        device: DeviceNumber,
        /// Whether no other Pod may have the volume.
        sole: bool,
        /// Whether the Pod is only to read it.
        read_only: bool,
        target: Target,
    },
    /// Take a device from a Pod.
    Hide { pool: PathBuf, target: Target },
    /// Mount the pool itself.
    Pool { pool: PathBuf, mount: MountTask },
    /// Mount by system call.
    Kernel {
        /// The host's mount namespace, if not the kubelet's.
        namespace: Option<PathBuf>,
        mount: MountTask,
    },
    /// Mount by the host's own program.
    Host {
        /// The host's mount namespace, if not the kubelet's.
        namespace: Option<PathBuf>,
        mount: MountTask,
    },
    /// Unmount whatever is on a target.
    Unmount {
        target: Target,
        /// Also if it is in use (`MNT_DETACH`). The worker then stays the last user of an SMB file system.
        detach: bool,
    },
    /// Give an error to all that wait for what is mounted on a target.
    Force {
        /// The host's mount namespace, if not the kubelet's.
        namespace: Option<PathBuf>,
        target: Target,
        /// Uids of the Pods that are not to use it any more.
        over: BTreeSet<String>,
    },
    /// See what is mounted on a target, and whether it answers. The report is [`WorkerReport::Found`].
    Look { target: Target },
    /// Ask what is mounted on a target how full it is.
    Usage { target: Target },
    /// Remove what an unfinished mount by the host's program has left.
    ClearStage {
        /// The host's mount namespace, if not the kubelet's.
        namespace: Option<PathBuf>,
        target: Target,
    },
    /// Expand a volume of an image file to the size of the file.
    Expand {
        pool: PathBuf,
        target: Target,
        /// The size in bytes that it should have at least.
        size: u64,
    },
    /// Put a volume that was mounted again where its dead mounts are.
    Graft(GraftTask),
}

impl Task {
    /// What logs call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Show { .. } => "show",
            Self::ShowGiven { .. } => "show-given",
            Self::Hide { .. } => "hide",
            Self::Pool { .. } => "pool",
            Self::Kernel { .. } => "kernel",
            Self::Host { .. } => "host",
            Self::Unmount { .. } => "unmount",
            Self::Force { .. } => "force",
            Self::Look { .. } => "look",
            Self::Usage { .. } => "usage",
            Self::ClearStage { .. } => "clear-stage",
            Self::Expand { .. } => "expand",
            Self::Graft(_) => "graft",
        }
    }
}

/// A mount, as a worker needs to know it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountTask {
    pub volume: FlatVolume,
    pub target: Target,
    /// Whether no other Pod may have it.
    pub sole: bool,
    pub read_only: bool,
    /// Whether no Pod may write it.
    pub only_read: bool,
    /// The volume's secrets. They come over the pipe only, like all of the task.
    pub secrets: Secrets,
    /// The group that the Pod's files should belong to.
    pub fs_group: Option<u32>,
    /// The label that the mount is to give to all files.
    pub label: Option<SelinuxLabel>,
}

impl From<&Grant> for MountTask {
    fn from(grant: &Grant) -> Self {
        Self {
            volume: FlatVolume::from(grant.volume()),
            target: grant.target().clone(),
            sole: grant.is_sole(),
            read_only: grant.is_read_only(),
            only_read: grant.is_only_read(),
            secrets: grant.secrets().clone(),
            fs_group: grant.fs_group(),
            label: grant.label().cloned(),
        }
    }
}

/// A volume as its flat options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlatVolume(BTreeMap<String, String>);

impl From<&Volume> for FlatVolume {
    fn from(volume: &Volume) -> Self {
        Self(volume.to_options())
    }
}

impl FlatVolume {
    pub fn read(&self) -> Result<Volume, MountError> {
        Volume::from_options(&self.0).map_err(MountError::bad_options)
    }
}

/// Ends a report: the daemon continues when it arrives, not when the worker has ended.
pub const END: u8 = b'\n';

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerReport {
    /// The task is done, and has no result.
    Done,
    /// After [`Task::Look`].
    Found(LookedAt),
    Usage(Usage),
    Failed(MountError),
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{MountTask, Secrets, Volume};
    use crate::sys::fake::target;

    /// A mount of a volume onto the target of tests.
    pub(crate) fn task(line: &str) -> MountTask {
        MountTask {
            volume: (&Volume::from_line(line).unwrap()).into(),
            target: target(),
            sole: false,
            read_only: false,
            only_read: false,
            secrets: Secrets::default(),
            fs_group: None,
            label: None,
        }
    }
}
