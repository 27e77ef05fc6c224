//! Who waits is told what for, or is soon. The tests of every plan have [`assert_told`] look at all that they plan. Two
//! waits may go on in silence, and their tests ask for them without it: that for a watch which is late by a moment, and
//! that for the end of a use of a volume which no Pod waits for.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::decision::Decision;
use super::tests::{World, ended, leaving, never_made, no_image, now, run, running};
use crate::config::store::NoConfig;
use crate::run::Run;

/// Most silent waits that may follow each other while nothing changes: a run that starts, then one that is late.
const IN_A_ROW: usize = 2;

/// A wait about which nothing is said, by its limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct SilentWait(Option<Duration>);

impl<Own> Decision<Own> {
    /// Whether it is a wait about which nothing is said.
    pub(super) fn silent_wait(&self) -> Option<SilentWait> {
        match self {
            Self::Wait { after, say: None } | Self::Supply { after, say: None, .. } => Some(SilentWait(*after)),
            _ => None,
        }
    }
}

/// Checks that what is decided now is no wait in silence for good: it has a limit, and when that has come, and nothing
/// has changed, something is said or done. `silent` decides at a moment.
pub(super) fn assert_told(mut silent: impl FnMut(Timestamp) -> Option<SilentWait>) {
    let mut at = now();
    for _ in 0..=IN_A_ROW {
        let Some(SilentWait(limit)) = silent(at) else { return };
        let limit = limit.expect("a wait has neither an Event nor a limit");
        // As much later as the controller looks again.
        at += limit + Duration::from_millis(150);
    }
    panic!("it still waits at {at}, and nothing is said about it");
}

/// The states of a run, by what they are called where one of them fails.
fn runs(operation: &str) -> Vec<(&'static str, Option<Run>)> {
    const OLD: i64 = 100_000;
    let of = |age: i64, status: &Value| Some(run(operation, 1, age, status));
    vec![
        ("no run", None),
        ("made", of(1, &json!({}))),
        ("not started", of(120, &json!({}))),
        ("never started", of(OLD, &json!({}))),
        ("without its image", of(60, &no_image())),
        ("running", of(10, &running())),
        ("running for days", of(OLD, &running())),
        ("stopping", of(10, &running()).map(leaving)),
        ("done", of(10, &ended(0, r#"{"client": "nfs", "source": "h:/x"}"#))),
        ("failed", of(10, &ended(75, "busy"))),
        ("refused", of(10, &ended(78, "no"))),
        ("never made", of(10, &never_made())),
    ]
}

/// What may be missing, and how a claim may stand.
fn worlds(record: &Value) -> Vec<(&'static str, World)> {
    let world = || {
        if record.is_null() {
            World::new()
        } else {
            World::with_record(record)
        }
    };
    let without_config = |error: NoConfig| World {
        config: Err(error),
        ..world()
    };
    let missing = NoConfig::Missing {
        class: "silver".into(),
        reference: "admin/custom-isci-provisioner".parse().unwrap(),
    };
    let unclaimed = NoConfig::Unclaimed {
        class: "silver".into(),
        label: "silver".to_owned(),
    };
    vec![
        ("nothing missing", world()),
        ("no class", World { class: None, ..world() }),
        ("no ConfigMap", without_config(missing.clone())),
        ("a class that no ConfigMap names", without_config(unclaimed)),
        ("ConfigMaps not read", without_config(NoConfig::NotReadYet)),
        ("a node", world().selected("node-a")),
        ("no node", world().selected("gone")),
        ("deleted", world().deleted()),
        ("deleted, no ConfigMap", without_config(missing).deleted()),
        ("deleted, no node", world().selected("gone").deleted()),
    ]
}

/// Proves: P4
#[test]
fn a_claim_never_waits_without_a_word_whatever_is_missing_and_however_its_runs_stand() {
    let later = Timestamp::from_second(now().as_second() + 20).unwrap().to_string();
    let records = [
        Value::Null,
        json!({}),
        json!({"not-before": later}),
        json!({"may-exist": true}),
        json!({"may-exist": true, "not-before": later}),
        json!({"operation": "delete", "may-exist": true}),
        json!({"operation": "delete", "may-exist": true, "not-before": later}),
    ];
    let (mut silent, mut told) = (0, BTreeSet::new());
    for record in &records {
        let operation = record["operation"].as_str().unwrap_or("provision");
        for (state, run) in runs(operation) {
            for (missing, mut world) in worlds(record) {
                // Shown if it fails.
                println!("record {record}, run {state}, {missing}");
                if operation == "delete" {
                    world.delete_run.clone_from(&run);
                } else {
                    world.provision_run.clone_from(&run);
                }
                let decision = world.try_plan();
                silent += usize::from(decision.silent_wait().is_some());
                let say = match decision {
                    Decision::Wait { say, .. } => say,
                    Decision::Supply { say, .. } => say.map(|say| say.note),
                    _ => None,
                };
                if let Some(note) = say {
                    assert!(!note.text.is_empty());
                    told.insert(note.text);
                }
            }
        }
    }
    // Or nothing was looked at.
    assert!(silent > 20 && told.len() > 5, "{silent} silent waits, and {told:#?}");
}
