//! What the kubelet is answered where something failed: the words of the Event, as a `FlexVolume`'s are, and a code.
//!
//! The kubelet takes some codes for an end, and removes the volume's directory (`isFinalError` in `pkg/volume/csi`).
//! After the others the volume may be mounted or about to be: it asks again, or unpublishes it before it goes on. So
//! whatever may still come about has one of these: `ABORTED`, `DEADLINE_EXCEEDED`, `UNAVAILABLE`.

use tonic::{Code, Status};

use super::publish::CsiRequestError;
use crate::drivers::event_text;
use crate::volume::job::MountError;
use crate::volume::target::TargetError;

#[derive(Debug, thiserror::Error)]
pub(super) enum CsiError {
    /// The request makes no sense.
    #[error(transparent)]
    Request(#[from] CsiRequestError),
    /// The directory can't be made, removed or looked at.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The volume was not mounted or unmounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A question about a volume that is not there.
    #[error("nothing is mounted on {0}")]
    NotMounted(String),
    #[error("the mounter does not know its node's name: set --node-name (NODE_NAME)")]
    NoNode,
}

impl CsiError {
    /// A word out of a fixed few, for metrics.
    pub(super) fn category(&self) -> &'static str {
        match self {
            Self::Request(_) => "bad-call",
            Self::Target(_) => "bad-target",
            Self::Mount(error) => error.category(),
            Self::NotMounted(_) => "not-mounted",
            Self::NoNode => "node",
        }
    }

    /// Whether the kubelet takes it for an end: then it does not unpublish the volume.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self.code(), Code::Aborted | Code::DeadlineExceeded | Code::Unavailable)
    }

    fn code(&self) -> Code {
        match self {
            Self::Request(CsiRequestError::Range { .. }) => Code::OutOfRange,
            Self::Request(_) => Code::InvalidArgument,
            Self::Target(_) => Code::Internal,
            Self::Mount(error) => code(error),
            Self::NotMounted(_) => Code::NotFound,
            Self::NoNode => Code::FailedPrecondition,
        }
    }
}

impl From<CsiError> for Status {
    fn from(failure: CsiError) -> Self {
        Self::new(failure.code(), event_text::cut(failure.to_string()))
    }
}

fn code(error: &MountError) -> Code {
    match error {
        MountError::BadOptions(_) | MountError::NoDevice { .. } => Code::InvalidArgument,
        MountError::Forbidden(_) => Code::PermissionDenied,
        // After the last one the kubelet goes on without the expansion (`inUseError` in `pkg/volume/csi/expander.go`).
        MountError::NotServed { .. }
        | MountError::Node(_)
        | MountError::InUse { .. }
        | MountError::NotAlone { .. }
        | MountError::Shared { .. }
        | MountError::NotExpanded { .. } => Code::FailedPrecondition,
        MountError::Occupied { .. } => Code::AlreadyExists,
        MountError::InProgress { .. } => Code::Aborted,
        MountError::Timeout { .. } => Code::DeadlineExceeded,
        MountError::Tripped { .. }
        | MountError::Unproved(_)
        | MountError::Container { .. }
        | MountError::ImageBusy { .. }
        | MountError::NotAttached { .. } => Code::Unavailable,
        // The kubelet never tries an expansion again after `INVALID_ARGUMENT`.
        MountError::Target(_) | MountError::Unattributed { .. } | MountError::Failed { .. } => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};

    use super::CsiError;
    use crate::volume::job::MountError;

    /// What the kubelet goes on after as if nothing had begun.
    const FINAL: [Code; 6] = [
        Code::InvalidArgument,
        Code::PermissionDenied,
        Code::FailedPrecondition,
        Code::AlreadyExists,
        Code::Internal,
        Code::NotFound,
    ];

    fn words() -> String {
        "x".to_owned()
    }

    #[test]
    fn what_may_still_come_about_is_no_end_to_the_kubelet() {
        let open = [
            MountError::InProgress {
                operation: words(),
                seconds: 1,
            },
            MountError::Timeout {
                attempted: words(),
                seconds: 1,
                server: words(),
            },
            MountError::Container {
                client: words(),
                cause: words().into(),
            },
            MountError::Unproved(words().into()),
            MountError::ImageBusy { file: words() },
        ];
        for error in open {
            let text = error.to_string();
            let failure = CsiError::from(error);
            assert!(!failure.is_final(), "{failure}");
            let status = Status::from(failure);
            assert!(!FINAL.contains(&status.code()), "{status:?}");
            assert_eq!(status.message(), text);
        }
        let over = [
            MountError::BadOptions(words().into()),
            MountError::Forbidden(words().into()),
            MountError::Node(words().into()),
            MountError::NotServed { client: words() },
            MountError::failed(words(), words()),
        ];
        for error in over {
            let failure = CsiError::from(error);
            assert!(failure.is_final(), "{failure}");
            let status = Status::from(failure);
            assert!(FINAL.contains(&status.code()), "{status:?}");
        }
    }

    /// It gives an expansion up after these (`IsInfeasibleError` in `pkg/volume/util/types`).
    #[test]
    fn the_kubelet_tries_an_expansion_again_where_the_volume_could_not_be_opened() {
        let error = MountError::Target(words().into());
        let code = Status::from(CsiError::from(error)).code();
        let given_up = [
            Code::InvalidArgument,
            Code::OutOfRange,
            Code::NotFound,
            Code::FailedPrecondition,
        ];
        assert!(!given_up.contains(&code), "{code:?}");
    }

    #[test]
    fn a_message_is_no_longer_than_an_event() {
        let status = Status::from(CsiError::from(MountError::BadOptions("ü".repeat(4000).into())));
        assert!(status.message().len() < 1000 && status.message().ends_with('…'));
    }
}
