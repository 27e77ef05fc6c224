//! Removes a run, and with it all that it was given.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use mooring_contract::names::labels;

use super::error::RunError;
use super::identity::{RunId, RunRef};
use super::observed::Run;
use super::worker_pod;
use crate::process::call::{CallError, code, is_conflict, is_not_found, is_there};

/// Whether [`end`] had to ask for the removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to go.
    Asked,
    /// It was gone already.
    Gone,
}

/// The run as the API has it now, whatever attempt it was made for, on all that carries it out.
pub async fn find(client: &Client, namespace: &str, id: &RunId) -> Result<Vec<Run>, RunError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (uid, operation) = (&id.uid, id.operation.as_str());
    let of_this = format!("{}={uid},{}={operation}", labels::CLAIM_UID, labels::OPERATION);
    let found = pods.list(&ListParams::default().labels(&of_this)).await;
    let found = found.map_err(|source| CallError::new("list", "Pods of run", &id.name(), source))?;
    Ok(found.items.into_iter().map(Run::of).collect())
}

/// Removes this very run: with its Pod, unless that is a worker whose run has ended. One that is to be removed only as it
/// was seen is [`RunError::Changed`] if it is gone.
pub async fn end(client: &Client, run: &RunRef) -> Result<Ended, RunError> {
    if let Some(number) = run.ended_on_worker {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &run.namespace);
        let patch = worker_pod::release_patch(number);
        return match pods.patch(&run.name, &worker_pod::field_manager(), &patch).await {
            Ok(_) => Ok(Ended::Asked),
            // Gone, or free already.
            Err(error) if matches!(code(&error), 404 | 409 | 422) => Ok(Ended::Gone),
            Err(source) => Err(CallError::new("patch", "Pod", &run.name, source).into()),
        };
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(run.carrier_uid.clone()),
            resource_version: run.resource_version.clone(),
        }),
        ..DeleteParams::background()
    };
    let gone = || {
        if run.is_exact() {
            // Nobody could say how it was when it went.
            Err(RunError::Changed(run.name.clone()))
        } else {
            Ok(Ended::Gone)
        }
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &run.namespace);
    match pods.delete(&run.name, &params).await {
        Ok(_) => Ok(Ended::Asked),
        Err(error) if is_not_found(&error) => gone(),
        // Usually another of its name is in its place by now; but a conflict is no proof of that.
        Err(error) if is_conflict(&error) => {
            if is_there(&pods, &run.name, &run.carrier_uid).await? {
                Err(RunError::Changed(run.name.clone()))
            } else {
                gone()
            }
        }
        Err(source) => Err(CallError::new("delete", "Pod", &run.name, source).into()),
    }
}
