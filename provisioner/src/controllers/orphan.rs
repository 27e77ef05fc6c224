//! Runs that belong to nothing any more.
//!
//! A controller that is paused for long enough between two calls (a frozen machine, a partition) can begin a run for a
//! claim that another replica has brought to its end meanwhile. Such a run is found here by what it says of itself,
//! what it may have made is deleted, and only then it is removed: it is the record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use crate::apply::live::is_orphan;
use crate::apply::{self, ApplyError, Shared};
use crate::config::ProvisionerConfig;
use crate::operation::decision::{Decision, Intent, Start};
use crate::operation::observed::Limits;
use crate::operation::observed::Surroundings;
use crate::operation::record::Record;
use crate::operation::request;
use crate::run::outcome::State;
use crate::run::{Kind, Run, RunId, RunRef};
use crate::time::elapsed;

/// How long changes are gathered before the runs are looked through.
const GATHER: Duration = Duration::from_secs(5);

/// What to do about the runs of one claim that is gone.
#[derive(Debug)]
enum Plan {
    /// Look again later.
    Wait,
    /// Nothing depends on them.
    Remove(Vec<RunRef>),
    /// The volume that may have been made is to be deleted, at this attempt.
    Delete(u32),
}

/// What to do about the runs of a claim and PV that are both gone.
fn plan(provision: Option<&Run>, delete: Option<&Run>, change: Option<&Run>, limits: &Limits, now: Timestamp) -> Plan {
    let young = |run: &Run| elapsed(run.made(), now) < limits.orphan_age;
    if let Some(change) = change {
        // Nothing else is run on the volume beside it.
        return match change.state() {
            _ if young(change) => Plan::Wait,
            State::Waiting { never_ran: true, .. } => Plan::Remove(vec![change.to_remove_as_it_is()]),
            State::Finished(_) => Plan::Remove(vec![change.to_remove()]),
            State::Waiting { never_ran: false, .. } | State::Running | State::Leaving => Plan::Wait,
        };
    }
    let Some(provision) = provision else {
        return match delete {
            // The last of a deletion that is over. One that runs may go on, and one that failed has nobody to tell.
            Some(delete) if delete.is_over() && !young(delete) => Plan::Remove(vec![delete.to_remove()]),
            Some(_) | None => Plan::Wait,
        };
    };
    if young(provision) {
        return Plan::Wait;
    }
    match provision.state() {
        State::Waiting { never_ran: true, .. } => {
            // Without its properties it never starts, and it gets none for as long as nobody wants it.
            Plan::Remove(vec![provision.to_remove_as_it_is()])
        }
        State::Finished(finish) if !finish.may_have_run => Plan::Remove(vec![provision.to_remove()]),
        State::Finished(_) => match delete {
            None => Plan::Delete(1),
            Some(delete) => plan_deletion(provision, delete, limits, now),
        },
        // It ends by its own limit.
        State::Waiting { never_ran: false, .. } | State::Running | State::Leaving => Plan::Wait,
    }
}

/// What to do about a run that may have made a volume, and the run that deletes it.
fn plan_deletion(provision: &Run, delete: &Run, limits: &Limits, now: Timestamp) -> Plan {
    let finish = match delete.state() {
        State::Finished(finish) => finish,
        State::Waiting { .. } | State::Running | State::Leaving => return Plan::Wait,
    };
    match finish.outcome {
        // The record first: without it, nothing depends on the other.
        Outcome::Done => Plan::Remove(vec![provision.to_remove(), delete.to_remove()]),
        Outcome::Retry | Outcome::GiveUp => {
            let delay = limits
                .backoff
                .delay(delete.attempt(), delete.claim_uid().unwrap_or_default());
            if elapsed(delete.made(), now) > delay {
                Plan::Remove(vec![delete.to_remove()])
            } else {
                Plan::Wait
            }
        }
    }
}

/// Looks through the runs whenever some have changed, until `stop`.
pub(super) async fn run(shared: Shared, resync: Duration, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.cache.runs_changed() => {}
            () = tokio::time::sleep(resync.min(shared.limits.orphan_age)) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(GATHER) => {}
        }
        for uid in shared.cache.orphans() {
            let span = info_span!("settle", claim.uid = uid);
            if let Err(error) = Box::pin(settle(&shared, &uid)).instrument(span).await {
                warn!(
                    claim.uid = uid,
                    error = error.chain(),
                    "failed to settle an orphaned run; trying again"
                );
            }
        }
    }
}

/// Looks at the runs of one claim that is gone, and does the next thing.
pub(crate) async fn settle(shared: &Shared, uid: &str) -> Result<(), ApplyError> {
    let runs = shared.cache.runs_of(uid);
    let of = |kind: Kind| runs.iter().find(|run| run.kind() == Some(kind));
    let made = [
        Kind::Provision,
        Kind::Clone,
        Kind::Restore,
        Kind::Snapshot,
        Kind::Backup,
    ];
    let made = made.into_iter().find_map(of);
    let delete = [Kind::Delete, Kind::DeleteSnapshot, Kind::DeleteBackup];
    let delete = delete.into_iter().find_map(of);
    let change = [Kind::Expand, Kind::Modify].into_iter().find_map(of);
    let decided = plan(made, delete, change, &shared.limits, Timestamp::now());
    let Some(run) = made.or(delete).or(change) else {
        return Ok(());
    };
    if matches!(decided, Plan::Wait) || !is_orphan(shared, run, uid).await? {
        return Ok(());
    }
    let decision = match decided {
        Plan::Wait => return Ok(()),
        Plan::Remove(runs) => {
            info!(run = run.place(), "removing the runs of a claim that is gone");
            Decision::Tidy(runs)
        }
        Plan::Delete(attempt) => {
            let Some(start) = deletion(shared, run, attempt) else {
                warn!(
                    run = run.place(),
                    "its claim is gone and its volume may be there, but its ConfigMap is gone too"
                );
                return Ok(());
            };
            info!(run = run.place(), "deleting the volume of a claim that is gone");
            Decision::Start(Box::new(start))
        }
    };
    apply::orphan(shared, run, decision).await.map(drop)
}

/// The run that deletes what another may have made.
fn deletion(shared: &Shared, provision: &Run, attempt: u32) -> Option<Start> {
    let reference = provision.config()?.parse().ok()?;
    let config: Arc<ProvisionerConfig> = shared.context.configs.get(&reference)?;
    let made_by = provision.request().ok()?;
    let kind = match provision.kind()? {
        Kind::Snapshot => Kind::DeleteSnapshot,
        Kind::Backup => Kind::DeleteBackup,
        Kind::Provision
        | Kind::Clone
        | Kind::Restore
        | Kind::Delete
        | Kind::Expand
        | Kind::Modify
        | Kind::DeleteSnapshot
        | Kind::DeleteBackup
        | Kind::Discover
        | Kind::Attach
        | Kind::Detach => Kind::Delete,
    };
    let node = provision.node().filter(|_| config.is_node_local()).map(str::to_owned);
    let record = Record {
        attempt,
        node: node.clone().unwrap_or_default(),
        may_exist: true,
        ..Record::first(kind, provision.place(), provision.made(), &config)
    };
    let around = Surroundings {
        class: None,
        config: &config,
        kube_api: &shared.context.settings.kube_api,
    };
    let run = RunId::new(kind, provision.claim_uid()?);
    let (snapshot, volume) = match kind {
        Kind::DeleteSnapshot | Kind::DeleteBackup => (made_by.snapshot.clone(), made_by.volume.clone()),
        _ => (None, BTreeMap::new()),
    };
    let request = Request {
        snapshot,
        ..request::remembered(kind, made_by, volume, around)
    };
    Some(Start {
        run,
        request,
        config,
        record,
        intent: Intent::Run,
        owner: None,
        node,
        allowed: Vec::new(),
        state: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::{Plan, plan};
    use crate::operation::observed::Limits;
    use crate::operation::tests::{ended, no_image, now, run, running};
    use crate::run::Run;

    fn word(provision: Option<&Run>, delete: Option<&Run>) -> &'static str {
        match plan(provision, delete, None, &Limits::default(), now()) {
            Plan::Wait => "wait",
            Plan::Remove(runs) if runs.len() == 2 => "remove both",
            Plan::Remove(_) => "remove",
            Plan::Delete(_) => "delete",
        }
    }

    /// Proves: P1
    #[test]
    fn an_orphan_is_settled_step_by_step_with_itself_as_the_record() {
        let provision = |age, status: &_| run("provision", 1, age, status);
        let delete = |age, status: &_| run("delete", 1, age, status);
        let made = provision(100, &ended(0, ""));
        assert_eq!(word(Some(&provision(10, &ended(0, ""))), None), "wait", "too young");
        assert_eq!(word(Some(&provision(100, &running())), None), "wait");
        assert_eq!(word(Some(&provision(100, &no_image())), None), "remove");
        assert_eq!(word(Some(&made), None), "delete");
        assert_eq!(word(Some(&made), Some(&delete(9, &running()))), "wait");
        assert_eq!(
            word(Some(&made), Some(&delete(3, &ended(75, "")))),
            "wait",
            "backing off"
        );
        assert_eq!(
            word(Some(&made), Some(&delete(90, &ended(75, "")))),
            "remove",
            "and again"
        );
        assert_eq!(word(Some(&made), Some(&delete(9, &ended(0, "")))), "remove both");
        assert_eq!(word(None, Some(&delete(100, &ended(0, "")))), "remove");
        assert_eq!(word(None, Some(&delete(100, &running()))), "wait");
        let expand = |age, status: &_| run("expand", 1, age, status);
        for (expand, waits) in [
            (expand(10, &ended(0, "")), true),
            (expand(100, &running()), true),
            (expand(100, &ended(0, "")), false),
            (expand(100, &no_image()), false),
        ] {
            let plan = plan(Some(&made), None, Some(&expand), &Limits::default(), now());
            assert_eq!(matches!(plan, Plan::Wait), waits, "{plan:?}");
            assert!(!matches!(plan, Plan::Delete(_)), "never two on one volume");
        }
    }
}
