//! Gives the files of a volume that has just been mounted to the group of its Pod, whichever driver and client it came
//! by. The kubelet does not do it for Mooring's volumes.
//!
//! The Pod starts after that only. If it fails, the volume is unmounted again: the kubelet takes a `FlexVolume` that is
//! mounted for one that is ready. A walk that takes longer than a call goes on in the next one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mooring_contract::volume::clients::{self, FsGroup};
use mooring_program::error::chain;
use tracing::{info, warn};

use super::waits::Waiting;
use super::{CLEAR_LIMIT, Core};
use crate::deadlines;
use crate::grant::Grant;
use crate::sys::ownership::Place;
use crate::volume::job::{Access, MountError, mount_table};
use crate::volume::pod_group::PodGroup;
use crate::volume::target::Target;
use crate::worker::pod_group::GiveTask;
use crate::worker::{REAP, Task};

/// The part of a call that is kept to unmount the volume again.
const TO_TAKE_BACK: Duration = CLEAR_LIMIT.saturating_add(REAP).saturating_mul(2);

/// The least time that is worth a walk.
const LEAST: Duration = Duration::from_secs(1);

/// How long a place is kept for the next walk: the kubelet asks again within minutes, or never.
const KEPT: Duration = Duration::from_hours(1);

/// Where the walks through volumes have ended whose time was up.
#[derive(Debug, Default)]
pub(super) struct Unfinished(Mutex<BTreeMap<Target, (Place, u64, Instant)>>);

impl Unfinished {
    /// The place, and how many files were done before it. The next walk begins at the beginning, unless there is another
    /// place by then.
    pub(super) fn take(&self, target: &Target) -> (Place, u64) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places
            .remove(target)
            .map(|(place, files, _)| (place, files))
            .unwrap_or_default()
    }

    fn put(&self, target: &Target, place: Place, files: u64) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, (_, _, ended)| ended.elapsed() < KEPT);
        places.insert(target.clone(), (place, files, Instant::now()));
    }
}

/// A volume whose files are to be a group's.
#[derive(Debug)]
pub(super) struct Giving {
    target: Target,
    group: PodGroup,
    /// Whether its files are known to have one each.
    by_owner: Option<bool>,
    waiting: Waiting,
    server: String,
    /// Whether it was mounted before this call.
    was_mounted: bool,
}

impl Giving {
    /// What is to be done for a mount, which has not been made yet.
    pub(super) fn of(grant: &Grant) -> Result<Option<Self>, MountError> {
        let Some((group, by_owner)) = group_to_give(grant) else {
            return Ok(None);
        };
        let target = grant.target().clone();
        Ok(Some(Self {
            group,
            by_owner,
            waiting: Waiting::of(grant).for_group(group.gid),
            server: grant.server(),
            was_mounted: mount_table()?.top(&target.path()).is_some(),
            target,
        }))
    }
}

/// The group that the mounter may have to give a volume's files to, and whether they are known to have one each.
fn group_to_give(grant: &Grant) -> Option<(PodGroup, Option<bool>)> {
    let group = grant.fs_group()?;
    if grant.access() == Access::Device || grant.is_read_only() {
        return None;
    }
    let volume = grant.volume();
    match clients::fs_group(volume.client.as_str(), &volume.fs_type) {
        Some(FsGroup::ByMountOption | FsGroup::Unable) => None,
        Some(FsGroup::ByOwner) => Some((group, Some(true))),
        None => Some((group, None)),
    }
}

fn unfinished(files: u64, took: Duration) -> MountError {
    MountError::InProgress {
        operation: format!(
            "the change of the group of all files ({files} so far; with fsGroupChangePolicy: OnRootMismatch a Pod does \
             it once only)"
        ),
        seconds: took.as_secs(),
    }
}

impl Core {
    /// Gives the files of a volume that is mounted to a group.
    pub(super) async fn give(&self, mut giving: Giving, deadline: Instant) -> Result<(), MountError> {
        if let (None, Some(container)) = (giving.by_owner, &self.parts.container) {
            giving.by_owner = container.is_by_owner(&giving.target).await;
        }
        if giving.by_owner == Some(false) {
            return Ok(());
        }
        let given = self.walk(&giving, deadline).await;
        if given.is_err() && !giving.was_mounted {
            self.take_back(&giving.target).await;
        }
        given
    }

    async fn walk(&self, giving: &Giving, deadline: Instant) -> Result<(), MountError> {
        let Giving { target, group, .. } = giving;
        let begun = Instant::now();
        let left = deadline.saturating_duration_since(begun).saturating_sub(TO_TAKE_BACK);
        let limit = deadlines::inner(left);
        let (from, before) = self.unfinished.take(target);
        if limit < LEAST {
            self.unfinished.put(target, from, before);
            return Err(unfinished(before, Duration::ZERO));
        }
        let task = GiveTask {
            target: target.clone(),
            group: *group,
            by_owner: giving.by_owner.is_some(),
            from: from.clone(),
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        };
        let walking = self.parts.workers.give(task, begun + left);
        let walked = self.parts.waits.watch(giving.waiting.clone(), walking).await;
        let attempted = format!("to give the files of volume {} to group {}", target.name(), group.gid);
        let walked = walked.map_err(|error| {
            self.unfinished.put(target, from, before);
            error.into_mount_error(&attempted, &giving.server)
        })?;
        if walked.refused > 0 {
            warn!(
                target.path = %target,
                refused = walked.refused,
                first = walked.refusal,
                "files stay with their group, since the server does not let this node change it: Pods may be refused them"
            );
        }
        let files = before + walked.files;
        let Some(place) = walked.next else {
            info!(target.path = %target, group = group.gid, files, "gave the files to the Pod's group");
            return Ok(());
        };
        self.unfinished.put(target, place, files);
        Err(unfinished(files, begun.elapsed()))
    }

    /// Unmounts a volume whose files are not the group's: its Pod must not start with it.
    async fn take_back(&self, target: &Target) {
        let detach = Task::Unmount {
            target: target.clone(),
            detach: true,
        };
        match self.parts.workers.run(&detach, Instant::now() + CLEAR_LIMIT).await {
            Ok(()) => {
                if let Some(rest) = self.unmounted(target).await {
                    // It goes on without being waited for.
                    let _ = tokio::time::timeout(CLEAR_LIMIT, rest).await;
                }
            }
            Err(error) => warn!(
                target.path = %target,
                error = %chain(&error),
                "failed to unmount a volume whose files are not all the group's"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Unfinished, group_to_give};
    use crate::grant::request::MountRequest;
    use crate::grant::tests::granted;
    use crate::sys::fake::target;
    use crate::volume::job::Access;
    use crate::volume::pod_group::PodGroup;
    use crate::worker::task::tests::asked;

    #[test]
    fn the_files_of_a_volume_are_given_where_they_have_owners_and_the_pod_writes_them() {
        let group = PodGroup::always(2000);
        for (line, expected) in [
            ("client=local,source=a.img", Some((group, Some(true)))),
            ("client=nfs,source=h:/x", Some((group, Some(true)))),
            ("client=glusterfs,source=h:/x", Some((group, Some(true)))),
            ("client=block,source=nbd://h/e,fs-type=xfs", Some((group, Some(true)))),
            ("client=acme,source=x", Some((group, None))),
            ("client=acme,source=x,fs-type=cifs", None),
            ("client=sshfs,source=u@h:/x", None),
            ("client=s3,source=http://h/b", None),
            ("client=smb,source=//h/x", None),
            ("client=pool,source=", None),
            ("client=block,source=nbd://h/e,fs-type=raw", None),
            ("client=nfs,source=h:/x,mount-options=ro", None),
        ] {
            let with = |group, access| {
                group_to_give(&granted(MountRequest {
                    fs_group: group,
                    access,
                    ..asked(line)
                }))
            };
            assert_eq!(with(Some(group), Access::FileSystem), expected, "{line}");
            assert_eq!(with(None, Access::FileSystem), None, "{line}");
            assert_eq!(with(Some(group), Access::Device), None, "{line}");
        }
    }

    #[test]
    fn a_walk_goes_on_from_where_the_last_one_of_its_volume_has_ended() {
        let places = Unfinished::default();
        let place = vec![b"a".to_vec(), b"\xff".to_vec()];
        places.put(&target(), place.clone(), 7);
        assert_eq!(places.take(&target().of_pod("other")), (Vec::new(), 0));
        assert_eq!(places.take(&target()), (place, 7));
        assert_eq!(places.take(&target()), (Vec::new(), 0));
    }
}
