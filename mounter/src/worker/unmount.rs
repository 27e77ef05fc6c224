//! Unmounting: only the directory is given, and the mount table shows what is on it.

use std::time::Duration;

use crate::sys::{Sys, Unmount, UnmountError};
use crate::volume::job::MountError;
use crate::volume::target::Target;
use crate::volume::volume_id::source_in_words;

/// How often to retry while a mount is in use. A process that only looks at it, such as the kubelet that measures how
/// full it is, keeps it busy for a moment.
const TRIES: usize = 20;

/// How long between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// More mounts than this on one directory are a mistake.
const MOST: usize = 64;

/// Takes everything off the target. Nothing there is success, and so is a target that is gone.
///
/// A loop device goes by itself with its last mount (`LO_FLAGS_AUTOCLEAR`), and the directory is the kubelet's to
/// remove. `detach` is for a server that does not answer, when a plain unmount hung: then nothing is waited for.
pub fn unmount(sys: &impl Sys, target: &Target, detach: bool) -> Result<(), MountError> {
    let how = if detach { Unmount::Detach } else { Unmount::Plain };
    let mut tries = TRIES;
    for _ in 0..MOST + TRIES {
        let table = sys.mount_table()?;
        let Some(entry) = table.top(&target.path()) else {
            return Ok(());
        };
        match sys.unmount(target, how) {
            // There may be another below, or another process was faster.
            Ok(()) | Err(UnmountError::NotMounted) => {}
            Err(UnmountError::Busy) if tries > 0 => {
                tries -= 1;
                sys.pause(PAUSE);
            }
            Err(UnmountError::Busy) => {
                return Err(MountError::InUse {
                    found: source_in_words(entry).to_owned(),
                    target: target.to_string(),
                });
            }
            Err(UnmountError::Target(error)) => return Err(error.into()),
            Err(UnmountError::Other(error)) => return Err(error.into()),
        }
    }
    Err(MountError::Failed {
        attempted: format!("unmount {target}"),
        cause: format!(
            "more than {MOST} mounts are stacked on it, or it is not visible there: look at it with findmnt"
        )
        .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::{TRIES, unmount};
    use crate::sys::fake::{Fake, target};
    use nix::errno::Errno;

    /// Proves: M2
    #[test]
    fn everything_on_the_target_goes_and_a_second_time_is_success() {
        let fake = Fake::default()
            .mounted(&target(), "a", "ext4")
            .mounted(&target(), "b", "fuse");
        unmount(&fake, &target(), false).unwrap();
        assert_eq!(fake.mounts_on(&target()), 0);
        unmount(&fake, &target(), false).unwrap();
    }

    #[test]
    fn what_is_in_use_for_a_moment_is_waited_for() {
        let mut fake = Fake::default().mounted(&target(), "10.0.0.4:/x", "nfs");
        for _ in 0..TRIES {
            fake = fake.fail("unmount", 0, Errno::EBUSY);
        }
        unmount(&fake, &target(), false).unwrap();
        assert_eq!(fake.mounts_on(&target()), 0);
    }

    #[test]
    fn a_mount_in_use_stays_and_the_message_says_so() {
        let mut fake = Fake::default().mounted(&target(), "10.0.0.4:/x", "nfs");
        for _ in 0..=TRIES {
            fake = fake.fail("unmount", 0, Errno::EBUSY);
        }
        let error = unmount(&fake, &target(), false).unwrap_err();
        assert_eq!(error.category(), "in-use");
        let error = error.to_string();
        assert!(error.contains("10.0.0.4:/x") && error.contains("in use"), "{error}");
        assert_eq!(fake.mounts_on(&target()), 1);
    }
}
