//! What is known of the workers beside what the API says: how to speak with each, and what it said last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use mooring_contract::worker::Report;
use secrecy::SecretString;

use super::worker::Worker;

/// How long no worker of a namespace is given a run after the API has refused that.
const REFUSED: Duration = Duration::from_mins(1);

/// A clone is another handle on the same.
#[derive(Debug, Clone, Default)]
pub struct Workers {
    /// By uid of the worker's Pod.
    known: Arc<RwLock<BTreeMap<String, Known>>>,
    /// The runs that have found no free worker, by ConfigMap.
    wanted: Arc<RwLock<BTreeMap<String, BTreeSet<String>>>>,
    /// The ConfigMaps whose image has stated that its containers can be workers, by fingerprint: each with its name if a
    /// worker is to be made for its next run, whatever has become of the run that stated it.
    capable: Arc<RwLock<BTreeMap<String, Option<String>>>>,
    /// When the API has refused last that a worker of this namespace is given a run.
    refused: Arc<RwLock<BTreeMap<String, Instant>>>,
}

#[derive(Debug, Clone)]
struct Known {
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

/// Where a worker listens, and the key of its connections.
#[derive(Debug, Clone)]
pub struct Seat {
    pub host: String,
    pub port: u16,
    pub key: SecretString,
}

impl Workers {
    /// A worker has said how things are.
    pub fn note(&self, uid: &str, seat: &Seat, report: Report) {
        let mut all = self.lock();
        let known = all.entry(uid.to_owned()).or_insert_with(|| Known {
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
        if let Some(known) = self.lock().get_mut(uid) {
            known.is_heard = false;
        }
    }

    /// It is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Whether it can be spoken with.
    pub fn is_heard(&self, uid: &str) -> bool {
        self.lock().get(uid).is_some_and(|known| known.is_heard)
    }

    /// What it said last.
    pub fn report(&self, uid: &str) -> Option<Report> {
        self.lock().get(uid).map(|known| known.report.clone())
    }

    pub fn seat(&self, uid: &str) -> Option<Seat> {
        self.lock().get(uid).map(|known| known.seat.clone())
    }

    /// This run, of this ConfigMap, has found no free worker.
    pub fn want(&self, config: &str, run: &str) {
        let mut wanted = lock(&self.wanted);
        wanted.entry(config.to_owned()).or_default().insert(run.to_owned());
    }

    /// This run says that the image of the ConfigMap with this fingerprint can be a worker. Whether that is news: if the
    /// run has found no free worker, the next one is to find one then.
    pub fn note_capable(&self, fingerprint: &str, config: &str, run: &str) -> bool {
        let mut capable = lock(&self.capable);
        let is_news = !capable.contains_key(fingerprint);
        if is_news {
            let has_wanted = lock(&self.wanted).get(config).is_some_and(|runs| runs.contains(run));
            capable.insert(fingerprint.to_owned(), has_wanted.then(|| config.to_owned()));
        }
        is_news
    }

    /// There is a worker of the ConfigMap with this fingerprint: it was made since its image can be one.
    pub fn note_made(&self, fingerprint: &str) {
        lock(&self.capable).insert(fingerprint.to_owned(), None);
    }

    pub fn is_capable(&self, fingerprint: &str) -> bool {
        lock(&self.capable).contains_key(fingerprint)
    }

    /// A container of that image was no worker: not before the image has stated it again.
    pub fn forget_capable(&self, fingerprint: &str) {
        lock(&self.capable).remove(fingerprint);
    }

    /// Forgets ConfigMaps, and versions of them, that are gone.
    pub fn keep_capable(&self, is_there: impl Fn(&str) -> bool) {
        lock(&self.capable).retain(|fingerprint, _| is_there(fingerprint));
    }

    /// How many runs of each ConfigMap want a worker: those that have found none and go on in Pods of their own. None
    /// where workers can't be given runs.
    pub fn wanted(&self, goes_on: impl Fn(&str) -> bool) -> BTreeMap<String, usize> {
        let mut wanted = lock(&self.wanted);
        for runs in wanted.values_mut() {
            runs.retain(|run| goes_on(run));
        }
        wanted.retain(|_, runs| !runs.is_empty());
        let namespace = |config: &str| config.split_once('/').map_or("", |(namespace, _)| namespace).to_owned();
        let mut counts: BTreeMap<_, _> = wanted
            .iter()
            .filter(|(config, _)| !self.is_refused(&namespace(config)))
            .map(|(config, runs)| (config.clone(), runs.len()))
            .collect();
        drop(wanted);
        for config in lock(&self.capable).values().flatten() {
            if !self.is_refused(&namespace(config)) {
                counts.entry(config.clone()).or_insert(1);
            }
        }
        counts
    }

    /// Whether somebody waited for this run of a worker's, as far as this process knows.
    pub fn was_waited_for(&self, uid: &str, number: u64) -> bool {
        let all = self.lock();
        let taken = all.get(uid).and_then(|known| known.taken);
        taken.is_none_or(|taken| taken.number != number || taken.is_waited_for)
    }

    /// Takes a worker for its next run, if it can be given one and nobody has taken it. `is_waited_for` says whether
    /// somebody waits for that.
    pub fn take(&self, worker: &Worker, is_waited_for: bool) -> bool {
        if self.is_refused(worker.namespace()) {
            return false;
        }
        let next = worker.number() + 1;
        let mut all = self.lock();
        let Some(known) = all.get_mut(worker.uid()) else {
            return false;
        };
        let is_free = known.is_heard && known.report.is_idle() && known.report.number == worker.number();
        if !is_free || known.taken.is_some_and(|taken| taken.number == next) {
            return false;
        }
        known.taken = Some(Taken {
            number: next,
            is_waited_for,
        });
        true
    }

    /// It was not given the run after all.
    pub fn give_back(&self, worker: &Worker) {
        if let Some(known) = self.lock().get_mut(worker.uid()) {
            known.taken = None;
        }
    }

    /// The API has refused that this worker is given a run: none of its namespace is for a while. Whether that is news.
    pub fn refused(&self, worker: &Worker) -> bool {
        let namespace = worker.namespace().to_owned();
        lock(&self.refused).insert(namespace, Instant::now()).is_none()
    }

    /// This worker was given a run, so those of its namespace can be.
    pub(super) fn lent(&self, worker: &Worker, run: &str) {
        lock(&self.refused).remove(worker.namespace());
        if let Some(runs) = lock(&self.wanted).get_mut(worker.config()) {
            runs.remove(run);
        }
    }

    fn is_refused(&self, namespace: &str) -> bool {
        let last = lock(&self.refused).get(namespace).copied();
        last.is_some_and(|last| last.elapsed() < REFUSED)
    }

    fn lock(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Known>> {
        lock(&self.known)
    }
}

fn lock<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use mooring_contract::worker::{Report, RunEnd};
    use secrecy::SecretString;
    use serde_json::json;

    use super::{Seat, Workers};
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

    fn seat() -> Seat {
        Seat {
            host: "h".into(),
            port: 1,
            key: SecretString::from("k".to_owned()),
        }
    }

    #[test]
    fn a_worker_is_taken_once_for_a_run_and_only_if_it_is_known_to_wait() {
        let config = config(&[("volume-source", "csi")]);
        let workers = Workers::default();
        let given = |number: u64| {
            worker(
                &config,
                "w",
                &json!({}),
                &json!({"mooring.dev/runs": number.to_string()}),
            )
        };
        let uid = given(0).uid().to_owned();
        assert!(!workers.take(&given(0), true), "nothing was heard of it");
        workers.note(&uid, &seat(), report(0, false));
        assert!(workers.take(&given(0), true));
        assert!(!workers.take(&given(0), true), "taken twice");
        workers.give_back(&given(0));
        assert!(workers.take(&given(0), true));
        workers.note(&uid, &seat(), report(1, false));
        assert!(!workers.take(&given(1), true), "it has a run");
        workers.note(&uid, &seat(), report(1, true));
        // What another connection brings late changes nothing.
        workers.note(&uid, &seat(), report(1, false));
        workers.note(&uid, &seat(), report(0, false));
        assert_eq!(workers.report(&uid), Some(report(1, true)));
        assert!(!workers.take(&given(2), true), "its Pod says that it was given another");
        assert!(workers.take(&given(1), true));
        workers.give_back(&given(1));
        workers.lost(&uid);
        assert!(!workers.take(&given(1), true), "nothing is heard of it");
        assert_eq!(workers.report(&uid), Some(report(1, true)));
        workers.forget(&uid);
        assert_eq!(workers.report(&uid), None);
    }

    #[test]
    fn an_image_can_be_a_worker_once_it_has_stated_so_until_its_configmap_changes_or_it_was_none() {
        let workers = Workers::default();
        let note = |fingerprint: &str| workers.note_capable(fingerprint, "admin/c", "admin/provision-u1");
        assert!(!workers.is_capable("a"));
        assert!(note("a") && note("b") && !note("a"));
        workers.keep_capable(|fingerprint| fingerprint == "a");
        assert!(workers.is_capable("a") && !workers.is_capable("b"));
        workers.forget_capable("a");
        assert!(note("a"), "not news again");
        workers.note_made("b");
        assert!(workers.is_capable("b"));
    }

    #[test]
    fn the_run_that_states_it_has_a_worker_made_for_the_next_though_it_has_ended_if_it_could_have_had_one() {
        let workers = Workers::default();
        let config = "admin/c".to_owned();
        workers.want(&config, "admin/provision-u1");
        workers.note_capable("other", &config, "admin/discover-c1");
        workers.note_capable("a", &config, "admin/provision-u1");
        for _ in 0..2 {
            assert_eq!(workers.wanted(|_| false), [(config.clone(), 1)].into());
        }
        workers.note_made("a");
        assert_eq!(workers.wanted(|_| false), [].into(), "it is there");
        workers.note_capable("b", &config, "admin/discover-c1");
        assert_eq!(workers.wanted(|_| false), [].into(), "nobody waits for a discovery");
    }

    #[test]
    fn whether_somebody_waits_for_a_run_is_known_of_the_last_one_that_a_worker_was_taken_for() {
        let config = config(&[("volume-source", "csi")]);
        let worker = worker(&config, "w", &json!({}), &json!({}));
        let workers = Workers::default();
        workers.note(worker.uid(), &seat(), report(0, false));
        for is_waited_for in [false, true, false] {
            assert!(workers.take(&worker, is_waited_for));
            assert_eq!(workers.was_waited_for(worker.uid(), 1), is_waited_for);
            workers.give_back(&worker);
        }
    }

    #[test]
    fn after_a_refusal_no_worker_of_the_namespace_is_taken_for_a_while_and_only_the_first_is_news() {
        let config = config(&[("volume-source", "csi")]);
        let (one, other) = ["1", "2"]
            .map(|name| worker(&config, name, &json!({}), &json!({})))
            .into();
        let workers = Workers::default();
        for worker in [&one, &other] {
            workers.note(worker.uid(), &seat(), report(0, false));
        }
        assert!(workers.take(&one, true));
        assert!(workers.refused(&one));
        assert!(!workers.refused(&one));
        workers.give_back(&one);
        assert!(!workers.take(&one, true) && !workers.take(&other, true));
        workers.lent(&other, "admin/provision-u1");
        assert!(workers.take(&one, true));
        assert!(workers.refused(&one));
    }

    #[test]
    fn a_run_wants_a_worker_from_when_it_found_none_to_its_end_or_until_one_has_it() {
        let config = config(&[("volume-source", "csi")]);
        let (workers, worker) = (Workers::default(), worker(&config, "w", &json!({}), &json!({})));
        let of = worker.config().to_owned();
        for run in ["admin/provision-u1", "admin/provision-u2", "admin/provision-u1"] {
            workers.want(&of, run);
        }
        let count = |goes_on: fn(&str) -> bool| workers.wanted(goes_on).get(&of).copied().unwrap_or(0);
        assert_eq!(count(|_| true), 2);
        // Another would not be given one either.
        workers.refused(&worker);
        assert_eq!(count(|_| true), 0);
        workers.lent(&worker, "admin/provision-u2");
        assert_eq!(count(|_| true), 1);
        assert_eq!(count(|_| false), 0);
        assert_eq!(count(|_| true), 0, "it has ended");
    }
}
