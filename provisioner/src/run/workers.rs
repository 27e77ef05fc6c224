//! What is known of the workers beside what the API says.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::worker::Worker;
use super::worker_set::WorkerSet;
use crate::config::ProvisionerConfig;

mod capable_images;
mod contacts;
mod demand;
mod refusals;

pub use self::capable_images::CapableImages;
pub use self::contacts::{Contacts, Seat};
pub use self::demand::{Demand, WorkerPatience};
pub use self::refusals::Refusals;

/// A clone is another handle on the same.
#[derive(Debug, Clone, Default)]
pub struct Workers {
    pub contacts: Contacts,
    pub demand: Demand,
    pub capable: CapableImages,
    pub refusals: Refusals,
}

impl Workers {
    /// This run says that the image of the ConfigMap with this fingerprint can be a worker. Whether that is news: if the
    /// run has found no free worker, the next one is to find one then.
    pub fn note_capable(&self, fingerprint: &str, run: &str) -> bool {
        self.capable.note(fingerprint, self.demand.of(run))
    }

    /// How many runs want a worker of each set: those that have found none, and wait or go on in Pods of their own. None
    /// where workers can't be given runs.
    pub fn wanted(&self, goes_on: impl Fn(&str) -> bool) -> BTreeMap<WorkerSet, usize> {
        let mut wanted = self.demand.counts(goes_on);
        for set in self.capable.first_sets() {
            wanted.entry(set).or_insert(1);
        }
        wanted.retain(|set, _| !self.refusals.hold(&set.config));
        wanted
    }

    /// How much longer to wait for one of these workers, which are busy, for a run that has waited since this time:
    /// [`Demand::patience`].
    pub fn patience(
        &self,
        set: &WorkerSet,
        since: Instant,
        patience: WorkerPatience,
        busy: impl IntoIterator<Item = Worker>,
    ) -> Option<Duration> {
        let is_heard = busy.into_iter().any(|worker| self.contacts.is_heard(worker.uid()));
        let is_worth_it = is_heard && !self.refusals.hold(&set.config);
        self.demand.patience(set, since, patience).filter(|_| is_worth_it)
    }

    /// Whether it would be taken for a run now.
    pub fn is_free(&self, worker: &Worker) -> bool {
        let can_have_run = !worker.has_run() && !worker.is_leaving() && !self.refusals.hold(worker.config());
        can_have_run && self.contacts.is_free(worker)
    }

    /// Takes a worker for its next run, if it can be given one and nobody has taken it. `is_waited_for` says whether
    /// somebody waits for that.
    pub fn take(&self, worker: &Worker, is_waited_for: bool) -> bool {
        let is_taken = self.is_free(worker) && self.contacts.take(worker, is_waited_for);
        if is_taken {
            self.demand.served(worker.set());
        }
        is_taken
    }

    /// Whether a worker gets no further run: its last one failed, and what it has mounted of a server stays as it was.
    /// By now the Secret may be another one, or the server's directory.
    pub fn is_spent(&self, config: &ProvisionerConfig, worker: &Worker) -> bool {
        config.backend_volume.is_some() && !config.is_node_local() && self.contacts.has_failed(worker.uid())
    }

    /// This worker was given a run, so others of its ConfigMap can be.
    pub(super) fn lent(&self, worker: &Worker, run: &str) {
        self.refusals.lift(worker.config());
        self.demand.forget(run);
    }
}

fn lock<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use mooring_contract::volume::Volume;
    use mooring_contract::worker::{Report, RunEnd};
    use secrecy::SecretString;
    use serde_json::json;

    use super::{Seat, Workers};
    use crate::operation::tests::config;
    use crate::run::worker_pod::tests::worker;
    use crate::run::worker_set::WorkerSet;

    pub(super) fn seat() -> Seat {
        Seat {
            host: "h".into(),
            port: 1,
            key: SecretString::from("k".to_owned()),
        }
    }

    fn on(node: &str) -> WorkerSet {
        WorkerSet {
            config: "admin/c".to_owned(),
            node: Some(node.to_owned()),
        }
    }

    #[test]
    fn the_run_that_states_it_has_a_worker_made_for_the_next_though_it_has_ended_if_it_could_have_had_one() {
        let workers = Workers::default();
        workers.demand.note("admin/provision-u1", on("a"));
        workers.note_capable("other", "admin/discover-c1");
        workers.note_capable("a", "admin/provision-u1");
        for _ in 0..2 {
            assert_eq!(workers.wanted(|_| false), [(on("a"), 1)].into());
        }
        workers.capable.note_made("a");
        assert_eq!(workers.wanted(|_| false), [].into(), "it is there");
        workers.note_capable("b", "admin/discover-c1");
        assert_eq!(workers.wanted(|_| false), [].into(), "nobody waits for a discovery");
    }

    #[test]
    fn a_worker_that_has_a_server_mounted_gets_no_run_after_one_that_failed() {
        let failed = |exit_code| Report {
            number: 1,
            ended: Some(RunEnd {
                exit_code,
                message: String::new(),
                timed_out: false,
            }),
        };
        let server = "client=smb,source=//h/s";
        for (backend, exit_code, expected) in [
            (Some(server), 75, true),
            (Some(server), 0, false),
            // What a user asked for can't be.
            (Some(server), 78, false),
            (Some("client=pool"), 75, false),
            (None, 75, false),
        ] {
            let mut config = config(&[("volume-source", "csi")]);
            config.backend_volume = backend.and_then(|line| Volume::from_line(line).ok());
            assert_eq!(config.backend_volume.is_some(), backend.is_some());
            let worker = worker(&config, "w", &json!({}), &json!({}));
            let workers = Workers::default();
            workers.contacts.note(worker.uid(), &seat(), failed(exit_code));
            assert_eq!(workers.is_spent(&config, &worker), expected, "{backend:?} {exit_code}");
        }
    }

    #[test]
    fn after_a_refusal_no_worker_is_taken_or_wanted_until_one_was_given_a_run() {
        let config = config(&[("volume-source", "csi")]);
        let (one, other) = ["1", "2"]
            .map(|name| worker(&config, name, &json!({}), &json!({})))
            .into();
        let workers = Workers::default();
        for worker in [&one, &other] {
            workers.contacts.note(worker.uid(), &seat(), Report::default());
        }
        workers.demand.note("admin/provision-u1", one.set());
        workers.demand.note("admin/provision-u2", one.set());
        assert_eq!(workers.wanted(|_| true), [(one.set(), 2)].into());
        assert!(workers.take(&one, true));
        workers.refusals.note(&one, true);
        workers.contacts.give_back(&one);
        assert!(!workers.take(&one, true) && !workers.take(&other, true));
        assert_eq!(
            workers.wanted(|_| true),
            [].into(),
            "another would not be given one either"
        );
        workers.lent(&other, "admin/provision-u1");
        assert!(workers.take(&one, true));
        assert_eq!(workers.wanted(|_| true), [(one.set(), 1)].into());
    }
}
