//! Deletes client Pods that have no mount any more, and looks for volumes whose Pod is gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{Instrument as _, info_span};

use super::status::{PodPhase, SeenPod};
use super::{ClientPods, lost};
use crate::agent::protocol::MountState;

/// How often to look at the Pods when nothing happens: a volume may have been unmounted while the mounter was down.
const PERIOD: Duration = Duration::from_secs(30);

/// How soon again while there is a lost volume.
const SOON: Duration = Duration::from_secs(5);

/// Shortest time between two looks, so that a burst of mounts is one.
const PAUSE: Duration = Duration::from_millis(200);

/// What is known of a Pod's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It has mounts, an operation uses it, or its agent does not say.
    Used,
    Unused,
}

/// When each Pod was first seen unused, by uid.
#[derive(Debug, Default)]
struct IdleSince(HashMap<String, Instant>);

impl IdleSince {
    /// Notes what is in use now. Gives the uids of the Pods to delete, and when the next one may be due. Those in `old`
    /// are due at once.
    fn update(
        &mut self,
        seen: &[(String, Use)],
        old: &HashSet<String>,
        idle: Duration,
        now: Instant,
    ) -> (Vec<String>, Option<Instant>) {
        self.0
            .retain(|uid, _| seen.iter().any(|(seen, usage)| seen == uid && *usage == Use::Unused));
        for (uid, usage) in seen {
            if *usage == Use::Unused {
                self.0.entry(uid.clone()).or_insert(now);
            }
        }
        let (go, stay): (Vec<_>, Vec<_>) = self
            .0
            .iter()
            .partition(|(uid, since)| now.duration_since(**since) >= idle || old.contains(*uid));
        let next = stay.into_iter().filter_map(|(_, since)| since.checked_add(idle)).min();
        (go.into_iter().map(|(uid, _)| uid.clone()).collect(), next)
    }
}

/// Runs for as long as the mounter.
pub(super) async fn run(pods: Arc<ClientPods>) {
    let mut changes = pods.changes.subscribe();
    let mut idle_since = IdleSince::default();
    loop {
        changes.mark_unchanged();
        let mut seen = pods.seen();
        {
            // The watch may not have reported yet that they are gone.
            let mut leaving = pods.leaving();
            leaving.retain(|uid| seen.iter().any(|pod| pod.uid == *uid));
            seen.retain(|pod| !leaving.contains(&pod.uid));
        }
        let mut uses = Vec::new();
        for pod in &seen {
            if let Some(usage) = usage(&pods, pod).await {
                uses.push((pod.uid.clone(), usage));
            }
        }
        let mut old = HashSet::new();
        if uses.iter().any(|(_, usage)| *usage == Use::Unused) {
            let origins = pods.origins_of_old().unwrap_or_default();
            old.extend(origins.into_iter().map(|(_, uid, _)| uid));
        }
        let (go, next) = idle_since.update(&uses, &old, pods.args.client_idle, Instant::now());
        for pod in seen.iter().filter(|pod| go.contains(&pod.uid)) {
            // An operation may have begun since. The agent refuses one that begins now, which then gets the next Pod.
            if !pods.users.any(&pod.uid) {
                pods.delete_soon(&pod.name, &pod.uid);
            }
        }
        let soon = lost::look_after(&pods).instrument(info_span!("lost-volumes")).await;
        tokio::time::sleep(PAUSE).await;
        let period = if soon { SOON } else { PERIOD };
        let wake = next.map_or(period, |next| {
            next.saturating_duration_since(Instant::now()).min(period)
        });
        // Also without any Pod: the mounts of one that is gone are still there.
        let _ = tokio::time::timeout(wake, changes.changed()).await;
    }
}

/// None for a Pod that is on its way out already.
async fn usage(pods: &ClientPods, pod: &SeenPod) -> Option<Use> {
    if pods.users.any(&pod.uid) {
        return Some(Use::Used);
    }
    match pod.phase {
        PodPhase::Leaving => None,
        PodPhase::Ended => Some(Use::Unused),
        // It will have to mount again what it had; until then it can't say whether there is anything.
        PodPhase::BackOff => Some(Use::Used),
        // A Pod that has not started has no mounts, unless it ran before: then its agent will answer again.
        PodPhase::Starting | PodPhase::Running => match pods.hello(&pod.uid).await {
            Ok(hello) if hello.mounts.iter().all(MountState::is_lost) => Some(Use::Unused),
            Err(_) if pod.phase == PodPhase::Starting && !pod.ran => Some(Use::Unused),
            Ok(_) | Err(_) => Some(Use::Used),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_mins(5);

    fn seen(pods: &[(&str, Use)]) -> Vec<(String, Use)> {
        pods.iter().map(|&(uid, usage)| (uid.to_owned(), usage)).collect()
    }

    #[test]
    fn a_pod_goes_when_it_has_been_unused_for_the_whole_time_and_not_before() {
        let mut idle = IdleSince::default();
        let start = Instant::now();
        let (go, next) = idle.update(
            &seen(&[("a", Use::Unused), ("b", Use::Used)]),
            &HashSet::new(),
            IDLE,
            start,
        );
        assert_eq!((go.len(), next), (0, Some(start + IDLE)));
        let later = start + IDLE / 2;
        assert_eq!(
            idle.update(&seen(&[("a", Use::Unused)]), &HashSet::new(), IDLE, later)
                .0
                .len(),
            0
        );
        assert_eq!(
            idle.update(&seen(&[("a", Use::Unused)]), &HashSet::new(), IDLE, start + IDLE)
                .0,
            ["a"]
        );
    }

    #[test]
    fn a_use_in_between_starts_the_time_again() {
        let mut idle = IdleSince::default();
        let start = Instant::now();
        idle.update(&seen(&[("a", Use::Unused)]), &HashSet::new(), IDLE, start);
        idle.update(&seen(&[("a", Use::Used)]), &HashSet::new(), IDLE, start + IDLE / 2);
        assert!(
            idle.update(&seen(&[("a", Use::Unused)]), &HashSet::new(), IDLE, start + IDLE)
                .0
                .is_empty()
        );
    }

    #[test]
    fn one_of_an_earlier_version_goes_with_its_last_mount() {
        let mut idle = IdleSince::default();
        let old = HashSet::from(["a".to_owned()]);
        let now = Instant::now();
        assert!(idle.update(&seen(&[("a", Use::Used)]), &old, IDLE, now).0.is_empty());
        let both = seen(&[("a", Use::Unused), ("b", Use::Unused)]);
        assert_eq!(idle.update(&both, &old, IDLE, now).0, ["a"]);
    }

    #[test]
    fn with_no_idle_time_it_goes_at_once() {
        let mut idle = IdleSince::default();
        let (go, _) = idle.update(
            &seen(&[("a", Use::Unused)]),
            &HashSet::new(),
            Duration::ZERO,
            Instant::now(),
        );
        assert_eq!(go, ["a"]);
    }
}
