//! Runs that belong to nothing any more.
//!
//! A controller that is paused for long enough between two calls (a frozen machine, a partition) can begin a run for a
//! claim that another replica has brought to its end meanwhile. Such a run is found here by what it says of itself,
//! what it may have made is deleted, and only then it is removed: it is the record. What the reclaim policy or the
//! ConfigMap does not let Mooring delete is named in an Event before the run is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::{Request, Snapshot};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use crate::apply::live::{Remains, remains};
use crate::apply::{self, ApplyError, Shared};
use crate::config::ProvisionerConfig;
use crate::operation::decision::{Intent, RunDecision, Start};
use crate::operation::describe::{Effect, action, describe};
use crate::operation::limits::Limits;
use crate::operation::observed::Surroundings;
use crate::operation::reclaim::{Kept, ReclaimPolicy, may_delete};
use crate::operation::record::Record;
use crate::operation::request;
use crate::process::events::{Note, reasons};
use crate::run::outcome::State;
use crate::run::{Run, RunId, RunRef};
use crate::time::elapsed;
use crate::volume::persistent_volume;

/// Name of this loop in its spans.
const CONTROLLER: &str = "orphans";

/// How long changes are gathered before the runs are looked through.
const GATHER: Duration = Duration::from_secs(5);

/// The runs of one claim and PV that are both gone, by what they do.
#[derive(Debug, Default)]
struct Runs<'a> {
    /// What may have made something.
    made: Option<&'a Run>,
    delete: Option<&'a Run>,
    /// What changes a volume.
    change: Option<&'a Run>,
    /// What may have let a node have the volume.
    attach: Option<&'a Run>,
    /// What takes it from the node.
    detach: Option<&'a Run>,
}

/// What to do about the runs of one claim that is gone.
#[derive(Debug)]
enum Plan {
    /// Look again later.
    Wait,
    /// Nothing depends on them.
    Remove(Vec<RunRef>),
    /// Undo what this run may have done, at this attempt: the volume deleted, or taken from its node.
    Undo(u32),
}

/// What to do about the runs of a claim and PV that are both gone. What is attached is detached before it is deleted.
fn plan(runs: &Runs<'_>, limits: &Limits, now: Timestamp) -> Plan {
    let young = |run: &Run| elapsed(run.made(), now) < limits.orphan_age;
    if let Some(change) = runs.change {
        // Nothing else is run on the volume beside it.
        return match change.state() {
            _ if young(change) => Plan::Wait,
            State::Waiting { never_ran: true, .. } => Plan::Remove(vec![change.to_remove_as_it_is()]),
            State::Finished(_) => Plan::Remove(vec![change.to_remove()]),
            State::Waiting { never_ran: false, .. } | State::Running | State::Leaving => Plan::Wait,
        };
    }
    if runs.attach.is_some() || runs.detach.is_some() {
        return plan_undoing(runs.attach, runs.detach, limits, now);
    }
    plan_undoing(runs.made, runs.delete, limits, now)
}

/// What to do about a run that did something that nobody wants any more, and the run that undoes it.
fn plan_undoing(done: Option<&Run>, undo: Option<&Run>, limits: &Limits, now: Timestamp) -> Plan {
    let young = |run: &Run| elapsed(run.made(), now) < limits.orphan_age;
    let Some(done) = done else {
        return match undo {
            // The last of a deletion that is over. One that runs may go on, and one that failed has nobody to tell.
            Some(undo) if undo.is_over() && !young(undo) => Plan::Remove(vec![undo.to_remove()]),
            Some(_) | None => Plan::Wait,
        };
    };
    if young(done) {
        return Plan::Wait;
    }
    match done.state() {
        State::Waiting { never_ran: true, .. } => {
            // Without its properties it never starts, and it gets none for as long as nobody wants it.
            Plan::Remove(vec![done.to_remove_as_it_is()])
        }
        State::Finished(finish) if !finish.may_have_run => Plan::Remove(vec![done.to_remove()]),
        State::Finished(_) => match undo {
            None => Plan::Undo(1),
            Some(undo) => plan_end(done, undo, limits, now),
        },
        // It ends by its own limit.
        State::Waiting { never_ran: false, .. } | State::Running | State::Leaving => Plan::Wait,
    }
}

/// What to do about such a run, and the run that undoes it and is there.
fn plan_end(done: &Run, undo: &Run, limits: &Limits, now: Timestamp) -> Plan {
    let finish = match undo.state() {
        State::Finished(finish) => finish,
        State::Waiting { .. } | State::Running | State::Leaving => return Plan::Wait,
    };
    match finish.outcome {
        // The record first: without it, nothing depends on the other.
        Outcome::Done => Plan::Remove(vec![done.to_remove(), undo.to_remove()]),
        Outcome::Retry | Outcome::GiveUp => {
            let delay = limits
                .backoff
                .delay(undo.attempt(), undo.claim_uid().unwrap_or_default());
            if elapsed(undo.made(), now) > delay {
                Plan::Remove(vec![undo.to_remove()])
            } else {
                Plan::Wait
            }
        }
    }
}

/// Looks through the runs whenever some have changed, until `stop`.
pub(super) async fn run(shared: Shared, resync: Duration, stop: CancellationToken) {
    let mut known = BTreeSet::new();
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
        let orphans = shared.cache.orphans();
        for run in known.difference(&orphans).flat_map(|uid| shared.cache.runs_of(uid)) {
            shared.limiter.gone(run.meta().uid.as_deref().unwrap_or_default());
        }
        known.clone_from(&orphans);
        for uid in orphans {
            let span = info_span!("reconcile", controller = CONTROLLER, object.uid = uid);
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
    let of = |wanted: fn(Effect) -> bool| {
        let mut all = Operation::ALL
            .into_iter()
            .filter(|operation| wanted(describe(*operation).effect));
        all.find_map(|operation| runs.iter().find(|run| run.operation() == Some(operation)))
    };
    let found = Runs {
        made: of(|effect| matches!(effect, Effect::MakesVolume | Effect::TakesSnapshot)),
        delete: of(|effect| matches!(effect, Effect::RemovesVolume | Effect::RemovesSnapshot)),
        change: of(Effect::changes_volume),
        attach: of(|effect| effect == Effect::AttachesVolume),
        detach: of(|effect| effect == Effect::DetachesVolume),
    };
    let decided = plan(&found, &shared.limits, Timestamp::now());
    let attachment = found.attach.or(found.detach);
    let Some(run) = attachment.or(found.made).or(found.delete).or(found.change) else {
        return Ok(());
    };
    let carrier = run.meta().uid.clone().unwrap_or_default();
    let step = Box::pin(carry_out(shared, uid, run, decided));
    shared.limiter.looking(&carrier, step).await
}

/// Does what was decided for the runs of one claim that is gone, if it is.
async fn carry_out(shared: &Shared, uid: &str, run: &Run, decided: Plan) -> Result<(), ApplyError> {
    if matches!(decided, Plan::Wait) {
        return Ok(());
    }
    let remains = remains(shared, run, uid).await?;
    if remains == Remains::Owner {
        return Ok(());
    }
    let decision = match decided {
        Plan::Wait => return Ok(()),
        Plan::Remove(runs) => {
            info!(run = run.place(), "removing the runs of a claim that is gone");
            // What holds the Pods may keep them for a while.
            for run in &runs {
                shared.expectations.reclaimed(run.uid());
            }
            RunDecision::Tidy(runs)
        }
        Plan::Undo(attempt) => {
            let config = config_of(shared, run);
            if let Err(kept) = may_undo(run, remains, config.as_deref()) {
                return keep(shared, run, &kept).await;
            }
            let Some(start) = config.and_then(|config| undoing(shared, run, config, attempt)) else {
                warn!(
                    run = run.place(),
                    "the claim is gone and its volume may exist, but its ConfigMap is gone too: create the ConfigMap \
                     again"
                );
                return Ok(());
            };
            info!(
                run = run.place(),
                operation = %start.request.operation,
                "undoing what was done for a claim that is gone"
            );
            RunDecision::Start(Box::new(start))
        }
    };
    apply::carry_out(shared, run, None, decision).await.map(drop)
}

/// Whether what a run has made may be deleted; an attachment may always be undone.
fn may_undo(done: &Run, remains: Remains, config: Option<&ProvisionerConfig>) -> Result<(), Kept> {
    let undone_by = done.operation().and_then(|operation| describe(operation).undone_by);
    match undone_by.map(|operation| (operation, describe(operation).effect)) {
        Some((_, Effect::RemovesVolume)) if remains == Remains::OtherVolume => Err(Kept::NotHeld),
        Some((operation, Effect::RemovesVolume | Effect::RemovesSnapshot)) => {
            may_delete(&ReclaimPolicy::of_orphan(done), operation, config)
        }
        Some(_) | None => Ok(()),
    }
}

/// Lets a run go whose volume stays in the storage.
async fn keep(shared: &Shared, run: &Run, kept: &Kept) -> Result<(), ApplyError> {
    if shared.expectations.is_reclaimed(&run.uid()) {
        return Ok(());
    }
    let Some(made) = run.operation().map(describe) else {
        return Ok(());
    };
    let pv_name = persistent_volume::name_for(run.claim_uid().unwrap_or_default());
    let (namespace, name) = run.claim().unwrap_or_default();
    let snapshot = run.request().ok().and_then(|request| request.snapshot);
    let (noun, what) = match snapshot.filter(|_| made.effect == Effect::TakesSnapshot) {
        Some(snapshot) => {
            let noun = match &snapshot {
                Snapshot { members: Some(_), .. } => "group snapshot",
                Snapshot { backup: true, .. } => "backup",
                Snapshot { .. } => "snapshot",
            };
            let (content, kind) = (snapshot.content_name, made.subject.name());
            (noun, format!("{noun} {}: its {kind} {content} is gone", snapshot.name))
        }
        None if *kept == Kept::NotHeld => (
            "volume",
            format!("volume {pv_name}: its claim {namespace}/{name} is gone"),
        ),
        None => (
            "volume",
            format!("volume {pv_name}: its claim {namespace}/{name} and its PersistentVolume are gone"),
        ),
    };
    let config = run.config().unwrap_or_default();
    let text = format!(
        "Mooring does not delete {what}, and {kept}; if nobody needs the {noun}, delete it from the storage of \
         ConfigMap {config}"
    );
    info!(run = run.place(), text);
    apply::keep(
        shared,
        run,
        Note::warning(reasons::KEPT, action(made.undone_by.unwrap_or(Operation::Delete)), text),
    )
    .await
}

fn config_of(shared: &Shared, run: &Run) -> Option<Arc<ProvisionerConfig>> {
    shared.context.configs.get(&run.config()?.parse().ok()?)
}

/// The run that undoes what another may have done.
fn undoing(shared: &Shared, done: &Run, config: Arc<ProvisionerConfig>, attempt: u32) -> Option<Start> {
    let made_by = done.request().ok()?;
    let operation = describe(done.operation()?).undone_by?;
    let node = done.node().filter(|_| config.is_node_local()).map(str::to_owned);
    let record = Record {
        attempt,
        node: node.clone().unwrap_or_default(),
        may_exist: true,
        ..Record::first(operation, done.place(), done.made(), &config)
    };
    let around = Surroundings {
        class: None,
        config: &config,
        kube_api: &shared.context.settings.kube_api,
    };
    let run = RunId::new(operation, done.claim_uid()?);
    let (snapshot, attachment, volume) = match describe(operation).effect {
        Effect::RemovesSnapshot => (made_by.snapshot.clone(), None, made_by.volume.clone()),
        Effect::DetachesVolume => (None, made_by.attachment.clone(), made_by.volume.clone()),
        // What was made of it is not known.
        Effect::RemovesVolume
        | Effect::MakesVolume
        | Effect::ExpandsVolume
        | Effect::ModifiesVolume
        | Effect::TakesSnapshot
        | Effect::AttachesVolume
        | Effect::KeepsAll => (None, None, BTreeMap::new()),
    };
    let request = Request {
        snapshot,
        attachment,
        ..request::remembered(operation, made_by, volume, around)
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
    use super::{Plan, Runs, plan};
    use crate::operation::limits::Limits;
    use crate::operation::tests::{ended, no_image, now, run, running};
    use crate::run::Run;

    fn word(provision: Option<&Run>, delete: Option<&Run>) -> &'static str {
        let runs = Runs {
            made: provision,
            delete,
            ..Runs::default()
        };
        word_of(&runs)
    }

    fn word_of(runs: &Runs<'_>) -> &'static str {
        match plan(runs, &Limits::default(), now()) {
            Plan::Wait => "wait",
            Plan::Remove(runs) if runs.len() == 2 => "remove both",
            Plan::Remove(_) => "remove",
            Plan::Undo(_) => "undo",
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
        assert_eq!(word(Some(&made), None), "undo");
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
            let runs = Runs {
                made: Some(&made),
                change: Some(&expand),
                ..Runs::default()
            };
            let word = word_of(&runs);
            assert_eq!(word == "wait", waits, "{word}");
            assert_ne!(word, "undo", "never two on one volume");
        }
    }

    /// Proves: P1
    #[test]
    fn what_was_attached_is_detached_before_it_is_deleted() {
        let (made, delete) = (run("provision", 1, 200, &ended(0, "")), run("delete", 1, 9, &running()));
        let attach = |age, status: &_| run("attach", 1, age, status);
        let detach = |age, status: &_| run("detach", 1, age, status);
        let word = |attach: Option<&Run>, detach: Option<&Run>| {
            word_of(&Runs {
                made: Some(&made),
                delete: Some(&delete).filter(|_| attach.is_none()),
                attach,
                detach,
                ..Runs::default()
            })
        };
        assert_eq!(word(Some(&attach(10, &ended(0, ""))), None), "wait", "too young");
        assert_eq!(word(Some(&attach(100, &running())), None), "wait");
        assert_eq!(word(Some(&attach(100, &no_image())), None), "remove");
        let attached = attach(100, &ended(0, ""));
        assert_eq!(word(Some(&attached), None), "undo");
        assert_eq!(
            word(Some(&attach(100, &ended(75, ""))), None),
            "undo",
            "it may have been"
        );
        assert_eq!(word(Some(&attached), Some(&detach(9, &running()))), "wait");
        assert_eq!(word(Some(&attached), Some(&detach(90, &ended(75, "")))), "remove");
        assert_eq!(word(Some(&attached), Some(&detach(9, &ended(0, "")))), "remove both");
        assert_eq!(
            word(None, Some(&detach(9, &running()))),
            "wait",
            "no deletion beside it"
        );
        assert_eq!(word(None, Some(&detach(100, &ended(0, "")))), "remove");
    }
}
