//! Runs that belong to nothing any more.
//!
//! A controller that is paused for long enough between two calls (a frozen machine, a partition) can begin a run for a
//! claim that another replica has brought to its end meanwhile. Such a run is found by what it says of itself, what it
//! may have made is deleted, and only then it is removed: it is the record. What the reclaim policy or the ConfigMap
//! does not let Mooring delete is named in an Event before the run is removed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::operation::Operation;
use mooring_contract::request::{Request, Snapshot};

use super::decision::{Decision, Intent, OrphanDecision, Settled, Start};
use super::describe::{Effect, action, describe, waiting};
use super::drive::{Operate, Progress, begin, drive};
use super::limits::Limits;
use super::observed::Surroundings;
use super::reclaim::{Kept, ReclaimPolicy, may_delete};
use super::record::Record;
use super::request;
use crate::config::ProvisionerConfig;
use crate::process::events::{Note, reasons};
use crate::run::input_state::InputState;
use crate::run::outcome::{Finish, State};
use crate::run::{Run, RunId};
use crate::time::elapsed;
use crate::volume::persistent_volume;

/// The runs of one object that is gone, by what they do.
#[derive(Debug, Default)]
pub struct Orphans<'a> {
    /// The run that changes a volume.
    change: Option<&'a Run>,
    /// The run that may have made something, or let a node have it.
    done: Option<&'a Run>,
    /// The run that undoes that.
    undo: Option<&'a Run>,
}

impl<'a> Orphans<'a> {
    pub fn of(runs: &'a [Run]) -> Self {
        let of = |wanted: fn(Effect) -> bool| {
            let does = |run: &&Run| run.operation().is_some_and(|kind| wanted(describe(kind).effect));
            runs.iter().find(does)
        };
        let attach = of(|effect| effect == Effect::AttachesVolume);
        let detach = of(|effect| effect == Effect::DetachesVolume);
        // What is attached is detached before it is deleted.
        let (done, undo) = if attach.or(detach).is_some() {
            (attach, detach)
        } else {
            (
                of(|effect| matches!(effect, Effect::MakesVolume | Effect::TakesSnapshot)),
                of(|effect| matches!(effect, Effect::RemovesVolume | Effect::RemovesSnapshot)),
            )
        };
        let change = of(Effect::changes_volume);
        Self { change, done, undo }
    }

    /// The run that Events are about.
    pub fn subject(&self) -> Option<&'a Run> {
        self.done.or(self.undo).or(self.change)
    }
}

pub struct ObservedOrphans<'a> {
    pub runs: &'a Orphans<'a>,
    /// Uid of the object that is gone.
    pub uid: &'a str,
    /// A PV of the volume is there, which Mooring does not hold.
    pub has_other_volume: bool,
    /// The ConfigMap of the subject.
    pub config: Option<&'a Arc<ProvisionerConfig>>,
    /// What the subject has made was deleted, or users were told that it stays.
    pub reclaimed: bool,
    /// Address of the Kubernetes API, for the image.
    pub kube_api: &'a str,
    pub limits: &'a Limits,
}

/// What to do about the runs of an object that is gone.
pub fn plan(seen: &ObservedOrphans<'_>, now: Timestamp) -> OrphanDecision {
    let young = |run: &Run| elapsed(run.made(), now) < seen.limits.orphan_age;
    let Orphans { change, done, undo } = *seen.runs;
    // Nothing else is run on a volume beside a change of it.
    let Some(first) = change.or(done) else {
        // The last of a deletion that is over. One that runs may go on, and one that failed has nobody to tell. One that
        // does not begin for want of its properties goes when its time is over.
        let is_due = |undo: &Run| elapsed(now, undo.due(seen.limits.overdue)).is_zero();
        let last = undo.filter(|undo| (undo.is_over() || is_due(undo)) && !young(undo));
        return last.map_or(Decision::Rest, |undo| Decision::Tidy(vec![undo.to_remove()]));
    };
    let may_have_run = match first.state() {
        _ if young(first) => return Decision::Rest,
        // Without its properties it never starts, and it gets none for as long as nobody wants it.
        State::Waiting { never_ran: true, .. } => return Decision::Tidy(vec![first.to_remove_as_it_is()]),
        State::Waiting { never_ran: false, .. } | State::Running if first.has_run_out(seen.limits.overdue, now) => true,
        // It ends by its own limit.
        State::Waiting { never_ran: false, .. } | State::Running | State::Leaving => return Decision::Rest,
        State::Finished(finish) => finish.may_have_run,
    };
    if change.is_some() || !may_have_run {
        return Decision::Tidy(vec![first.to_remove()]);
    }
    match first.operation().and_then(|operation| describe(operation).undone_by) {
        Some(operation) => Undoing::of(seen, first, operation, now).plan(),
        None => Decision::Rest,
    }
}

/// From what a run did, which nobody wants any more, to nothing. An attempt that failed leaves no record.
struct Undoing<'a> {
    seen: &'a ObservedOrphans<'a>,
    done: &'a Run,
    progress: Progress<'a>,
}

impl<'a> Undoing<'a> {
    fn of(seen: &'a ObservedOrphans<'a>, done: &'a Run, operation: Operation, now: Timestamp) -> Self {
        let progress = Progress {
            id: RunId::new(operation, seen.uid),
            record: None,
            recorded: Intent::Run,
            run: seen.runs.undo,
            config: seen.config,
            state: InputState::Unknown,
            limits: seen.limits,
            now,
        };
        Self { seen, done, progress }
    }

    fn plan(&self) -> OrphanDecision {
        match (self.progress.run, self.seen.config) {
            (None, _) => begin(self),
            (Some(undo), Some(config)) => {
                let record = Record {
                    attempt: undo.attempt(),
                    ..Record::first(self.progress.id.operation, undo.place(), undo.made(), config)
                };
                drive(self, &record)
            }
            (Some(undo), None) if undo.is_done() => self.settled(undo),
            (Some(_), None) => self.no_config(),
        }
    }

    /// The record first: without it, nothing depends on the other.
    fn settled(&self, undo: &Run) -> OrphanDecision {
        Decision::Settle(Box::new(Settled {
            // What holds its Pod may keep it for a while.
            reclaimed: Some(self.done.uid().into_owned()),
            runs: vec![self.done.to_remove(), undo.to_remove()],
            ..Settled::default()
        }))
    }

    fn no_config(&self) -> OrphanDecision {
        let text = format!(
            "the object that {} was for is gone, and what it made may exist, but ConfigMap {} is gone too: create the \
             ConfigMap again",
            self.done,
            self.done.config().unwrap_or_default()
        );
        Decision::wait_for(waiting(self.progress.id.operation, text))
    }

    /// Whether what the run has made may be deleted; an attachment may always be undone.
    fn may_undo(&self) -> Result<(), Kept> {
        let operation = self.progress.id.operation;
        match describe(operation).effect {
            Effect::RemovesVolume if self.seen.has_other_volume => Err(Kept::NotHeld),
            Effect::RemovesVolume | Effect::RemovesSnapshot => {
                let config = self.seen.config.map(AsRef::as_ref);
                may_delete(&ReclaimPolicy::of_orphan(self.done), operation, config)
            }
            _ => Ok(()),
        }
    }

    /// Lets the run go whose volume or snapshot stays in the storage.
    fn keep(&self, kept: &Kept) -> OrphanDecision {
        let done = self.done;
        let pv_name = persistent_volume::name_for(self.seen.uid);
        let (namespace, name) = done.claim().unwrap_or_default();
        let snapshot = done.request().ok().and_then(|request| request.snapshot);
        let snapshot = snapshot.filter(|_| describe(self.progress.id.operation).effect == Effect::RemovesSnapshot);
        let (noun, what) = match snapshot {
            Some(snapshot) => {
                let noun = match &snapshot {
                    Snapshot { members: Some(_), .. } => "group snapshot",
                    Snapshot { backup: true, .. } => "backup",
                    Snapshot { .. } => "snapshot",
                };
                let (content, kind) = (
                    snapshot.content_name,
                    describe(self.progress.id.operation).subject.name(),
                );
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
        let config = done.config().unwrap_or_default();
        let text = format!(
            "Mooring does not delete {what}, and {kept}; if nobody needs the {noun}, delete it from the storage of \
             ConfigMap {config}"
        );
        Decision::Settle(Box::new(Settled {
            reclaimed: Some(done.uid().into_owned()),
            runs: vec![done.to_remove()],
            say: Some(Note::warning(reasons::KEPT, action(self.progress.id.operation), text)),
            ..Settled::default()
        }))
    }
}

impl Operate for Undoing<'_> {
    type Own = Infallible;

    fn progress(&self) -> &Progress<'_> {
        &self.progress
    }

    fn request(&self) -> Result<Start, Box<OrphanDecision>> {
        let done = self.done;
        if self.seen.reclaimed {
            return Err(Box::new(Decision::Tidy(vec![done.to_remove()])));
        }
        self.may_undo().map_err(|kept| Box::new(self.keep(&kept)))?;
        let (Some(config), Ok(made_by)) = (self.seen.config, done.request()) else {
            return Err(Box::new(self.no_config()));
        };
        let (snapshot, attachment, volume) = match describe(self.progress.id.operation).effect {
            Effect::RemovesSnapshot => (made_by.snapshot.clone(), None, made_by.volume.clone()),
            Effect::DetachesVolume => (None, made_by.attachment.clone(), made_by.volume.clone()),
            // What was made of it is not known.
            _ => (None, None, BTreeMap::new()),
        };
        let around = Surroundings::new(None, config, self.seen.kube_api);
        let request = Request {
            snapshot,
            attachment,
            ..request::remembered(self.progress.id.operation, made_by, volume, around)
        };
        let node = done.node().filter(|_| config.is_node_local()).map(str::to_owned);
        let record = Record {
            node: node.clone().unwrap_or_default(),
            may_exist: true,
            ..self.progress.next(config)
        };
        Ok(Start {
            intent: Intent::Run,
            node,
            ..self.progress.start(config, record, request)
        })
    }

    fn apply(&self, undo: &Run, _record: &Record, _finish: &Finish) -> Result<OrphanDecision, Finish> {
        Ok(self.settled(undo))
    }

    /// The run makes room for the next after its backoff.
    fn fail(&self, record: &Record, _finish: &Finish) -> OrphanDecision {
        let Progress { run, limits, now, .. } = self.progress;
        let delay = limits.backoff.delay(record.attempt, self.seen.uid);
        match (delay.saturating_sub(elapsed(record.since, now)), run) {
            (left, _) if !left.is_zero() => Decision::wait(left),
            (_, undo) => Decision::Tidy(undo.map(Run::to_remove).into_iter().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mooring_contract::names::{annotations, labels};
    use mooring_contract::request::Request;
    use serde_json::{Value, json};

    use super::{ObservedOrphans, Orphans, plan};
    use crate::operation::decision::Decision;
    use crate::operation::limits::Limits;
    use crate::operation::tests::{ago, config, ended, no_image, now, run_with, running};
    use crate::run::Run;
    use crate::run::properties::tests::silver;

    fn run(operation: &str, age: i64, status: &Value) -> Run {
        let request = Request {
            operation: operation.parse().unwrap(),
            ..silver()
        };
        run_with(operation, 1, age, status, &json!(request)).changed(|carrier| {
            let held = carrier.metadata.labels.get_or_insert_default();
            held.insert(labels::OPERATION.to_owned(), operation.to_owned());
        })
    }

    fn word(runs: &[Option<&Run>]) -> &'static str {
        word_with(runs, false)
    }

    fn word_with(runs: &[Option<&Run>], reclaimed: bool) -> &'static str {
        let runs: Vec<Run> = runs.iter().copied().flatten().cloned().collect();
        let seen = ObservedOrphans {
            runs: &Orphans::of(&runs),
            uid: "u1",
            has_other_volume: false,
            config: Some(&Arc::new(config(&[]))),
            reclaimed,
            kube_api: "https://10.96.0.1:443",
            limits: &Limits::default(),
        };
        match plan(&seen, now()) {
            Decision::Rest | Decision::Wait { .. } => "wait",
            Decision::Supply { .. } => "supply",
            Decision::Tidy(_) => "remove",
            Decision::Settle(settled) if settled.runs.len() == 2 => "remove both",
            Decision::Start(_) => "undo",
            other => panic!("{other:?}"),
        }
    }

    /// Proves: P1
    #[test]
    fn an_orphan_is_settled_step_by_step_with_itself_as_the_record() {
        let provision = |age, status: &_| run("provision", age, status);
        let delete = |age, status: &_| run("delete", age, status);
        let made = provision(100, &ended(0, ""));
        assert_eq!(word(&[Some(&provision(10, &ended(0, "")))]), "wait", "too young");
        assert_eq!(word(&[Some(&provision(100, &running()))]), "wait");
        assert_eq!(word(&[Some(&provision(100, &no_image()))]), "remove");
        assert_eq!(word(&[Some(&made)]), "undo");
        assert_eq!(word_with(&[Some(&made)], true), "remove", "it is undone");
        let mut lost = running();
        lost.as_object_mut().unwrap().remove("startTime");
        for (delete, expected) in [
            (delete(9, &running()), "wait"),
            (delete(9, &json!({})), "supply"),
            (delete(100_000, &lost), "remove"),
            (delete(3, &ended(75, "")), "wait"),
            (delete(90, &ended(75, "")), "remove"),
            (delete(9, &ended(0, "")), "remove both"),
        ] {
            assert_eq!(word(&[Some(&made), Some(&delete)]), expected, "{delete:?}");
        }
        assert_eq!(word(&[Some(&delete(100, &ended(0, "")))]), "remove");
        assert_eq!(word(&[Some(&delete(100, &running()))]), "wait");
        let expand = |age, status: &_| run("expand", age, status);
        for (expand, waits) in [
            (expand(10, &ended(0, "")), true),
            (expand(100, &running()), true),
            (expand(100, &ended(0, "")), false),
            (expand(100, &no_image()), false),
        ] {
            let word = word(&[Some(&made), Some(&expand)]);
            assert_eq!(word == "wait", waits, "{word}");
            assert_ne!(word, "undo", "never two on one volume");
        }
    }

    /// Proves: P1
    #[test]
    fn an_orphan_of_which_its_worker_says_nothing_is_undone_when_its_time_is_over() {
        let on_worker = |operation: &str, age: i64| {
            run(operation, age, &running()).changed(|carrier| {
                let held = carrier.metadata.labels.get_or_insert_default();
                held.insert(labels::WORKER.to_owned(), "true".to_owned());
                let notes = carrier.metadata.annotations.get_or_insert_default();
                notes.insert(annotations::BEGUN.to_owned(), ago(age));
                notes.insert(annotations::TIMEOUT.to_owned(), "600".to_owned());
            })
        };
        assert_eq!(word(&[Some(&on_worker("provision", 659))]), "wait");
        assert_eq!(word(&[Some(&on_worker("provision", 660))]), "undo");
        assert_eq!(word(&[Some(&on_worker("expand", 660))]), "remove");
        let mut lost = running();
        lost.as_object_mut().unwrap().remove("startTime");
        let in_pod = run("provision", 100_000, &lost);
        assert_eq!(word(&[Some(&in_pod)]), "wait", "Kubernetes ends it");
    }

    /// Proves: P1
    #[test]
    fn what_was_attached_is_detached_before_it_is_deleted() {
        let made = run("provision", 200, &ended(0, ""));
        let attach = |age, status: &_| run("attach", age, status);
        let detach = |age, status: &_| run("detach", age, status);
        let word = |attach: Option<&Run>, detach: Option<&Run>| word(&[Some(&made), attach, detach]);
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
