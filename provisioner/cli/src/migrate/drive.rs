//! Moves volumes step by step, until there is nothing to do now, and with `--wait` until nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::pin::pin;
use std::time::Duration;

use flex_provisioner::cache::consumers::claims_of;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use mooring_program::error::chain;
use mooring_program::signals::Signals;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::MigrateError;
use super::args::MigrateArgs;
use super::cluster::{MoveCluster, MoveError, MoveTarget};
use super::plan::{Goal, MoveStep, Seen, Standing, plan};
use super::report::{MoveReport, MoveResult};
use super::select::{Selected, select};
use super::source;

/// How often something that comes about in a moment is looked at.
const MOMENT: Duration = Duration::from_millis(50);

/// Longest until Kubernetes has bound a claim: its binder looks at all claims every 15 s.
const BOUND_LIMIT: Duration = Duration::from_secs(40);

/// How much longer than its own time a Pod may take to end before its volume is given back to it.
const END_SLACK: Duration = Duration::from_secs(30);

/// How often volumes that are held for Pods that end are looked at, should a watch have missed something.
const HELD_PERIOD: Duration = Duration::from_millis(500);

/// How often what waits or failed is looked at with `--wait`: an operation on a volume ends without a Pod's change.
const WAITS_PERIOD: Duration = Duration::from_secs(10);

/// More steps than any move takes, also one that others interfere with.
const MOST_STEPS: usize = 400;

/// Moves what the arguments mean; whether nothing is left.
pub(super) async fn all(cluster: &MoveCluster, goal: Goal, args: &MigrateArgs) -> Result<bool, MigrateError> {
    let stop = stop_by_signal()?;
    let Selected { targets, bad, unbound } = select(cluster, args).await?;
    for error in &bad {
        let _ = writeln!(std::io::stderr(), "error: {}", chain(error));
    }
    for name in &unbound {
        let _ = writeln!(
            std::io::stderr(),
            "error: claim {name} is not bound to a volume, or does not exist"
        );
    }
    let mut report = MoveReport::default();
    report.expect(targets.iter());
    if args.dry_run {
        for target in &targets {
            report.note(target, foreseen(cluster, target, goal).await);
        }
    } else {
        let mut round = Round {
            cluster,
            goal,
            report: &mut report,
            held: BTreeMap::new(),
            hopeless: BTreeSet::new(),
        };
        match args.wait {
            None => round.each(&targets, &stop).await,
            Some(limit) => Box::pin(round.until_done(targets, Instant::now() + limit, &stop)).await,
        }
    }
    report.end();
    Ok(report.left().next().is_none() && bad.is_empty() && unbound.is_empty())
}

/// Ends at the first signal, but not within a move.
fn stop_by_signal() -> Result<CancellationToken, MigrateError> {
    let stop = CancellationToken::new();
    let mut signals = Signals::listen().map_err(MigrateError::Signals)?;
    let cancel = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        cancel.cancel();
    });
    Ok(stop)
}

/// What would be done.
async fn foreseen(cluster: &MoveCluster, target: &MoveTarget, goal: Goal) -> MoveResult {
    match cluster.look(target, &BTreeSet::new()).await {
        Ok(seen) if seen.record.is_some() => MoveResult::Begun,
        Ok(seen) => match plan(&seen, goal) {
            MoveStep::Rest(standing) => MoveResult::Stood(standing),
            _ => MoveResult::Would,
        },
        Err(error) => MoveResult::Failed(chain(&error)),
    }
}

/// What one step has come to.
pub enum Moved {
    /// Something was done, or has to be looked at again.
    On,
    /// It comes about by itself.
    Soon(&'static str),
    /// Nothing to do now; the step before says whether a move has ended.
    At(Standing),
    /// These Pods end: their uids, and how long that may take.
    Held(BTreeSet<String>, Duration),
}

pub async fn step(
    cluster: &MoveCluster,
    target: &MoveTarget,
    goal: Goal,
    hopeless: &BTreeSet<String>,
) -> Result<(Moved, Option<MoveResult>), MoveError> {
    let seen = cluster.look(target, hopeless).await?;
    let next = plan(&seen, goal);
    cluster.take(target, &seen, &next).await?;
    let moved = match &next {
        MoveStep::Rest(standing) => Moved::At(standing.clone()),
        MoveStep::Await(what) => Moved::Soon(what),
        MoveStep::AwaitEnd => Moved::Held(
            seen.users.iter().map(|user| user.uid.clone()).collect(),
            seen.users
                .iter()
                .filter_map(|user| user.ending)
                .max()
                .unwrap_or_default(),
        ),
        MoveStep::Note(_)
        | MoveStep::Hold
        | MoveStep::Delete
        | MoveStep::Free
        | MoveStep::Make(_)
        | MoveStep::Release
        | MoveStep::Forget => Moved::On,
    };
    Ok((moved, (next == MoveStep::Forget).then(|| outcome(&seen))))
}

/// What has become of a move that is over.
fn outcome(seen: &Seen) -> MoveResult {
    let to = seen.record.as_ref().map(|record| record.to);
    let at = seen.volume.as_ref().and_then(source::of);
    if at.is_some() && at == to {
        MoveResult::Moved
    } else {
        MoveResult::Back
    }
}

struct Round<'a> {
    cluster: &'a MoveCluster,
    goal: Goal,
    report: &'a mut MoveReport,
    /// Since when a volume is held for Pods that end.
    held: BTreeMap<MoveTarget, Instant>,
    /// Pods that were waited for in vain.
    hopeless: BTreeSet<String>,
}

impl Round<'_> {
    /// Moves these, one after the other.
    async fn each(&mut self, targets: &BTreeSet<MoveTarget>, stop: &CancellationToken) {
        for target in targets {
            if stop.is_cancelled() && !self.held.contains_key(target) {
                self.report.note_first(
                    target,
                    MoveResult::Stood(Standing::Waits("this run was stopped before its turn".into())),
                );
                continue;
            }
            let result = match self.on(target).await {
                Ok(result) => result,
                Err(error) => MoveResult::Failed(chain(&error)),
            };
            self.report.note(target, result);
        }
    }

    /// Moves one, until there is nothing to do now.
    async fn on(&mut self, target: &MoveTarget) -> Result<MoveResult, MoveError> {
        let mut ended = None;
        let mut since: Option<Instant> = None;
        for _ in 0..MOST_STEPS {
            let (moved, over) = step(self.cluster, target, self.goal, &self.hopeless).await?;
            ended = over.or(ended);
            if !matches!(moved, Moved::Held(..)) {
                self.held.remove(target);
            }
            match moved {
                Moved::On => since = None,
                Moved::Soon(what) => {
                    if since.get_or_insert_with(Instant::now).elapsed() > BOUND_LIMIT {
                        return Err(MoveError::Late { what });
                    }
                    sleep(MOMENT).await;
                }
                Moved::At(Standing::There | Standing::Idle | Standing::Gone) if ended.is_some() => {
                    return Ok(ended.unwrap_or(MoveResult::Back));
                }
                Moved::At(standing) => return Ok(MoveResult::Stood(standing)),
                Moved::Held(pods, grace) => {
                    let since = *self.held.entry(target.clone()).or_insert_with(Instant::now);
                    if since.elapsed() < grace + END_SLACK {
                        return Ok(MoveResult::Held);
                    }
                    self.hopeless.extend(pods);
                }
            }
        }
        Err(MoveError::Late {
            what: "the end of all changes",
        })
    }

    /// Goes on until nothing is left, the time is up, or `stop`. What is held then is given back.
    async fn until_done(&mut self, targets: BTreeSet<MoveTarget>, deadline: Instant, stop: &CancellationToken) {
        let pods: Api<Pod> = Api::all(self.cluster.client.clone());
        let mut pods = pin!(changes(pods));
        let mut due = targets;
        let mut all_at = Instant::now() + WAITS_PERIOD;
        loop {
            self.each(&due, stop).await;
            let left: BTreeSet<MoveTarget> = self.report.left().cloned().collect();
            if left.is_empty() || stop.is_cancelled() || Instant::now() >= deadline {
                break;
            }
            let is_held = !self.held.is_empty();
            due = tokio::select! {
                () = stop.cancelled() => continue_with_none(),
                () = sleep_until(deadline) => continue_with_none(),
                () = sleep_until(all_at) => {
                    all_at = Instant::now() + WAITS_PERIOD;
                    left
                }
                () = sleep(HELD_PERIOD), if is_held => self.held.keys().cloned().collect(),
                changed = pods.next() => match changed {
                    Some(pod) => used_by(&pod, &left),
                    // It ends never; if it did, the periods would still do.
                    None => std::future::pending().await,
                },
            };
        }
        self.goal.may_hold = false;
        let held = self.held.keys().cloned().collect();
        self.each(&held, stop).await;
    }
}

fn continue_with_none() -> BTreeSet<MoveTarget> {
    BTreeSet::new()
}

/// Pods that have changed, or are gone. A watch that fails is begun again, slower each time.
fn changes(pods: Api<Pod>) -> impl Stream<Item = Pod> {
    let events = watcher(pods, watcher::Config::default().page_size(500)).default_backoff();
    events.filter_map(async |event| match event {
        Ok(watcher::Event::Apply(pod) | watcher::Event::Delete(pod)) => Some(pod),
        Ok(watcher::Event::Init | watcher::Event::InitApply(_) | watcher::Event::InitDone) | Err(_) => None,
    })
}

/// Those of these volumes that a Pod uses.
fn used_by(pod: &Pod, of: &BTreeSet<MoveTarget>) -> BTreeSet<MoveTarget> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claims: BTreeSet<String> = claims_of(pod).collect();
    let used = |target: &&MoveTarget| target.claim.namespace == namespace && claims.contains(&target.claim.name);
    of.iter().filter(used).cloned().collect()
}
