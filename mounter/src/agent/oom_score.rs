//! Whom the kernel ends first where memory is short (`oom_score_adj` in proc(5)): other Pods, then the programs that
//! serve volumes, and process 1 last, with which all volumes of the container end.
//!
//! The kubelet gives these values to Pods of a critical priority class and those without room to use more than they
//! request. A client Pod is neither, and would be among the first.

use std::io;

use mooring_program::error::chain;
use tracing::warn;

const FILE: &str = "/proc/self/oom_score_adj";

/// That of the agent, and of the programs that it starts: as the kubelet has it for critical Pods.
const PROGRAMS: i16 = -997;

/// That of process 1.
const FIRST: i16 = -998;

/// As low as a process may go that lacks `CAP_SYS_RESOURCE`, as even a privileged container does where its runtime
/// lacks it: a process that starts with the system has it.
const UNPRIVILEGED: i16 = 0;

/// Has the kernel end other Pods first, where it is allowed.
pub(super) fn lower(is_first: bool) {
    let wanted = if is_first { FIRST } else { PROGRAMS };
    let before = std::fs::read_to_string(FILE).ok();
    let before = before.and_then(|value| value.trim().parse().ok());
    if let Err(error) = settle(wanted, before, |value| std::fs::write(FILE, value.to_string())) {
        warn!(
            error = %chain(&error),
            "failed to set oom_score_adj to {wanted}: where this node's memory runs out, the kernel may end programs \
             that serve volumes before other Pods"
        );
    }
}

/// Sets the value that is wanted, or else the nearest that is allowed.
fn settle(wanted: i16, before: Option<i16>, mut set: impl FnMut(i16) -> io::Result<()>) -> io::Result<()> {
    let refused = match set(wanted) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
        done => return done,
    };
    if before.is_some_and(|before| before > UNPRIVILEGED) {
        set(UNPRIVILEGED)?;
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::{FIRST, PROGRAMS, settle};
    use std::io;

    /// What a process has in the end that may go no lower than this.
    fn settled(lowest: i16, before: i16) -> (i16, bool) {
        let mut now = before;
        let set = |value| {
            if value < lowest {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            now = value;
            Ok(())
        };
        let is_done = settle(PROGRAMS, Some(before), set).is_ok();
        (now, is_done)
    }

    #[test]
    fn it_is_as_low_as_the_kernel_allows_and_never_raised_for_want_of_permission() {
        for (lowest, before, after, is_done) in [
            (-1000, 990, PROGRAMS, true),
            // It inherits that of process 1.
            (-1000, FIRST, PROGRAMS, true),
            (0, 990, 0, false),
            (0, 0, 0, false),
            (-500, -500, -500, false),
            (990, 990, 990, false),
        ] {
            assert_eq!(
                settled(lowest, before),
                (after, is_done),
                "{before}, no lower than {lowest}"
            );
        }
    }
}
