//! A run that begins in the moment in which it is given up for one that never ran.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::json;

use super::fake_api::key_of;
use super::{Offers, Script, Theatre};
use crate::apply::carry_out;
use crate::controllers::reconcile::look;
use crate::operation::decision::{Decision, ForClaim, Reschedule};
use crate::operation::record::Record;
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
    let carried_out = carry_out(&theatre.shared, &theatre.claim(), Some(record.clone()), decision);
    assert!(Box::pin(carried_out).await.is_err());
    assert_eq!(theatre.record(), record);
    assert!(theatre.api.lock().get("pods", &key_of(&pod)).is_some(), "it is removed");
}
