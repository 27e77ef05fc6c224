//! Removes a run, and with it all that it was given.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams};
use mooring_contract::names::labels;
use mooring_program::error::chain;
use tracing::warn;

use super::carrier::has_run;
use super::error::RunError;
use super::identity::{RunId, RunRef};
use super::observed::Run;
use super::worker::Worker;
use crate::process::call::{Answer as _, CallError, GONE, Tolerant as _};
use crate::process::objects::{Objects, only};

/// Whether [`end`] had to ask for the removal.
#[derive(Debug)]
pub enum Ended {
    /// It was asked to go.
    Asked,
    /// So was its worker, since the API refused that the worker is freed of it.
    WithWorker(Worker, CallError),
    /// It was gone already.
    Gone,
}

/// The run as the API has it now, whatever attempt it was made for, on all that carries it out.
pub async fn find(client: &Client, namespace: &str, id: &RunId) -> Result<Vec<Run>, RunError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (uid, operation) = (&id.uid, id.operation.as_str());
    let of_this = format!("{}={uid},{}={operation}", labels::CLAIM_UID, labels::OPERATION);
    let found = pods.list(&ListParams::default().labels(&of_this)).await;
    let found = found.or_failed_to("list", "Pods of run", &id.name())?;
    Ok(found.items.into_iter().map(Run::of).collect())
}

/// Removes this very run: with its Pod, unless that is a worker whose run has ended. A worker that can't be freed of it
/// goes with it all the same. One that is to be removed only as it was seen is [`RunError::Changed`] if it is gone.
pub async fn end(client: &Client, run: &RunRef) -> Result<Ended, RunError> {
    let pods: Objects<Pod> = Objects::within(client, &run.namespace);
    let mut seen = run.resource_version.clone();
    let mut unfreed = None;
    if let Some(release) = &run.release {
        match pods.patch(&run.name, &release.patch()).await.unless(GONE) {
            Ok(freed) => return Ok(freed.map_or(Ended::Gone, |_| Ended::Asked)),
            // Free already; or the API does not let the worker be written, which has the run then.
            Err(refusal) if refusal.is_refusal() => {
                let live = pods.read(&run.name).await?;
                let Some(live) = live.filter(|live| has_this(live, run)) else {
                    return Ok(Ended::Gone);
                };
                warn!(
                    error = chain(&refusal),
                    "a worker can't be freed of its run: it goes with it"
                );
                seen.clone_from(&live.metadata.resource_version);
                unfreed = Worker::of(&Arc::new(live)).map(|worker| Ended::WithWorker(worker, refusal));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let params = DeleteParams::background().preconditions(only(Some(run.carrier_uid.clone()), seen));
    let gone = || {
        if run.is_exact() {
            // Nobody could say how it was when it went.
            Err(RunError::Changed(run.name.clone()))
        } else {
            Ok(Ended::Gone)
        }
    };
    match pods.delete(&run.name, &params).await.unless(GONE) {
        Ok(Some(())) => Ok(unfreed.unwrap_or(Ended::Asked)),
        Ok(None) => gone(),
        // Usually another of its name is in its place by now; but a conflict is no proof of that.
        Err(error) if error.is_conflict() => {
            if pods.has(&run.name, &run.carrier_uid).await? {
                Err(RunError::Changed(run.name.clone()))
            } else {
                gone()
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a Pod carries out this very run.
fn has_this(carrier: &Pod, run: &RunRef) -> bool {
    has_run(carrier) && Run::of(carrier.clone()).uid() == run.uid
}
