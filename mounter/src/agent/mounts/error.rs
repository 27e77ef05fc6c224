//! Why an agent could not do what was requested.

use std::io;
use std::time::Duration;

use mooring_program::error::chain;

use super::secrets::SecretsError;
use crate::agent::claims::ClaimError;
use crate::agent::program::InvalidVolume;
use crate::agent::protocol::{AgentFailure, FailureCategory};
use crate::agent::record::ImageRecordError;
use crate::agent::run::ProgramError;
use crate::agent::services::ServiceError;
use crate::agent::store::StoreError;
use crate::agent::target_mounts::TargetMountError;
use crate::sys::look::LookError;
use crate::volume::target::TargetError;

/// Why the agent could not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The options cannot be passed on.
    #[error(transparent)]
    Volume(#[from] InvalidVolume),
    /// The record that the image brings refuses the volume.
    #[error(transparent)]
    Record(#[from] ImageRecordError),
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    /// Another call for the same target is still running.
    #[error("another operation on {0} is in progress: Mooring tries again")]
    InProgress(String),
    /// Waiting for something else took most of the call's time.
    #[error(
        "{0} was not mounted: too little of the call's time was left for the client image's program: Mooring tries again"
    )]
    NoTime(String),
    /// The agent takes no new mounts.
    #[error("this client container is ending and takes no new mounts: another takes its place")]
    Draining,
    /// It is not one of this agent's.
    #[error("{0} is not a volume of this client container")]
    Unknown(String),
    #[error("{0} is not dead, so the agent does not mount it again")]
    NotDead(String),
    #[error("the program that served {0} ended, and Mooring is mounting it again: wait some seconds")]
    Dead(String),
    /// What served a raw block volume has ended.
    #[error(
        "the program that served the device at {0} has ended: delete the Pod; its replacement gets the device again"
    )]
    DeadDevice(String),
    /// The program for a raw block volume named no device.
    #[error("the client image's program exited with 0, but named no device: have it call service give-device")]
    NothingGiven,
    /// It answers, or has not been silent for long.
    #[error("{0} answers or may still answer: Mooring ended nothing")]
    NotSilent(String),
    /// The mount on the target is not FUSE's.
    #[error("{0} is not a FUSE mount: Mooring ended nothing, and its users wait for its server")]
    NotFuse(String),
    /// Nobody in the image can have it grow.
    #[error(
        "the volume is on a device, and the client image has no {program} to grow a mounted file system: use an image \
         that has it, or delete the Pod if the client grows the file system when it mounts it"
    )]
    NoExpansion { program: String },
    /// The image's program says so, with what to do.
    #[error(transparent)]
    KeepsItsSize(ProgramError),
    #[error("{0} has another file system mounted on it: delete the Pod, so that the kubelet unmounts it")]
    Occupied(String),
    /// The program does not know labels.
    #[error(
        "client {0} mounted the volume without the SELinux label of the Pod, which could not use it: have a client \
         mount it that knows labels, or leave the files' labels to the container runtime, with seLinuxMount: false in \
         the CSIDriver"
    )]
    NoLabel(String),
    /// Another Pod has the same volume in a way that this one can't have too.
    #[error(
        "another Pod on this node has this volume {0}, and all Pods of a node have one device of it: delete that Pod, \
         or have both use the volume alike"
    )]
    UsedOtherwise(&'static str),
    /// Its clean-up may still succeed.
    #[error("{0} is mounted, or its clean-up has not failed again and again: Mooring goes on with it")]
    NotLeft(String),
    /// Another Pod, which goes on, waits for the same server.
    #[error("{0} is used by another Pod as well, which is not being deleted: Mooring ended nothing")]
    UsedByOthers(String),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Look(#[from] LookError),
    #[error(transparent)]
    Kernel(#[from] TargetMountError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The container has no thread left for system calls.
    #[error(
        "failed to start a thread for {target}: its client container has as many processes as it may (the kubelet's \
         podPidsLimit), or no memory"
    )]
    Thread { target: String, source: io::Error },
}

impl AgentError {
    pub(super) fn category(&self) -> FailureCategory {
        match self {
            Self::Target(TargetError::OutsideRoot { .. } | TargetError::NotAVolume { .. })
            | Self::Volume(_)
            | Self::Secrets(_)
            | Self::Occupied(_)
            | Self::NoLabel(_)
            | Self::NoExpansion { .. }
            | Self::KeepsItsSize(_) => FailureCategory::Invalid,
            Self::InProgress(_)
            | Self::NoTime(_)
            | Self::Dead(_)
            | Self::NotDead(_)
            | Self::NotSilent(_)
            | Self::NotFuse(_)
            | Self::NotLeft(_)
            | Self::UsedByOthers(_)
            | Self::Kernel(TargetMountError::Gone(_)) => FailureCategory::InProgress,
            Self::Draining => FailureCategory::Draining,
            Self::Program(ProgramError::TimedOut { .. }) => FailureCategory::TimedOut,
            Self::Service(error) => error.category(),
            Self::Record(error) => error.category(),
            Self::Program(_)
            | Self::DeadDevice(_)
            | Self::NothingGiven
            | Self::Kernel(TargetMountError::NothingMounted) => FailureCategory::Refused,
            Self::Claim(ClaimError::Taken { .. } | ClaimError::Elsewhere { .. } | ClaimError::Foreign(_))
            | Self::UsedOtherwise(_)
            | Self::Kernel(TargetMountError::InUse(_)) => FailureCategory::InUse,
            // A directory that can't be opened just now, and a volume that was unmounted meanwhile, may be there again.
            Self::Target(_)
            | Self::Unknown(_)
            | Self::Look(_)
            | Self::Kernel(_)
            | Self::Store(_)
            | Self::Claim(_)
            | Self::Thread { .. } => FailureCategory::System,
        }
    }
}

impl From<&AgentError> for AgentFailure {
    fn from(error: &AgentError) -> Self {
        Self {
            category: error.category(),
            message: chain(error),
            limit_ms: match error {
                AgentError::Program(ProgramError::TimedOut { limit, .. }) => Some(in_ms(*limit)),
                _ => None,
            },
        }
    }
}

pub(super) fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::AgentError;
    use crate::agent::protocol::AgentFailure;
    use crate::agent::run::ProgramError;

    #[test]
    fn a_failure_names_each_cause_once() {
        let error = AgentError::Program(ProgramError::Start {
            program: "mount".into(),
            source: io::ErrorKind::NotFound.into(),
        });
        assert_eq!(
            AgentFailure::from(&error).message,
            "failed to start mount in the client container: does the client image have it?: entity not found"
        );
    }
}
