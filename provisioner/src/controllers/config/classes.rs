//! Carries out a [`Plan`](crate::config::storage_class::Plan) of StorageClasses.

use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Client, ResourceExt};
use tracing::info;

use crate::process::call::{CHANGED, CallError, TAKEN, Tolerant as _};
use crate::process::objects::{Objects, as_read};

/// Makes a class. One that came to be meanwhile (`None`) is not an error: the watch brings it, and the next plan knows
/// it.
pub async fn create(client: &Client, class: &StorageClass) -> Result<Option<StorageClass>, CallError> {
    let mut class = class.clone();
    class.metadata.resource_version = None;
    let made = Objects::all(client).create(&class).await.unless(TAKEN)?;
    if made.is_some() {
        info!(class.name = class.name_any(), "made storage class");
    }
    Ok(made)
}

/// Changes a class, unless it has changed or gone meanwhile.
pub async fn update(client: &Client, class: &StorageClass) -> Result<(), CallError> {
    if Objects::all(client).replace(class).await.unless(CHANGED)?.is_some() {
        info!(class.name = class.name_any(), "changed storage class");
    }
    Ok(())
}

/// Deletes this very class: not one that was changed meanwhile, or created again under its name.
pub async fn delete(client: &Client, class: &StorageClass) -> Result<(), CallError> {
    let classes: Objects<StorageClass> = Objects::all(client);
    let deleted = classes.delete(&class.name_any(), &as_read(&class.metadata)).await;
    if deleted.unless(CHANGED)?.is_some() {
        info!(class.name = class.name_any(), "deleted storage class");
    }
    Ok(())
}
