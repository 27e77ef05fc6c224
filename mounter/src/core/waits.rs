//! Tells a volume's user what a mount is waiting for: the kubelet reports nothing before its call is answered.

use std::future::Future;
use std::time::Duration;

use mooring_program::reasons;
use tracing::warn;

use crate::api::recorder::{Event, Recorder};
use crate::api::volume_events::about_volume;
use crate::grant::Grant;
use crate::volume::job::PodRef;
use crate::volume::target::Target;

/// How long a server may take before an Event reports it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reports mounts that wait long for a server.
#[derive(Debug, Clone)]
pub struct Waits {
    events: Option<Recorder>,
    patience: Duration,
}

/// A mount, as its user knows it.
#[derive(Debug, Clone)]
pub struct Waiting {
    target: Target,
    pod: PodRef,
    server: String,
    /// The group that its files are given to.
    group: Option<u32>,
}

impl Waiting {
    pub fn of(grant: &Grant) -> Self {
        Self {
            target: grant.target().clone(),
            pod: grant.pod().clone(),
            server: grant.server(),
            group: None,
        }
    }

    /// It is mounted, and its files are given to a group.
    #[must_use]
    pub fn for_group(self, gid: u32) -> Self {
        Self {
            group: Some(gid),
            ..self
        }
    }
}

impl Waits {
    /// Reports by Events, if there is an API.
    pub fn new(events: Option<Recorder>) -> Self {
        Self {
            events,
            patience: PATIENCE,
        }
    }

    /// Waits for a future that asks a server, and reports it if it takes long.
    pub async fn watch<T>(&self, waiting: Waiting, asking: impl Future<Output = T>) -> T {
        let mut asking = std::pin::pin!(asking);
        tokio::select! {
            answer = &mut asking => return answer,
            () = tokio::time::sleep(self.patience) => {}
        }
        self.tell(&waiting);
        asking.await
    }

    fn tell(&self, waiting: &Waiting) {
        let Waiting {
            target,
            pod,
            server,
            group,
        } = waiting;
        let seconds = self.patience.as_secs();
        let name = target.name();
        let (reason, note) = match group {
            None => (
                reasons::MOUNT_WAITS,
                format!(
                    "the mount of volume {name} waits for {server}, which has not answered for {seconds} s: see whether \
                     it is up and can be reached from this node. The mount goes on when it answers"
                ),
            ),
            Some(group) => (
                reasons::FS_GROUP_WAITS,
                format!(
                    "the Pod waits until all files of volume {name} belong to its fsGroup {group}, which has taken \
                     {seconds} s: set fsGroupChangePolicy: OnRootMismatch in the Pod's securityContext, and it is done \
                     once only"
                ),
            ),
        };
        warn!(target.path = %target, server, note, "a mount takes long");
        let Some(events) = self.events.as_ref().filter(|_| !pod.name.is_empty()) else {
            return;
        };
        // If there is no room for the Event, the log has it.
        let _ = events.record(Event {
            joined: true,
            ..Event::warning(reason, "Mount", note, about_volume(pod, target))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Waiting, Waits};
    use crate::api::recorder::Recorder;
    use crate::api::recorder::tests::{api, recorded};
    use crate::sys::fake::target;
    use crate::volume::job::PodRef;

    #[tokio::test]
    async fn a_mount_that_waits_for_a_server_gets_one_event_and_a_quick_one_none() {
        let (client, heard) = api(0);
        let waits = Waits {
            events: Some(Recorder::start(client, None)),
            patience: Duration::from_millis(50),
        };
        let waiting = |server: &str| Waiting {
            target: target(),
            pod: PodRef {
                name: "web-0".into(),
                namespace: "shop".into(),
                uid: "u".into(),
            },
            server: server.into(),
            group: None,
        };
        assert_eq!(waits.watch(waiting("quick"), async { 1 }).await, 1);
        let slow = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            2
        };
        assert_eq!(waits.watch(waiting("10.0.0.4"), slow).await, 2);
        let made = recorded(&heard, 1).await;
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].1["reason"], "MountWaits");
        let note = made[0].1["note"].as_str().unwrap();
        assert!(note.contains("10.0.0.4"), "{note}");
        let slow = tokio::time::sleep(Duration::from_millis(200));
        waits.watch(waiting("10.0.0.4").for_group(2000), slow).await;
        let made = recorded(&heard, 2).await;
        let note = made[1].1["note"].as_str().unwrap();
        assert!(
            note.contains("fsGroup 2000") && note.contains("OnRootMismatch"),
            "{note}"
        );
    }
}
