//! What has been done to Pods that the watch has not shown yet: so that it is not done twice. Nothing depends on it but the
//! number of calls; after a restart it is empty.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By uid of the Pod.
#[derive(Debug, Default)]
pub struct SeenTo {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    deleted: HashSet<String>,
    supplied: HashSet<String>,
    spoken_of: HashSet<String>,
}

impl SeenTo {
    /// Whether the Pod has been asked to go.
    pub fn is_deleted(&self, uid: &str) -> bool {
        self.lock().deleted.contains(uid)
    }

    /// The Pod has been asked to go.
    pub fn deleted(&self, uid: &str) {
        self.lock().deleted.insert(uid.to_owned());
    }

    /// Whether the Pod has its Secret.
    pub fn is_supplied(&self, uid: &str) -> bool {
        self.lock().supplied.contains(uid)
    }

    /// The Pod has its Secret.
    pub fn supplied(&self, uid: &str) {
        self.lock().supplied.insert(uid.to_owned());
    }

    /// Whether it is news that the Pod does not start; after this it is not.
    pub fn is_news(&self, uid: &str) -> bool {
        self.lock().spoken_of.insert(uid.to_owned())
    }

    /// The Pod is gone.
    pub fn gone(&self, uid: &str) {
        let mut state = self.lock();
        state.deleted.remove(uid);
        state.supplied.remove(uid);
        state.spoken_of.remove(uid);
    }

    /// Keeps only what is about these Pods.
    pub fn keep(&self, uids: &HashSet<String>) {
        let mut state = self.lock();
        state.deleted.retain(|uid| uids.contains(uid));
        state.supplied.retain(|uid| uids.contains(uid));
        state.spoken_of.retain(|uid| uids.contains(uid));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::SeenTo;

    #[test]
    fn what_was_done_to_a_pod_is_known_until_the_pod_is_gone() {
        let seen = SeenTo::default();
        seen.deleted("a");
        seen.supplied("a");
        seen.supplied("b");
        assert!(seen.is_deleted("a") && seen.is_supplied("a") && !seen.is_deleted("b"));
        seen.gone("a");
        assert!(!seen.is_deleted("a") && !seen.is_supplied("a") && seen.is_supplied("b"));
        seen.keep(&["c".to_owned()].into());
        assert!(!seen.is_supplied("b"));
        assert!(seen.is_news("a") && !seen.is_news("a"));
    }
}
