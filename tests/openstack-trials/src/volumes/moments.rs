//! Claims at the services' worst moments: a back end without room, and a message queue that is gone.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{CLAIMS, MOORING, NAMESPACE, TRIAL, Trial, wait_until};
use mooring_testbed::progress::step;

/// In GiB: below the quota of a project, and more than the storage can hold.
const TOO_LARGE: u32 = 900;

/// How long the queue is gone while the claim waits: calls are made into the void.
const WITHOUT_QUEUE: Duration = Duration::from_secs(20);

pub(super) fn run(trial: &Trial<'_>) -> Result<()> {
    let before = trial.everything()?;
    step(
        "a claim that no back end has room for is told so, and leaves nothing",
        |_| {
            let name = "cinder-full";
            trial.put(&CLAIMS[0].named(name, TOO_LARGE))?;
            wait_until("Cinder's words in an Event", || {
                let about = format!("--field-selector=involvedObject.name={name},type=Warning");
                let path = "jsonpath={.items[*].message}";
                let said = trial.kubectl(&["-n", TRIAL, "get", "events", &about, "-o", path])?;
                ensure!(said.contains("backend") && said.contains("made again"), "{said:?}");
                Ok(())
            })?;
            delete(trial, name, &before)
        },
    )?;
    step(
        "a claim is made while RabbitMQ is gone, and has one volume in the end",
        |_| {
            let name = "cinder-unheard";
            scale(trial, 0)?;
            let made = trial.put(&CLAIMS[0].named(name, 1));
            std::thread::sleep(WITHOUT_QUEUE);
            scale(trial, 1)?;
            made?;
            wait_until("the claim to be bound", || {
                let phase = trial.field("persistentvolumeclaim", name, "{.status.phase}")?;
                ensure!(phase == "Bound", "the claim is {phase}");
                Ok(())
            })?;
            let there = trial.everything()?.len();
            ensure!(
                there == before.len() + 1,
                "OpenStack has {there} things, not {}",
                before.len() + 1
            );
            delete(trial, name, &before)
        },
    )
}

/// Deletes a claim, and waits until OpenStack has what it had before, and no run of the claim is left.
fn delete(trial: &Trial<'_>, claim: &str, before: &[serde_json::Value]) -> Result<()> {
    let uid = trial.field("persistentvolumeclaim", claim, "{.metadata.uid}")?;
    trial.kubectl(&["-n", TRIAL, "delete", "persistentvolumeclaim", claim])?;
    wait_until("nothing of it to be left", || {
        let there = trial.everything()?;
        ensure!(there == before, "OpenStack has {} things", there.len());
        let runs = trial.kubectl(&["-n", MOORING, "get", "pods", "-o", "name"])?;
        ensure!(!runs.contains(&uid), "a run is there");
        Ok(())
    })
}

fn scale(trial: &Trial<'_>, replicas: u8) -> Result<()> {
    let count = format!("--replicas={replicas}");
    trial.kubectl(&["-n", NAMESPACE, "scale", "statefulset/rabbitmq", &count])?;
    let limit = "--timeout=240s";
    let wait = match replicas {
        0 => &["-n", NAMESPACE, "wait", "--for=delete", "pod/rabbitmq-0", limit][..],
        _ => &["-n", NAMESPACE, "rollout", "status", "statefulset/rabbitmq", limit],
    };
    trial.kubectl(wait).map(drop)
}
