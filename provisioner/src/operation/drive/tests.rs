//! The table of `docs/decisions/run.md`, for an operation that has nothing of its own.

use std::sync::Arc;
use std::time::Duration;

use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use serde_json::{Value, json};

use super::{Operate, Progress, begin, drive};
use crate::config::ProvisionerConfig;
use crate::operation::decision::{Decision, Intent, NotStarted, Start};
use crate::operation::limits::Limits;
use crate::operation::record::Record;
use crate::operation::tests::{config, ended, leaving, no_image, now, record, run_with, running};
use crate::run::input_state::InputState;
use crate::run::outcome::Finish;
use crate::run::properties::tests::silver;
use crate::run::{Run, RunId, RunRef};
use crate::time::later;

struct Plain<'a>(Progress<'a>);

impl Operate for Plain<'_> {
    type Own = ();

    fn progress(&self) -> &Progress<'_> {
        &self.0
    }

    fn request(&self) -> Result<Start, Box<Decision<()>>> {
        let config = self.0.config.unwrap();
        Ok(self.0.start(config, self.0.next(config), silver()))
    }

    fn apply(&self, _run: &Run, _record: &Record, finish: &Finish) -> Result<Decision<()>, Finish> {
        match finish.message.as_str() {
            "wrong" => Err(finish.refused("it is wrong".to_owned())),
            _ => Ok(Decision::Own(())),
        }
    }
}

fn decide(record: Option<&Record>, run: Option<&Run>, at: u64) -> Decision<()> {
    let config: Arc<ProvisionerConfig> = Arc::new(config(&[]));
    let operation = Plain(Progress {
        id: RunId::new(Operation::Expand, "u1"),
        record,
        recorded: Intent::Recorded,
        run,
        config: Some(&config),
        state: InputState::Known("state".to_owned()),
        limits: &Limits::default(),
        now: later(now(), Duration::from_secs(at)),
    });
    match record {
        Some(record) => drive(&operation, record),
        None => begin(&operation),
    }
}

/// What is decided so many seconds from now, in a word.
fn decided(record: Option<&Record>, run: Option<&Run>, at: u64) -> String {
    let decision = decide(record, run, at);
    let told = |say: &Option<_>| if say.is_some() { ", told" } else { "" };
    let told_of_run = |say: &Option<NotStarted>| match say {
        Some(say) if say.is_blocked => ", told why",
        Some(_) => ", told",
        None => "",
    };
    match &decision {
        Decision::Rest => "rest".to_owned(),
        Decision::Wait { after: None, say } => format!("wait for good{}", told(say)),
        Decision::Wait { after, say } => format!("wait {}{}", after.unwrap().as_secs(), told(say)),
        Decision::Start(start) => format!("start {} {:?}", start.record.attempt, start.intent),
        Decision::Supply { after, say, .. } => format!("supply {}{}", after.unwrap().as_secs(), told_of_run(say)),
        Decision::Record(_) => "record".to_owned(),
        Decision::Cancel { .. } => "cancel".to_owned(),
        Decision::Fail(failed) => {
            let Record { gave_up, may_exist, .. } = failed.record;
            let end = if gave_up { ", given up" } else { "" };
            let made = if may_exist { ", may exist" } else { "" };
            let seen = failed.run.as_ref().is_some_and(RunRef::is_exact);
            let first = if seen { ", if its run is as seen" } else { "" };
            format!("fail {}{end}{made}{first}", failed.category.as_str())
        }
        Decision::Stop(_) => "stop".to_owned(),
        Decision::Tidy(_) => "tidy".to_owned(),
        Decision::Settle(_) | Decision::Own(()) => "apply".to_owned(),
    }
}

/// Proves: P1
#[test]
fn each_state_and_event_of_a_run_has_one_decision_whatever_the_operation() {
    assert_eq!(decided(None, None, 0), "start 1 ToRecord", "wanted");
    let in_time = later(now(), Duration::from_secs(20)).to_string();
    let records = |change: &Value| {
        let mut all = json!({"operation": "expand", "pod": "admin/expand-u1", "attempt": 2});
        all.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        record(&all)
    };
    let of = |attempt, age, status: &Value| Some(run_with("expand", attempt, age, status, &json!(silver())));
    let plain = json!({});
    let may_exist = json!({"may-exist": true});
    let held_back = json!({"not-before": in_time, "tried": "state"});
    let given_up = json!({"gave-up": true, "tried": "state"});
    let changed = json!({"not-before": in_time, "tried": "another"});
    let changed_since = json!({"gave-up": true, "tried": "another"});
    for (record, run, at, expected) in [
        (&held_back, None, 0, "wait 20"),
        (&held_back, None, 20, "start 2 ToRecord"),
        (&given_up, None, 0, "wait for good, told"),
        (&changed, None, 0, "start 2 ToRecord"),
        (&changed_since, None, 0, "start 2 ToRecord"),
        // Begun, and the controller stopped before the run was made.
        (&plain, None, 0, "start 2 Recorded"),
        // Begun: its node has not said why it does not start, then it is late, then too late.
        (&plain, of(2, 0, &json!({})), 0, "supply 30"),
        (&plain, of(2, 0, &json!({})), 40, "supply 260, told"),
        (&plain, of(2, 0, &json!({})), 301, "fail timeout, may exist"),
        // Its node says why.
        (&plain, of(2, 0, &no_image()), 0, "supply 350, told why"),
        (
            &plain,
            of(2, 0, &no_image()),
            351,
            "fail timeout, if its run is as seen",
        ),
        (&plain, of(2, 0, &running()), 0, "wait 350"),
        // Its node is lost.
        (&plain, of(2, 0, &running()), 351, "fail timeout, may exist"),
        (&plain, of(2, 0, &running()).map(leaving), 0, "wait 60"),
        (&plain, of(2, 0, &running()).map(leaving), 100, "wait 60, told"),
        (&plain, of(2, 0, &ended(0, "")), 0, "apply"),
        (&plain, of(2, 0, &ended(0, "wrong")), 0, "fail refused, may exist"),
        (&plain, of(2, 0, &ended(1, "")), 0, "fail failed, may exist"),
        (&plain, of(2, 0, &ended(78, "")), 0, "fail config, given up, may exist"),
        // Stale.
        (&plain, of(1, 0, &no_image()), 0, "stop"),
        (&plain, of(1, 0, &running()).map(leaving), 0, "wait 60"),
        // It was taken for one that never ran, and the record does not say that it may have made anything.
        (&plain, of(1, 0, &running()), 0, "record"),
        (&plain, of(1, 0, &ended(0, "")), 0, "record"),
        (&plain, of(1, 0, &ended(0, "")).map(leaving), 0, "record"),
        (&may_exist, of(1, 0, &running()), 0, "stop"),
        (&may_exist, of(1, 0, &ended(0, "")), 0, "stop"),
        // What is known of the object is older than the run.
        (&plain, of(3, 0, &ended(1, "")), 0, "wait 60"),
    ] {
        let record = records(record);
        let found = decided(Some(&record), run.as_ref(), at);
        assert_eq!(found, expected, "{} {run:?} at {at}", record.to_text());
    }
}

#[test]
fn a_run_that_cannot_start_makes_room_for_one_with_what_has_changed() {
    let record = record(&json!({"operation": "expand", "pod": "admin/expand-u1"}));
    for (began, status, expected) in [
        (Some("state"), no_image(), "supply 350, told why"),
        // An earlier version did not write it down.
        (None, no_image(), "supply 350, told why"),
        (Some("earlier"), no_image(), "fail not-started, if its run is as seen"),
        // Nothing that could change decides the run, as of a discovery, or of an orphan's.
        (Some("unknown"), no_image(), "supply 350, told why"),
        // It may start yet, or runs.
        (Some("earlier"), json!({}), "supply 30"),
        (Some("earlier"), running(), "wait 350"),
    ] {
        let run = run_with("expand", 1, 0, &status, &json!(silver())).changed(|carrier| {
            let notes = carrier.metadata.annotations.as_mut().unwrap();
            notes.extend(began.map(|state| (annotations::INPUT_STATE.to_owned(), state.to_owned())));
        });
        assert_eq!(decided(Some(&record), Some(&run), 0), expected, "{began:?} {status}");
    }
    // The next one begins at once.
    let run = run_with("expand", 1, 0, &no_image(), &json!(silver())).changed(|carrier| {
        let notes = carrier.metadata.annotations.as_mut().unwrap();
        notes.insert(annotations::INPUT_STATE.to_owned(), "earlier".to_owned());
    });
    let Decision::Fail(failed) = decide(Some(&record), Some(&run), 0) else {
        panic!("it waits");
    };
    assert_eq!(decided(Some(&failed.record), None, 0), "start 2 ToRecord");
}

/// Proves: P4
#[test]
fn an_attempt_failed_with_what_it_began_with_whatever_has_changed_since() {
    let record = record(&json!({"operation": "expand", "pod": "admin/expand-u1"}));
    for code in [1, 78] {
        // An earlier version did not write it down.
        for (began, tried) in [(None, "state"), (Some("state"), "state"), (Some("earlier"), "earlier")] {
            let run = run_with("expand", 1, 0, &ended(code, ""), &json!(silver())).changed(|carrier| {
                let notes = carrier.metadata.annotations.as_mut().unwrap();
                notes.extend(began.map(|state| (annotations::INPUT_STATE.to_owned(), state.to_owned())));
            });
            let Decision::Fail(failed) = decide(Some(&record), Some(&run), 0) else {
                panic!("{code} after {began:?}")
            };
            let tried = InputState::Known(tried.to_owned());
            assert_eq!(failed.record.tried, Some(tried), "{code} after {began:?}");
            let waits = decided(Some(&failed.record), None, 0).starts_with("wait");
            assert_eq!(waits, began != Some("earlier"), "{code} after {began:?}");
        }
    }
}
