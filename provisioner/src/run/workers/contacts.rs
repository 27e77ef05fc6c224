//! How to speak with each worker, and what it said last.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use mooring_contract::outcome::Outcome;
use mooring_contract::worker::Report;
use secrecy::SecretString;

use super::lock;
use crate::run::worker::Worker;

/// By uid of the worker's Pod.
#[derive(Debug, Clone, Default)]
pub struct Contacts(Arc<RwLock<BTreeMap<String, Contact>>>);

#[derive(Debug, Clone)]
struct Contact {
    seat: Seat,
    report: Report,
    /// What it says comes as soon as it is so.
    is_heard: bool,
    /// The run that it is about to be given, or was given last.
    taken: Option<Taken>,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    number: u64,
    /// Somebody waits for it.
    is_waited_for: bool,
}

impl Contact {
    fn is_free(&self, worker: &Worker) -> bool {
        let is_taken = self.taken.is_some_and(|taken| taken.number == worker.number() + 1);
        let is_idle = self.report.is_idle() && self.report.number == worker.number();
        self.is_heard && is_idle && !is_taken
    }
}

/// Where a worker listens, and the key of its connections.
#[derive(Debug, Clone)]
pub struct Seat {
    pub host: String,
    pub port: u16,
    pub key: SecretString,
}

impl Contacts {
    /// A worker has said how things are.
    pub fn note(&self, uid: &str, seat: &Seat, report: Report) {
        let mut all = lock(&self.0);
        let known = all.entry(uid.to_owned()).or_insert_with(|| Contact {
            seat: seat.clone(),
            report: Report::default(),
            is_heard: true,
            taken: None,
        });
        known.is_heard = true;
        // Two connections may bring one after the other what was said the other way round.
        let is_older =
            report.number < known.report.number || report.number == known.report.number && report.ended.is_none();
        if !is_older {
            known.report = report;
        }
    }

    /// Nothing is heard of it at the moment. What it said of a run that ended stays true.
    pub fn lost(&self, uid: &str) {
        if let Some(known) = lock(&self.0).get_mut(uid) {
            known.is_heard = false;
        }
    }

    /// It is gone.
    pub fn forget(&self, uid: &str) {
        lock(&self.0).remove(uid);
    }

    /// Whether it can be spoken with.
    pub fn is_heard(&self, uid: &str) -> bool {
        lock(&self.0).get(uid).is_some_and(|known| known.is_heard)
    }

    /// What it said last.
    pub fn report(&self, uid: &str) -> Option<Report> {
        lock(&self.0).get(uid).map(|known| known.report.clone())
    }

    /// Whether its last run failed, for a reason that may be over by another time.
    pub(super) fn has_failed(&self, uid: &str) -> bool {
        let last = self.report(uid).and_then(|report| report.ended);
        last.is_some_and(|end| Outcome::from_exit_code(end.exit_code) == Outcome::Retry)
    }

    pub fn seat(&self, uid: &str) -> Option<Seat> {
        lock(&self.0).get(uid).map(|known| known.seat.clone())
    }

    /// Whether somebody waited for this run of a worker's, as far as this process knows.
    pub fn was_waited_for(&self, uid: &str, number: u64) -> bool {
        let all = lock(&self.0);
        let taken = all.get(uid).and_then(|known| known.taken);
        taken.is_none_or(|taken| taken.number != number || taken.is_waited_for)
    }

    /// Whether it is known to wait for its next run, and nobody has taken it.
    pub(super) fn is_free(&self, worker: &Worker) -> bool {
        lock(&self.0)
            .get(worker.uid())
            .is_some_and(|known| known.is_free(worker))
    }

    /// Takes a worker for its next run, if it is free.
    pub(super) fn take(&self, worker: &Worker, is_waited_for: bool) -> bool {
        let mut all = lock(&self.0);
        let Some(known) = all.get_mut(worker.uid()).filter(|known| known.is_free(worker)) else {
            return false;
        };
        known.taken = Some(Taken {
            number: worker.number() + 1,
            is_waited_for,
        });
        true
    }

    /// It was not given the run after all.
    pub fn give_back(&self, worker: &Worker) {
        if let Some(known) = lock(&self.0).get_mut(worker.uid()) {
            known.taken = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use mooring_contract::worker::{Report, RunEnd};
    use serde_json::json;

    use super::super::tests::seat;
    use super::Contacts;
    use crate::operation::tests::config;
    use crate::run::worker_pod::tests::worker;

    fn report(number: u64, ended: bool) -> Report {
        let end = RunEnd {
            exit_code: 0,
            message: String::new(),
            timed_out: false,
        };
        Report {
            number,
            ended: ended.then_some(end),
        }
    }

    #[test]
    fn a_worker_is_taken_once_for_a_run_and_only_if_it_is_known_to_wait() {
        let config = config(&[("volume-source", "csi")]);
        let contacts = Contacts::default();
        let given = |number: u64| {
            worker(
                &config,
                "w",
                &json!({}),
                &json!({"mooring.dev/runs": number.to_string()}),
            )
        };
        let uid = given(0).uid().to_owned();
        assert!(!contacts.take(&given(0), true), "nothing was heard of it");
        contacts.note(&uid, &seat(), report(0, false));
        assert!(contacts.take(&given(0), true));
        assert!(!contacts.take(&given(0), true), "taken twice");
        contacts.give_back(&given(0));
        assert!(contacts.take(&given(0), true));
        contacts.note(&uid, &seat(), report(1, false));
        assert!(!contacts.take(&given(1), true), "it has a run");
        contacts.note(&uid, &seat(), report(1, true));
        // What another connection brings late changes nothing.
        contacts.note(&uid, &seat(), report(1, false));
        contacts.note(&uid, &seat(), report(0, false));
        assert_eq!(contacts.report(&uid), Some(report(1, true)));
        assert!(
            !contacts.take(&given(2), true),
            "its Pod says that it was given another"
        );
        assert!(contacts.take(&given(1), true));
        contacts.give_back(&given(1));
        contacts.lost(&uid);
        assert!(!contacts.take(&given(1), true), "nothing is heard of it");
        assert_eq!(contacts.report(&uid), Some(report(1, true)));
        contacts.forget(&uid);
        assert_eq!(contacts.report(&uid), None);
    }

    #[test]
    fn whether_somebody_waits_for_a_run_is_known_of_the_last_one_that_a_worker_was_taken_for() {
        let config = config(&[("volume-source", "csi")]);
        let worker = worker(&config, "w", &json!({}), &json!({}));
        let contacts = Contacts::default();
        contacts.note(worker.uid(), &seat(), report(0, false));
        for is_waited_for in [false, true, false] {
            assert!(contacts.take(&worker, is_waited_for));
            assert_eq!(contacts.was_waited_for(worker.uid(), 1), is_waited_for);
            contacts.give_back(&worker);
        }
    }
}
