//! Notes that are not written yet: beginnings, since their ends may follow at once, and what the API did not take.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

use super::note::Note;
use super::series::{EventWrite, key};

/// How long something may take without a word.
const SOON: Duration = Duration::from_secs(2);

/// First and longest wait before a note is written again that the API did not take.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// How many such notes there may be, and how long each is tried.
const MOST: usize = 32;
const LONGEST: Duration = Duration::from_mins(10);

/// A note on its way to the API.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) regarding: ObjectReference,
    pub(super) note: Note,
    pub(super) failed: Option<Failed>,
}

/// How a note was written in vain.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) write: EventWrite,
    /// When it was written first: the Event's time.
    pub(super) at: Timestamp,
    key: String,
    until: Instant,
    wait: Duration,
}

/// Each note, and when it is due.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<(Instant, Told)>);

impl Held {
    /// Takes a note; returns it if it is to be written now. One that is no beginning ends what has begun.
    pub(super) fn take(&mut self, regarding: ObjectReference, note: Note) -> Option<Told> {
        self.0.retain(|(_, held)| {
            let is_of_this = held.regarding.uid == regarding.uid && held.note.action == note.action;
            !(is_of_this && held.note.is_beginning)
        });
        let key = key(&regarding, &note);
        let is_held = |held: &Told| held.failed.as_ref().is_some_and(|failed| failed.key == key);
        if self.0.iter().any(|(_, held)| is_held(held)) {
            return None;
        }
        let told = Told {
            regarding,
            note,
            failed: None,
        };
        if told.note.is_beginning {
            self.0.push((Instant::now() + SOON, told));
            return None;
        }
        Some(told)
    }

    /// Takes a note that the API did not take, to be written again; `false` if there are too many, or if it has been
    /// tried for too long.
    pub(super) fn again(&mut self, told: Told, write: EventWrite, at: Timestamp) -> bool {
        let now = Instant::now();
        let failed = match told.failed {
            Some(before) => Failed {
                write,
                wait: (before.wait * 2).min(RETRY.1),
                ..before
            },
            None => Failed {
                write,
                at,
                key: key(&told.regarding, &told.note),
                until: now + LONGEST,
                wait: RETRY.0,
            },
        };
        let others = self.0.iter().filter(|(_, held)| held.failed.is_some()).count();
        let due = now + failed.wait;
        if others >= MOST || due > failed.until {
            return false;
        }
        let failed = Some(failed);
        self.0.push((due, Told { failed, ..told }));
        true
    }

    /// Waits until one is due: something goes on for so long that people want to know of it, or the API may take it.
    pub(super) async fn due(&mut self) -> Told {
        let all = self.0.iter().enumerate();
        let Some((first, due)) = all.map(|(nth, (due, _))| (nth, *due)).min_by_key(|(_, due)| *due) else {
            return std::future::pending().await;
        };
        sleep_until(due).await;
        self.0.swap_remove(first).1
    }

    /// All that are left.
    pub(super) fn all(self) -> impl Iterator<Item = Told> {
        self.0.into_iter().map(|(_, told)| told)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::jiff::Timestamp;
    use tokio::time::{Instant, timeout};

    use super::{Held, MOST, SOON};
    use crate::process::events::Note;
    use crate::process::events::series::EventWrite;

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
        assert_eq!(held.take(object("quick"), ended).unwrap().note.reason, "Done");

        let began = Instant::now();
        let told = held.due().await;
        assert_eq!(
            (told.regarding.uid.as_deref(), told.note.reason),
            (Some("slow"), "Started")
        );
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

    #[tokio::test(start_paused = true)]
    async fn no_more_is_held_than_there_is_room_for_and_what_is_told_makes_room() {
        let mut held = Held::default();
        let again = |held: &mut Held, text: String| {
            let told = held.take(object("a"), Note::warning("Waiting", "Provision", text));
            held.again(told.unwrap(), EventWrite::Skip, Timestamp::now())
        };
        for nth in 0..MOST {
            assert!(again(&mut held, nth.to_string()));
        }
        assert!(!again(&mut held, "one more".to_owned()));
        held.due().await;
        assert!(again(&mut held, "another".to_owned()));
    }
}
