//! Removes a run, and with it all that it was given.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, Preconditions};

use super::error::RunError;
use super::identity::{RunId, RunRef};
use super::observed::Run;
use crate::process::call::{CallError, is_conflict, is_not_found, is_there};

/// Whether [`end`] had to ask for the removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to go.
    Asked,
    /// It was gone already.
    Gone,
}

/// The run as the API has it now, whatever attempt it was made for.
pub async fn find(client: &Client, namespace: &str, id: &RunId) -> Result<Option<Run>, RunError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let name = id.name();
    let found = pods.get_opt(&name).await;
    let found = found.map_err(|source| CallError::new("read", "Pod", &name, source))?;
    Ok(found.map(Run::of))
}

/// Removes this very run.
pub async fn end(client: &Client, run: &RunRef) -> Result<Ended, RunError> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(run.uid.clone()),
            resource_version: run.resource_version.clone(),
        }),
        ..DeleteParams::background()
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &run.namespace);
    match pods.delete(&run.name, &params).await {
        Ok(_) => Ok(Ended::Asked),
        Err(error) if is_not_found(&error) => Ok(Ended::Gone),
        // Usually another of its name is in its place by now; but a conflict is no proof of that.
        Err(error) if is_conflict(&error) => {
            if is_there(&pods, &run.name, &run.uid).await? {
                Err(RunError::Changed(run.name.clone()))
            } else {
                Ok(Ended::Gone)
            }
        }
        Err(source) => Err(CallError::new("delete", "Pod", &run.name, source).into()),
    }
}
