//! One device of a volume for all Pods of a node that have the volume.
//!
//! Two devices of one volume would each have a cache of its own, and a file system that is mounted from both is
//! destroyed. So the second Pod gets the file system, or the device, that the first one has. What serves it belongs to
//! the volume, whose name is that of the first target, and ends with the last Pod.

use std::collections::BTreeMap;
use std::time::Duration;

use super::mounts::{AgentError, Mounts, flags, in_thread};
use super::one_at_a_time::Alone;
use super::program::InvalidVolume;
use super::protocol::{MountCall, SecretBytes};
use super::store::StoreError;
use super::{record, store, target_mounts};
use crate::deadlines::AgentDeadlines;
use crate::volume::mount_options;
use crate::volume::mount_table::DeviceNumber;
use crate::volume::target::TargetError;

/// How often to look whether a device that is being taken away is gone.
const PERIOD: Duration = Duration::from_millis(100);

/// The major number of loop devices (`LOOP_MAJOR` in `include/uapi/linux/major.h` of the kernel).
const LOOP_MAJOR: u32 = 7;

/// What another target has of a volume.
enum Found {
    Device(DeviceNumber),
    /// It is unmounted, and what served it has not ended.
    Leaving,
    Nothing,
}

impl Mounts {
    /// Waits until nothing else is done with a volume that has one device; none for a volume that may have several.
    pub(super) async fn one_at_a_time(&self, call: &MountCall) -> Option<Alone> {
        if !record::has_one_device(call) {
            return None;
        }
        Some(self.one_at_a_time.of(call).lock_owned().await)
    }

    /// Finds how another Pod has the device that a call's target is to have too, and waits for one that is being taken
    /// away. Until the second of what is returned is dropped, nobody else does anything with the volume; it is none for
    /// a volume that may have several devices.
    pub(super) async fn shared(
        &self,
        call: &MountCall,
        deadlines: AgentDeadlines,
    ) -> Result<(Option<MountCall>, Option<Alone>), AgentError> {
        let busy = || AgentError::InProgress(call.target.clone());
        loop {
            let left = deadlines.until_program();
            let Ok(alone) = tokio::time::timeout(left, self.one_at_a_time(call)).await else {
                return Err(busy());
            };
            let Some(alone) = alone else {
                return Ok((None, None));
            };
            let mut leaving = false;
            let mut other = None;
            for found in self.others(call)? {
                match self.find(&found)? {
                    Found::Device(_) => other = Some(found),
                    Found::Leaving => leaving = true,
                    Found::Nothing => {}
                }
            }
            if let Some(other) = &other {
                self.check_alike(call, other)?;
            } else if leaving {
                // What takes it away needs to be alone too.
                drop(alone);
                if deadlines.until_program().is_zero() {
                    return Err(busy());
                }
                tokio::time::sleep(PERIOD).await;
                continue;
            } else if self.store.is_shared(&store::id(&call.target), &call.target)? {
                // The services of a new volume would have the name of another one's.
                return Err(busy());
            }
            return Ok((other, Some(alone)));
        }
    }

    /// Gives a call's target what another one has: the file system, or the device, which is returned.
    pub(super) async fn share(&self, call: &MountCall, other: &MountCall) -> Result<Option<DeviceNumber>, AgentError> {
        let (target, from) = (self.target(&call.target)?, self.target(&other.target)?);
        self.store.prepare(&call.target, &call.secrets)?;
        self.store.unstage(&call.target)?;
        // It may have been unmounted meanwhile.
        let Found::Device(device) = self.find(other)? else {
            return Err(AgentError::InProgress(other.target.clone()));
        };
        if target.is_device() {
            return Ok(Some(device));
        }
        let flags = flags(call)?;
        in_thread(&call.target, move || {
            target_mounts::share(&from, device, &target, flags)
        })
        .await?;
        self.seen_alive(&call.target);
        Ok(None)
    }

    /// Whether what serves a target belongs to another one as well.
    pub(super) fn has_sharers(&self, target: &str) -> Result<bool, StoreError> {
        self.store.is_shared(&self.store.volume(target), target)
    }

    /// Whether a recorded target has a device that works and that all Pods of the node are to share. What is not known
    /// counts as one: the next Pod is to ask this agent, which says why it can't share.
    pub(super) fn has_device_to_share(&self, call: &MountCall) -> bool {
        record::has_one_device(call) && !matches!(self.find(call), Ok(Found::Leaving | Found::Nothing))
    }

    /// Whether what served a recorded target's device has ended, or the target has no device that others would share.
    pub(super) fn device_has_ended(&self, call: &MountCall) -> bool {
        record::has_one_device(call) && matches!(self.find(call), Ok(Found::Nothing))
    }

    /// Fails if one device can't be what both calls ask for.
    fn check_alike(&self, call: &MountCall, other: &MountCall) -> Result<(), AgentError> {
        let is_device = |call: &MountCall| Ok::<_, AgentError>(self.target(&call.target)?.is_device());
        let how = match (is_device(call)?, is_device(other)?) {
            (false, true) => Some("as a device"),
            (true, false) => Some("as a file system"),
            _ => difference(call, other, || self.store.read_secrets(&other.target))?,
        };
        how.map_or(Ok(()), |how| Err(AgentError::UsedOtherwise(how)))
    }

    /// The records of other targets with the volume of a call.
    fn others(&self, call: &MountCall) -> Result<Vec<MountCall>, AgentError> {
        let mut calls = self.store.all()?.calls;
        let is_it = |other: &MountCall| other.client == call.client && other.source == call.source;
        calls.retain(|other| other.target != call.target && is_it(other));
        Ok(calls)
    }

    /// What a recorded target has. It fails if that can't be read: a second device would be made for what counts as
    /// nothing.
    fn find(&self, call: &MountCall) -> Result<Found, AgentError> {
        let target = self.target(&call.target)?;
        let device = if target.is_device() {
            target.device().or_else(|error| match error {
                // The kubelet has removed the file.
                TargetError::Missing(_) => Ok(None),
                error => Err(error),
            })?
        } else {
            target_mounts::device(&target)?
        };
        let works = match (self.services.are_running(&self.store.volume(&call.target)), device) {
            (Some(all_run), _) => all_run,
            // A device of the kernel outlives its container. A loop device ends with it.
            (None, Some(device)) => device.major != LOOP_MAJOR,
            (None, None) => false,
        };
        Ok(match device {
            _ if !works => Found::Nothing,
            Some(device) if device.is_of_a_device() => Found::Device(device),
            Some(_) => Found::Nothing,
            None => Found::Leaving,
        })
    }
}

/// How another call, which has these secrets, has the volume in a way that one device can't be for both.
fn difference(
    call: &MountCall,
    other: &MountCall,
    secrets: impl FnOnce() -> Result<BTreeMap<String, SecretBytes>, StoreError>,
) -> Result<Option<&'static str>, AgentError> {
    let sorted = |call: &MountCall| mount_options::sort(&call.mount_options, false).map_err(InvalidVolume::from);
    let (ours, theirs) = (sorted(call)?, sorted(other)?);
    Ok(if theirs.flags.is_read_only() && !ours.flags.is_read_only() {
        Some("for reading only")
    } else if call.label != other.label {
        Some("with another SELinux label")
    } else if !may_have_another_secret(call, other) && !are_alike(call, &secrets()?) {
        Some("with another Secret")
    } else if (&call.fs_type, &call.options, &ours.file_system) != (&other.fs_type, &other.options, &theirs.file_system)
    {
        Some("with other options")
    } else {
        None
    })
}

/// Whether both are of one PersistentVolume: one of the two Secrets is the older one, and the device is there.
fn may_have_another_secret(call: &MountCall, other: &MountCall) -> bool {
    call.owner == other.owner && call.is_of_persistent_volume()
}

/// Whether a call's client reads the same in both Secrets.
fn are_alike(call: &MountCall, secrets: &BTreeMap<String, SecretBytes>) -> bool {
    record::read_by_client(call, &call.secrets) == record::read_by_client(call, secrets)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::difference;
    use crate::agent::mounts::{AgentError, Mounts};
    use crate::agent::protocol::{MountCall, SecretBytes};
    use crate::agent::store::{Store, id};
    use crate::deadlines::AgentDeadlines;
    use crate::volume::device_owner::DeviceOwner;
    use crate::volume::selinux_label::SelinuxLabel;

    fn call(target: &str, options: &[&str]) -> MountCall {
        let json = serde_json::json!({
            "target": target, "client": "block", "source": "nbd://h/e", "mount_options": options, "limit_ms": 1000
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn two_pods_share_a_device_unless_they_have_it_in_different_ways() {
        let none = BTreeMap::new();
        let between = |ours: &MountCall, theirs: &MountCall| difference(ours, theirs, || Ok(none.clone())).unwrap();
        let plain = call("/a", &["rw", "nodev", "discard"]);
        assert_eq!(between(&plain, &call("/b", &["discard", "noexec"])), None);
        assert_eq!(between(&call("/a", &["ro", "discard"]), &plain), None);
        assert_eq!(
            between(&plain, &call("/b", &["ro", "discard"])),
            Some("for reading only")
        );
        assert_eq!(between(&plain, &call("/b", &[])), Some("with other options"));
        let mut other = plain.clone();
        other.fs_type = "xfs".to_owned();
        assert_eq!(between(&plain, &other), Some("with other options"));
        let mut labelled = plain.clone();
        labelled.label = SelinuxLabel::of("context=\"u:r:t:s0:c1,c2\"");
        assert_eq!(between(&plain, &labelled), Some("with another SELinux label"));
        assert_eq!(between(&labelled, &labelled), None);
    }

    #[tokio::test]
    async fn no_second_device_is_made_while_it_is_not_known_what_another_pod_has() {
        let root = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(root.path().to_owned(), Store::unprepared(root.path())).unwrap();
        let volume = root.path().join("plugins/kubernetes.io/csi/volumeDevices/publish/v");
        std::fs::create_dir_all(&volume).unwrap();
        let of_pod = |uid: &str| call(volume.join(uid).to_str().unwrap(), &[]);
        let other = of_pod("u");
        mounts.store.record(&other, &id(&other.target)).unwrap();
        // What is there can't be looked at.
        std::os::unix::fs::symlink("/dev/null", &other.target).unwrap();
        let deadlines = AgentDeadlines::of(Duration::from_secs(90));
        let found = mounts.shared(&of_pod("w"), deadlines).await;
        assert!(matches!(found, Err(AgentError::Target(_))), "a second device is made");
        assert!(mounts.has_device_to_share(&other), "the next Pod goes to another agent");
        // The kubelet has taken it from the Pod.
        std::fs::remove_file(&other.target).unwrap();
        let (found, _) = mounts.shared(&of_pod("w"), deadlines).await.unwrap();
        assert_eq!(found, None);
        assert!(!mounts.has_device_to_share(&other));
    }

    /// What another Pod with a volume of the same owner and with a Secret is refused for, whose first Pod has `theirs`.
    fn refused(owner: Option<&DeviceOwner>, ours: &[(&str, &str)], theirs: &[(&str, &str)]) -> Option<&'static str> {
        let secrets = |pairs: &[(&str, &str)]| -> BTreeMap<_, _> {
            let pairs = pairs.iter();
            pairs
                .map(|&(key, value)| (key.to_owned(), SecretBytes(value.into())))
                .collect()
        };
        let mut other = call("/b", &[]);
        other.owner = owner.cloned();
        let mut call = call("/a", &[]);
        call.owner = owner.cloned();
        difference(&call.with_secrets(secrets(ours)), &other, || Ok(secrets(theirs))).unwrap()
    }

    /// A tenant who writes a volume into a Pod shows by its Secret alone that the device is theirs. The same holds for
    /// a volume of which nobody said whose it is.
    #[test]
    fn a_device_is_not_shared_with_who_has_another_secret_or_none() {
        let inline = DeviceOwner::inline("shop", "v");
        let theirs = [("chap-password", "theirs")];
        for owner in [Some(&inline), None] {
            for guess in [&[("chap-password", "guess")][..], &[]] {
                assert_eq!(refused(owner, guess, &theirs), Some("with another Secret"));
            }
            assert_eq!(refused(owner, &theirs, &theirs), None);
        }
    }

    /// Else, a rolling restart after a change of the Secret would never end: the old Pod has the device until the new
    /// one is ready. Who may have the volume, the API said before the mount.
    #[test]
    fn a_device_is_shared_with_another_pod_of_its_persistent_volume_though_the_secret_was_changed() {
        let volume = DeviceOwner::persistent_volume("pv-1");
        let old = [("chap-password", "old")];
        for new in [&[("chap-password", "new")][..], &[]] {
            assert_eq!(refused(Some(&volume), new, &old), None);
        }
    }

    #[test]
    fn a_key_that_the_client_does_not_read_may_differ() {
        let inline = DeviceOwner::inline("shop", "v");
        let theirs = [("chap-password", "theirs"), ("rotated-on", "Monday")];
        let ours = [("chap-password", "theirs"), ("rotated-on", "Friday"), ("owner", "ops")];
        assert_eq!(refused(Some(&inline), &ours, &theirs), None);
    }
}
