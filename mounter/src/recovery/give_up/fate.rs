//! Whether a Pod with a volume that does not answer may still use it.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::node::node_pods::NodePod;

/// How long after a Pod's grace period its volumes may be unmounted the usual way.
pub(super) const BOUND: Duration = Duration::from_secs(30);

/// Whether a Pod may still use its volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    /// Its grace period and some time more are over.
    Over,
    /// The API does not know it: it was deleted by force, and its grace period is not known.
    Missing,
}

/// What happens to the Pod with this uid, according to the API.
pub(super) fn fate(uid: &str, there: &[NodePod], now: Timestamp) -> Fate {
    // The API does not know the uid of a static Pod, even while it runs.
    if !uid.contains('-') {
        return Fate::Stays;
    }
    match there.iter().find(|seen| seen.pod.uid == uid) {
        None => Fate::Missing,
        // The deletion timestamp is the end of the grace period.
        Some(NodePod { ends: Some(ends), .. }) if now.duration_since(*ends).as_secs() >= bound() => Fate::Over,
        Some(_) => Fate::Stays,
    }
}

fn bound() -> i64 {
    i64::try_from(BOUND.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::job::PodRef;

    const UID: &str = "5b2b-1";

    fn seen(uid: &str, ends: Option<&str>) -> NodePod {
        let pod = PodRef {
            name: "web-0".into(),
            namespace: "shop".into(),
            uid: uid.into(),
        };
        NodePod {
            pod,
            ends: ends.map(|ends| ends.parse().unwrap()),
        }
    }

    #[test]
    fn a_volume_is_given_up_only_when_its_pod_s_grace_period_and_some_time_more_are_over() {
        let ends = "2026-11-21T12:00:00Z";
        let fate_at = |there: &[NodePod], now: &str| fate(UID, there, now.parse().unwrap());
        let late = "2027-01-01T00:00:00Z";
        assert_eq!(
            fate_at(&[seen(UID, None)], late),
            Fate::Stays,
            "it is not being deleted"
        );
        let deleted = [seen("5b2b-2", None), seen(UID, Some(ends))];
        assert_eq!(
            fate_at(&deleted, "2026-11-21T11:59:00Z"),
            Fate::Stays,
            "in its grace period"
        );
        assert_eq!(fate_at(&deleted, "2026-11-21T12:00:29Z"), Fate::Stays, "the usual way");
        assert_eq!(fate_at(&deleted, "2026-11-21T12:00:30Z"), Fate::Over);
    }

    #[test]
    fn a_pod_that_the_api_does_not_know_was_deleted_by_force_unless_it_is_static() {
        let now = Timestamp::now();
        assert_eq!(
            fate(UID, &[seen("5b2b-2", None)], now),
            Fate::Missing,
            "another of its name"
        );
        assert_eq!(fate(UID, &[], now), Fate::Missing);
        assert_eq!(fate("0f3a9c", &[], now), Fate::Stays);
        assert_eq!(fate("", &[], now), Fate::Stays, "an agent that does not know");
    }
}
