//! A claim's life with a worker, rehearsed like the rest: one volume for a claim that stands, none for one that is gone,
//! and no run that is begun twice at once, also when the worker is killed.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::worker::Report;
use serde_json::json;

use super::fake_api::key_of;
use super::fake_worker::{FakeWorker, WORKER, is_free};
use super::{MADE_BY_WORKER, Offers, Script, Theatre, with_every_fault};
use crate::config::store::Entry;
use crate::operation::tests::ended;
use crate::process::events::EventRecorder;
use crate::run::worker_pod::tests::worker;

#[derive(Debug, Clone, Copy)]
struct Life {
    script: Script,
    /// So many of the worker's answers are lost.
    lost_answers: usize,
    /// The worker's Pod is deleted after so many turns. A run that it has at the time has had its effect.
    killed_after: Option<usize>,
}

impl Theatre {
    /// The controller dies before it hands over the run that the worker's Pod has.
    async fn forget_order(&mut self) {
        self.worker = Some(FakeWorker::start(0).await);
        self.restart();
    }

    /// Somebody gives the worker's Pod a label: a policy refuses every change of the controller's from then on.
    fn label_worker(&self) {
        let mut state = self.api.lock();
        if let Some(mut worker) = state.get("pods", WORKER) {
            worker["metadata"]["labels"]["team"] = json!("storage");
            state.put("pods", worker);
        }
    }
}

async fn open(life: Life) -> Theatre {
    let mut theatre = Theatre::open(life.script);
    theatre.hire(life.lost_answers).await;
    theatre
}

async fn rehearse(life: Life) {
    with_every_fault(&life, async |fault, what| {
        let mut theatre = open(life).await;
        theatre.fail(fault);
        for turn in 0..life.killed_after.unwrap_or(0) {
            if life.script.deleted_after == Some(turn) {
                theatre.api.lock().delete("claims", "default/data");
            }
            theatre.turn().await;
        }
        if life.killed_after.is_some() {
            for going in theatre.runs().iter().filter(|going| going.is_on_worker()) {
                theatre.effect(going.operation(), &going.request().pv_name);
            }
            theatre.kill_worker();
        }
        theatre.play().await;
        theatre.check(what);
        theatre.calls()
    })
    .await;
}

fn script(first_fails: bool, deleted_after: Option<usize>) -> Script {
    Script {
        image_makes_pv: false,
        first_fails,
        quick_binder: false,
        deleted_after,
        offers: Offers::Changes,
    }
}

/// Proves: P1
#[tokio::test]
async fn a_claim_ends_with_one_volume_of_a_worker_s_whatever_fails() {
    for first_fails in [false, true] {
        for (lost_answers, killed_after) in [
            (0, None),
            (1, None),
            (2, None),
            (0, Some(0)),
            (0, Some(1)),
            (0, Some(2)),
        ] {
            rehearse(Life {
                script: script(first_fails, None),
                lost_answers,
                killed_after,
            })
            .await;
        }
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_claim_that_is_deleted_ends_with_none_of_a_worker_s_whatever_fails() {
    for deleted_after in [0, 1, 2, 3] {
        for killed_after in [None, Some(1)] {
            rehearse(Life {
                script: script(deleted_after == 2, Some(deleted_after)),
                lost_answers: 0,
                killed_after,
            })
            .await;
        }
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_claim_has_a_pod_of_its_own_where_no_worker_may_be_given_a_run_whatever_fails() {
    for (first_fails, deleted_after) in [
        (false, None),
        (true, None),
        (false, Some(0)),
        (false, Some(1)),
        (true, Some(2)),
        (false, Some(3)),
    ] {
        let life = Life {
            script: script(first_fails, deleted_after),
            lost_answers: 0,
            killed_after: None,
        };
        with_every_fault(&life, async |fault, what| {
            let mut theatre = open(life).await;
            theatre.api.lock().refused = Some((Method::PATCH, "pods", StatusCode::FORBIDDEN));
            theatre.fail(fault);
            theatre.play().await;
            theatre.check(what);
            let worker = theatre.worker.as_ref().unwrap().report();
            assert_eq!(worker.number, 0, "{what}: the worker was given a run");
            theatre.calls()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn where_no_worker_may_be_given_a_run_one_pod_makes_the_volume_and_the_configmap_has_an_event_with_the_cure() {
    let mut theatre = open(Life {
        script: script(false, None),
        lost_answers: 0,
        killed_after: None,
    })
    .await;
    theatre.api.lock().refused = Some((Method::PATCH, "pods", StatusCode::FORBIDDEN));
    let (events, mut told) = EventRecorder::new(theatre.shared.context.metrics.clone());
    theatre.shared.context.events = events;
    theatre.play().await;
    theatre.check("one Pod");
    let log = theatre.api.lock().log.clone();
    let times = |call: &str| log.iter().filter(|written| written.starts_with(call)).count();
    assert_eq!(times("PATCH /api/v1/namespaces/admin/pods/worker-1"), 1, "{log:#?}");
    assert_eq!(times("POST /api/v1/namespaces/admin/pods"), 1, "{log:#?}");
    assert_eq!(theatre.attempts, 1, "the image ran again");
    let texts: Vec<_> = std::iter::from_fn(|| told.try_next())
        .filter(|(of, note)| of.kind.as_deref() == Some("ConfigMap") && note.reason == "WorkerFailed")
        .map(|(_, note)| note.text)
        .collect();
    let [text] = texts.as_slice() else { panic!("{texts:#?}") };
    assert!(
        text.contains("cannot patch") && text.contains("Apply configmaps/install"),
        "{text}"
    );
}

/// Proves: P1
#[tokio::test]
async fn a_worker_that_somebody_has_labelled_goes_and_the_claim_ends_with_one_volume_whatever_fails() {
    for (labelled_after, deleted_after) in [
        (0, None),
        (1, None),
        (2, None),
        (0, Some(1)),
        (1, Some(2)),
        (2, Some(3)),
    ] {
        let life = Life {
            script: script(false, deleted_after),
            lost_answers: 0,
            killed_after: None,
        };
        with_every_fault(&(life, labelled_after), async |fault, what| {
            let mut theatre = open(life).await;
            theatre.fail(fault);
            for _ in 0..labelled_after {
                theatre.turn_of_controllers().await;
                theatre.kubelet();
            }
            theatre.label_worker();
            theatre.play().await;
            theatre.check(what);
            let worker = theatre.api.lock().get("pods", WORKER);
            // One that was not written to any more is not known to be of no use.
            let is_free = worker.is_none_or(|worker| is_free(&worker));
            assert!(is_free, "{what}: the worker has its run for ever");
            theatre.calls()
        })
        .await;
    }
}

/// Proves: P1
#[tokio::test]
async fn a_worker_that_somebody_has_labelled_costs_no_attempt_and_its_configmap_is_told() {
    for labelled_after in [0, 1] {
        let mut theatre = open(Life {
            script: script(false, None),
            lost_answers: 0,
            killed_after: None,
        })
        .await;
        let (events, mut told) = EventRecorder::new(theatre.shared.context.metrics.clone());
        theatre.shared.context.events = events;
        for _ in 0..labelled_after {
            theatre.turn_of_controllers().await;
        }
        theatre.label_worker();
        theatre.play().await;
        theatre.check("a worker with a label");
        assert_eq!(theatre.attempts, 1, "the image ran again");
        assert_eq!(theatre.api.lock().get("pods", WORKER), None, "it is of no use");
        let texts: Vec<_> = std::iter::from_fn(|| told.try_next())
            .map(|(_, note)| (note.reason, note.text))
            .filter(|(reason, _)| *reason != "Provisioning" && *reason != "ProvisioningSucceeded")
            .collect();
        let is_told = |(reason, text): &(&str, String)| *reason == "WorkerFailed" && text.contains("and no others");
        assert_eq!(texts.iter().filter(|told| is_told(told)).count(), 1, "{texts:#?}");
    }
}

/// Proves: P1
#[tokio::test]
async fn only_a_right_that_the_controller_lacks_holds_up_workers_of_other_configmaps() {
    for (lacks_right, can_be_taken) in [(false, true), (true, false)] {
        let mut theatre = open(Life {
            script: script(false, None),
            lost_answers: 0,
            killed_after: None,
        })
        .await;
        if lacks_right {
            theatre.api.lock().refused = Some((Method::PATCH, "pods", StatusCode::FORBIDDEN));
        } else {
            theatre.label_worker();
        }
        theatre.turn_of_controllers().await;
        let mut beside = (*theatre.shared.context.configs.all().remove(0)).clone();
        let own = worker(&beside, "own", &json!({}), &json!({}));
        beside.reference.name = "beside".to_owned();
        let other = worker(&beside, "other", &json!({}), &json!({}));
        let workers = &theatre.shared.cache.workers;
        let seat = theatre.worker.as_ref().unwrap().seat.clone();
        for worker in [&own, &other] {
            workers.contacts.note(worker.uid(), &seat, Report::default());
        }
        assert!(!workers.take(&own, true), "lacks the right: {lacks_right}");
        assert_eq!(
            workers.take(&other, true),
            can_be_taken,
            "lacks the right: {lacks_right}"
        );
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_worker_ends_its_run_although_its_configmap_is_deleted_and_goes_when_it_has_none() {
    let mut theatre = open(Life {
        script: script(false, None),
        lost_answers: 0,
        killed_after: None,
    })
    .await;
    let map = theatre.api.lock().all("configmaps").remove(0);
    let owner =
        |theatre: &Theatre| theatre.api.lock().get("pods", WORKER).unwrap()["metadata"]["ownerReferences"].clone();
    let before = owner(&theatre);
    theatre.turn_of_controllers().await;
    assert!(theatre.worker.as_ref().unwrap().order().is_some(), "it has no run");
    theatre.api.lock().delete("configmaps", &key_of(&map));
    theatre.garbage_collector();
    assert!(
        theatre.api.lock().get("pods", WORKER).is_some(),
        "it went in the middle of its run"
    );
    theatre.api.lock().put("configmaps", map.clone());
    theatre.play().await;
    theatre.check("one run");
    assert_eq!(theatre.attempts, 1, "the image ran again");
    assert_eq!(owner(&theatre), before);
    theatre.api.lock().delete("configmaps", &key_of(&map));
    theatre.garbage_collector();
    assert_eq!(theatre.api.lock().get("pods", WORKER), None, "it stays for nothing");
}

/// Proves: P1
#[tokio::test]
async fn a_deletion_that_another_controller_has_begun_elsewhere_is_not_begun() {
    for other_has_worker in [false, true] {
        let mut theatre = open(Life {
            script: script(false, None),
            lost_answers: 0,
            killed_after: None,
        })
        .await;
        theatre.play().await;
        let run = json!({
            "mooring.dev/component": "provisioning", "mooring.dev/operation": "delete", "mooring.dev/claim-uid": "u1",
            "mooring.dev/attempt": "1",
        });
        {
            let mut state = theatre.api.lock();
            state.delete("claims", "default/data");
            let worker = state.get("pods", WORKER).unwrap();
            // This controller's watch has not shown what the other one did.
            let (shown, mut other) = if other_has_worker {
                (vec![], worker)
            } else {
                let pod = json!({"metadata": {"namespace": "admin", "name": "delete-u1", "labels": {}}});
                (vec![worker], pod)
            };
            theatre.lagging.insert("pods", shown);
            for (label, value) in run.as_object().unwrap() {
                other["metadata"]["labels"][label] = value.clone();
            }
            state.put("pods", other);
        }
        theatre.binder();
        theatre.turn_of_controllers().await;
        let left = if other_has_worker { WORKER } else { "admin/delete-u1" };
        assert_eq!(theatre.pods_left(), [left]);
        let state = theatre.api.lock();
        assert_eq!(
            state.each("pods").count(),
            1,
            "its own is still there: {:#?}",
            state.log
        );
        assert_eq!(state.each("secrets").count(), 0);
        let given = theatre.worker.as_ref().map(|worker| worker.report().number);
        assert_eq!(given, Some(1), "the worker was given the run");
    }
}

/// Proves: P7
#[tokio::test]
async fn a_volume_of_a_worker_s_costs_five_writes_and_its_deletion_four() {
    let deleted = ["PATCH pods", "DELETE volumes", "PATCH volumes", "PATCH pods"];
    for (deleted_after, writes) in [
        (None, MADE_BY_WORKER.to_vec()),
        (Some(20), [&MADE_BY_WORKER[..], &deleted].concat()),
    ] {
        let mut theatre = open(Life {
            script: script(false, deleted_after),
            lost_answers: 0,
            killed_after: None,
        })
        .await;
        theatre.play().await;
        theatre.check("its budget");
        assert_eq!(theatre.api.lock().writes(), writes);
    }
}

/// A controller that was held up has given the worker a run for a claim that is gone. It was killed before it handed the
/// run over; or it has handed it over, and nothing reaches the worker since.
///
/// Proves: P1
#[tokio::test]
async fn a_run_of_a_worker_s_that_belongs_to_nothing_ends_when_its_time_is_over() {
    for (operation, is_given, is_reached) in [
        ("provision", false, true),
        ("provision", false, false),
        ("provision", true, false),
        ("expand", false, true),
    ] {
        let what = format!("{operation}, given: {is_given}, reached: {is_reached}");
        let mut theatre = open(Life {
            script: script(false, Some(0)),
            lost_answers: 0,
            killed_after: None,
        })
        .await;
        theatre.turn_of_controllers().await;
        let mut worker = theatre.api.lock().get("pods", WORKER).unwrap();
        assert_eq!(worker["metadata"]["labels"]["mooring.dev/operation"], "provision");
        worker["metadata"]["labels"]["mooring.dev/operation"] = json!(operation);
        if !is_given {
            theatre.forget_order().await;
        }
        theatre.worker.as_ref().unwrap().reach(is_reached);
        theatre.api.lock().put("pods", worker.clone());
        theatre.api.lock().take_away("claims", "default/data");
        theatre.restart();
        for _ in 0..4 {
            theatre.turn().await;
        }
        assert!(!theatre.pods_left().is_empty(), "{what}: its time is not over");
        let began = &mut worker["metadata"]["annotations"]["mooring.dev/begun"];
        assert!(began.is_string());
        *began = json!("2026-11-20T00:00:00Z");
        theatre.api.lock().put("pods", worker);
        theatre.play().await;
        theatre.check(&what);
    }
}

/// What carries the run out, and when that ends, must not depend on when a controller goes on that was held up.
///
/// Proves: P1
#[tokio::test]
async fn a_worker_is_not_given_a_run_whose_time_is_over() {
    for (seconds_ago, most) in [(9, 21), (31, 0)] {
        let mut theatre = open(Life {
            script: script(false, None),
            lost_answers: 0,
            killed_after: None,
        })
        .await;
        theatre.turn_of_controllers().await;
        theatre.forget_order().await;
        {
            let mut state = theatre.api.lock();
            let mut worker = state.get("pods", WORKER).unwrap();
            let notes = &mut worker["metadata"]["annotations"];
            notes["mooring.dev/begun"] = json!((Timestamp::now() - Duration::from_secs(seconds_ago)).to_string());
            notes["mooring.dev/timeout"] = json!("30");
            state.put("pods", worker);
        }
        theatre.turn_of_controllers().await;
        let order = theatre.worker.as_ref().unwrap().order();
        let timeout = order.map_or(0, |order| order.timeout);
        assert!(timeout <= most, "{seconds_ago} s later it may take {timeout} s");
        assert_eq!(timeout > 0, most > 0, "{seconds_ago} s later");
    }
}

/// A theatre whose ConfigMap does not say how many workers there are.
fn with_keeper(script: Script, states: bool) -> Theatre {
    let theatre = Theatre {
        states,
        keeps_workers: true,
        ..Theatre::open(script)
    };
    let config = theatre.shared.context.configs.all().remove(0);
    let map = json!({"metadata": {"namespace": "admin", "name": config.reference.name, "uid": config.uid}});
    theatre.api.lock().put("configmaps", map);
    theatre
}

/// The workers that are kept, none of which has a run.
fn kept(theatre: &Theatre) -> Vec<String> {
    let state = theatre.api.lock();
    state.each("pods").filter(|pod| is_free(pod)).map(key_of).collect()
}

/// Proves: P1
#[tokio::test]
async fn the_first_answer_that_states_it_has_a_worker_made_and_the_claim_ends_as_it_should_whatever_fails() {
    for (first_fails, deleted_after) in [(false, None), (true, None), (false, Some(1)), (false, Some(20))] {
        let script = script(first_fails, deleted_after);
        with_every_fault(&script, async |fault, what| {
            let mut theatre = with_keeper(script, true);
            theatre.fail(fault);
            theatre.play().await;
            let workers = kept(&theatre);
            // A second one where the deletion begins right after.
            let at_least = usize::from(fault.is_none());
            assert!((at_least..=2).contains(&workers.len()), "{what}: {workers:?}");
            let calls = theatre.calls();
            // The next controller has not heard the answer, but it finds the worker.
            theatre.restart();
            theatre.turn().await;
            assert_eq!(kept(&theatre), workers, "{what}: after a restart");
            for worker in workers {
                theatre.api.lock().delete("pods", &worker);
            }
            theatre.garbage_collector();
            theatre.check(what);
            calls
        })
        .await;
    }
}

#[tokio::test]
async fn no_worker_is_made_for_an_image_that_states_nothing_or_whose_configmap_wants_none() {
    for (states, workers, made) in [
        (false, None, 0),
        (true, Some(0), 0),
        (true, None, 1),
        (false, Some(3), 1),
    ] {
        let mut theatre = with_keeper(script(false, None), states);
        let mut config = (*theatre.shared.context.configs.all().remove(0)).clone();
        config.workers = workers;
        let entry = Entry {
            good: Some(Arc::new(config.clone())),
            problems: vec![],
        };
        theatre
            .shared
            .context
            .configs
            .replace([(config.reference, entry)].into());
        theatre.play().await;
        assert_eq!(kept(&theatre).len(), made, "{states} {workers:?}");
    }
}

#[tokio::test]
async fn an_image_that_states_it_and_is_none_is_told_of_and_tried_again_only_after_its_next_answer() {
    let mut theatre = with_keeper(script(false, None), true);
    let (events, mut told) = EventRecorder::new(theatre.shared.context.metrics.clone());
    theatre.shared.context.events = events;
    theatre.play().await;
    let worker = kept(&theatre).remove(0);
    {
        let mut state = theatre.api.lock();
        let mut pod = state.get("pods", &worker).unwrap();
        pod["status"] = ended(78, "no operation serve");
        state.put("pods", pod);
    }
    theatre.turn().await;
    theatre.turn().await;
    assert_eq!(kept(&theatre), [""; 0]);
    let failed = std::iter::from_fn(|| told.try_next()).filter(|(_, note)| note.reason == "WorkerFailed");
    let texts: Vec<_> = failed.map(|(_, note)| note.text).collect();
    assert!(
        texts.len() == 1 && texts[0].contains("exit code 78: no operation serve"),
        "{texts:#?}"
    );
    let fingerprint = &theatre.shared.context.configs.all().remove(0).fingerprint;
    assert!(!theatre.shared.cache.workers.capable.has(fingerprint));
}

#[tokio::test]
async fn what_ends_a_worker_from_outside_says_nothing_of_its_image() {
    let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."});
    // One that has had runs was spoken with, if only by the leader before.
    for (status, runs, told_of) in [(evicted, "0", 1), (ended(137, ""), "3", 0)] {
        let mut theatre = with_keeper(script(false, None), true);
        let (events, mut told) = EventRecorder::new(theatre.shared.context.metrics.clone());
        theatre.shared.context.events = events;
        theatre.play().await;
        let worker = kept(&theatre).remove(0);
        {
            let mut state = theatre.api.lock();
            let mut pod = state.get("pods", &worker).unwrap();
            pod["status"] = status;
            pod["metadata"]["annotations"]["mooring.dev/runs"] = json!(runs);
            state.put("pods", pod);
        }
        theatre.turn().await;
        let failed = std::iter::from_fn(|| told.try_next()).filter(|(_, note)| note.reason == "WorkerFailed");
        let texts: Vec<_> = failed.map(|(_, note)| note.text).collect();
        assert_eq!(texts.len(), told_of, "{texts:#?}");
        assert!(
            texts
                .iter()
                .all(|text| text.contains("Evicted") && !text.contains("pv serve"))
        );
        let fingerprint = &theatre.shared.context.configs.all().remove(0).fingerprint;
        assert!(theatre.shared.cache.workers.capable.has(fingerprint), "{texts:#?}");
    }
}
