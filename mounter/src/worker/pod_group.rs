//! Gives the files of a volume, which is mounted on its target, to the Pod's group. The server is asked about every file,
//! and may take as long as it pleases.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sys::Sys;
use crate::sys::ownership::{self, Place, Walked, is_given, is_shown_as};
use crate::volume::job::MountError;
use crate::volume::pod_group::PodGroup;
use crate::volume::target::Target;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GiveTask {
    pub target: Target,
    pub group: PodGroup,
    /// Whether the client is known to keep a group for each file.
    pub by_owner: bool,
    /// Where an earlier walk has ended.
    pub from: Place,
    /// Milliseconds after which the walk ends, and says where.
    pub limit_ms: u64,
}

pub fn give(sys: &impl Sys, task: &GiveTask) -> Result<Walked, MountError> {
    let until = Instant::now() + Duration::from_millis(task.limit_ms);
    let GiveTask { target, group, .. } = task;
    let table = sys.mount_table()?;
    // Without its mount, the directory is one of the node's own disk.
    let top = table.top(&target.path()).ok_or_else(|| {
        MountError::failed(
            format!("give the files of {target} to group {}", group.gid),
            "it was unmounted meanwhile",
        )
    })?;
    let root = sys.open_target(target)?;
    let is_by_option = !task.by_owner && top.is_fuse() && is_shown_as(&root, *group)?;
    if is_by_option || group.on_root_mismatch && is_given(&root, *group)? {
        return Ok(Walked::default());
    }
    Ok(ownership::give(&root, *group, &task.from, until)?)
}
