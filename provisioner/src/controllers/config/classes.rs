//! Carries out a [`Plan`](crate::config::storage_class::Plan) of StorageClasses.

use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use mooring_contract::names;
use tracing::info;

#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} storage class {class:?}")]
pub struct ClassError {
    verb: &'static str,
    class: String,
    source: kube::Error,
}

impl ClassError {
    /// What failed, and why, for people.
    pub fn why(&self) -> String {
        format!("{self}: {}", self.source)
    }

    /// Bounded name for metrics.
    pub fn category(&self) -> &'static str {
        "storage-class"
    }
}

/// Makes a class. One that came to be meanwhile (`None`) is not an error: the watch brings it, and the next plan knows
/// it.
pub async fn create(client: &Client, class: &StorageClass) -> Result<Option<StorageClass>, ClassError> {
    let mut class = class.clone();
    class.metadata.resource_version = None;
    match api(client).create(&post(), &class).await {
        Ok(made) => {
            info!(class.name = class.name_any(), "made storage class");
            Ok(Some(made))
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(source) => Err(failed("create", &class, source)),
    }
}

/// Changes a class, unless it has changed or gone meanwhile.
pub async fn update(client: &Client, class: &StorageClass) -> Result<(), ClassError> {
    match api(client).replace(&class.name_any(), &post(), class).await {
        Ok(_) => {
            info!(class.name = class.name_any(), "changed storage class");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(()),
        Err(source) => Err(failed("update", class, source)),
    }
}

/// Deletes this very class: not one that was changed meanwhile, or created again under its name.
pub async fn delete(client: &Client, class: &StorageClass) -> Result<(), ClassError> {
    let only_this = DeleteParams {
        preconditions: Some(Preconditions {
            uid: class.metadata.uid.clone(),
            resource_version: class.metadata.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    match api(client).delete(&class.name_any(), &only_this).await {
        Ok(_) => {
            info!(class.name = class.name_any(), "deleted storage class");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(()),
        Err(source) => Err(failed("delete", class, source)),
    }
}

fn api(client: &Client) -> Api<StorageClass> {
    Api::all(client.clone())
}

fn post() -> PostParams {
    PostParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

fn failed(verb: &'static str, class: &StorageClass, source: kube::Error) -> ClassError {
    ClassError {
        verb,
        class: class.name_any(),
        source,
    }
}
