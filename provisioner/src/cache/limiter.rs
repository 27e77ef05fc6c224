//! How many runs there may be at once: `max-parallel` of each ConfigMap, and a limit for all together.
//!
//! What is in flight is counted from the runs that are watched. Only what has been begun and is not seen yet is
//! remembered here, so a restart loses nothing. Those that wait take turns. A ConfigMap takes no more than half of what
//! the others leave, and may always have one run, so one that hangs does not stop the others. Among the namespaces of a
//! ConfigMap's claims, the one with the fewest runs has the next turn.
//!
//! Nobody waits for what is gone: an object waits only for as long as every look at it asks for the place again
//! ([`Limiter::looking`]), and not when it is gone ([`Limiter::gone`]).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mooring_contract::operation::Operation;
use tokio::sync::Notify;

use crate::cache::work_queue::WorkItem;
use crate::run::worker_set::WorkerSet;

/// How long a run that was begun may stay unseen before it is taken for lost and begun again.
const UNSEEN: Duration = Duration::from_secs(10);

/// How long it keeps its place if nobody begins it again: its claim may be gone, and the run came and went while its
/// watch was begun anew.
const LOST: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// There was one, and the caller has it now.
    Free,
    Full,
    /// There is one, but the caller waits for something else, and looks again after this time.
    HeldUp(Duration),
    /// The run has been begun, and its watch will show it. If it has not after this time, the run may be begun again.
    Begun(Duration),
}

/// The limits, and who waits for them.
#[derive(Debug)]
pub struct Limiter {
    total: usize,
    state: Mutex<State>,
    /// Somebody else may have a turn now.
    moved: Notify,
}

/// Who asks for a place.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// `namespace/name` of the run to begin.
    pub run: String,
    pub operation: Operation,
    /// Uid of the object that the run is for.
    pub object: String,
    /// The namespace of the claim that the run is for.
    pub namespace: String,
    /// What is looked at when its turn comes.
    pub item: WorkItem,
    /// The workers that can carry the run out, if any can.
    pub workers: Option<WorkerSet>,
}

#[derive(Debug)]
struct Waiting {
    waiter: Waiter,
    /// The present look at its object, or the last one, has asked for the place.
    asked: bool,
    /// There was a place when it last asked, and it waits for one of its workers.
    held_up: bool,
    since: Instant,
    /// Its user has been told that it waits.
    told: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Runs begun but not seen yet, by their names with namespace.
    begun: BTreeMap<String, Begun>,
    /// Who waits, by ConfigMap, in order of arrival.
    waiting: BTreeMap<String, Vec<Waiting>>,
    /// How many runs each namespace had when a place was last asked for, by ConfigMap.
    running: BTreeMap<String, BTreeMap<String, usize>>,
}

#[derive(Debug)]
struct Begun {
    config: String,
    namespace: String,
    at: Instant,
}

impl State {
    /// Keeps those in the queues that are `wanted`, by ConfigMap. Whether all were.
    fn keep(&mut self, wanted: impl Fn(&str, &Waiting) -> bool) -> bool {
        let before = self.count();
        for (config, queue) in &mut self.waiting {
            queue.retain(|waiting| wanted(config, waiting));
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        self.count() == before
    }

    fn count(&self) -> usize {
        self.waiting.values().map(Vec::len).sum()
    }

    /// The queue of a ConfigMap in the order of turns: each namespace's first, the one with the fewest runs before the
    /// others, then their second, and so on.
    fn turns(&self, config: &str) -> Vec<&Waiting> {
        let running = self.running.get(config).into_iter().flatten();
        let mut taken: BTreeMap<&str, usize> = running.map(|(namespace, runs)| (namespace.as_str(), *runs)).collect();
        let queue = self.waiting.get(config).into_iter().flatten();
        let mut turns: Vec<_> = queue
            .map(|waiting| {
                let before = taken.entry(&waiting.waiter.namespace).or_default();
                *before += 1;
                (*before, waiting)
            })
            .collect();
        // Those with the same number keep their order of arrival.
        turns.sort_by_key(|(before, _)| *before);
        turns.into_iter().map(|(_, waiting)| waiting).collect()
    }
}

/// A run in flight.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InFlight {
    /// Its name with namespace.
    pub run: String,
    /// Its ConfigMap.
    pub config: String,
    /// The namespace of the claim that it is for.
    pub namespace: String,
}

/// Whether users are to be told that a run waits for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not yet, but after this time.
    Left(Duration),
    /// Now, for the first time.
    Over,
    /// They have been.
    Told,
}

impl Limiter {
    /// With at most `total` runs over all ConfigMaps, but always one for each.
    pub fn new(total: usize) -> Self {
        Self {
            total,
            state: Mutex::default(),
            moved: Notify::default(),
        }
    }

    /// Asks for a place among those `in_flight`. If there is none, who asks waits for its turn.
    ///
    /// `in_flight` is called when nobody can be [`Self::seen`] any more: a run that is seen between the two counts
    /// would be in neither. Who has its turn may be `held_up` by something else, given since when it has waited: it
    /// keeps its turn.
    pub fn take(
        &self,
        waiter: &Waiter,
        config: &str,
        max: Option<usize>,
        in_flight: impl FnOnce() -> Vec<InFlight>,
        held_up: impl FnOnce(Instant) -> Option<Duration>,
    ) -> Place {
        let pod = waiter.run.as_str();
        let is_same = |waiting: &Waiting| waiting.waiter.run == pod;
        let now = Instant::now();
        let mut state = self.lock();
        if let Some(begun) = state.begun.get_mut(pod) {
            let left = UNSEEN.saturating_sub(now.duration_since(begun.at));
            if !left.is_zero() {
                return Place::Begun(left);
            }
            if let Some(left) = held_up(begun.at) {
                return Place::HeldUp(left);
            }
            begun.at = now;
            return Place::Free;
        }
        state.begun.retain(|_, begun| now.duration_since(begun.at) < LOST);
        let begun = state.begun.iter().map(|(run, begun)| InFlight {
            run: run.clone(),
            config: begun.config.clone(),
            namespace: begun.namespace.clone(),
        });
        let seen = in_flight();
        let mut all: BTreeMap<String, InFlight> = begun.map(|run| (run.run.clone(), run)).collect();
        all.extend(seen.into_iter().map(|run| (run.run.clone(), run)));
        if all.get(pod).is_some_and(|run| run.config == config) {
            all.remove(pod);
        }
        let mut running: BTreeMap<String, usize> = BTreeMap::new();
        for run in all.values().filter(|run| run.config == config) {
            *running.entry(run.namespace.clone()).or_default() += 1;
        }
        let of_config: usize = running.values().sum();
        let own = max.unwrap_or(usize::MAX).saturating_sub(of_config);
        let rest = self.total.saturating_sub(all.len() - of_config);
        let share = rest.div_ceil(2).saturating_sub(of_config);
        let free = match share.min(own) {
            // Never starve a ConfigMap that has nothing in flight.
            0 if of_config == 0 => 1,
            free => free,
        };
        state.running.insert(config.to_owned(), running);
        // Its class may have another ConfigMap now.
        state.keep(|of, waiting| of == config || !is_same(waiting));
        let queue = state.waiting.entry(config.to_owned()).or_default();
        let since = if let Some(there) = queue.iter_mut().find(|waiting| is_same(waiting)) {
            there.waiter = waiter.clone();
            there.asked = true;
            there.since
        } else {
            queue.push(Waiting {
                waiter: waiter.clone(),
                asked: true,
                held_up: false,
                since: now,
                told: false,
            });
            now
        };
        // Those who wait for other workers take no place until these are free.
        let others = |waiting: &&Waiting| !waiting.held_up || waiting.waiter.workers == waiter.workers;
        let turns = state.turns(config).into_iter();
        let ahead = turns.take_while(|waiting| !is_same(waiting)).filter(others).count();
        let left = if ahead < free { held_up(since) } else { None };
        let queue = state.waiting.get_mut(config).into_iter().flatten();
        for waiting in queue.filter(|waiting| is_same(waiting)) {
            waiting.held_up = left.is_some();
        }
        if ahead >= free {
            return Place::Full;
        }
        if let Some(left) = left {
            return Place::HeldUp(left);
        }
        state.keep(|_, waiting| !is_same(waiting));
        let begun = Begun {
            config: config.to_owned(),
            namespace: waiter.namespace.clone(),
            at: now,
        };
        state.begun.insert(pod.to_owned(), begun);
        Place::Free
    }

    /// Whether users are to be told that this run waits. `limit` is how long it may wait without that.
    pub fn patience(&self, pod: &str, limit: Duration) -> Patience {
        let mut state = self.lock();
        let waiting = state.waiting.values_mut().flatten();
        let Some(waiting) = waiting.into_iter().find(|waiting| waiting.waiter.run == pod) else {
            return Patience::Left(limit);
        };
        let left = limit.saturating_sub(waiting.since.elapsed());
        if !left.is_zero() {
            return Patience::Left(left);
        }
        if std::mem::replace(&mut waiting.told, true) {
            Patience::Told
        } else {
            Patience::Over
        }
    }

    /// Whether this run waits for its turn, or for what holds it up.
    pub fn waits(&self, pod: &str) -> bool {
        let state = self.lock();
        let mut all = state.waiting.values().flatten();
        all.any(|waiting| waiting.waiter.run == pod)
    }

    /// How much longer a run that was begun and is not seen yet is waited for.
    pub fn unseen(&self, pod: &str) -> Option<Duration> {
        let state = self.lock();
        let left = UNSEEN.saturating_sub(state.begun.get(pod)?.at.elapsed());
        (!left.is_zero()).then_some(left)
    }

    /// A run has been seen, or was not begun after all: from now on it counts as the watch shows it.
    pub fn seen(&self, pod: &str) {
        self.lock().begun.remove(pod);
    }

    /// Runs one look at the object of this uid. What the object waited for and does not ask for again leaves the queue:
    /// if it stayed there and took no place when one is free, it would keep all behind it waiting.
    pub async fn looking<T>(&self, object: &str, look: impl Future<Output = T>) -> T {
        for waiting in self.lock().waiting.values_mut().flatten() {
            waiting.asked &= waiting.waiter.object != object;
        }
        let looked = look.await;
        self.keep(|waiting| waiting.asked || waiting.waiter.object != object);
        looked
    }

    /// The object of this uid is gone, or nobody looks at it any more.
    pub fn gone(&self, object: &str) {
        self.keep(|waiting| waiting.waiter.object != object);
    }

    fn keep(&self, wanted: impl Fn(&Waiting) -> bool) {
        if !self.lock().keep(|_, waiting| wanted(waiting)) {
            self.wake();
        }
    }

    /// A place may have become free.
    pub fn wake(&self) {
        self.moved.notify_one();
    }

    /// Returns when those that are [`Self::next`] may have a turn.
    pub async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Which to queue when a place or a worker has become free: the first few of every ConfigMap for each of its sets of
    /// workers, and the first of each of its namespaces, since how many runs they have may have changed.
    pub fn next(&self) -> Vec<WorkItem> {
        const FEW: usize = 4;
        let state = self.lock();
        let mut next = Vec::new();
        for config in state.waiting.keys() {
            let mut namespaces = BTreeSet::new();
            let mut places: BTreeMap<_, usize> = BTreeMap::new();
            for waiting in state.turns(config) {
                let place = places.entry(&waiting.waiter.workers).or_default();
                *place += 1;
                if namespaces.insert(&waiting.waiter.namespace) || *place <= FEW {
                    next.push(waiting.waiter.item.clone());
                }
            }
        }
        next
    }

    /// How many runs of this operation wait.
    pub fn waiting(&self, operation: Operation) -> usize {
        let state = self.lock();
        let all = state.waiting.values().flatten();
        all.filter(|waiting| waiting.waiter.operation == operation).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooring_contract::operation::Operation;

    use super::{InFlight, LOST, Limiter, Patience, Place, Waiter};
    use crate::cache::work_queue::WorkItem;
    use crate::run::worker_set::WorkerSet;

    fn target(name: &str) -> WorkItem {
        WorkItem::Volume(name.to_owned())
    }

    /// Who asks for a place for this run; its object is called like it.
    fn waiter(run: &str) -> Waiter {
        let operation = run
            .rsplit('/')
            .next()
            .and_then(|name| name.split('-').next()?.parse().ok());
        Waiter {
            run: run.to_owned(),
            operation: operation.unwrap_or(Operation::Provision),
            object: run.to_owned(),
            namespace: String::new(),
            item: target(run),
            workers: None,
        }
    }

    fn in_flight(run: &str, config: &str) -> InFlight {
        InFlight {
            run: run.to_owned(),
            config: config.to_owned(),
            namespace: String::new(),
        }
    }

    #[test]
    fn a_config_map_has_no_more_pods_than_it_may() {
        let limiter = Limiter::new(100);
        let taken =
            |pod: &str, seen: &[InFlight]| limiter.take(&waiter(pod), "a/c", Some(2), || seen.to_vec(), |_| None);
        let take = |pod: &str, seen: &[InFlight]| taken(pod, seen) == Place::Free;
        assert!(take("1", &[]) && take("2", &[]) && !take("3", &[]) && !take("4", &[]));
        assert!(matches!(taken("1", &[]), Place::Begun(_)), "nothing is begun twice");
        assert!(limiter.unseen("1").is_some() && limiter.unseen("3").is_none());
        let seen = [in_flight("1", "a/c")];
        limiter.seen("1");
        assert_eq!(limiter.unseen("1"), None);
        assert!(!take("3", &seen), "begun or seen, it counts once");
        assert_eq!(limiter.lock().count(), 2);
        limiter.seen("2");
        assert!(!take("4", &seen), "first come, first served");
        assert_eq!(limiter.next(), [target("3"), target("4")]);
        assert!(take("3", &seen));
        limiter.seen("3");
        assert!(take("4", &seen));
        assert_eq!(limiter.lock().count(), 0);
    }

    #[test]
    fn a_run_that_is_never_seen_does_not_keep_its_place_for_good() {
        let limiter = Limiter::new(100);
        let take = |pod: &str| limiter.take(&waiter(pod), "a/c", Some(1), Vec::new, |_| None);
        assert_eq!((take("1"), take("2")), (Place::Free, Place::Full));
        limiter.lock().begun.get_mut("1").unwrap().at -= LOST;
        assert_eq!(take("2"), Place::Free);
        assert_eq!(take("1"), Place::Full, "it begins once more only if there is a place");
    }

    #[test]
    fn a_run_that_is_seen_while_places_are_counted_is_counted_once() {
        let limiter = Limiter::new(100);
        let take = |pod: &str, seen: &mut dyn FnMut() -> Vec<InFlight>| {
            limiter.take(&waiter(pod), "a/c", Some(1), seen, |_| None)
        };
        assert_eq!(take("1", &mut Vec::new), Place::Free);
        std::thread::scope(|scope| {
            let mut list_then_see = || {
                let (calls, called) = std::sync::mpsc::channel();
                let limiter = &limiter;
                scope.spawn(move || {
                    calls.send(()).unwrap();
                    limiter.seen("1");
                });
                called.recv().unwrap();
                // If it need not wait, it has been seen after this.
                std::thread::sleep(Duration::from_millis(50));
                Vec::new()
            };
            assert_eq!(take("2", &mut list_then_see), Place::Full);
        });
    }

    #[test]
    fn a_namespace_that_comes_later_does_not_wait_behind_all_claims_of_another() {
        let limiter = Limiter::new(100);
        let claim = |namespace: &str, index: usize| Waiter {
            namespace: namespace.to_owned(),
            item: WorkItem::Claim(namespace.to_owned(), index.to_string()),
            ..waiter(&format!("a/provision-{namespace}-{index}"))
        };
        let mut claims: Vec<_> = (0..90).map(|index| claim("team-a", index)).collect();
        claims.extend((0..10).map(|index| claim("team-b", index)));
        let take = |waiter: &Waiter| limiter.take(waiter, "a/c", Some(2), Vec::new, |_| None) == Place::Free;
        let mut order = Vec::new();
        for waiter in &claims {
            if take(waiter) {
                order.push(waiter.item.clone());
            }
        }
        // One run ends after the other, and those that are woken ask again.
        while order.len() < claims.len() {
            let ended = &claims[claims
                .iter()
                .position(|waiter| waiter.item == order[order.len() - 2])
                .unwrap()];
            limiter.seen(&ended.run);
            let next = limiter.next();
            let woken = claims.iter().filter(|waiter| next.contains(&waiter.item));
            let taken: Vec<_> = woken.filter(|waiter| take(waiter)).collect();
            assert_eq!(taken.len(), 1, "after {} a place stays free", order.len());
            order.push(taken[0].item.clone());
        }
        let of_b = |item: &&WorkItem| matches!(item, WorkItem::Claim(namespace, _) if namespace == "team-b");
        let last = order.iter().rposition(|item| of_b(&item)).unwrap();
        assert!(last < 24, "the last claim of team-b gets place {last}");
        let firsts = order.iter().take(6).filter(of_b).count();
        assert!(firsts >= 1, "the first claims of team-b get no place");
    }

    #[test]
    fn of_a_run_that_waits_for_long_users_are_told_once() {
        let limiter = Limiter::new(100);
        let take = |run: &str| limiter.take(&waiter(run), "a/c", Some(1), Vec::new, |_| None);
        assert_eq!((take("1"), take("2")), (Place::Free, Place::Full));
        let hour = Duration::from_hours(1);
        assert!(matches!(limiter.patience("2", hour), Patience::Left(left) if left < hour));
        assert_eq!(limiter.patience("2", Duration::ZERO), Patience::Over);
        assert_eq!(take("2"), Place::Full);
        assert_eq!(limiter.patience("2", Duration::ZERO), Patience::Told);
        assert_eq!(limiter.patience("1", Duration::ZERO), Patience::Left(Duration::ZERO));
    }

    #[test]
    fn a_config_map_that_comes_later_finds_places_left() {
        let limiter = Limiter::new(100);
        let mut taken = Vec::new();
        for config in ["a/hangs", "a/hangs-too", "a/third", "a/fourth"] {
            let pods = (0..200).map(|index| format!("{config}-{index}"));
            let got = pods.filter(|pod| limiter.take(&waiter(pod), config, None, Vec::new, |_| None) == Place::Free);
            taken.push(got.count());
        }
        assert_eq!(taken, [50, 25, 13, 6]);
    }

    #[test]
    fn a_run_that_has_gone_or_changed_its_configmap_holds_no_place() {
        let limiter = Limiter::new(100);
        let take =
            |pod: &str, config: &str| limiter.take(&waiter(pod), config, Some(1), Vec::new, |_| None) == Place::Free;
        assert!(take("a/provision-1", "a/c") && take("a/provision-2", "a/d"));
        assert!(!take("a/provision-3", "a/c") && !take("a/provision-4", "a/c"));
        // Its claim was deleted, whichever ConfigMap its class has now.
        limiter.gone("a/provision-3");
        // Another ConfigMap serves its class.
        assert!(!take("a/provision-4", "a/d"));
        assert!(!take("a/delete-3", "a/c"));
        assert_eq!(limiter.next(), [target("a/delete-3"), target("a/provision-4")]);
        limiter.seen("a/provision-1");
        assert!(take("a/delete-3", "a/c"));
    }

    #[test]
    fn a_config_map_that_hangs_starves_no_other() {
        let limiter = Limiter::new(2);
        let hanging: Vec<InFlight> = ["1", "2"].map(|run| in_flight(run, "a/hangs")).into();
        let take = |pod: &str, config: &str| {
            limiter.take(&waiter(pod), config, None, || hanging.clone(), |_| None) == Place::Free
        };
        assert!(!take("3", "a/hangs"));
        assert!(take("4", "a/other"));
        assert!(!take("5", "a/other"));
        limiter.gone("5");
        assert_eq!(limiter.lock().count(), 1);
    }

    #[tokio::test]
    async fn an_object_that_does_not_ask_again_leaves_the_queue_and_wakes_those_behind_it() {
        let limiter = Limiter::new(100);
        let take = |run: &str| limiter.take(&waiter(run), "a/c", Some(1), Vec::new, |_| None);
        assert_eq!(take("a/provision-1"), Place::Free);
        for run in ["a/delete-2", "a/delete-3"] {
            assert_eq!(limiter.looking(run, async { take(run) }).await, Place::Full);
        }
        assert_eq!(
            (
                limiter.waiting(Operation::Delete),
                limiter.waiting(Operation::Provision)
            ),
            (2, 0)
        );
        limiter.looking("a/delete-2", async { take("a/delete-2") }).await;
        assert_eq!(
            limiter.next(),
            [target("a/delete-2"), target("a/delete-3")],
            "it keeps its turn"
        );
        limiter.looking("a/delete-2", async {}).await;
        limiter.moved().await;
        assert_eq!(limiter.next(), [target("a/delete-3")]);
        limiter.gone("a/delete-3");
        limiter.moved().await;
        assert!(limiter.next().is_empty());
    }
    #[test]
    fn who_is_held_up_takes_no_place_and_keeps_its_turn() {
        let limiter = Limiter::new(100);
        let wait = Duration::from_millis(100);
        let take =
            |run: &str, held_up: Option<Duration>| limiter.take(&waiter(run), "a/c", Some(1), Vec::new, |_| held_up);
        assert_eq!(take("1", Some(wait)), Place::HeldUp(wait));
        assert!(limiter.waits("1") && limiter.unseen("1").is_none());
        assert_eq!(take("2", None), Place::Full);
        assert_eq!(take("1", None), Place::Free);
        assert!(!limiter.waits("1"));
    }

    #[test]
    fn who_waits_for_the_workers_of_a_node_holds_up_nobody_elsewhere() {
        let limiter = Limiter::new(100);
        let on = |run: &str, node: &str| Waiter {
            workers: Some(WorkerSet {
                config: "a/c".to_owned(),
                node: Some(node.to_owned()),
            }),
            ..waiter(run)
        };
        let wait = Some(Duration::from_secs(1));
        let take =
            |waiter: &Waiter, held_up: Option<Duration>| limiter.take(waiter, "a/c", Some(1), Vec::new, |_| held_up);
        for run in ["1", "2", "3", "4", "5"] {
            let place = take(&on(run, "busy"), wait);
            assert_eq!(place == Place::Full, run != "1", "{run}: {place:?}");
        }
        assert_eq!(limiter.next().len(), 4);
        assert_eq!(take(&on("6", "other"), None), Place::Full, "others have turns before");
        assert!(
            limiter.next().contains(&target("6")),
            "it is not woken for its own worker"
        );
        for run in ["2", "3", "4", "5"] {
            limiter.gone(run);
        }
        assert_eq!(take(&on("6", "other"), None), Place::Free);
    }
}
