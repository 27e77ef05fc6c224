//! Manifests, applied and taken back. The API is asked directly: to start kubectl takes more of a processor than what it
//! asks for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, TypeMeta, ValidationDirective};
use kube::discovery::{ApiCapabilities, ApiResource, Scope as Reach, pinned_kind};
use kube::{Api, Client, Error, Resource};
use mooring_testbed::manifests::documents;
use serde_json::Value;

use super::connection::client;
use super::scope::{Scope, blocking};
use super::waiting::wait_for;

/// Who the tests are as a manager of fields.
const MANAGER: &str = "mooring-tests";

/// The group with all rights. An impersonated user is in it, so that only admission tells it from others.
const MASTERS: &str = "system:masters";

impl Scope {
    /// Applies a manifest in the namespace: YAML with any number of documents.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        self.apply_as(None, manifest)
    }

    /// Applies a manifest in the namespace as a user, whose name admission sees.
    pub fn apply_as(&self, user: Option<&str>, manifest: &str) -> Result<()> {
        blocking(async {
            let client = match user {
                Some(user) => client(&self.target, Some((user, &[MASTERS]))).await?,
                None => self.client.clone(),
            };
            self.put_all(&client, &self.namespace, manifest).await
        })
    }

    /// Applies a manifest whose objects name their namespaces, or have none. Several tests may apply the same object at
    /// once.
    pub fn apply_anywhere(&self, manifest: &str) -> Result<()> {
        blocking(self.put_all(&self.client, "default", manifest))
    }

    async fn put_all(&self, client: &Client, namespace: &str, manifest: &str) -> Result<()> {
        for document in documents(&self.target.with_image_names(manifest))? {
            match document["items"].as_array() {
                Some(items) if document["kind"] == "List" => {
                    for item in items {
                        put(client, namespace, item).await?;
                    }
                }
                _ => put(client, namespace, &document).await?,
            }
        }
        Ok(())
    }

    /// Deletes an object by kind and name (`pod/writer`) without waiting until it is gone.
    pub fn delete(&self, object: &str) -> Result<()> {
        match object.split_once('/') {
            Some(("pod", name)) => blocking(gone(self.api::<Pod>(), name)),
            Some(("persistentvolumeclaim", name)) => blocking(gone(self.api::<PersistentVolumeClaim>(), name)),
            _ => {
                self.kubectl(["delete", "--wait=false", "--ignore-not-found", object])?;
                Ok(())
            }
        }
    }
}

async fn put(client: &Client, namespace: &str, object: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    let what = format!("apply {kind} {name}");
    let _waiting = wait_for(&what);
    let types = TypeMeta {
        api_version: text(&object["apiVersion"]),
        kind,
    };
    let (resource, capabilities) = resource_of(client, &types).await?;
    let api: Api<DynamicObject> = match (&capabilities.scope, object["metadata"]["namespace"].as_str()) {
        (Reach::Cluster, _) => Api::all_with(client.clone(), &resource),
        (Reach::Namespaced, Some(own)) => Api::namespaced_with(client.clone(), own, &resource),
        (Reach::Namespaced, None) => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        force: true,
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::default()
    };
    let put = api.patch(&name, &params, &Patch::Apply(object)).await;
    // One message, as a program's: tests look for what the API server answered.
    put.map_err(|error| anyhow!("failed to {what}: {error}"))?;
    Ok(())
}

/// What the API server calls a kind; asked once.
async fn resource_of(client: &Client, types: &TypeMeta) -> Result<(ApiResource, ApiCapabilities)> {
    static KNOWN: Mutex<Option<HashMap<TypeMeta, (ApiResource, ApiCapabilities)>>> = Mutex::new(None);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known().as_ref().and_then(|known| known.get(types)) {
        return Ok(found.clone());
    }
    let kind = GroupVersionKind::try_from(types).with_context(|| format!("{types:?} is no kind"))?;
    let found = pinned_kind(client, &kind).await;
    let found = found.with_context(|| format!("the cluster does not know {types:?}"))?;
    known().get_or_insert_default().insert(types.clone(), found.clone());
    Ok(found)
}

async fn gone<K>(api: Api<K>, name: &str) -> Result<()>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    K::DynamicType: Default,
{
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("failed to delete {name}")),
    }
}
