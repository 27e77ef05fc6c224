//! Beginnings that are not told yet, since their ends may follow at once.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::{Instant, sleep_until};

use super::note::Note;

/// How long something may take without a word.
const SOON: Duration = Duration::from_secs(2);

/// The beginnings, by object and action.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<(Option<String>, &'static str), (Instant, ObjectReference, Note)>);

impl Held {
    /// Takes a note; returns it if it is to be written now. One that is no beginning ends what has begun.
    pub(super) fn take(&mut self, regarding: ObjectReference, note: Note) -> Option<(ObjectReference, Note)> {
        let key = (regarding.uid.clone(), note.action);
        if note.is_beginning {
            self.0.insert(key, (Instant::now() + SOON, regarding, note));
            return None;
        }
        self.0.remove(&key);
        Some((regarding, note))
    }

    /// Waits until something goes on for so long that people want to know of it.
    pub(super) async fn due(&mut self) -> (ObjectReference, Note) {
        let first = self.0.iter().min_by_key(|(_, (due, ..))| *due);
        let Some((key, due)) = first.map(|(key, (due, ..))| (key.clone(), *due)) else {
            return std::future::pending().await;
        };
        sleep_until(due).await;
        match self.0.remove(&key) {
            Some((_, regarding, note)) => (regarding, note),
            None => std::future::pending().await,
        }
    }

    /// All that are left.
    pub(super) fn all(self) -> impl Iterator<Item = (ObjectReference, Note)> {
        self.0.into_values().map(|(_, regarding, note)| (regarding, note))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ObjectReference;
    use tokio::time::{Instant, timeout};

    use super::{Held, SOON};
    use crate::process::events::Note;

    fn object(uid: &str) -> ObjectReference {
        ObjectReference {
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_beginning_is_told_only_where_the_end_does_not_follow_at_once() {
        let mut held = Held::default();
        for uid in ["quick", "slow"] {
            let begun = Note::beginning("Started", "Provision", "begins");
            assert!(held.take(object(uid), begun).is_none());
        }
        // Something else about the object does not end it.
        let other = Note::warning("Waiting", "Expand", "waits");
        assert!(held.take(object("slow"), other).is_some());
        let ended = Note::normal("Done", "Provision", "is done");
        let (_, told) = held.take(object("quick"), ended).unwrap();
        assert_eq!(told.reason, "Done");

        let began = Instant::now();
        let (regarding, told) = held.due().await;
        assert_eq!((regarding.uid.as_deref(), told.reason), (Some("slow"), "Started"));
        assert_eq!(began.elapsed(), SOON);
        assert!(timeout(Duration::from_hours(1), held.due()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_at_the_end_is_told() {
        let mut held = Held::default();
        assert!(
            held.take(object("slow"), Note::beginning("Started", "Provision", "begins"))
                .is_none()
        );
        assert_eq!(held.all().count(), 1);
    }
}
