//! Events on the Pod that tell the user of a volume what happened to it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use mooring_program::reasons;
use tracing::{info, warn};

use super::recorder::{Event, Recorder, about_pod};
use crate::volume::job::PodRef;
use crate::volume::target::Target;

#[derive(Debug, Clone, PartialEq)]
pub enum VolumeEvent {
    /// It can be used again, after so many seconds.
    Revived(f64),
    /// It could not be mounted again, for this reason.
    Failed(String),
    /// A container that uses it could not be given the new mount.
    Stuck(String),
    /// A container has a dead mount that may be of this volume or of another one.
    Unattributed(String),
    /// Its server does not answer and only that keeps its Pod from ending, so all that waited for it got an error.
    GivenUp,
    /// The same, but other volumes are of the same file system, so nothing got an error.
    Shared,
    /// It is not unmounted, since a mount within it is in use.
    InnerMountInUse {
        /// What is mounted there, in words.
        found: String,
        place: String,
    },
    /// It keeps its size for as long as it is mounted, for this reason.
    NotExpanded(String),
}

impl VolumeEvent {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Revived(_) => reasons::VOLUME_REVIVED,
            Self::Failed(_) | Self::Stuck(_) | Self::Unattributed(_) => reasons::VOLUME_NOT_REVIVED,
            Self::GivenUp => reasons::VOLUME_GIVEN_UP,
            Self::Shared => reasons::VOLUME_NOT_GIVEN_UP,
            Self::InnerMountInUse { .. } => reasons::VOLUME_NOT_UNMOUNTED,
            Self::NotExpanded(_) => reasons::FS_RESIZE_FAILED,
        }
    }

    /// What was tried: with the reason it tells Events of one volume apart.
    fn action(&self) -> &'static str {
        match self {
            Self::Revived(_) | Self::Failed(_) => "Mount",
            Self::Stuck(_) => "Replace",
            Self::Unattributed(_) => "Check",
            Self::GivenUp | Self::Shared | Self::InnerMountInUse { .. } => "Unmount",
            Self::NotExpanded(_) => "Expand",
        }
    }

    /// In words, with what to do.
    pub fn note(&self, volume: &str) -> String {
        match self {
            Self::Revived(seconds) => format!(
                "the program that served volume {volume} ended; the volume was mounted again and can be used again \
                 after {seconds:.1} s. Files that were open must be opened again"
            ),
            Self::Failed(why) => format!(
                "the program that served volume {volume} ended, and mounting it again fails: {why}. Mooring tries \
                 again until it succeeds or the Pod is deleted"
            ),
            Self::Stuck(why) => format!(
                "volume {volume} was mounted again, but not for every container: {why}. Delete this Pod: its \
                 replacement gets the new mount. Meanwhile Mooring tries again"
            ),
            Self::Unattributed(why) => format!(
                "a container of this Pod has a dead mount that may be of volume {volume}: {why}. Delete this Pod: its \
                 replacement has all volumes"
            ),
            Self::GivenUp => format!(
                "volume {volume} did not answer, and this Pod is being deleted. Mooring ended the calls that waited \
                 for the volume, so that it can be unmounted. Data that had not reached its server is lost"
            ),
            Self::Shared => format!(
                "volume {volume} does not answer, and this Pod is being deleted. Mooring does not end the calls that \
                 wait for the volume: other Pods on this node use the same file system of its server, and would get \
                 errors too. This Pod ends when the server answers again, or when the other Pods are deleted too. An \
                 NFS volume with mount option nosharecache has a file system of its own"
            ),
            Self::InnerMountInUse { found, place } => format!(
                "volume {volume} is not unmounted: a container with mount propagation Bidirectional left {found} \
                 mounted on {place}, within the volume, and it is in use. On the node, find the process that still has \
                 a file or its working directory there (fuser -vm {place}) and end it: the next try unmounts both"
            ),
            Self::NotExpanded(why) => format!("volume {volume} has been made larger, and keeps its size here: {why}"),
        }
    }
}

/// Records each thing once.
pub struct VolumeRecorder {
    recorder: Recorder,
    /// The last that was recorded of each target.
    last: BTreeMap<Target, VolumeEvent>,
}

impl VolumeRecorder {
    pub fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            last: BTreeMap::new(),
        }
    }

    /// Whether this was the last of the volume.
    pub fn is_last(&self, target: &Target, event: &VolumeEvent) -> bool {
        self.last.get(target) == Some(event)
    }

    /// Has an Event made about the Pod, unless this was the last of the volume; whether it is made now.
    pub fn record(&mut self, target: &Target, pod: Option<&PodRef>, event: VolumeEvent) -> bool {
        if self.is_last(target, &event) {
            return false;
        }
        let note = event.note(target.name());
        let well = matches!(event, VolumeEvent::Revived(_));
        if well {
            info!(target.path = %target, "{note}");
        } else {
            warn!(target.path = %target, "{note}");
        }
        if let Some(pod) = pod.filter(|pod| !pod.name.is_empty() && !pod.namespace.is_empty()) {
            let made = Event {
                type_: if well { EventType::Normal } else { EventType::Warning },
                reason: event.reason(),
                action: event.action(),
                note,
                about: about_volume(pod, target),
                joined: true,
            };
            if !self.recorder.record(made) {
                return false;
            }
        }
        self.last.insert(target.clone(), event);
        true
    }

    /// Forgets what was recorded of volumes that are gone.
    pub fn keep(&mut self, is_there: impl Fn(&Target) -> bool) {
        self.last.retain(|target, _| is_there(target));
    }
}

/// The Pod, and which of its volumes: what happens to the same part of an object again is joined into one Event, which
/// keeps the note of the first time.
pub(crate) fn about_volume(pod: &PodRef, target: &Target) -> ObjectReference {
    ObjectReference {
        // By the volume's directory, which is all that is known of it here: the PersistentVolume's name, or that of an
        // inline volume.
        field_path: Some(format!("spec.volumes{{{}}}", target.name())),
        ..about_pod(pod)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{VolumeEvent, VolumeRecorder};
    use crate::api::recorder::Recorder;
    use crate::api::recorder::tests::{api, recorded};
    use crate::volume::job::PodRef;
    use crate::volume::target::Target;

    #[test]
    fn whatever_is_not_well_says_what_to_do() {
        assert!(VolumeEvent::Stuck("x".into()).note("v").contains("Delete this Pod"));
        assert!(VolumeEvent::Failed("no server".into()).note("v").contains("no server"));
        assert!(VolumeEvent::Revived(1.25).note("v").contains("opened again"));
    }

    #[tokio::test]
    async fn two_volumes_of_a_pod_get_events_of_their_own_and_a_second_loss_is_counted() {
        let (client, heard) = api(0);
        let mut recorder = VolumeRecorder::new(Recorder::start(client, Some("node-1".into())));
        let pod = PodRef {
            name: "web-0".into(),
            namespace: "shop".into(),
            uid: "u".into(),
        };
        let target = |name: &str| {
            let directory = format!("/k/pods/u/volumes/mooring.dev~vcs/{name}");
            Target::parse(Path::new("/k"), &directory).unwrap()
        };
        for (volume, event) in [
            ("one", VolumeEvent::Revived(1.0)),
            ("two", VolumeEvent::Revived(1.0)),
            ("one", VolumeEvent::Failed("no server".into())),
            ("one", VolumeEvent::Stuck("in use".into())),
            ("one", VolumeEvent::Revived(2.0)),
        ] {
            assert!(recorder.record(&target(volume), Some(&pod), event));
        }
        let events = recorded(&heard, 5).await;
        let said: Vec<_> = events
            .iter()
            .map(|(verb, event)| {
                let field = event["regarding"]["fieldPath"].as_str().unwrap();
                (verb.as_str(), field, event["reason"].as_str().unwrap())
            })
            .collect();
        assert_eq!(
            said,
            [
                ("POST", "spec.volumes{one}", "VolumeRevived"),
                ("POST", "spec.volumes{two}", "VolumeRevived"),
                ("POST", "spec.volumes{one}", "VolumeNotRevived"),
                ("POST", "spec.volumes{one}", "VolumeNotRevived"),
                ("PATCH", "spec.volumes{one}", "VolumeRevived"),
            ]
        );
        assert!(events[1].1["note"].as_str().unwrap().contains("volume two"));
    }
}
