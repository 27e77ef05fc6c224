//! Makes and deletes the `VolumeSnapshotClass`es of what images discovered.

use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, TypeMeta};
use serde_json::json;
use tracing::info;

use super::{ApplyError, Shared};
use crate::process::call::{Answer as _, CHANGED, TAKEN, Tolerant as _};
use crate::process::objects::{Objects, as_read, by_us};
use crate::volume::snapshot::VolumeSnapshotClass;
use crate::volume::snapshot_class::SnapshotClassAction;

/// Does what was decided about one class.
pub(crate) async fn carry_out(shared: &Shared, action: SnapshotClassAction) -> Result<(), ApplyError> {
    let client = &shared.context.client;
    match action {
        SnapshotClassAction::Create(class) => {
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
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let made = api.create(&by_us(), &object).await;
            let made = made.or_failed_to("create", "VolumeSnapshotClass", &class.name_any());
            // Somebody may have been quicker: the watch brings theirs.
            if made.unless(TAKEN)?.is_some() {
                info!(class.name = class.name_any(), "made volume snapshot class");
            }
        }
        SnapshotClassAction::Delete(class) => {
            let classes: Objects<VolumeSnapshotClass> = Objects::all(client);
            let deleted = classes.delete(&class.name_any(), &as_read(&class.metadata)).await;
            if deleted.unless(CHANGED)?.is_some() {
                info!(class.name = class.name_any(), "deleted volume snapshot class");
            }
        }
    }
    Ok(())
}
