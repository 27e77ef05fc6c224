//! A worker that stays the last user of an SMB file system whose server is silent.
//!
//! The close of a file that fails since the server is silent is tried again by the kernel, later and by itself. It does
//! not wait for that when it removes the file system, and finds the file still in use: `kernel BUG` in
//! `generic_shutdown_super`, after which the kubelet has the node panic. (Seen with Linux 6.1.192: `_cifsFileInfo_put`
//! queues `serverclose_work`, and `cifs_kill_sb` does not flush that queue. Until Linux commit 340cea84f691, an open
//! file kept its file system itself.)
//!
//! So the volume goes from its Pod at once, and the file system once its server answers.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::sys::Sys;
use crate::volume::mount_table::Table;
use crate::volume::target::Target;

/// How long from one question to the next. A silent server's may take minutes itself.
const PAUSE: Duration = Duration::from_secs(10);

/// How often to ask: for an hour at least. By then the kernel has given up all closes.
const TRIES: usize = 360;

/// How long the kernel may take to close files once the server answers.
const CLOSES: Duration = Duration::from_secs(5);

/// A handle that keeps a file system from being removed.
#[derive(Debug)]
pub struct LastUser(OwnedFd);

impl LastUser {
    /// Becomes a user of what is mounted on a target, if that is an SMB file system.
    pub fn of(sys: &impl Sys, table: &Table, target: &Target) -> Option<Self> {
        table.top(&target.path()).filter(|entry| entry.is_smb())?;
        sys.open_target(target).ok().map(Self)
    }

    /// Waits until the server answers, and for the closes after that.
    pub fn stay(self, sys: &impl Sys) {
        for _ in 0..TRIES {
            if sys.answers(&self.0) {
                return sys.pause(CLOSES);
            }
            sys.pause(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::{LastUser, TRIES};
    use crate::sys::Sys as _;
    use crate::sys::fake::{Fake, target};

    fn mounted(fs_type: &str) -> Fake {
        Fake::default().mounted(&target(), "//10.0.0.4/x", fs_type)
    }

    fn last_user(fake: &Fake) -> Option<LastUser> {
        LastUser::of(fake, &fake.mount_table().unwrap(), &target())
    }

    #[test]
    fn only_an_smb_file_system_has_one() {
        for (fs_type, expected) in [("cifs", true), ("smb3", true), ("nfs4", false), ("fuse.sshfs", false)] {
            assert_eq!(last_user(&mounted(fs_type)).is_some(), expected, "{fs_type}");
        }
        assert!(last_user(&Fake::default()).is_none(), "nothing is mounted");
    }

    #[test]
    fn it_stays_until_the_server_answers_and_not_for_ever() {
        let fake = mounted("cifs")
            .fail("answers", 0, Errno::EHOSTDOWN)
            .fail("answers", 0, Errno::EAGAIN);
        last_user(&fake).unwrap().stay(&fake);
        let asked = ["answers", "pause", "answers", "pause", "answers", "pause"];
        assert_eq!(fake.calls()[2..], asked);

        let mut fake = mounted("cifs");
        for _ in 0..2 * TRIES {
            fake = fake.fail("answers", 0, Errno::EHOSTDOWN);
        }
        last_user(&fake).unwrap().stay(&fake);
        assert_eq!(fake.calls().iter().filter(|call| *call == "answers").count(), TRIES);
    }
}
