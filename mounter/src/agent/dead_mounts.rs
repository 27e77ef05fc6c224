//! The dead mounts of this agent's volumes, which containers may still have, by device number.
//!
//! Once nothing mounts a file system any more, the kernel gives its device number to another one. So the agent holds a
//! detached mount of each dead file system: until it drops that, no other file system has the number. An agent that
//! starts anew holds none, and reports none from before its start: another volume may have such a number by then.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::protocol::Dead;
use super::target_mounts::DeadMount;
use crate::volume::mount_table::DeviceNumber;

/// The dead mounts of each target.
#[derive(Debug, Default)]
pub(super) struct DeadMounts(Mutex<BTreeMap<String, Deaths>>);

/// The dead mounts of one target.
#[derive(Debug, Default)]
struct Deaths {
    /// When the last death was noticed, in milliseconds since 1970.
    since_ms: u64,
    held: BTreeMap<DeviceNumber, OwnedFd>,
}

impl DeadMounts {
    /// Records a dead mount before it is replaced. The first record of it sets the time.
    pub(super) fn record(&self, target: &str, dead: DeadMount, now_ms: u64) {
        let mut all = self.lock();
        let deaths = all.entry(target.to_owned()).or_default();
        if deaths.held.insert(dead.device, dead.handle).is_none() {
            deaths.since_ms = now_ms;
        }
    }

    /// A target's dead mounts, if there are any that may be in use.
    pub(super) fn of(&self, target: &str) -> Option<Dead> {
        self.lock().get(target).map(|deaths| Dead {
            devices: deaths.held.keys().copied().collect(),
            since_ms: deaths.since_ms,
        })
    }

    /// Drops dead mounts of a target that nothing uses.
    pub(super) fn drop_unused(&self, target: &str, devices: &[DeviceNumber]) {
        let mut all = self.lock();
        let Some(deaths) = all.get_mut(target) else { return };
        deaths.held.retain(|device, _| !devices.contains(device));
        if deaths.held.is_empty() {
            all.remove(target);
        }
    }

    /// Drops all dead mounts of a target that was unmounted.
    pub(super) fn forget(&self, target: &str) {
        self.lock().remove(target);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Deaths>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::DeadMounts;
    use crate::agent::target_mounts::DeadMount;
    use crate::volume::mount_table::DeviceNumber;

    fn device(minor: u32) -> DeviceNumber {
        DeviceNumber { major: 0, minor }
    }

    fn dead(minor: u32) -> DeadMount {
        DeadMount {
            device: device(minor),
            handle: File::open("/").unwrap().into(),
        }
    }

    #[test]
    fn dead_mounts_are_held_until_nothing_uses_them_or_their_volume_is_gone() {
        let all = DeadMounts::default();
        all.record("t", dead(5), 1000);
        all.record("t", dead(5), 2000);
        assert_eq!(all.of("t").unwrap().since_ms, 1000);
        all.record("t", dead(6), 3000);
        all.drop_unused("t", &[device(5)]);
        let left = all.of("t").unwrap();
        assert_eq!((left.devices, left.since_ms), (vec![device(6)], 3000));
        all.drop_unused("t", &[device(6), device(7)]);
        assert_eq!(all.of("t"), None);
        all.record("t", dead(8), 4000);
        all.forget("t");
        assert_eq!(all.of("t"), None);
        all.drop_unused("t", &[device(8)]);
    }
}
