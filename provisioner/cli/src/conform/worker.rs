//! A worker of the image, to which the kit gives runs as the controller does.
//!
//! It has a run from its beginning to its end: a worker that waits for one, and that no ConfigMap asks for, is removed
//! by the controller of the cluster.

use std::sync::Arc;
use std::time::Duration;

use flex_provisioner::process::call::{Answer as _, is_there};
use flex_provisioner::run::begin::Prepared;
use flex_provisioner::run::connection::{Connection, WorkerError};
use flex_provisioner::run::error::RunError;
use flex_provisioner::run::outcome::{Category, Finish, State};
use flex_provisioner::run::worker::Worker;
use flex_provisioner::run::workers::{Seat, Workers};
use flex_provisioner::run::{Run, end, worker_pod};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use mooring_contract::worker::{Ask as Question, PORT, Report};
use mooring_program::error::chain;
use tokio::time::{Instant, sleep};

use super::error::{KitError, RigError, fault};
use super::rig::{PERIOD, Rig, SLACK};
use super::runs::Ask;
use super::tunnel::Tunnel;

/// How long a worker that runs may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a vendor has to do about an image that is no worker.
const CURE: &str = "have it run \"pv serve\" where OPERATION is \"serve\", before anything else";

/// A worker that was made for runs of the kit. Whoever made it has to [`Self::dismiss`] it.
pub(super) struct Hired<'r> {
    rig: &'r Rig,
    /// As it was made.
    pod: Arc<Pod>,
    /// What it said last.
    workers: Workers,
    /// How it is reached, once it has answered.
    reached: Option<(Seat, Tunnel)>,
}

impl<'r> Hired<'r> {
    /// Makes a worker, which has this run first.
    pub(super) async fn make(rig: &'r Rig, first: &Ask<'_>) -> Result<Self, RigError> {
        let (id, request) = (Rig::id(first), rig.request(first)?);
        let made = worker_pod::make_with(&rig.controller, &rig.order(&id, first, &request)).await?;
        Ok(Self {
            rig,
            pod: Arc::new(made),
            workers: Workers::default(),
            reached: None,
        })
    }

    /// Has it carry out these runs, the first of which is that which it was made with.
    pub(super) async fn carry_out(&mut self, asks: &[Ask<'_>]) -> Result<Vec<Finish>, KitError> {
        self.reach().await?;
        let mut finishes = Vec::new();
        for (nth, ask) in asks.iter().enumerate() {
            let run = self.begin(ask, nth == 0).await?;
            finishes.push(self.finish(&run).await?);
        }
        Ok(finishes)
    }

    /// Has it carry out the run that it was made with, and begin another; returns when this share of the first one's
    /// time has passed.
    pub(super) async fn begin_second(
        &mut self,
        first: &Ask<'_>,
        second: &Ask<'_>,
        share: f64,
    ) -> Result<Finish, KitError> {
        self.reach().await?;
        let begin = Instant::now();
        let run = self.begin(first, true).await?;
        let finish = self.finish(&run).await?;
        let usual = begin.elapsed();
        self.begin(second, false).await?;
        sleep(usual.mul_f64(share)).await;
        Ok(finish)
    }

    /// Removes it, and waits until it is gone. Its Secret goes with it.
    pub(super) async fn dismiss(self) -> Result<(), RigError> {
        let run = Run::of(self.pod.clone());
        end::end(&self.rig.controller, &run.to_remove()).await?;
        let deadline = Instant::now() + SLACK;
        while is_there(&self.pods(), &self.name(), &self.uid()).await? {
            if Instant::now() > deadline {
                return Err(self.late(SLACK, "it is being removed".to_owned()));
            }
            sleep(PERIOD).await;
        }
        Ok(())
    }

    /// Waits until it answers.
    async fn reach(&mut self) -> Result<(), KitError> {
        let key = worker_pod::key_of(&self.rig.controller, &as_worker(&self.pod)?).await;
        let key = key.map_err(RigError::from)?;
        let namespace = &self.rig.setup.config.reference.namespace;
        let tunnel = Tunnel::open(&self.rig.user, namespace, &self.name()).await;
        let tunnel = tunnel.map_err(RigError::Tunnel)?;
        let (host, port) = ("127.0.0.1".to_owned(), tunnel.port());
        self.reached = Some((Seat { host, port, key }, tunnel));
        let start = Instant::now() + SLACK;
        let mut answer = None;
        loop {
            let worker = as_worker(&self.seen().await?)?;
            if let Some(end) = worker.end() {
                return Err(self.ended(end, |why| {
                    format!("a worker of the image ended at its start: {why}; {CURE}")
                }));
            }
            if worker.address().is_some() {
                let deadline = *answer.get_or_insert_with(|| Instant::now() + PATIENCE);
                // No worker's first answer is this one.
                let never = Report {
                    number: u64::MAX,
                    ended: None,
                };
                match self.ask(never).await {
                    Ok(()) => return Ok(()),
                    Err(error) if Instant::now() > deadline => return Err(self.silent(&error)),
                    Err(_) => {}
                }
            } else if Instant::now() > start {
                let why = worker.waits_for().unwrap_or_else(|| "it has not started".to_owned());
                return Err(self.late(SLACK, why).into());
            }
            sleep(PERIOD).await;
        }
    }

    /// Gives it a run, with which it begins. The connection ends with that, so it is by another one that the kit hears
    /// of the run's end.
    async fn begin(&self, ask: &Ask<'_>, is_first: bool) -> Result<Run, KitError> {
        let (id, request) = (Rig::id(ask), self.rig.request(ask)?);
        let order = self.rig.order(&id, ask, &request);
        let prepared = Prepared::new(&self.rig.controller, &self.workers, order).await;
        let prepared = prepared.map_err(RigError::from)?;
        let deadline = Instant::now() + PATIENCE;
        let run = loop {
            let pod = self.seen().await?;
            if is_first {
                break Run::of(pod);
            }
            match prepared.lend(&as_worker(&pod)?).await {
                Ok(run) => break run,
                // Its kubelet has written on it in between.
                Err(RunError::Changed(_)) if Instant::now() < deadline => {}
                Err(error) => return Err(RigError::from(error).into()),
            }
        };
        loop {
            match prepared.hand_over(&run, true).await {
                Ok(()) => return Ok(run),
                Err(RunError::Worker(error)) if Instant::now() > deadline => return Err(self.silent(&error)),
                Err(RunError::Worker(_)) => self.must_be_there().await?,
                Err(error) => return Err(RigError::from(error).into()),
            }
            sleep(PERIOD).await;
        }
    }

    /// Waits until it says how this run ended.
    async fn finish(&self, run: &Run) -> Result<Finish, KitError> {
        let limit = self.rig.setup.config.timeout + SLACK;
        let deadline = Instant::now() + limit;
        loop {
            let known = self.workers.contacts.report(&self.uid()).unwrap_or_default();
            if let State::Finished(finish) = run.clone().reported(Some(known.clone())).state() {
                return Ok(finish);
            }
            if Instant::now() > deadline {
                return Err(self.late(limit, "its run goes on".to_owned()).into());
            }
            if self.ask(known).await.is_err() {
                self.must_be_there().await?;
                sleep(PERIOD).await;
            }
        }
    }

    /// Asks it, over a connection of its own, how things are as soon as that is something else.
    async fn ask(&self, known: Report) -> Result<(), WorkerError> {
        let Some((seat, _)) = &self.reached else {
            return Err(WorkerError::Silent);
        };
        let report = Connection::open(seat).await?.ask(&Question::Watch(known)).await?;
        self.workers.contacts.note(&self.uid(), seat, report);
        Ok(())
    }

    /// Fails if the worker has ended, which no run may have it do.
    async fn must_be_there(&self) -> Result<(), KitError> {
        match as_worker(&self.seen().await?)?.end() {
            Some(end) => Err(self.ended(end, |why| {
                format!(
                    "the worker ended while it had a run: {why}; have \"pv serve\" be the container's first process \
                     (exec), and let no run end it"
                )
            })),
            None => Ok(()),
        }
    }

    /// That it has ended: by the image's fault, in these words, or by the cluster's.
    fn ended(&self, end: Finish, fault_of_image: impl FnOnce(&str) -> String) -> KitError {
        if end.category.is_own_end() || end.category == Category::OutOfMemory {
            return fault(fault_of_image(&end.why));
        }
        let lost = RigError::Lost {
            name: self.name(),
            times: 1,
            why: end.why,
        };
        lost.into()
    }

    /// Its Pod as it is now.
    async fn seen(&self) -> Result<Arc<Pod>, RigError> {
        let pod = self.pods().get(&self.name()).await;
        Ok(Arc::new(pod.or_failed_to("read", "Pod", &self.name())?))
    }

    /// Why it does not answer: by the image's fault, or since the API lets nobody through.
    fn silent(&self, error: &WorkerError) -> KitError {
        if let Some(refused) = self.reached.as_ref().and_then(|(_, tunnel)| tunnel.refused()) {
            return RigError::from(refused).into();
        }
        let why = match error {
            // Its address is that of the tunnel.
            WorkerError::Connect { source, .. } => source.to_string(),
            other => chain(other),
        };
        fault(format!(
            "a worker of the image runs, but does not answer on port {PORT} ({why}); {CURE}"
        ))
    }

    fn late(&self, limit: Duration, state: String) -> RigError {
        RigError::NoEnd {
            name: self.name(),
            limit,
            state,
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.rig.controller.clone(), &self.rig.setup.config.reference.namespace)
    }

    fn name(&self) -> String {
        self.pod.name_any()
    }

    fn uid(&self) -> String {
        self.pod.uid().unwrap_or_default()
    }
}

fn as_worker(pod: &Arc<Pod>) -> Result<Worker, RigError> {
    Worker::of(pod).ok_or_else(|| RigError::Occupied(pod.name_any()))
}
