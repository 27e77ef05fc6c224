//! The group that a Pod's files belong to.

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

/// A Pod's `fsGroup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodGroup {
    pub gid: u32,
    /// Whether the files are looked at only if the volume's own directory is not the group's yet
    /// (`fsGroupChangePolicy: OnRootMismatch`).
    pub on_root_mismatch: bool,
}

impl PodGroup {
    /// A group whose files are always looked at.
    pub fn always(gid: u32) -> Self {
        Self {
            gid,
            on_root_mismatch: false,
        }
    }

    pub fn of(pod: &Pod) -> Option<Self> {
        let context = pod.spec.as_ref()?.security_context.as_ref()?;
        Some(Self {
            // The API server lets nothing else in.
            gid: context.fs_group?.try_into().ok()?,
            on_root_mismatch: context.fs_group_change_policy.as_deref() == Some("OnRootMismatch"),
        })
    }
}
