//! What is wrong with volumes, and with the storage behind them, as the kubelet asks for it (`NodeGetVolumeHealth`,
//! `NodeGetStorageHealth`). With its gate `CSIVolumeHealth` it shows the first on the Pod and the second on the
//! `CSINode`.
//!
//! The kubelet shows a condition until another status or reason is reported: a new message alone changes nothing.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mooring_csi_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use mooring_csi_proto::csi::volume_health::VolumeHealthEntry;
use mooring_csi_proto::csi::{StorageHealthErrorType, VolumeHealthErrorType};

use crate::core::client::Trouble;
use crate::drivers::event_text;
use crate::volume::job::MountError;
use crate::volume::target::Target;

/// How long a failed mount is reported: longer than the longest pause between two tries of the kubelet, two minutes.
const FORGET: Duration = Duration::from_mins(5);

/// Most conditions that the kubelet takes (`maxStorageHealthConditions` in `pkg/volume/csi`).
const MOST: usize = 16;

const NO_ANSWER: &str = "NoAnswer";

/// It is mounted, and nothing serves it.
const NOT_SERVED: &str = "NotServed";

const NOT_MOUNTED: &str = "NotMounted";

#[derive(Debug)]
struct Failed {
    volume_id: String,
    found: VolumeHealthEntry,
    at: Instant,
}

/// The mounts that failed lately and were not tried again with success: nothing else shows what is wrong with them.
#[derive(Debug, Clone, Default)]
pub(super) struct FailedMounts(Arc<Mutex<HashMap<Target, Failed>>>);

impl FailedMounts {
    /// Notes how a mount ended.
    pub(super) fn note(&self, target: &Target, volume_id: &str, mounted: &Result<(), MountError>, now: Instant) {
        let mut failed = self.lock();
        failed.retain(|_, one| now.saturating_duration_since(one.at) < FORGET);
        match mounted {
            // It is being tried, and says by itself how that ends.
            Err(MountError::InProgress { .. }) => {}
            Err(error) if is_of_the_storage(error) => {
                let one = Failed {
                    volume_id: volume_id.to_owned(),
                    found: not_mounted(error),
                    at: now,
                };
                failed.insert(target.clone(), one);
            }
            _ => {
                failed.remove(target);
            }
        }
    }

    /// Forgets a volume that the kubelet does not want any more.
    pub(super) fn forget(&self, target: &Target) {
        self.lock().remove(target);
    }

    /// Why the volume on a target is not mounted, or without one any volume of this id.
    pub(super) fn of(&self, target: Option<&Target>, volume_id: &str, now: Instant) -> Option<VolumeHealthEntry> {
        let failed = self.lock();
        let one = match target {
            Some(target) => failed.get(target),
            None => failed.values().find(|one| one.volume_id == volume_id),
        };
        one.filter(|one| now.saturating_duration_since(one.at) < FORGET)
            .map(|one| one.found.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Target, Failed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a failure says something about the storage. Of the others the volume's options or the Pod are the cause, and
/// an Event says so.
fn is_of_the_storage(error: &MountError) -> bool {
    match error {
        MountError::Timeout { .. }
        | MountError::Tripped { .. }
        | MountError::Container { .. }
        | MountError::Failed { .. } => true,
        MountError::BadOptions(_)
        | MountError::Target(_)
        | MountError::NotServed { .. }
        | MountError::NoDevice { .. }
        | MountError::Forbidden(_)
        | MountError::Unproved(_)
        | MountError::InProgress { .. }
        | MountError::Occupied { .. }
        | MountError::InUse { .. }
        | MountError::NotAlone { .. }
        | MountError::NotAttached { .. }
        | MountError::Shared { .. }
        | MountError::ImageBusy { .. }
        | MountError::NotExpanded { .. }
        | MountError::Unattributed { .. }
        | MountError::Node(_) => false,
    }
}

fn not_mounted(error: &MountError) -> VolumeHealthEntry {
    let reason = match error {
        MountError::Timeout { .. } | MountError::Tripped { .. } => NO_ANSWER,
        _ => NOT_MOUNTED,
    };
    inaccessible(reason, error.to_string())
}

/// What is wrong with a mounted volume that did not say how full it is. `source` is what it was mounted from.
pub(super) fn unanswered(error: &MountError, source: &str) -> VolumeHealthEntry {
    match error {
        MountError::Timeout { .. } => inaccessible(NO_ANSWER, error.to_string()),
        _ => inaccessible(NOT_SERVED, format!("{source} can't be used: {error}")),
    }
}

/// What is wrong with a mounted volume, as its client knows.
pub(super) fn troubled(trouble: &Trouble) -> VolumeHealthEntry {
    let reason = match trouble {
        Trouble::Silent { .. } => NO_ANSWER,
        Trouble::Ended { .. } => NOT_SERVED,
    };
    inaccessible(reason, trouble.to_string())
}

fn inaccessible(reason: &str, message: String) -> VolumeHealthEntry {
    VolumeHealthEntry {
        status: VolumeHealthErrorType::Inaccessible.into(),
        reason: reason.to_owned(),
        message: event_text::cut(message),
    }
}

/// What is wrong with the storage behind all volumes: servers that do not answer, and what keeps this node from
/// mounting any.
pub(super) fn of_the_storage(tripped: &[String], obstacle: Option<String>) -> Vec<StorageBackendHealth> {
    let unreachable = |reason: String, message: String| StorageBackendHealth {
        status: StorageHealthErrorType::StorageUnreachable.into(),
        reason,
        message: event_text::cut(message),
        volume_capability: None,
    };
    let of_the_node = obstacle.map(|cure| unreachable("NodeNotReady".to_owned(), cure));
    let room = MOST - 1 - usize::from(of_the_node.is_some());
    let servers = tripped.iter().take(room).map(|server| {
        let message =
            format!("server {server} does not answer: see whether it is up and can be reached from this node");
        unreachable(silent(server), message)
    });
    let others = (tripped.len() > room).then(|| {
        let message = "more servers do not answer: `mounter status` on the node names them".to_owned();
        unreachable("ServersSilent".to_owned(), message)
    });
    of_the_node.into_iter().chain(servers).chain(others).collect()
}

/// The reason for a server: one of its own, or the kubelet would go on showing another one's message. The kubelet has
/// reasons in its metrics, so the server's name is not in it.
fn silent(server: &str) -> String {
    let mut hasher = DefaultHasher::new();
    server.hash(&mut hasher);
    format!("ServerSilent_{:08x}", hasher.finish() >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::{FORGET, FailedMounts, MOST, of_the_storage};
    use crate::volume::job::MountError;
    use crate::volume::target::Target;

    fn target(pod: &str) -> Target {
        let path = format!("/kubelet/pods/{pod}/volumes/kubernetes.io~csi/v/mount");
        Target::parse(Path::new("/kubelet"), &path).unwrap()
    }

    fn late() -> Result<(), MountError> {
        Err(MountError::Timeout {
            attempted: "the mount".to_owned(),
            seconds: 9,
            server: "10.0.0.1".to_owned(),
        })
    }

    #[test]
    fn a_failed_mount_is_reported_until_one_succeeds_or_nobody_tries_any_more() {
        let (failed, now, one) = (FailedMounts::default(), Instant::now(), target("a"));
        let reason = |at: Instant| failed.of(Some(&one), "id", at).map(|found| found.reason);
        failed.note(&one, "id", &late(), now);
        assert_eq!(reason(now).as_deref(), Some("NoAnswer"));
        let found = failed.of(None, "id", now).unwrap();
        assert!(found.message.contains("10.0.0.1 did not answer"), "{found:?}");
        assert_eq!(failed.of(None, "another", now), None);
        assert_eq!(failed.of(Some(&target("b")), "id", now), None);
        // While it is tried again, nothing new is known.
        let trying = MountError::InProgress {
            operation: "mount".to_owned(),
            seconds: 1,
        };
        failed.note(&one, "id", &Err(trying), now);
        assert!(reason(now).is_some());
        failed.note(&one, "id", &Ok(()), now);
        assert_eq!(reason(now), None);
        failed.note(&one, "id", &late(), now);
        failed.forget(&one);
        assert_eq!(reason(now), None);
        failed.note(&one, "id", &late(), now);
        assert_eq!(reason(now + FORGET), None);
        failed.note(&target("b"), "b", &Ok(()), now + FORGET);
        assert!(failed.lock().is_empty(), "it is kept for good");
    }

    #[test]
    fn a_mistake_in_a_volume_s_options_is_no_trouble_of_the_storage() {
        let (failed, now, one) = (FailedMounts::default(), Instant::now(), target("a"));
        failed.note(&one, "id", &late(), now);
        failed.note(&one, "id", &Err(MountError::BadOptions("no".into())), now);
        assert_eq!(failed.of(Some(&one), "id", now), None);
        let broken = MountError::failed("mount", "x".repeat(5000));
        failed.note(&one, "id", &Err(broken), now + Duration::from_secs(1));
        let found = failed.of(Some(&one), "id", now + Duration::from_secs(1)).unwrap();
        // The API takes no longer message.
        assert!(found.reason == "NotMounted" && found.message.len() < 1024, "{found:?}");
    }

    #[test]
    fn each_silent_server_is_a_condition_of_its_own_and_there_are_never_too_many() {
        assert_eq!(of_the_storage(&[], None), []);
        let servers: Vec<String> = (0..40).map(|n| format!("10.0.0.{n} (nfs)")).collect();
        for count in [1, 14, 15, 16, 40] {
            for obstacle in [None, Some("mount it shared".to_owned())] {
                let found = of_the_storage(&servers[..count], obstacle.clone());
                let wanted = count + usize::from(obstacle.is_some());
                assert!(found.len() == wanted.min(MOST), "{count} {obstacle:?}: {}", found.len());
                let reasons: BTreeSet<_> = found.iter().map(|one| &one.reason).collect();
                assert_eq!(reasons.len(), found.len());
                assert!(!reasons.iter().any(|reason| reason.contains("10.0")));
                let said = |words: &str| found.iter().any(|one| one.message.contains(words));
                assert!(said("10.0.0.0 (nfs)"));
                assert_eq!(said("mount it shared"), obstacle.is_some());
            }
        }
    }
}
