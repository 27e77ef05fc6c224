//! Makes, changes and deletes the `CSIStorageCapacity` objects.

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{DeleteParams, Patch};
use serde_json::json;
use tracing::debug;

use super::{ApplyError, Shared};
use crate::process::call::{CHANGED, Tolerant as _};
use crate::process::objects::{Objects, only};
use crate::volume::capacity;
use crate::volume::storage_capacity::CapacityAction;

/// Does what was decided about one object.
pub(crate) async fn carry_out(shared: &Shared, action: CapacityAction) -> Result<(), ApplyError> {
    let namespace = &shared.context.settings.namespace;
    let objects: Objects<CSIStorageCapacity> = Objects::within(&shared.context.client, namespace);
    debug!(?action, "seeing to a CSIStorageCapacity");
    let done = match action {
        CapacityAction::Create(mut object) => {
            object.metadata.namespace = Some(namespace.clone());
            objects.create(&object).await.map(drop)
        }
        CapacityAction::Change { there, bytes } => {
            // The uid, so that it is still the one that was seen.
            let patch = json!({"metadata": {"uid": there.uid}, "capacity": capacity::quantity(bytes)});
            objects.patch(&there.name, &Patch::Merge(patch)).await.map(drop)
        }
        CapacityAction::Delete(there) => {
            let this = DeleteParams::default().preconditions(only(Some(there.uid), None));
            objects.delete(&there.name, &this).await
        }
    };
    // Another leader may be quicker, or Kubernetes with those of a class that is gone: the watch brings what there is.
    done.unless(CHANGED)?;
    Ok(())
}
