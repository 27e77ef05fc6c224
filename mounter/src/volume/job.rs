//! What belongs to a mount beside its volume and its target, and why it could not be made.

use std::collections::BTreeMap;

use mooring_contract::volume::clients::device_clients;
use serde::{Deserialize, Serialize};

use crate::volume::cause::Cause;
use crate::volume::mount_table::Table;
use crate::volume::target::{Target, TargetError};

/// A volume's secrets, by name. Never printed: its `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secrets(pub BTreeMap<String, Vec<u8>>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The Pod that a mount is for, as the kubelet names it; empty where it does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRef {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

/// How a Pod has a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// As a directory, with a file system.
    FileSystem,
    /// As a device (`volumeMode: Block`).
    Device,
}

/// Why a volume is not mounted or unmounted. The message is what the user reads in the Event: it says what was tried,
/// on what, and what to do.
///
/// A worker hands it to the daemon as JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountError {
    #[error(transparent)]
    BadOptions(Cause),
    #[error(transparent)]
    Target(Cause),
    /// No client is set up for the volume's type.
    #[error(
        "no client serves volumes of type {client}: add the key {client} to the ConfigMap mounter-config in Mooring's \
         namespace, with a client image, host or self as its value"
    )]
    NotServed { client: String },
    /// Its client has no device to give.
    #[error(
        "client {client} can't give a Pod a raw block volume on this node: use client {clients} for that, or leave out \
         volumeMode (the default is Filesystem)",
        clients = device_clients()
    )]
    NoDevice { client: String },
    /// The administrator has not allowed this.
    #[error(transparent)]
    Forbidden(Cause),
    /// Nobody said who wrote the volume.
    #[error(transparent)]
    Unproved(Cause),
    #[error("{operation} of this volume has been in progress for {seconds} s: the kubelet tries again")]
    InProgress { operation: String, seconds: u64 },
    /// The server did not answer a while ago, so this was not tried.
    #[error(
        "server {server} did not answer {seconds_ago} s ago and is not tried again for {seconds_left} s: see whether \
         it is up and can be reached from this node"
    )]
    Tripped {
        server: String,
        seconds_ago: u64,
        /// How long its circuit breaker stays open.
        seconds_left: u64,
    },
    #[error(
        "{attempted} took longer than {seconds} s: {server} did not answer; see whether it is up and can be reached \
         from this node"
    )]
    Timeout {
        attempted: String,
        seconds: u64,
        /// The server, or what else was waited for.
        server: String,
    },
    #[error("{found} is mounted on {target} already, not {wanted}: delete the Pod, so that the kubelet unmounts it")]
    Occupied {
        target: String,
        found: String,
        wanted: String,
    },
    #[error(
        "failed to unmount {found} from {target}: it is in use: a process on the node still has a file or its working \
         directory there; end it, and the unmount follows"
    )]
    InUse { found: String, target: String },
    /// A volume for one Pod is with another.
    #[error(
        "{volume} is for one Pod at a time (ReadWriteOncePod), and another one uses it ({other}): delete that Pod, and \
         this one starts by itself"
    )]
    NotAlone {
        volume: String,
        /// Where the other Pod has it.
        other: String,
    },
    /// The storage has not let this node have it.
    #[error(
        "{volume} is not attached to node {node} yet{}: the kubelet tries again; if that takes long, see the claim's \
         Events",
        .other.as_ref().map_or_else(String::new, |other| format!(", but to node {other}"))
    )]
    NotAttached {
        volume: String,
        node: String,
        /// The node that has it.
        other: Option<String>,
    },
    /// A file system that does not answer can't be given up: other mounts share it.
    #[error(
        "{found} does not answer, but Mooring leaves it mounted: {other} is on the same file system, and its users may \
         wait for the server"
    )]
    Shared {
        found: String,
        /// Where else it is.
        other: String,
    },
    /// Another process has its image file locked.
    #[error(
        "image file {file} of the node's pool is just being formatted, enlarged, copied or backed up: the kubelet tries \
         again until that is done. If it goes on for long, see whether the disk under the node's pool answers"
    )]
    ImageBusy { file: String },
    /// A volume that is mounted keeps its size.
    #[error("the volume on {target} ({found}) was not expanded: {why}")]
    NotExpanded {
        target: String,
        found: String,
        /// Why, and what to do.
        why: String,
    },
    /// A dead mount that may be another volume's stays.
    #[error("failed to replace the dead mount at {path}: Mooring does not know which volume of the Pod it shows")]
    Unattributed { path: String },
    #[error("this node can't serve the volume: {0}")]
    Node(#[source] Cause),
    /// The client container is not there, or broke.
    #[error("client container for {client}: {cause}")]
    Container {
        client: String,
        /// What is wrong, and what to do.
        #[source]
        cause: Cause,
    },
    #[error("failed to {attempted}: {cause}")]
    Failed {
        /// What was tried, on what: `mount 10.0.0.4:/exports as nfs4`.
        attempted: String,
        #[source]
        cause: Cause,
    },
}

impl From<TargetError> for MountError {
    fn from(error: TargetError) -> Self {
        Self::Target(Cause::of(error))
    }
}

/// The mount table as it is now.
pub fn mount_table() -> Result<Table, MountError> {
    Table::read().map_err(MountError::failed_to("read the mount table"))
}

impl MountError {
    pub fn failed(attempted: impl Into<String>, cause: impl Into<Cause>) -> Self {
        Self::Failed {
            attempted: attempted.into(),
            cause: cause.into(),
        }
    }

    /// Says of an error what was attempted.
    pub fn failed_to<E>(attempted: impl Into<String>) -> impl FnOnce(E) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        move |error| Self::failed(attempted, Cause::of(error))
    }

    pub fn occupied(target: &Target, found: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self::Occupied {
            target: target.to_string(),
            found: found.into(),
            wanted: wanted.into(),
        }
    }

    /// What is wrong with a volume's options; the error's message says what to do.
    pub fn bad_options(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::BadOptions(Cause::of(error))
    }

    /// The kind of error, from a fixed set, for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::BadOptions(_) => "bad-options",
            Self::Target(_) => "bad-target",
            Self::NotServed { .. } => "not-served",
            Self::NoDevice { .. } => "no-device",
            Self::Forbidden(_) => "forbidden",
            Self::Unproved(_) => "unproved",
            Self::InProgress { .. } => "in-progress",
            Self::Tripped { .. } => "tripped",
            Self::Timeout { .. } => "timeout",
            Self::Occupied { .. } => "occupied",
            Self::InUse { .. } => "in-use",
            Self::NotAlone { .. } => "not-alone",
            Self::NotAttached { .. } => "not-attached",
            Self::Shared { .. } => "shared",
            Self::ImageBusy { .. } => "image-busy",
            Self::NotExpanded { .. } => "not-expanded",
            Self::Unattributed { .. } => "unattributed",
            Self::Node(_) => "node",
            Self::Container { .. } => "container",
            Self::Failed { .. } => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Secrets;

    #[test]
    fn secrets_are_not_printed() {
        let secrets = Secrets([("password".to_owned(), b"hunter2".to_vec())].into());
        let printed = format!("{secrets:?}");
        assert!(printed.contains("password") && !printed.contains("hunter2") && !printed.contains("104"));
    }
}
