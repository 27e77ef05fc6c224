//! Which images have stated that their containers can be workers.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use super::lock;
use crate::run::worker_set::WorkerSet;

/// By the ConfigMap's fingerprint: each with the set that is to have a worker for its next run, whatever has become of
/// the run that stated it.
#[derive(Debug, Clone, Default)]
pub struct CapableImages(Arc<RwLock<BTreeMap<String, Option<WorkerSet>>>>);

impl CapableImages {
    /// The image of the ConfigMap with this fingerprint has stated it, in a run that wanted a worker of this set. Whether
    /// that is news.
    pub(super) fn note(&self, fingerprint: &str, wanted: Option<WorkerSet>) -> bool {
        let mut all = lock(&self.0);
        let is_news = !all.contains_key(fingerprint);
        if is_news {
            all.insert(fingerprint.to_owned(), wanted);
        }
        is_news
    }

    /// There is a worker of the ConfigMap with this fingerprint: it was made since its image can be one.
    pub fn note_made(&self, fingerprint: &str) {
        lock(&self.0).insert(fingerprint.to_owned(), None);
    }

    /// Whether the image of the ConfigMap with this fingerprint has stated it.
    pub fn has(&self, fingerprint: &str) -> bool {
        lock(&self.0).contains_key(fingerprint)
    }

    /// A container of that image was no worker: not before the image has stated it again.
    pub fn forget(&self, fingerprint: &str) {
        lock(&self.0).remove(fingerprint);
    }

    /// Forgets ConfigMaps, and versions of them, that are gone.
    pub fn keep(&self, is_there: impl Fn(&str) -> bool) {
        lock(&self.0).retain(|fingerprint, _| is_there(fingerprint));
    }

    /// The sets that are to have their first worker.
    pub(super) fn first_sets(&self) -> Vec<WorkerSet> {
        lock(&self.0).values().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::CapableImages;

    #[test]
    fn an_image_can_be_a_worker_once_it_has_stated_so_until_its_configmap_changes_or_it_was_none() {
        let images = CapableImages::default();
        let note = |fingerprint: &str| images.note(fingerprint, None);
        assert!(!images.has("a"));
        assert!(note("a") && note("b") && !note("a"));
        images.keep(|fingerprint| fingerprint == "a");
        assert!(images.has("a") && !images.has("b"));
        images.forget("a");
        assert!(note("a"), "not news again");
        images.note_made("b");
        assert!(images.has("b"));
    }
}
