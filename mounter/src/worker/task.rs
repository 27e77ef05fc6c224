//! The task of a worker and its report, as JSON over pipes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::grant::{Grant, GrantForWorker};
use crate::sys::look::LookedAt;
use crate::sys::ownership::Walked;
use crate::volume::job::MountError;
use crate::volume::mount_table::DeviceNumber;
use crate::volume::target::Target;
use crate::worker::graft::GraftTask;
use crate::worker::pod_group::GiveTask;
use crate::worker::usage::Usage;

/// One thing for a worker to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Mount an image file of the pool, or give it to a Pod as a device.
    Local {
        pool: PathBuf,
        #[serde(with = "GrantForWorker")]
        grant: Grant,
    },
    /// Give a Pod a device that a client container has.
    ShowGiven {
        device: DeviceNumber,
        #[serde(with = "GrantForWorker")]
        grant: Grant,
    },
    /// Take a device from a Pod.
    Hide { pool: PathBuf, target: Target },
    /// Mount the pool itself.
    Pool {
        pool: PathBuf,
        #[serde(with = "GrantForWorker")]
        grant: Grant,
    },
    /// Mount by system call.
    Kernel {
        /// The host's mount namespace, if not the kubelet's.
        namespace: Option<PathBuf>,
        #[serde(with = "GrantForWorker")]
        grant: Grant,
    },
    /// Mount by the host's own program.
    Host {
        /// The host's mount namespace, if not the kubelet's.
        namespace: Option<PathBuf>,
        #[serde(with = "GrantForWorker")]
        grant: Grant,
    },
    /// Unmount whatever is on a target.
    Unmount {
        target: Target,
        /// Also if it is in use (`MNT_DETACH`). The worker then stays the last user of an SMB file system.
        detach: bool,
    },
    /// Unmount what the kubelet does not unmount of a volume whose Pod has ended.
    UnmountMissing { target: Target },
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
    /// Give the files of what is mounted on a target to a group. The report is [`WorkerReport::Walked`].
    Give(GiveTask),
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
            Self::ShowGiven { .. } => "show-given",
            Self::Hide { .. } => "hide",
            Self::Pool { .. } => "pool",
            Self::Kernel { .. } => "kernel",
            Self::Host { .. } => "host",
            Self::Unmount { .. } => "unmount",
            Self::UnmountMissing { .. } => "unmount-missing",
            Self::Force { .. } => "force",
            Self::Look { .. } => "look",
            Self::Usage { .. } => "usage",
            Self::Give(_) => "give",
            Self::ClearStage { .. } => "clear-stage",
            Self::Expand { .. } => "expand",
            Self::Graft(_) => "graft",
        }
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
    /// After [`Task::Give`].
    Walked(Walked),
    Failed(MountError),
}

#[cfg(test)]
pub(crate) mod tests {
    use mooring_contract::volume::Volume;

    use super::Task;
    use crate::grant::Grant;
    use crate::grant::request::MountRequest;
    use crate::grant::request::tests::request;
    use crate::grant::tests::granted;
    use crate::sys::fake::target;
    use crate::volume::job::Secrets;
    use crate::volume::pod_group::PodGroup;

    /// A request for a volume on the target of tests.
    pub(crate) fn asked(line: &str) -> MountRequest {
        request(Volume::from_line(line).unwrap(), target())
    }

    /// A mount of a volume onto the target of tests.
    pub(crate) fn task(line: &str) -> Grant {
        granted(asked(line))
    }

    #[test]
    fn a_worker_gets_what_was_granted() {
        let request = MountRequest {
            secrets: Secrets([("key".to_owned(), b"\0\xff".to_vec())].into()),
            sole: true,
            only_read: true,
            fs_group: Some(PodGroup::always(7)),
            ..asked("client=smb,source=//h/a,mount-options=ro;seal")
        };
        let grant = granted(request);
        let sent = Task::Pool {
            pool: "/pool".into(),
            grant: grant.clone(),
        };
        let text = serde_json::to_vec(&sent).unwrap();
        let Task::Pool { grant: got, .. } = serde_json::from_slice(&text).unwrap() else {
            panic!("another task");
        };
        assert_eq!(format!("{got:?}"), format!("{grant:?}"));
        assert_eq!((got.volume(), got.secrets()), (grant.volume(), grant.secrets()));
    }
}
