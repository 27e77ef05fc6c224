//! Keeps as many workers as runs want and each ConfigMap allows, and a connection to each. The first run that finds none
//! has one started; one that has had no run for some time goes.
//!
//! Workers only make runs quicker: what goes wrong with them is told on the ConfigMap, and runs have Pods of their own
//! meanwhile. So nothing else waits for this.

use super::retry::woken;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use mooring_contract::worker::{Ask, Report};
use mooring_program::error::chain;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::apply::{self, Shared, remove_worker};
use crate::cache::expectations::Fact;
use crate::cache::watches::wake_by_worker;
use crate::cache::work_queue::WorkQueue;
use crate::config::ProvisionerConfig;
use crate::process::objects::Objects;
use crate::run::connection::{Connection, WorkerError};
use crate::run::error::RunError;
use crate::run::worker::Worker;
use crate::run::worker_pod;
use crate::run::worker_set::WorkerSet;
use crate::run::workers::Seat;

/// Name of this loop in its spans and metrics.
const CONTROLLER: &str = "workers";

/// Longest time without a look.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Shortest time from one look to the next that is due.
const SOON: Duration = Duration::from_millis(100);

/// How soon a look is repeated, and a connection that broke is made again.
const RETRY: Duration = Duration::from_secs(1);

/// How soon a call is repeated that the API refused.
const REFUSED: Duration = Duration::from_secs(10);

/// How long a worker that was made may stay unseen before it is taken for lost.
const UNSEEN: Duration = Duration::from_secs(10);

/// First and longest wait before a worker is made in place of one that ended before it could be spoken with.
const REMAKE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// How long a worker may take to start and to be reached before its ConfigMap tells of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps workers until `stop`. They stay: the next leader finds them.
pub(super) async fn run(shared: Shared, queue: WorkQueue, stop: CancellationToken) {
    let mut changes = shared.context.configs.subscribe();
    let mut keeper = Keeper::new(shared.clone(), queue);
    let mut next = Instant::now();
    while woken(&stop, &mut changes, shared.cache.workers_changed(), next).await {
        let after = Box::pin(keeper.turn())
            .instrument(info_span!("turn", controller = CONTROLLER))
            .await;
        next = Instant::now() + after;
    }
}

/// What to do about all workers.
#[derive(Debug, Default)]
struct Plan {
    make: Vec<(Arc<ProvisionerConfig>, WorkerSet)>,
    remove: Vec<Worker>,
}

/// How many workers of a set stay, and how many of them have a run.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    all: usize,
    busy: usize,
}

/// One worker is not needed any more if its ConfigMap has changed, asks for fewer, or is gone, or if it has been idle for
/// so long or `is_spent`. A worker that has a run stays until that is over. `limit` says how many of a ConfigMap's set
/// there may be, and `wanted` how many runs have found no free worker of each set.
fn plan(
    configs: &[Arc<ProvisionerConfig>],
    workers: &[Worker],
    limit: impl Fn(&ProvisionerConfig, &WorkerSet) -> usize,
    wanted: &BTreeMap<WorkerSet, usize>,
    idle: impl Fn(&Worker) -> Duration,
    is_spent: impl Fn(&ProvisionerConfig, &Worker) -> bool,
) -> Plan {
    let mut plan = Plan::default();
    let mut kept: BTreeMap<WorkerSet, Kept> = wanted.keys().map(|set| (set.clone(), Kept::default())).collect();
    let needed = |worker: &Worker| configs.iter().find(|config| worker.is_for(config));
    // Those with a run first: what is one too many is then one that waits.
    let (busy, free): (Vec<_>, Vec<_>) = workers
        .iter()
        .filter(|worker| !worker.is_leaving())
        .partition(|worker| worker.has_run());
    for worker in busy.into_iter().chain(free) {
        let set = worker.set();
        let counted = kept.entry(set.clone()).or_default();
        let is_needed = needed(worker).is_some_and(|config| {
            let is_useful = idle(worker) < config.workers_idle && !is_spent(config, worker);
            counted.all < limit(config, &set) && (worker.has_run() || is_useful)
        });
        if is_needed && !worker.is_over() {
            counted.all += 1;
            counted.busy += usize::from(worker.has_run());
        } else if !worker.has_run() {
            plan.remove.push(worker.clone());
        }
    }
    for (set, kept) in kept {
        let of = configs.iter().find(|config| config.reference.to_string() == set.config);
        let Some(config) = of else { continue };
        let wanted = kept.busy + wanted.get(&set).copied().unwrap_or(0);
        let missing = kept.all..wanted.min(limit(config, &set));
        plan.make.extend(missing.map(|_| (config.clone(), set.clone())));
    }
    plan
}

/// Workers of a version of a ConfigMap that ended before they could be spoken with.
#[derive(Debug)]
struct Trouble {
    times: u32,
    not_before: Instant,
    /// When the last of them was made.
    made: Timestamp,
}

pub(super) struct Keeper {
    shared: Shared,
    queue: WorkQueue,
    /// One task for each worker, which ends with it.
    attendants: JoinSet<()>,
    /// Who ends it, by uid of the worker's Pod.
    attended: BTreeMap<String, CancellationToken>,
    /// By the ConfigMap's fingerprint.
    troubles: BTreeMap<String, Trouble>,
    /// The worker of each set that has been made and is not seen yet, by name, and until when it may be.
    unseen: BTreeMap<WorkerSet, (String, Instant)>,
    /// Since when this controller has waited for a word of a worker, by its uid; `None` once its ConfigMap has told of it.
    silent: BTreeMap<String, Option<Instant>>,
    /// Since when each worker has had no run that somebody waited for, and the number of its last run, by its uid.
    idle: BTreeMap<String, (Instant, u64)>,
}

impl Keeper {
    pub(super) fn new(shared: Shared, queue: WorkQueue) -> Self {
        Self {
            shared,
            queue,
            attendants: JoinSet::new(),
            attended: BTreeMap::new(),
            troubles: BTreeMap::new(),
            unseen: BTreeMap::new(),
            silent: BTreeMap::new(),
            idle: BTreeMap::new(),
        }
    }

    /// One look at everything; says when the next is due if nothing changes.
    pub(super) async fn turn(&mut self) -> Duration {
        let configs = &self.shared.context.configs;
        if !configs.is_synced() {
            return RETRY;
        }
        let all = configs.all();
        let cache = self.shared.cache.clone();
        let is_there = |fingerprint: &str| all.iter().any(|config| config.fingerprint == fingerprint);
        cache.workers.capable.keep(is_there);
        let listed: Vec<_> = all
            .into_iter()
            .filter(|config| cache.knows_runs_of(&config.reference.namespace))
            .collect();
        let workers: Vec<Worker> = cache.all_workers().collect();
        for worker in workers
            .iter()
            .filter(|worker| !worker.is_leaving() && !worker.is_over())
        {
            cache.workers.capable.note_made(worker.fingerprint());
        }
        self.attend(&workers);
        self.tell(&listed, &workers);
        self.count(&listed, &workers);
        self.note_idle(&workers);
        self.unseen
            .retain(|_, (name, _)| workers.iter().all(|worker| worker.name() != *name));
        // In this order: a run that is seen meanwhile is known.
        let limiter = &self.shared.limiter;
        let goes_on = |run: &str| limiter.waits(run) || limiter.unseen(run).is_some() || cache.has_own_pod(run);
        let wanted = cache.workers.wanted(goes_on);
        let idle = |worker: &Worker| {
            self.idle
                .get(worker.uid())
                .map_or(Duration::ZERO, |(since, _)| since.elapsed())
        };
        let limit = |config: &ProvisionerConfig, set: &WorkerSet| {
            let is_node_gone = set.node.as_deref().is_some_and(|node| cache.node(node).is_none());
            if is_node_gone {
                0
            } else {
                config.workers(cache.workers.capable.has(&config.fingerprint))
            }
        };
        let Plan { make, remove } = plan(&listed, &workers, limit, &wanted, idle, |config, worker| {
            cache.workers.is_spent(config, worker)
        });
        let mut after = LOOK_AGAIN;
        for config in &listed {
            let of_it = workers
                .iter()
                .filter(|worker| worker.is_for(config) && !worker.has_run() && !worker.is_leaving())
                // What can't be removed is tried again later.
                .filter(|worker| remove.iter().all(|other| other.uid() != worker.uid()));
            let left = of_it.map(|worker| config.workers_idle.saturating_sub(idle(worker)));
            after = left.fold(after, Duration::min).max(SOON);
        }
        if workers
            .iter()
            .any(|worker| !cache.workers.contacts.is_heard(worker.uid()))
        {
            after = after.min(PATIENCE / 6);
        }
        for worker in &remove {
            if self.shared.expectations.is(worker.uid(), Fact::Deleted) {
                continue;
            }
            self.note_end(&listed, worker);
            if let Err(error) = remove_worker(&self.shared, worker).await {
                after = after.min(retry(&error, "failed to remove a worker; trying again"));
            }
        }
        for (config, set) in make {
            match self.due(&config, &set) {
                Some(left) => after = after.min(left),
                None => {
                    if let Err(error) = self.make(&config, set).await {
                        after = after.min(retry(&error, "failed to make a worker; trying again"));
                    }
                }
            }
        }
        after
    }

    fn note_idle(&mut self, workers: &[Worker]) {
        self.idle
            .retain(|uid, _| workers.iter().any(|worker| worker.uid() == uid));
        for worker in workers {
            let number = worker.number();
            let (since, last) = self
                .idle
                .entry(worker.uid().to_owned())
                .or_insert_with(|| (Instant::now(), number));
            let is_used = worker.has_run() || *last != number;
            if is_used && self.shared.cache.workers.contacts.was_waited_for(worker.uid(), number) {
                *since = Instant::now();
            }
            *last = number;
        }
    }

    /// Makes one, and no second before its watch has shown it; none on a node that is cordoned.
    async fn make(&mut self, config: &ProvisionerConfig, set: WorkerSet) -> Result<(), RunError> {
        let name = worker_pod::new_name(config, Timestamp::now());
        let node = set.node.clone();
        self.unseen.insert(set, (name.clone(), Instant::now() + UNSEEN));
        if let Some(node) = &node
            && is_cordoned(&self.shared, node).await?
        {
            return Ok(());
        }
        worker_pod::make(&self.shared.context.client, config, node.as_deref(), &name).await?;
        info!(config = %config.reference, worker = name, node, "made a worker");
        Ok(())
    }

    /// How long no worker of this set is made, if there is a reason to wait.
    fn due(&self, config: &ProvisionerConfig, set: &WorkerSet) -> Option<Duration> {
        let unseen = self.unseen.get(set).map(|(_, until)| *until);
        let trouble = self.troubles.get(&config.fingerprint);
        let not_before = unseen.max(trouble.map(|trouble| trouble.not_before))?;
        let left = not_before.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }

    /// A worker that ended before anybody could speak with it makes the next one wait. Only one that ended by itself
    /// shows that its image can't be a worker.
    fn note_end(&mut self, configs: &[Arc<ProvisionerConfig>], worker: &Worker) {
        let config = configs.iter().find(|config| worker.is_for(config));
        let (Some(config), Some(end)) = (config, worker.end()) else {
            return;
        };
        let workers = &self.shared.cache.workers;
        // The leader before may have.
        if workers.contacts.report(worker.uid()).is_some() || worker.number() > 0 {
            return;
        }
        let trouble = self.troubles.entry(config.fingerprint.clone()).or_insert(Trouble {
            times: 0,
            not_before: Instant::now(),
            made: worker.made(),
        });
        let wait = REMAKE
            .0
            .saturating_mul(2_u32.saturating_pow(trouble.times))
            .min(REMAKE.1);
        trouble.times += 1;
        trouble.not_before = Instant::now() + wait;
        trouble.made = trouble.made.max(worker.made());
        let why = end.why;
        let text = if end.category.is_own_end() {
            workers.capable.forget(&config.fingerprint);
            format!(
                "a worker ended at its start: {why}. Its image has to run \"pv serve\" where OPERATION is \"serve\"; \
                 until then each run has a Pod of its own"
            )
        } else {
            workers.capable.note_made(&config.fingerprint);
            format!("a worker ended at its start: {why}. Until there is another, each run has a Pod of its own")
        };
        apply::report_workers(&self.shared, config, text);
    }

    /// Tells of workers that are not ready after some time.
    fn tell(&mut self, configs: &[Arc<ProvisionerConfig>], workers: &[Worker]) {
        let known = &self.shared.cache.workers.contacts;
        self.silent
            .retain(|uid, _| workers.iter().any(|worker| worker.uid() == uid));
        for worker in workers {
            let config = configs.iter().find(|config| worker.is_for(config));
            let Some(config) = config.filter(|_| !worker.is_leaving() && !worker.is_over()) else {
                continue;
            };
            if known.is_heard(worker.uid()) {
                let is_earlier = |trouble: &Trouble| trouble.made < worker.made();
                if self.troubles.get(&config.fingerprint).is_some_and(is_earlier) {
                    self.troubles.remove(&config.fingerprint);
                }
                self.silent.remove(worker.uid());
                continue;
            }
            let since = self.silent.entry(worker.uid().to_owned());
            let since = since.or_insert_with(|| Some(Instant::now()));
            if since.is_none_or(|since| since.elapsed() < PATIENCE) {
                continue;
            }
            *since = None;
            let place = worker.place();
            let text = match (worker.waits_for(), worker.address()) {
                (Some(why), _) => format!("worker {place} has not started: {why}"),
                (None, Some((host, port))) => format!(
                    "worker {place} can't be reached at {host} port {port}: let flex-provisioner connect to it \
                     (NetworkPolicy), and have its image run \"pv serve\" where OPERATION is \"serve\""
                ),
                (None, None) => format!("worker {place} has not started"),
            };
            let text = format!("{text}. Until then each run has a Pod of its own");
            apply::report_workers(&self.shared, config, text);
        }
    }

    fn count(&self, configs: &[Arc<ProvisionerConfig>], workers: &[Worker]) {
        let known = &self.shared.cache.workers;
        let is_spent = |worker: &Worker| {
            let mut of = configs.iter().filter(|config| worker.is_for(config));
            of.any(|config| known.is_spent(config, worker))
        };
        let state = |worker: &&Worker| {
            if known.contacts.is_heard(worker.uid()) {
                if known.is_free(worker) && !is_spent(worker) {
                    "free"
                } else {
                    "busy"
                }
            } else if worker.address().is_some() {
                "unreachable"
            } else {
                "starting"
            }
        };
        let counts = ["starting", "free", "busy", "unreachable"]
            .map(|wanted| (wanted, workers.iter().filter(|worker| state(worker) == wanted).count()));
        self.shared.context.metrics.set_workers(counts);
    }

    /// Has one task listen to each worker.
    fn attend(&mut self, workers: &[Worker]) {
        while self.attendants.try_join_next().is_some() {}
        self.attended.retain(|uid, end| {
            let is_there = workers.iter().any(|worker| worker.uid() == uid && !worker.is_over());
            if !is_there {
                end.cancel();
            }
            is_there
        });
        for worker in workers.iter().filter(|worker| !worker.is_over()) {
            let Some(address) = worker.address() else { continue };
            if self.attended.contains_key(worker.uid()) {
                continue;
            }
            let end = CancellationToken::new();
            self.attended.insert(worker.uid().to_owned(), end.clone());
            let (shared, queue, worker) = (self.shared.clone(), self.queue.clone(), worker.clone());
            let span = info_span!("attend", controller = CONTROLLER, worker = worker.place());
            self.attendants.spawn(
                async move {
                    tokio::select! {
                        () = end.cancelled() => {}
                        () = listen(&shared, &queue, &worker, address) => {}
                    }
                    shared.cache.workers.contacts.lost(worker.uid());
                }
                .instrument(span),
            );
        }
    }
}

/// Why no worker could be listened to.
#[derive(Debug, thiserror::Error)]
enum ListenError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// Listens to one worker for as long as it is there.
async fn listen(shared: &Shared, queue: &WorkQueue, worker: &Worker, address: (String, u16)) {
    let (host, port) = address;
    loop {
        let key = worker_pod::key_of(&shared.context.client, worker).await;
        let heard = match key {
            Ok(key) => {
                let host = host.clone();
                hear(shared, queue, worker.uid(), Seat { host, port, key }).await
            }
            Err(error) => ListenError::Run(error),
        };
        shared.cache.workers.contacts.lost(worker.uid());
        shared.cache.wake_keeper();
        debug!(error = chain(&heard), "lost a worker; trying again");
        sleep(RETRY).await;
    }
}

/// Takes in what a worker says until the connection breaks.
async fn hear(shared: &Shared, queue: &WorkQueue, uid: &str, seat: Seat) -> ListenError {
    let listening = async {
        let mut connection = Connection::open(&seat).await?;
        // No worker's first answer is this one.
        let mut known = Report {
            number: u64::MAX,
            ended: None,
        };
        loop {
            let report = connection.ask(&Ask::Watch(known.clone())).await?;
            let is_news = report != known;
            shared.cache.workers.contacts.note(uid, &seat, report.clone());
            if is_news {
                wake_by_worker(&shared.cache, queue, uid);
            }
            known = report;
        }
    };
    let ended: Result<std::convert::Infallible, WorkerError> = listening.await;
    match ended {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

/// Logs what failed, and says when to try again.
fn retry(error: &RunError, what: &'static str) -> Duration {
    if error.category() == "conflict" {
        return RETRY;
    }
    warn!(error = chain(error), "{what}");
    REFUSED
}

/// Whether a node is being emptied, or is gone. Runs go there all the same, but nothing that stays.
async fn is_cordoned(shared: &Shared, node: &str) -> Result<bool, RunError> {
    let nodes: Objects<Node> = Objects::all(&shared.context.client);
    let found = nodes.read(node).await?;
    Ok(found.is_none_or(|node| node.spec.is_some_and(|spec| spec.unschedulable == Some(true))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::plan;
    use crate::config::ProvisionerConfig;
    use crate::operation::tests::config;
    use crate::run::worker::Worker;
    use crate::run::worker_pod::tests::{busy, worker, worker_on};
    use crate::run::worker_set::WorkerSet;

    fn with(workers: usize, fingerprint: &str) -> Arc<ProvisionerConfig> {
        let mut config = config(&[("volume-source", "csi")]);
        config.workers = Some(workers);
        config.fingerprint = fingerprint.to_owned();
        Arc::new(config)
    }

    fn seen(config: &ProvisionerConfig, name: &str, labels: &Value) -> Worker {
        worker(config, name, labels, &json!({}))
    }

    fn set_of(config: &ProvisionerConfig, node: Option<&str>) -> WorkerSet {
        WorkerSet {
            config: config.reference.to_string(),
            node: node.map(str::to_owned),
        }
    }

    /// There is no node "gone".
    fn limit(config: &ProvisionerConfig, set: &WorkerSet) -> usize {
        match set.node.as_deref() {
            Some("gone") => 0,
            _ => config.workers(false),
        }
    }

    /// How many are made, and which are removed, if there are always enough runs.
    fn planned(config: &Arc<ProvisionerConfig>, workers: &[Worker]) -> (usize, Vec<String>) {
        planned_for(config, workers, 20, Duration::ZERO)
    }

    fn planned_for(
        config: &Arc<ProvisionerConfig>,
        workers: &[Worker],
        runs: usize,
        idle: Duration,
    ) -> (usize, Vec<String>) {
        let wanted = [(set_of(config, None), runs)].into();
        let planned = plan(
            std::slice::from_ref(config),
            workers,
            limit,
            &wanted,
            |_| idle,
            |_, worker| worker.name().starts_with("spent"),
        );
        let removed = planned.remove.iter().map(|worker| worker.uid().to_owned()).collect();
        (planned.make.len(), removed)
    }

    #[test]
    fn there_are_as_many_as_the_configmap_asks_for_and_none_of_its_versions_before() {
        let (now, before) = (with(2, "b"), with(1, "a"));
        let (free, at_work) = (json!({}), busy());
        assert_eq!(planned(&now, &[]), (2, vec![]));
        let old = seen(&before, "old", &free);
        let busy_old = seen(&before, "busy-old", &at_work);
        let (one, two, three) = (
            seen(&now, "1", &free),
            seen(&now, "2", &free),
            seen(&now, "3", &at_work),
        );
        assert_eq!(
            planned(&now, &[old.clone(), one.clone()]),
            (1, vec!["uid-of-old".to_owned()])
        );
        assert_eq!(
            planned(&now, &[busy_old, one.clone(), two.clone()]),
            (0, vec![]),
            "one with a run was removed"
        );
        assert_eq!(
            planned(&now, &[one.clone(), two.clone(), three]),
            (0, vec!["uid-of-2".to_owned()])
        );
        assert_eq!(
            planned(&with(0, "b"), std::slice::from_ref(&one)),
            (0, vec!["uid-of-1".to_owned()])
        );
        let gone = plan(&[], &[one, two], limit, &[].into(), |_| Duration::ZERO, |_, _| false);
        assert_eq!((gone.make.len(), gone.remove.len()), (0, 2));
    }

    #[test]
    fn their_number_follows_the_runs_and_an_idle_one_goes() {
        let config = with(3, "b");
        let free = seen(&config, "free", &json!({}));
        let at_work = seen(&config, "busy", &busy());
        let spent = seen(&config, "spent", &json!({}));
        let long = config.workers_idle;
        for (workers, runs, idle, expected) in [
            (vec![], 0, Duration::ZERO, (0, vec![])),
            (vec![], 1, Duration::ZERO, (1, vec![])),
            (vec![], 9, Duration::ZERO, (3, vec![])),
            // It will be free for the next run.
            (vec![free.clone()], 1, Duration::ZERO, (0, vec![])),
            (vec![at_work.clone()], 1, Duration::ZERO, (1, vec![])),
            (vec![at_work.clone(), free.clone()], 1, Duration::ZERO, (0, vec![])),
            (vec![free.clone()], 0, long / 2, (0, vec![])),
            (
                vec![spent, at_work.clone()],
                1,
                Duration::ZERO,
                (1, vec!["uid-of-spent".to_owned()]),
            ),
            (vec![free, at_work], 0, long, (0, vec!["uid-of-free".to_owned()])),
        ] {
            assert_eq!(planned_for(&config, &workers, runs, idle), expected, "{runs} {idle:?}");
        }
    }

    #[test]
    fn each_node_has_its_own_number_and_one_that_is_gone_has_none() {
        let config = with(2, "b");
        let on = |node: &str, name: &str, labels: &Value| worker_on(Some(node), &config, name, labels, &json!({}));
        let (none, at_work) = (json!({}), busy());
        let workers = [
            on("a", "free", &none),
            on("b", "1", &at_work),
            on("b", "2", &at_work),
            on("gone", "left", &none),
            on("gone", "busy", &at_work),
        ];
        let wanted = [("a", 1), ("b", 1), ("c", 3), ("gone", 1)];
        let wanted = wanted.map(|(node, runs)| (set_of(&config, Some(node)), runs)).into();
        let config = std::slice::from_ref(&config);
        let planned = plan(config, &workers, limit, &wanted, |_| Duration::ZERO, |_, _| false);
        let made: Vec<_> = planned.make.iter().filter_map(|(_, set)| set.node.as_deref()).collect();
        let removed: Vec<_> = planned.remove.iter().map(Worker::uid).collect();
        assert_eq!((made, removed), (vec!["c", "c"], vec!["uid-of-left"]));
    }
}
