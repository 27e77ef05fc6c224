//! What has been done that the watches have not shown yet: so that it is not done twice. Nothing depends on it but the
//! number of calls; after a restart it is empty.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

/// By uid of the object.
#[derive(Debug, Default)]
pub struct Expectations {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    deleted: HashSet<String>,
    let_go: HashSet<String>,
    supplied: HashSet<String>,
    told_of: HashSet<String>,
    reclaimed: HashSet<String>,
    /// Resource version of the last write.
    written: HashMap<String, u64>,
    /// Nodes with volumes to delete that are not in the cluster, by host name, and since when that is known.
    away: HashMap<String, Timestamp>,
    /// Claims without a ConfigMap, and since when that is known.
    unserved: HashMap<String, Timestamp>,
    /// Claims whose volumes are ready, and were not seen since.
    ready: HashSet<String>,
}

impl Expectations {
    /// Since when a node is known to be missing, if it is. A restart of the controller starts the clock again.
    pub fn away_since(&self, host: &str, is_there: bool, now: Timestamp) -> Option<Timestamp> {
        let mut state = self.lock();
        if is_there {
            state.away.remove(host);
            return None;
        }
        Some(*state.away.entry(host.to_owned()).or_insert(now))
    }

    /// Whether the PV has been released: Mooring's finalizer was taken off.
    pub fn is_let_go(&self, uid: &str) -> bool {
        self.lock().let_go.contains(uid)
    }

    /// The PV has been released.
    pub fn let_go(&self, uid: &str) {
        self.lock().let_go.insert(uid.to_owned());
    }

    /// Whether the run has been asked to go.
    pub fn is_deleted(&self, uid: &str) -> bool {
        self.lock().deleted.contains(uid)
    }

    /// The run has been asked to go.
    pub fn deleted(&self, uid: &str) {
        self.lock().deleted.insert(uid.to_owned());
    }

    /// Whether the run has its properties.
    pub fn is_supplied(&self, uid: &str) -> bool {
        self.lock().supplied.contains(uid)
    }

    /// The run has its properties.
    pub fn supplied(&self, uid: &str) {
        self.lock().supplied.insert(uid.to_owned());
    }

    /// Whether users have not been told yet that the run does not start; after this call they have.
    pub fn is_first_report(&self, uid: &str) -> bool {
        self.lock().told_of.insert(uid.to_owned())
    }

    /// Whether what this run made has been deleted, or users have been told that it stays.
    pub fn is_reclaimed(&self, uid: &str) -> bool {
        self.lock().reclaimed.contains(uid)
    }

    /// What this run made has been deleted, or users have been told that it stays.
    pub fn reclaimed(&self, uid: &str) {
        self.lock().reclaimed.insert(uid.to_owned());
    }

    /// Since when a claim, which is so now, is known to want a volume and to have no ConfigMap.
    pub fn unserved_since(&self, uid: &str, now: Timestamp) -> Timestamp {
        *self.lock().unserved.entry(uid.to_owned()).or_insert(now)
    }

    /// The claim has what it needs, or wants nothing.
    pub fn served(&self, uid: &str) {
        self.lock().unserved.remove(uid);
    }

    /// The claim's volume is ready.
    pub fn ready(&self, uid: &str) {
        self.lock().ready.insert(uid.to_owned());
    }

    /// Whether the claim's volume is ready and was not seen since.
    pub fn is_ready(&self, uid: &str) -> bool {
        self.lock().ready.contains(uid)
    }

    /// The claim's volume has been seen, or is known to be gone.
    pub fn volume_seen(&self, uid: &str) {
        self.lock().ready.remove(uid);
    }

    /// A claim or a PV has been written.
    pub fn written(&self, meta: &ObjectMeta) {
        if let Some((uid, version)) = version(meta) {
            self.lock().written.insert(uid, version);
        }
    }

    /// Whether what is at hand of a claim or a PV is older than what was last written to it. Resource versions of one
    /// kind can be compared since Kubernetes 1.35; where they are no numbers, nothing is old.
    pub fn is_old(&self, meta: &ObjectMeta) -> bool {
        let Some((uid, version)) = version(meta) else {
            return false;
        };
        let mut state = self.lock();
        match state.written.get(&uid) {
            Some(written) if version < *written => true,
            Some(_) => {
                state.written.remove(&uid);
                false
            }
            None => false,
        }
    }

    /// The object is gone.
    pub fn gone(&self, uid: &str) {
        let mut state = self.lock();
        state.deleted.remove(uid);
        state.let_go.remove(uid);
        state.supplied.remove(uid);
        state.told_of.remove(uid);
        state.reclaimed.remove(uid);
        state.written.remove(uid);
        state.unserved.remove(uid);
        state.ready.remove(uid);
    }

    /// Of runs, keeps only what is about these.
    pub fn keep_runs(&self, uids: &HashSet<String>) {
        let mut state = self.lock();
        state.deleted.retain(|uid| uids.contains(uid));
        state.supplied.retain(|uid| uids.contains(uid));
        state.told_of.retain(|uid| uids.contains(uid));
        state.reclaimed.retain(|uid| uids.contains(uid));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn version(meta: &ObjectMeta) -> Option<(String, u64)> {
    Some((meta.uid.clone()?, meta.resource_version.as_ref()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::Expectations;
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
        seen.deleted("a");
        seen.supplied("a");
        seen.supplied("b");
        assert!(seen.is_deleted("a") && seen.is_supplied("a") && !seen.is_deleted("b"));
        seen.gone("a");
        assert!(!seen.is_deleted("a") && !seen.is_supplied("a") && seen.is_supplied("b"));
        seen.let_go("volume");
        seen.keep_runs(&["c".to_owned()].into());
        assert!(!seen.is_supplied("b") && seen.is_let_go("volume"));
        seen.gone("volume");
        assert!(!seen.is_let_go("volume"));
        assert!(seen.is_first_report("a") && !seen.is_first_report("a"));
    }
}
