//! Makes and deletes the `VolumeSnapshotClass`es of what images discovered.

use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams, Preconditions, TypeMeta};
use mooring_contract::names::FIELD_MANAGER;
use serde_json::json;
use tracing::info;

use super::{ApplyError, Shared};
use crate::process::call::{CallError, is_conflict, is_not_found};
use crate::volume::snapshot::VolumeSnapshotClass;
use crate::volume::snapshot_class::SnapshotClassAction;

/// Does what was decided about one class.
pub(crate) async fn carry_out(shared: &Shared, action: SnapshotClassAction) -> Result<(), ApplyError> {
    const WHAT: &str = "VolumeSnapshotClass";
    let client = shared.context.client.clone();
    match action {
        SnapshotClassAction::Create(class) => {
            let post = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            // With its kind, which the API server has to be told of what a CRD defines.
            let resource = ApiResource::erase::<VolumeSnapshotClass>(&());
            let object = DynamicObject {
                types: Some(TypeMeta {
                    api_version: resource.api_version.clone(),
                    kind: resource.kind.clone(),
                }),
                metadata: class.metadata.clone(),
                data: json!({"driver": class.driver, "deletionPolicy": class.deletion_policy}),
            };
            let api: Api<DynamicObject> = Api::all_with(client, &resource);
            match api.create(&post, &object).await {
                Ok(_) => info!(class.name = class.name_any(), "made volume snapshot class"),
                // Somebody was quicker: the watch brings theirs.
                Err(error) if is_conflict(&error) => {}
                Err(source) => return Err(CallError::new("create", WHAT, &class.name_any(), source).into()),
            }
        }
        SnapshotClassAction::Delete(class) => {
            let only_this = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: class.metadata.uid.clone(),
                    resource_version: class.metadata.resource_version.clone(),
                }),
                ..DeleteParams::default()
            };
            let api: Api<VolumeSnapshotClass> = Api::all(client);
            match api.delete(&class.name_any(), &only_this).await {
                Ok(_) => info!(class.name = class.name_any(), "deleted volume snapshot class"),
                Err(error) if is_conflict(&error) || is_not_found(&error) => {}
                Err(source) => return Err(CallError::new("delete", WHAT, &class.name_any(), source).into()),
            }
        }
    }
    Ok(())
}
