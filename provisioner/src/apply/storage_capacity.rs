//! Makes, changes and deletes the `CSIStorageCapacity` objects.

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use mooring_contract::names::FIELD_MANAGER;
use serde_json::json;
use tracing::debug;

use super::{ApplyError, Shared};
use crate::process::call::{CallError, is_conflict, is_not_found};
use crate::volume::capacity;
use crate::volume::storage_capacity::CapacityAction;

/// Does what was decided about one object.
pub(crate) async fn carry_out(shared: &Shared, action: CapacityAction) -> Result<(), ApplyError> {
    const WHAT: &str = "CSIStorageCapacity";
    let namespace = &shared.context.settings.namespace;
    let api: Api<CSIStorageCapacity> = Api::namespaced(shared.context.client.clone(), namespace);
    let field_manager = Some(FIELD_MANAGER.to_owned());
    debug!(?action, "seeing to a CSIStorageCapacity");
    let (attempt, name, done) = match action {
        CapacityAction::Create(mut object) => {
            object.metadata.namespace = Some(namespace.clone());
            let post = PostParams {
                field_manager,
                ..PostParams::default()
            };
            let name = object.metadata.name.clone().unwrap_or_default();
            ("create", name, api.create(&post, &object).await.map(drop))
        }
        CapacityAction::Change { there, bytes } => {
            let params = PatchParams {
                field_manager,
                ..PatchParams::default()
            };
            // The uid, so that it is still the one that was seen.
            let patch = json!({"metadata": {"uid": there.uid}, "capacity": capacity::quantity(bytes)});
            let done = api.patch(&there.name, &params, &Patch::Merge(patch)).await;
            ("patch", there.name, done.map(drop))
        }
        CapacityAction::Delete(there) => {
            let only_this = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(there.uid),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            let done = api.delete(&there.name, &only_this).await;
            ("delete", there.name, done.map(drop))
        }
    };
    match done {
        // Another leader was quicker, or Kubernetes with those of a class that is gone: the watch brings what there is.
        Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(()),
        done => done.map_err(|source| CallError::new(attempt, WHAT, &name, source).into()),
    }
}
