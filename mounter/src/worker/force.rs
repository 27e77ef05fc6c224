//! Ends what waits for a network file system of the kernel whose server does not answer, by a forced unmount
//! (`MNT_FORCE`, `umount(2)`).
//!
//! The kernel then gives an error to all that wait for the *server's file system*, and volumes of other Pods may be
//! directories of it: such a file system is left alone while any of them may use it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::sys::{Sys, Unmount, UnmountError};
use crate::volume::job::MountError;
use crate::volume::mount_table::MountEntry;
use crate::volume::target::Target;
use crate::volume::volume_id::source_in_words;
use crate::worker::last_user::LastUser;

/// Gives an error to all that wait for the volume on a target. The volume may stay mounted until its users end and the
/// kubelet unmounts it. `over` are the uids of the Pods that must not use it any more, `namespace` is the host's mount
/// namespace, if not the kubelet's.
pub fn force(
    sys: &impl Sys,
    namespace: Option<&Path>,
    target: &Target,
    over: &BTreeSet<String>,
) -> Result<(), MountError> {
    // The node may have mounted the same file system for itself, where only it sees it.
    sys.enter_host(namespace, target)?;
    let table = sys.mount_table()?;
    let Some(top) = table.top(&target.path()) else {
        return Ok(());
    };
    let mut same = table.0.iter().filter(|entry| entry.device == top.device);
    if let Some(other) = same.find(|entry| !is_of(entry, &target.pods(), over)) {
        return Err(MountError::Shared {
            found: source_in_words(top).to_owned(),
            other: other.mount_point.display().to_string(),
        });
    }
    // So it is busy, and not removed while its server is silent.
    let _user = LastUser::of(sys, &table, target);
    match sys.unmount(target, &target.path(), Unmount::Force) {
        // Busy: the waiting processes have their error, but still have it open.
        Ok(()) | Err(UnmountError::NotMounted | UnmountError::Busy) => Ok(()),
        Err(UnmountError::Target(error)) => Err(error.into()),
        Err(UnmountError::Other(error)) => Err(error.into()),
    }
}

/// Whether a mount is in a directory of one of these Pods: a volume, or a part of one that is given to a container.
fn is_of(entry: &MountEntry, pods: &Path, over: &BTreeSet<String>) -> bool {
    let uid = entry.mount_point.strip_prefix(pods).ok();
    let uid = uid.and_then(|rest| rest.iter().next()).and_then(|uid| uid.to_str());
    uid.is_some_and(|uid| over.contains(uid))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nix::errno::Errno;

    use super::force;
    use crate::sys::fake::{Fake, target};

    const SOURCE: &str = "10.0.0.4:/x";

    fn over() -> BTreeSet<String> {
        [target().pod_uid().to_owned()].into()
    }

    #[test]
    fn a_file_system_that_only_pods_use_whose_time_is_over_is_ended_also_while_it_is_busy() {
        let fake = Fake::default().mounted(&target(), SOURCE, "nfs4");
        force(&fake, None, &target(), &over()).unwrap();
        assert_eq!(fake.calls(), ["enter_host", "mount_table", "unmount"]);
        let busy = Fake::default()
            .mounted(&target(), SOURCE, "nfs4")
            .fail("unmount", 0, Errno::EBUSY);
        force(&busy, None, &target(), &over()).unwrap();
        // Unmounted meanwhile.
        let gone = Fake::default();
        force(&gone, None, &target(), &over()).unwrap();
        assert!(!gone.calls().contains(&"unmount".to_owned()));
    }

    #[test]
    fn an_smb_file_system_is_busy_meanwhile() {
        let fake = Fake::default().mounted(&target(), "//10.0.0.4/x", "cifs");
        force(&fake, None, &target(), &over()).unwrap();
        assert_eq!(fake.calls(), ["enter_host", "mount_table", "open_target", "unmount"]);
    }

    #[test]
    fn a_file_system_that_others_use_is_left_alone() {
        for place in ["/mnt/backup", "/kubelet/pods/u-2/volumes/kubernetes.io~nfs/v"] {
            let fake = Fake::default()
                .mounted(&target(), SOURCE, "nfs4")
                .mounted_once_more(&target(), place);
            let error = force(&fake, None, &target(), &over()).unwrap_err();
            assert_eq!(error.category(), "shared");
            assert!(error.to_string().contains(place), "{error}");
            assert!(!fake.calls().contains(&"unmount".to_owned()));
        }
        // The Pod's own part of a volume, and a Pod that is gone but for the volume as well.
        let own = format!("/kubelet/pods/{}/volume-subpaths/v/main/0", target().pod_uid());
        for (place, more) in [(own.as_str(), None), ("/kubelet/pods/u-2/volumes/x~y/v", Some("u-2"))] {
            let fake = Fake::default()
                .mounted(&target(), SOURCE, "nfs4")
                .mounted_once_more(&target(), place);
            let over = over().into_iter().chain(more.map(str::to_owned)).collect();
            force(&fake, None, &target(), &over).unwrap();
            assert!(fake.calls().contains(&"unmount".to_owned()));
        }
    }
}
