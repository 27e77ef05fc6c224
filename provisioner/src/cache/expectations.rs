//! What has been done that the watches have not shown yet: so that it is not done twice. Nothing depends on it but the
//! number of calls; after a restart it is empty. All that is remembered of an object goes with the object.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

/// What may be known of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fact {
    /// The run has been asked to go.
    Deleted,
    /// The run has its properties.
    Supplied,
    /// Users have been told that the run is late to start.
    ToldLate,
    /// Users have been told that the run can't start.
    ToldBlocked,
    /// What the run made has been deleted, or users have been told that it stays.
    Reclaimed,
    /// Mooring's finalizer has been taken off the PV.
    LetGo,
    /// The claim's volume is ready, and was not seen since.
    Ready,
}

#[derive(Debug, Default)]
pub struct Expectations {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By uid of the object.
    objects: HashMap<String, Known>,
    /// Nodes with volumes to delete that are not in the cluster, by host name, and since when that is known.
    away: HashMap<String, Timestamp>,
}

/// What is remembered of one object.
#[derive(Debug, Default)]
struct Known {
    facts: HashSet<Fact>,
    /// Resource version of the last write.
    written: Option<u64>,
    /// Since when it is known to be a claim without a ConfigMap.
    unserved: Option<Timestamp>,
    /// How often in a row a look at it has failed.
    failures: u32,
}

impl Fact {
    fn is_of_run(self) -> bool {
        match self {
            Self::Deleted | Self::Supplied | Self::ToldLate | Self::ToldBlocked | Self::Reclaimed => true,
            Self::LetGo | Self::Ready => false,
        }
    }
}

impl Expectations {
    pub fn is(&self, uid: &str, fact: Fact) -> bool {
        let state = self.lock();
        state.objects.get(uid).is_some_and(|known| known.facts.contains(&fact))
    }

    /// From now on it is. Whether it was not before.
    pub fn note(&self, uid: &str, fact: Fact) -> bool {
        self.lock().object(uid).facts.insert(fact)
    }

    /// From now on it is not.
    pub fn forget(&self, uid: &str, fact: Fact) {
        if let Some(known) = self.lock().objects.get_mut(uid) {
            known.facts.remove(&fact);
        }
    }

    /// Since when a node is known to be missing, if it is. A restart of the controller starts the clock again.
    pub fn away_since(&self, host: &str, is_there: bool, now: Timestamp) -> Option<Timestamp> {
        let mut state = self.lock();
        if is_there {
            state.away.remove(host);
            return None;
        }
        Some(*state.away.entry(host.to_owned()).or_insert(now))
    }

    /// Since when a claim, which is so now, is known to want a volume and to have no ConfigMap.
    pub fn unserved_since(&self, uid: &str, now: Timestamp) -> Timestamp {
        *self.lock().object(uid).unserved.get_or_insert(now)
    }

    /// The claim has what it needs, or wants nothing.
    pub fn served(&self, uid: &str) {
        if let Some(known) = self.lock().objects.get_mut(uid) {
            known.unserved = None;
        }
    }

    /// A look at the object has failed. Returns how many have in a row.
    pub fn failed(&self, uid: &str) -> u32 {
        let mut state = self.lock();
        let failures = &mut state.object(uid).failures;
        *failures = failures.saturating_add(1);
        *failures
    }

    /// A look at the object has not failed.
    pub fn succeeded(&self, uid: &str) {
        if let Some(known) = self.lock().objects.get_mut(uid) {
            known.failures = 0;
        }
    }

    /// A claim or a PV has been written.
    pub fn written(&self, meta: &ObjectMeta) {
        if let Some((uid, version)) = version(meta) {
            self.lock().object(uid).written = Some(version);
        }
    }

    /// Whether what is at hand of a claim or a PV is older than what was last written to it. Resource versions of one
    /// kind can be compared since Kubernetes 1.35; where they are no numbers, nothing is old.
    pub fn is_old(&self, meta: &ObjectMeta) -> bool {
        let Some((uid, version)) = version(meta) else {
            return false;
        };
        let mut state = self.lock();
        let known = state.objects.get_mut(uid);
        known.is_some_and(|known| {
            // What has been seen is not waited for any more.
            known.written = known.written.filter(|written| version < *written);
            known.written.is_some()
        })
    }

    /// The object is gone.
    pub fn gone(&self, uid: &str) {
        self.lock().objects.remove(uid);
    }

    /// Of runs, keeps only what is about these.
    pub fn keep_runs(&self, uids: &HashSet<String>) {
        for (uid, known) in &mut self.lock().objects {
            known.facts.retain(|fact| !fact.is_of_run() || uids.contains(uid));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn object(&mut self, uid: &str) -> &mut Known {
        self.objects.entry(uid.to_owned()).or_default()
    }
}

fn version(meta: &ObjectMeta) -> Option<(&str, u64)> {
    Some((meta.uid.as_deref()?, meta.resource_version.as_ref()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{Expectations, Fact};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use k8s_openapi::jiff::Timestamp;

    #[test]
    fn what_is_at_hand_is_old_until_the_last_write_is_seen() {
        let meta = |version: &str| ObjectMeta {
            uid: Some("a".into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        let seen = Expectations::default();
        assert!(!seen.is_old(&meta("9")));
        seen.written(&meta("10"));
        assert!(seen.is_old(&meta("9")) && !seen.is_old(&meta("10")) && !seen.is_old(&meta("9")));
        seen.written(&meta("x"));
        assert!(!seen.is_old(&meta("x")));
    }

    #[test]
    fn a_claim_is_unserved_since_the_first_time_that_this_was_seen() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let seen = Expectations::default();
        assert_eq!(seen.unserved_since("a", at(1)), at(1));
        assert_eq!(seen.unserved_since("a", at(2)), at(1));
        seen.served("a");
        assert_eq!(seen.unserved_since("a", at(3)), at(3));
        seen.gone("a");
        assert_eq!(seen.unserved_since("a", at(4)), at(4));
    }

    #[test]
    fn what_was_done_to_a_run_is_known_until_the_run_is_gone() {
        let seen = Expectations::default();
        assert!(seen.note("a", Fact::Deleted) && !seen.note("a", Fact::Deleted));
        seen.note("a", Fact::Supplied);
        seen.note("b", Fact::Supplied);
        assert!(seen.is("a", Fact::Deleted) && seen.is("a", Fact::Supplied) && !seen.is("b", Fact::Deleted));
        seen.gone("a");
        assert!(!seen.is("a", Fact::Deleted) && !seen.is("a", Fact::Supplied) && seen.is("b", Fact::Supplied));
        seen.note("volume", Fact::LetGo);
        seen.keep_runs(&["c".to_owned()].into());
        assert!(!seen.is("b", Fact::Supplied) && seen.is("volume", Fact::LetGo));
        seen.forget("volume", Fact::LetGo);
        assert!(!seen.is("volume", Fact::LetGo));
    }

    #[test]
    fn failures_are_counted_in_a_row_and_not_beyond_the_object() {
        let seen = Expectations::default();
        assert_eq!((seen.failed("a"), seen.failed("a"), seen.failed("b")), (1, 2, 1));
        seen.succeeded("a");
        seen.gone("b");
        assert_eq!((seen.failed("a"), seen.failed("b")), (1, 1));
    }
}
