//! What has to be there after each operation, as the lists of [`super::cloud`] and of Kubernetes say it.

use std::collections::BTreeMap;

use super::scene::{Act, NODE, Step};

#[derive(Debug, Clone)]
struct Volume {
    gib: u64,
    is_attached: bool,
    /// It goes with its last snapshot.
    is_left: bool,
}

/// A snapshot or a backup.
#[derive(Debug, Clone)]
struct Saved {
    is_snapshot: bool,
    of: &'static str,
    gib: u64,
}

/// The volumes of a scene, and what was saved of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    volumes: BTreeMap<&'static str, Volume>,
    saved: BTreeMap<&'static str, Saved>,
}

impl Expected {
    /// The size that a step asks for.
    pub(super) fn gib(&self, step: &Step) -> u64 {
        let own = || self.volumes.get(step.volume).map_or(1, |volume| volume.gib);
        match step.act {
            Act::Expand => own() + 1,
            Act::Restore | Act::RestoreBackup => self.saved.get(step.other).map_or(1, |saved| saved.gib),
            Act::Clone => self.volumes.get(step.other).map_or(1, |volume| volume.gib),
            _ => own(),
        }
    }

    /// The volume that a snapshot or backup is of.
    pub(super) fn source(&self, step: &Step) -> &'static str {
        match step.act {
            Act::Clone => step.other,
            _ => self.saved.get(step.other).map_or("", |saved| saved.of),
        }
    }

    /// Whether what a step is about may be in error: attachments and growth then wait for an administrator, and what
    /// is left for its snapshots stays as it is. To be asked when the step is noted.
    pub(super) fn may_break(&self, step: &Step) -> bool {
        match step.act {
            Act::Attach | Act::Detach | Act::Expand => false,
            Act::Delete => !self.volumes.contains_key(step.volume),
            _ => true,
        }
    }

    /// Notes what a step does.
    pub(super) fn apply(&mut self, step: &Step) {
        let gib = self.gib(step);
        match step.act {
            Act::Provision | Act::Restore | Act::RestoreBackup | Act::Clone => {
                let volume = Volume {
                    gib,
                    is_attached: false,
                    is_left: false,
                };
                self.volumes.insert(step.volume, volume);
            }
            Act::Expand | Act::Attach | Act::Detach | Act::Delete => {
                if let Some(volume) = self.volumes.get_mut(step.volume) {
                    volume.gib = gib;
                    match step.act {
                        Act::Attach => volume.is_attached = true,
                        Act::Detach => volume.is_attached = false,
                        Act::Delete => volume.is_left = true,
                        _ => {}
                    }
                }
            }
            Act::Snapshot | Act::Backup => {
                let saved = Saved {
                    is_snapshot: step.act == Act::Snapshot,
                    of: step.volume,
                    gib,
                };
                self.saved.insert(step.other, saved);
            }
            Act::DeleteSnapshot | Act::DeleteBackup => {
                self.saved.remove(step.other);
            }
        }
        let saved = &self.saved;
        let has_snapshot = |name: &str| saved.values().any(|one| one.is_snapshot && one.of == name);
        self.volumes
            .retain(|name, volume| !volume.is_left || has_snapshot(name));
    }

    /// As Cinder lists it, sorted. `full` adds what is before each name.
    pub(super) fn of_cinder(&self, full: impl Fn(&str) -> String) -> Vec<String> {
        let mut all = Vec::new();
        for (name, volume) in &self.volumes {
            let name = full(name);
            let state = if volume.is_attached { "in-use" } else { "available" };
            all.push(format!("volume {name} of {} GiB, {state}", volume.gib));
            if volume.is_attached {
                all.push(format!("attachment of {name}, attached"));
            }
        }
        self.with_saved(all, full)
    }

    /// As Manila and Kubernetes list it, sorted. With `has_key`, a share has a Secret until it is deleted, even if it
    /// is left for a snapshot.
    pub(super) fn of_manila(&self, has_key: bool, full: impl Fn(&str) -> String) -> Vec<String> {
        let mut all = Vec::new();
        for (name, share) in &self.volumes {
            let name = full(name);
            all.push(format!("share {name} of {} GiB, available", share.gib));
            if share.is_attached {
                all.push(format!("rule of {name} for {name}-{NODE}, active"));
            }
            if has_key {
                all.push(format!("rule of {name} for {name}, active"));
            }
            if has_key && !share.is_left {
                all.push(format!("secret/share-{name}"));
            }
        }
        self.with_saved(all, full)
    }

    fn with_saved(&self, mut all: Vec<String>, full: impl Fn(&str) -> String) -> Vec<String> {
        for (name, saved) in &self.saved {
            let what = if saved.is_snapshot { "snapshot" } else { "backup" };
            all.push(format!("{what} {}, available", full(name)));
        }
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::Expected;
    use crate::faults::scene::{Act, SCENES, Step};

    #[test]
    fn each_scene_ends_with_nothing_and_its_rounds_where_they_began() {
        for scene in SCENES {
            let mut expected = Expected::default();
            let list = |expected: &Expected| expected.of_cinder(str::to_owned);
            scene.before.iter().for_each(|step| expected.apply(step));
            let before = list(&expected);
            scene.round.iter().for_each(|step| expected.apply(step));
            let grows = scene.round.iter().any(|step| step.act == Act::Expand);
            assert_eq!(list(&expected) == before, !grows, "{scene:?}");
            scene.after.iter().for_each(|step| expected.apply(step));
            assert!(list(&expected).is_empty(), "{scene:?}");
        }
    }

    #[test]
    fn a_volume_goes_with_its_last_snapshot() {
        let mut expected = Expected::default();
        let mut apply = |act| {
            expected.apply(&Step {
                act,
                volume: "a",
                other: "s",
                fails: false,
            });
            expected.of_manila(true, str::to_owned)
        };
        apply(Act::Provision);
        apply(Act::Snapshot);
        assert_eq!(
            apply(Act::Delete),
            [
                "rule of a for a, active",
                "share a of 1 GiB, available",
                "snapshot s, available"
            ]
        );
        assert!(apply(Act::DeleteSnapshot).is_empty());
    }
}
