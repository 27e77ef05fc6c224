//! Failures that the kubelet only logs, so that the user is told by Events ([`crate::recovery::give_up`], which knows the
//! Pods): a volume is not unmounted because a mount within it is in use, or it keeps its size for as long as it is
//! mounted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::api::volume_events::VolumeEvent;
use crate::volume::job::MountError;
use crate::volume::target::Target;

/// How long a failure counts. The kubelet tries again every two minutes at least, or never.
const KEPT_FOR: Duration = Duration::from_mins(5);

/// The last failure of each volume.
#[derive(Debug, Clone, Default)]
pub struct Untold(Arc<Mutex<BTreeMap<Target, (Instant, VolumeEvent)>>>);

impl Untold {
    /// Notes how an unmount of a target ended.
    pub fn note_unmount<T>(&self, target: &Target, unmounted: &Result<T, MountError>) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match unmounted {
            Ok(_) => drop(noted.remove(target)),
            Err(MountError::InUse { found, target: place }) if *place != target.path().display().to_string() => {
                let event = VolumeEvent::InnerMountInUse {
                    found: found.clone(),
                    place: place.clone(),
                };
                noted.insert(target.clone(), (Instant::now(), event));
            }
            Err(_) => {}
        }
    }

    /// Notes how the expansion of the volume on a target ended.
    pub fn note_expansion(&self, target: &Target, expanded: &Result<(), MountError>) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(MountError::NotExpanded { why, .. }) = expanded {
            let event = VolumeEvent::NotExpanded(why.clone());
            noted.insert(target.clone(), (Instant::now(), event));
        }
    }

    /// What there is to tell of which volume.
    pub fn events(&self) -> Vec<(Target, VolumeEvent)> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.retain(|_, (since, _)| since.elapsed() < KEPT_FOR);
        let events = noted.iter().map(|(target, (_, event))| (target.clone(), event.clone()));
        events.collect()
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::Untold;
    use crate::api::recorder::Recorder;
    use crate::api::recorder::tests::{api, recorded};
    use crate::api::volume_events::VolumeRecorder;
    use crate::sys::fake::{Fake, target};
    use crate::volume::job::{MountError, PodRef};
    use crate::worker::unmount::unmount;

    /// What is mounted on the target, and within it, is in use however often it is tried.
    fn in_use(fake: Fake) -> Fake {
        (0..100).fold(fake, |fake, _| fake.fail("unmount", 0, Errno::EBUSY))
    }

    fn volume() -> Fake {
        Fake::default().mounted(&target(), "/dev/loop3", "ext4")
    }

    #[tokio::test]
    async fn a_mount_within_a_volume_that_is_in_use_gets_one_event_until_the_volume_is_unmounted() {
        let (client, heard) = api(0);
        let mut recorder = VolumeRecorder::new(Recorder::start(client, None));
        let pod = PodRef {
            name: "web-0".into(),
            namespace: "shop".into(),
            uid: "u".into(),
        };
        let noted = Untold::default();
        let held = || in_use(volume().mounted_within(&target(), "a", "inner"));
        let mut made = Vec::new();
        for fake in [held(), held(), volume(), held()] {
            noted.note_unmount(&target(), &unmount(&fake, &target(), false));
            let events = noted.events();
            recorder.keep(|target| events.iter().any(|(other, _)| other == target));
            for (target, event) in events {
                let is_told = recorder.is_last(&target, &event);
                made.push(recorder.record(&target, Some(&pod), event));
                assert_eq!(is_told, made.last() == Some(&false));
            }
        }
        assert_eq!(made, [true, false, true]);
        let (_, event) = recorded(&heard, 2).await.remove(0);
        assert_eq!(event["reason"], "VolumeNotUnmounted");
        let note = event["note"].as_str().unwrap();
        let place = target().path().join("a").display().to_string();
        assert!(
            note.contains("inner") && note.contains(&place) && note.contains("fuser"),
            "{note}"
        );
    }

    #[tokio::test]
    async fn a_volume_that_keeps_its_size_gets_one_event_with_the_cure() {
        let (client, heard) = api(0);
        let mut recorder = VolumeRecorder::new(Recorder::start(client, None));
        let pod = PodRef {
            name: "web-0".into(),
            namespace: "shop".into(),
            uid: "u".into(),
        };
        let untold = Untold::default();
        let kept = Err(MountError::NotExpanded {
            target: target().to_string(),
            found: "/dev/loop3 (ext4)".into(),
            why: "delete the Pod".into(),
        });
        let mut made = 0;
        for expanded in [Ok(()), kept.clone(), kept] {
            untold.note_expansion(&target(), &expanded);
            for (target, event) in untold.events() {
                made += u32::from(recorder.record(&target, Some(&pod), event));
            }
        }
        assert_eq!(made, 1);
        let (_, event) = recorded(&heard, 1).await.remove(0);
        assert_eq!(event["reason"], "FileSystemResizeFailed");
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("keeps its size here: delete the Pod"), "{note}");
    }

    /// The kubelet says itself what is in use of the volume, or a user sees it in the Pod.
    #[test]
    fn a_volume_that_is_in_use_itself_is_not_noted() {
        let noted = Untold::default();
        noted.note_unmount(&target(), &unmount(&in_use(volume()), &target(), false));
        assert!(noted.events().is_empty());
    }
}
