use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use mooring_contract::worker::{Report, RunEnd};
use serde_json::{Value, json};

use super::{Due, ObservedDiscovery, due_after, plan, read, request, result};
use crate::config::ProvisionerConfig;
use crate::operation::decision::{Intent, RunDecision};
use crate::operation::limits::Limits;
use crate::operation::tests::{ago, config, ended, leaving, no_image, now, run, running};
use crate::operation::waits::assert_told;
use crate::run::Run;
use crate::time::later;

const LIST: &str = r#"{"parameter": "pool", "classes": ["ssd"]}"#;

fn discovering(extra: &[(&str, &str)]) -> Arc<ProvisionerConfig> {
    let mut keys = vec![("operations", "provision,delete,discover")];
    keys.extend(extra);
    Arc::new(config(&keys))
}

/// A run of this version of the ConfigMap that ended so long ago.
fn ran(config: &ProvisionerConfig, since: i64, mut status: Value) -> Run {
    if let Some(terminated) = status.pointer_mut("/containerStatuses/0/state/terminated") {
        terminated["finishedAt"] = json!(ago(since));
    }
    let notes = [
        ("mooring.dev/fingerprint".to_owned(), config.fingerprint.clone()),
        (
            "mooring.dev/request".to_owned(),
            json!(request(config, "https://k:1")).to_string(),
        ),
    ];
    run("discover", 1, since + 5, &status).changed(|carrier| {
        carrier.metadata.annotations = Some(notes.into());
    })
}

fn decide(config: &Arc<ProvisionerConfig>, run: Option<&Run>) -> (&'static str, Option<Duration>) {
    assert_told(|at| plan_at(config, run, at).silent_wait());
    decide_once(config, run)
}

fn plan_at(config: &Arc<ProvisionerConfig>, run: Option<&Run>, now: Timestamp) -> RunDecision {
    plan_due(config, run, None, now)
}

fn plan_due(config: &Arc<ProvisionerConfig>, run: Option<&Run>, due: Option<Due>, now: Timestamp) -> RunDecision {
    let seen = ObservedDiscovery {
        config,
        run,
        due,
        kube_api: "https://k:1",
        limits: &Limits::default(),
    };
    plan(&seen, now)
}

/// Without a look at what is decided after a wait.
fn decide_once(config: &Arc<ProvisionerConfig>, run: Option<&Run>) -> (&'static str, Option<Duration>) {
    match plan_at(config, run, now()) {
        RunDecision::Rest => ("rest", None),
        RunDecision::Wait { after, .. } => ("wait", after),
        RunDecision::Start(start) => {
            assert_eq!(start.intent, Intent::Configured);
            assert_eq!(
                start.owner,
                Some(("custom-isci-provisioner".to_owned(), "c1".to_owned()))
            );
            assert_eq!(start.request.parameters["zone"], "west");
            assert_eq!(start.request.storage_class, "silver");
            ("start", None)
        }
        RunDecision::Supply { after, .. } => ("supply", after),
        RunDecision::Tidy(_) => ("stop", None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_stays_until_the_next_is_due() {
    let config = discovering(&[("discover-interval", "100s")]);
    let word = |run: Option<&Run>| decide(&config, run).0;
    let list = || ended(0, LIST);
    assert_eq!(word(None), "start");
    assert_eq!(word(Some(&ran(&config, 10, running()))), "wait");
    assert_eq!(word(Some(&leaving(ran(&config, 10, list())))), "wait");
    assert_eq!(word(Some(&ran(&config, 10, json!({})))), "supply");
    for (since, does) in [(1, "wait"), (79, "wait"), (101, "stop")] {
        assert_eq!(word(Some(&ran(&config, since, list()))), does, "{since}");
    }
    let (_, left) = decide(&config, Some(&ran(&config, 0, list())));
    let left = left.unwrap();
    assert!(
        left >= Duration::from_secs(80) && left <= Duration::from_secs(100),
        "{left:?}"
    );
    // While a node's clock is ahead, the controller looks again after an interval.
    let (_, ahead) = decide_once(&config, Some(&ran(&config, -5000, list())));
    assert!(ahead.unwrap() <= Duration::from_secs(100));
}

#[test]
fn a_worker_is_free_at_once_and_the_next_run_waits_until_it_is_due() {
    let config = discovering(&[("discover-interval", "100s")]);
    let report = |exit_code, message: &str| Report {
        number: 1,
        ended: Some(RunEnd {
            exit_code,
            message: message.to_owned(),
            timed_out: false,
        }),
    };
    let by_worker = |report: Report| {
        let run = ran(&config, 0, running()).changed(|carrier| {
            carrier.labels_mut().insert("mooring.dev/worker".into(), "true".into());
            carrier.annotations_mut().insert("mooring.dev/runs".into(), "1".into());
        });
        run.reported(Some(report))
    };
    for (exit_code, message, expected) in [(0, LIST, Some(100)), (75, "busy", Some(10)), (78, "no", None)] {
        let run = by_worker(report(exit_code, message));
        assert!(
            matches!(plan_at(&config, Some(&run), now()), RunDecision::Tidy(_)),
            "{message}"
        );
        let due = due_after(&config, &run, &result(&run).unwrap(), now());
        let next = |seconds| plan_due(&config, None, Some(due), later(now(), Duration::from_secs(seconds)));
        match expected {
            Some(seconds) => {
                assert!(matches!(next(seconds / 2), RunDecision::Wait { .. }), "{message}");
                assert!(matches!(next(seconds + 1), RunDecision::Start(_)), "{message}");
            }
            None => assert!(matches!(next(100_000), RunDecision::Rest), "{message}"),
        }
    }
}

#[test]
fn a_failure_is_tried_again_sooner_and_a_refusal_not_at_all() {
    let config = discovering(&[("discover-interval", "1000s")]);
    let word = |since, status| decide(&config, Some(&ran(&config, since, status))).0;
    for failed in [
        ended(75, "busy"),
        ended(1, "no"),
        ended(0, ""),
        ended(0, "{\"pools\": 1}"),
    ] {
        assert_eq!(word(70, failed.clone()), "wait", "{failed}");
        assert_eq!(word(101, failed.clone()), "stop", "{failed}");
    }
    assert_eq!(word(100_000, ended(78, "no such server")), "rest");
    // It hangs, or has not started, past its limit.
    assert_eq!(word(3600, running()), "wait", "its node counts from its start");
    assert_eq!(word(3600, no_image()), "supply");
    let lost = ran(&config, 3600, running()).changed(|carrier| {
        carrier.status.as_mut().unwrap().start_time = serde_json::from_value(json!(ago(3600))).unwrap();
    });
    assert_eq!(decide(&config, Some(&lost)).0, "stop");
}

#[test]
fn a_change_of_the_config_map_brings_another_at_once() {
    let config = discovering(&[]);
    let before = discovering(&[("zone", "east")]);
    for status in [ended(0, LIST), ended(78, "no"), running(), no_image()] {
        let old = ran(&before, 1, status);
        assert_eq!(decide(&config, Some(&old)).0, "stop");
        assert_eq!(decide(&config, Some(&leaving(old))).0, "wait");
    }
    let without = Arc::new(crate::operation::tests::config(&[]));
    assert_eq!(decide(&without, None).0, "rest");
    assert_eq!(decide(&without, Some(&ran(&without, 1, ended(0, LIST)))).0, "stop");
}

#[test]
fn what_can_be_no_class_is_a_failure() {
    let config = discovering(&[]);
    let class = |change: Value| {
        let mut class = json!({"name": "ssd", "parameters": {"pool": "ssd"}});
        for (key, value) in change.as_object().unwrap() {
            class[key] = value.clone();
        }
        json!({"classes": [class]}).to_string()
    };
    assert!(read(&class(json!({"parameters": {"fs-type": "xfs"}}))).is_ok());
    for (change, says) in [
        (
            json!({"parameters": {"mooring.dev/config-name": "x"}}),
            "can't be a property",
        ),
        (json!({"parameters": {"pv-name": "x"}}), "Mooring sets itself"),
        (json!({"parameters": {"ld-preload": "x"}}), "decides how programs"),
        (json!({"mount-options": ["suid"]}), "mount options"),
    ] {
        let message = class(change);
        let error = read(&message).unwrap_err();
        let error = mooring_program::error::chain(&error);
        assert!(error.contains(says), "{error}");
        let failure = result(&ran(&config, 1, ended(0, &message))).unwrap().unwrap_err();
        assert_eq!(failure.category.as_str(), "refused");
    }
    assert!(result(&ran(&config, 1, running())).is_none());
    assert_eq!(
        result(&ran(&config, 1, ended(0, LIST))).unwrap().unwrap().classes.len(),
        1
    );
}
