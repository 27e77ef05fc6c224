//! Unmounting: only the directory is given, and the mount table shows what is on it.

use std::time::Duration;

use crate::sys::{Sys, Unmount, UnmountError};
use crate::volume::job::MountError;
use crate::volume::mount_table::{MountEntry, Table};
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
/// A container with mount propagation `Bidirectional` may have left mounts within the volume, which keep it busy: they
/// go first. A loop device goes by itself with its last mount (`LO_FLAGS_AUTOCLEAR`), and the directory is the
/// kubelet's to remove. `detach` is for a server that does not answer, when a plain unmount hung: then nothing is
/// waited for, and what lies within goes with the volume.
pub fn unmount(sys: &impl Sys, target: &Target, detach: bool) -> Result<(), MountError> {
    let path = target.path();
    if detach {
        return take_away(sys, target, Unmount::Detach, |table| table.top(&path));
    }
    take_away(sys, target, Unmount::Plain, |table| {
        Some(table.innermost(table.top(&path)?))
    })
}

/// Takes away what the kubelet does not of a volume whose Pod has ended: the parts (`subPath`) that it mounted for
/// containers, with what lies within them, and the volume itself if it was deleted on its server.
pub fn unmount_missing(sys: &impl Sys, target: &Target) -> Result<(), MountError> {
    let directory = target.parts();
    // The volume has the same file system, so nobody is waited for.
    take_away(sys, target, Unmount::Detach, |table| table.parts(&directory).next())?;
    if sys.is_missing(target) {
        unmount(sys, target, false)?;
    }
    Ok(())
}

/// Unmounts, one after another, what `next` finds in the mount table.
fn take_away(
    sys: &impl Sys,
    target: &Target,
    how: Unmount,
    next: impl Fn(&Table) -> Option<&MountEntry>,
) -> Result<(), MountError> {
    let mut tries = TRIES;
    for _ in 0..MOST + TRIES {
        let table = sys.mount_table()?;
        let Some(entry) = next(&table) else {
            return Ok(());
        };
        match sys.unmount(target, &entry.mount_point, how) {
            // There may be another below, or another process was faster.
            Ok(()) | Err(UnmountError::NotMounted) => {}
            Err(UnmountError::Busy) if tries > 0 => {
                tries -= 1;
                sys.pause(PAUSE);
            }
            Err(UnmountError::Busy) => {
                return Err(MountError::InUse {
                    found: source_in_words(entry).to_owned(),
                    target: entry.mount_point.display().to_string(),
                });
            }
            Err(UnmountError::Target(error)) => return Err(error.into()),
            Err(UnmountError::Other(error)) => return Err(error.into()),
        }
    }
    Err(MountError::failed(
        format!("unmount {target}"),
        format!(
            "more than {MOST} mounts are stacked on it or within it, or are not visible there: look at it with findmnt"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::{TRIES, unmount, unmount_missing};
    use crate::sys::fake::{Fake, target};

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

    /// A container with mount propagation `Bidirectional` left them.
    #[test]
    fn what_is_mounted_within_the_volume_goes_with_it() {
        let nested = || {
            Fake::default()
                .mounted(&target(), "/dev/loop3", "ext4")
                .mounted_within(&target(), "a", "outer")
                .mounted_within(&target(), "a/deep", "inner")
                .mounted_within(&target(), "b", "other")
        };
        for detach in [false, true] {
            let fake = nested();
            unmount(&fake, &target(), detach).unwrap();
            assert_eq!(fake.mounted_points(), [""; 0], "{detach}");
        }
    }

    #[test]
    fn a_mount_within_the_volume_that_is_in_use_is_named() {
        let mut fake = Fake::default()
            .mounted(&target(), "/dev/loop3", "ext4")
            .mounted_within(&target(), "a", "inner");
        for _ in 0..=TRIES {
            fake = fake.fail("unmount", 0, Errno::EBUSY);
        }
        let error = unmount(&fake, &target(), false).unwrap_err().to_string();
        let place = target().path().join("a").display().to_string();
        assert!(error.contains(&format!("unmount inner from {place}")), "{error}");
        assert_eq!(fake.mounts_on(&target()), 1);
    }

    #[test]
    fn the_parts_of_a_volume_go_and_the_volume_only_if_it_is_missing_too() {
        let others = target().parts().with_file_name("other").join("main/0");
        let others = others.display().to_string();
        let mut fake = Fake::default()
            .mounted(&target(), "h:/a", "fuse.davfs")
            .mounted_once_more(&target(), &others);
        for part in ["main/0", "main/1", "main/1", "side/0"] {
            let place = target().parts().join(part);
            fake = fake.mounted_once_more(&target(), &place.display().to_string());
        }
        unmount_missing(&fake, &target()).unwrap();
        assert_eq!(
            fake.mounted_points(),
            [target().path().display().to_string(), others.clone()]
        );
        let fake = fake.fail("is_missing", 0, Errno::ENOENT);
        unmount_missing(&fake, &target()).unwrap();
        assert_eq!(fake.mounted_points(), [others]);
    }
}
