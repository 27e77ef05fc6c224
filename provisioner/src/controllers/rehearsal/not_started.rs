//! What users are told of a run that does not start.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{Offers, Script, Theatre};
use crate::process::events::{EventRecorder, Writer};

const POD: &str = "admin/provision-u1";

/// A claim's run, which has its properties, and what users are told.
struct Stage {
    theatre: Theatre,
    told: Writer,
}

impl Stage {
    async fn open() -> Self {
        let mut theatre = Theatre::open(Script::plain(Offers::Changes));
        let (events, told) = EventRecorder::new(theatre.shared.context.metrics.clone());
        theatre.shared.context.events = events;
        theatre.shared.limits.start_grace = Duration::ZERO;
        theatre.turn_of_controllers().await;
        Self { theatre, told }
    }

    /// The node says that the run waits for this reason.
    async fn told_of(&mut self, reason: &str) -> Vec<String> {
        {
            let mut state = self.theatre.api.lock();
            let mut pod = state.get("pods", POD).unwrap();
            pod["spec"]["nodeName"] = json!("node-a");
            pod["status"] = json!({"phase": "Pending", "startTime": Timestamp::now().to_string(), "containerStatuses": [
                {"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                 "state": {"waiting": {"reason": reason}}}]});
            state.put("pods", pod);
        }
        self.theatre.turn_of_controllers().await;
        let texts = std::iter::from_fn(|| self.told.try_next()).map(|(_, note)| note.text);
        texts.filter(|text| text.contains("has not started")).collect()
    }
}

/// Proves: P4
#[tokio::test]
async fn why_a_run_can_t_start_is_told_once_though_it_was_late_before() {
    let mut stage = Stage::open().await;
    let mut told = Vec::new();
    for reason in ["ContainerCreating", "ErrImagePull", "ImagePullBackOff", "ErrImagePull"] {
        told.extend(stage.told_of(reason).await);
    }
    let [late, blocked] = &told[..] else {
        panic!("{told:#?}")
    };
    assert!(late.contains("ContainerCreating"), "{told:#?}");
    assert!(blocked.contains("ErrImagePull"), "{told:#?}");
}

#[tokio::test]
async fn a_run_that_is_known_not_to_start_is_not_told_of_as_late() {
    let mut stage = Stage::open().await;
    let mut told = Vec::new();
    for reason in ["ErrImagePull", "ContainerCreating"] {
        told.extend(stage.told_of(reason).await);
    }
    assert_eq!(told.len(), 1, "{told:#?}");
}
