//! When an Event is worth a write.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::note::Note;
use crate::text::digest;

/// After so long without a repetition an Event is news again; shorter than the API server keeps Events (one hour).
const FORGET: SignedDuration = SignedDuration::from_mins(50);

/// How many different Events one object may have at once, and how long it takes to earn another.
const BURST: u32 = 20;
const EARN: SignedDuration = SignedDuration::from_mins(1);

/// Longest text that the API takes, in bytes.
const MAX_TEXT: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventWrite {
    Create {
        /// `metadata.name`: the object's name, a dot, and a hash with the time.
        name: String,
    },
    /// Raise the count of an Event that exists.
    Repeat {
        /// The `metadata.name` that it was created with.
        name: String,
        count: i32,
    },
    /// Nothing: that it goes on happening is known.
    Skip,
    /// Nothing, though it is news: its object is too talkative.
    Drop,
}

/// What has been told already.
#[derive(Debug, Default)]
pub struct Ledger {
    reported: HashMap<String, Reported>,
    talkers: HashMap<String, Talker>,
}

#[derive(Debug)]
struct Reported {
    name: String,
    count: i32,
    last: Timestamp,
    written: Timestamp,
}

#[derive(Debug)]
struct Talker {
    left: u32,
    since: Timestamp,
}

impl Ledger {
    /// What to write; [`Self::written`] is to follow. A repetition is written at the 2nd, 4th, 8th, … time, and before
    /// the API server forgets the Event.
    pub fn decide(&mut self, regarding: &ObjectReference, note: &Note, now: Timestamp) -> EventWrite {
        self.reported
            .retain(|_, reported| now.duration_since(reported.last) < FORGET);
        self.talkers
            .retain(|_, talker| now.duration_since(talker.since) < EARN * i32::try_from(BURST).unwrap_or(i32::MAX));
        let key = key(regarding, note);
        if let Some(reported) = self.reported.get_mut(&key) {
            reported.count = reported.count.saturating_add(1);
            reported.last = now;
            let is_due = now.duration_since(reported.written) >= FORGET;
            return if is_due || reported.count.count_ones() == 1 {
                EventWrite::Repeat {
                    name: reported.name.clone(),
                    count: reported.count,
                }
            } else {
                EventWrite::Skip
            };
        }
        if !self.may_talk(regarding, now) {
            return EventWrite::Drop;
        }
        EventWrite::Create {
            name: name(regarding, note, now),
        }
    }

    /// From now on this is told.
    pub fn written(&mut self, regarding: &ObjectReference, note: &Note, write: &EventWrite, now: Timestamp) {
        let key = key(regarding, note);
        match write {
            EventWrite::Create { name } => {
                let reported = Reported {
                    name: name.clone(),
                    count: 1,
                    last: now,
                    written: now,
                };
                self.reported.insert(key, reported);
            }
            EventWrite::Repeat { .. } => {
                if let Some(reported) = self.reported.get_mut(&key) {
                    reported.written = now;
                }
            }
            EventWrite::Skip | EventWrite::Drop => {}
        }
    }

    fn may_talk(&mut self, regarding: &ObjectReference, now: Timestamp) -> bool {
        let talker = self.talkers.entry(object_key(regarding)).or_insert(Talker {
            left: BURST,
            since: now,
        });
        while talker.left < BURST && now.duration_since(talker.since) >= EARN {
            talker.left += 1;
            talker.since += EARN;
        }
        if talker.left == 0 {
            return false;
        }
        if talker.left == BURST {
            talker.since = now;
        }
        talker.left -= 1;
        true
    }
}

/// The name of a new series of an Event.
pub fn name(regarding: &ObjectReference, note: &Note, now: Timestamp) -> String {
    let key = key(regarding, note);
    let object = regarding.name.as_deref().unwrap_or("mooring").chars().take(200);
    let object: String = object.collect();
    format!("{object}.{}{:x}", &key[..8], now.as_nanosecond())
}

/// A text that the API takes: the beginning and the end of a long one, since the cure is at the end.
pub fn shortened(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let half = MAX_TEXT / 2 - 2;
    let head = text.floor_char_boundary(half);
    let tail = text.ceil_char_boundary(text.len() - half);
    format!("{}…{}", &text[..head], &text[tail..])
}

fn object_key(regarding: &ObjectReference) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    [
        part(&regarding.kind),
        part(&regarding.namespace),
        part(&regarding.name),
        part(&regarding.uid),
    ]
    .join("/")
}

/// Hash of all that makes two Events the same one.
pub(super) fn key(regarding: &ObjectReference, note: &Note) -> String {
    let object = object_key(regarding);
    digest([&object, note.reason, note.action, &note.text, ""].join("\0"), 16)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::jiff::{SignedDuration, Timestamp};

    use super::{BURST, EventWrite, Ledger, MAX_TEXT, shortened};
    use crate::process::events::Note;

    fn claim(name: &str) -> ObjectReference {
        ObjectReference {
            kind: Some("PersistentVolumeClaim".into()),
            namespace: Some("default".into()),
            name: Some(name.into()),
            ..ObjectReference::default()
        }
    }

    fn failed(text: &str) -> Note {
        Note::warning("ProvisioningFailed", "Provision", text)
    }

    /// What is written of a note, which the API takes.
    fn write(ledger: &mut Ledger, regarding: &ObjectReference, note: &Note, now: Timestamp) -> EventWrite {
        let write = ledger.decide(regarding, note, now);
        ledger.written(regarding, note, &write, now);
        write
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_thousand_repetitions_cost_ten_writes() {
        let mut ledger = Ledger::default();
        let decisions: Vec<_> = (0..1000)
            .map(|second| write(&mut ledger, &claim("a"), &failed("no route to host"), at(second)))
            .filter(|decision| *decision != EventWrite::Skip)
            .collect();
        assert_eq!(decisions.len(), 10);
        assert!(matches!(decisions[0], EventWrite::Create { .. }));
        assert!(matches!(decisions[9], EventWrite::Repeat { count: 512, .. }));
    }

    #[test]
    fn what_goes_on_for_days_is_written_before_the_api_server_forgets_it() {
        let mut ledger = Ledger::default();
        let resync = 600;
        let mut last = 0;
        for second in (0..3 * 86_400).step_by(resync) {
            if write(&mut ledger, &claim("a"), &failed("it was given up"), at(second)) != EventWrite::Skip {
                last = second;
            }
            assert!(second - last < 3600, "nothing is written from {last} to {second}");
        }
    }

    #[test]
    fn other_words_and_other_objects_are_news() {
        let mut ledger = Ledger::default();
        for (object, text) in [("a", "x"), ("a", "y"), ("b", "x")] {
            let write = write(&mut ledger, &claim(object), &failed(text), at(0));
            assert!(matches!(write, EventWrite::Create { name } if name.starts_with(object)));
        }
    }

    #[test]
    fn an_old_story_is_news_again() {
        let mut ledger = Ledger::default();
        write(&mut ledger, &claim("a"), &failed("x"), at(0));
        assert!(matches!(
            write(&mut ledger, &claim("a"), &failed("x"), at(3600)),
            EventWrite::Create { .. }
        ));
    }

    #[test]
    fn a_talkative_object_is_cut_short_and_gets_its_word_back() {
        let mut ledger = Ledger::default();
        let now = at(0);
        let created = (0..100)
            .filter(|i| {
                matches!(
                    write(&mut ledger, &claim("a"), &failed(&i.to_string()), now),
                    EventWrite::Create { .. }
                )
            })
            .count();
        assert_eq!(created, usize::try_from(BURST).unwrap());
        assert!(matches!(
            write(&mut ledger, &claim("b"), &failed("x"), now),
            EventWrite::Create { .. }
        ));
        let later = now + SignedDuration::from_mins(1);
        assert!(matches!(
            write(&mut ledger, &claim("a"), &failed("x"), later),
            EventWrite::Create { .. }
        ));
        assert_eq!(write(&mut ledger, &claim("a"), &failed("y"), later), EventWrite::Drop);
    }

    #[test]
    fn long_texts_keep_their_beginning_and_their_end() {
        let text = format!("begin {} the cure", "ä".repeat(2000));
        let short = shortened(&text);
        assert!(short.len() <= MAX_TEXT && short.starts_with("begin") && short.ends_with("the cure"));
        assert_eq!(shortened("short"), "short");
    }
}
