//! A run that begins in the moment in which it is given up for one that never ran, or unseen.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::fake_api::key_of;
use super::{Offers, PV, Script, Theatre, shared};
use crate::apply::carry_out;
use crate::cache::expectations::Fact;
use crate::controllers::reconcile::look;
use crate::operation::decision::{Decision, ForClaim, Reschedule};
use crate::operation::record::Record;
use crate::operation::tests::running;
use crate::process::events::{Note, reasons};
use crate::run::Run;

const CLAIM: &str = "default/data";
const LONG_AGO: &str = "2026-01-01T00:00:00Z";

impl Theatre {
    fn claim(&self) -> PersistentVolumeClaim {
        serde_json::from_value(self.api.lock().get("claims", CLAIM).unwrap()).unwrap()
    }

    fn record(&self) -> Record {
        Record::on(&self.claim()).unwrap().unwrap()
    }
}

#[tokio::test]
async fn a_run_that_begins_as_it_is_given_up_is_looked_at_again() {
    let mut theatre = Theatre::open(Script::plain(Offers::Changes));
    theatre.turn_of_controllers().await;
    let mut pod = theatre.api.lock().each("pods").next().unwrap().clone();
    pod["metadata"]["creationTimestamp"] = json!(LONG_AGO);
    theatre.api.lock().put("pods", pod.clone());
    theatre.watch();
    // The watch has not brought this yet.
    pod["spec"]["nodeName"] = json!("node-a");
    pod["status"] = json!({"phase": "Running", "startTime": LONG_AGO, "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
         "state": {"running": {"startedAt": LONG_AGO}}}]});
    theatre.api.lock().put("pods", pod.clone());
    let looked = Box::pin(look(&theatre.claim(), &theatre.shared)).await;
    assert!(looked.is_err());
    let record = theatre.record();
    assert_eq!((record.attempt, record.not_before, record.may_exist), (1, None, false));
    assert!(theatre.api.lock().get("pods", &key_of(&pod)).is_some(), "it is removed");

    theatre.watch();
    Box::pin(look(&theatre.claim(), &theatre.shared)).await.unwrap();
    let record = theatre.record();
    assert_eq!((record.attempt, record.may_exist), (2, true));
}

#[tokio::test]
async fn a_run_that_begins_as_another_node_is_asked_for_is_looked_at_again() {
    let mut theatre = Theatre::open(Script::plain(Offers::Changes));
    theatre.turn_of_controllers().await;
    let pod = theatre.api.lock().each("pods").next().unwrap().clone();
    let run = Run::of(serde_json::from_value::<Pod>(pod.clone()).unwrap());
    let record = theatre.record();
    let reschedule = Reschedule {
        record: Some(Record {
            attempt: 2,
            ..record.clone()
        }),
        say: Note::warning(reasons::NODE_GONE, "Provision", "its node is gone"),
        run: Some(run.to_remove_as_it_is()),
    };
    // It has begun since.
    theatre.api.lock().put("pods", pod.clone());
    let decision = Decision::Own(ForClaim::Reschedule(Box::new(reschedule)));
    let claim = theatre.claim();
    let carried_out = carry_out(&theatre.shared, &claim, Some(record.clone()), decision);
    assert!(Box::pin(carried_out).await.is_err());
    assert_eq!(theatre.record(), record);
    assert!(theatre.api.lock().get("pods", &key_of(&pod)).is_some(), "it is removed");
}

/// Proves: P1
#[tokio::test]
async fn a_run_that_another_controller_has_begun_is_undone_though_the_watch_shows_the_one_before() {
    let mut theatre = Theatre::open(Script::plain(Offers::Changes));
    theatre.turn_of_controllers().await;
    let before = theatre.api.lock().all("pods");
    let record = Record {
        attempt: 2,
        ..theatre.record()
    };
    theatre.lagging.insert("pods", before.clone());
    {
        let mut state = theatre.api.lock();
        let mut pod = before[0].clone();
        state.take_away("pods", &key_of(&pod));
        pod["metadata"]["uid"] = Value::Null;
        pod["metadata"]["labels"]["mooring.dev/attempt"] = json!("2");
        pod["spec"]["nodeName"] = json!("node-a");
        pod["status"] = running();
        state.put("pods", pod);
        let mut claim = state.get("claims", CLAIM).unwrap();
        claim["metadata"]["annotations"]["mooring.dev/operation"] = json!(record.to_text());
        state.put("claims", claim);
        state.delete("claims", CLAIM);
    }
    // What it makes is there before its Pod goes with its node.
    theatre.storage.insert(PV.to_owned());
    theatre.turn_of_controllers().await;
    theatre.api.lock().take_away("pods", &key_of(&before[0]));
    theatre.lagging.clear();
    theatre.watched = 0;
    theatre.shared = shared(&theatre.api, theatre.script);
    theatre.play().await;
    assert!(theatre.storage.is_empty(), "{:?}", theatre.storage);
    assert!(theatre.api.lock().get("claims", CLAIM).is_none());
}

/// It was asked to go when it was overdue, its Pod stays a while, and it begins all the same.
#[tokio::test]
async fn a_run_that_was_asked_to_go_before_is_taken_for_one_that_never_ran_only_as_it_was_seen() {
    let mut theatre = Theatre::open(Script::plain(Offers::Changes));
    theatre.turn_of_controllers().await;
    let pod = theatre.api.lock().each("pods").next().unwrap().clone();
    let run = Run::of(serde_json::from_value::<Pod>(pod.clone()).unwrap());
    theatre.shared.expectations.note(&run.uid(), Fact::Deleted);
    // It has begun since.
    theatre.api.lock().put("pods", pod);
    let record = theatre.record();
    let cancelled = Record {
        cancelled: true,
        ..record.clone()
    };
    let decision = Decision::Cancel {
        record: Box::new(cancelled),
        run: run.to_remove_as_it_is(),
    };
    let claim = theatre.claim();
    let carried_out = carry_out(&theatre.shared, &claim, Some(record.clone()), decision);
    assert!(Box::pin(carried_out).await.is_err());
    assert_eq!(theatre.record(), record);
}
