//! Tries to break out with credentials that an attacker may get: a provisioning Pod's, a mounter's, the controller's, a
//! tenant's own. docs/security.md says what each could do at most.

mod controller;
mod mounter;
mod provisioning;
mod tenant;

use anyhow::{Context, Result};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mooring_harness::credentials::refusal;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn parsed<K: DeserializeOwned>(object: &Value) -> Result<K> {
    serde_json::from_value(object.clone()).with_context(|| format!("not what it should be: {object}"))
}

/// The object with this value at `pointer`, replaced or added.
fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut object = object.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(Value::Object(parent)) = object.pointer_mut(parent) {
        parent.insert(key.to_owned(), value);
    }
    object
}

/// Whether a token allows running commands in Pods.
async fn may_exec(client: &Client, namespace: &str) -> Result<bool> {
    let ask = json!({"spec": {"resourceAttributes": {
        "namespace": namespace, "verb": "create", "resource": "pods", "subresource": "exec", "name": "x",
    }}});
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let asked = serde_json::from_value(ask)?;
    let answer = reviews.create(&PostParams::default(), &asked).await?;
    Ok(answer.status.context("a review without an answer")?.allowed)
}

/// RBAC refuses these requests before any policy sees them.
async fn has_no_right_to_secrets_and_pods(client: &Client, namespaces: &[&str]) -> Result<()> {
    for namespace in namespaces {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        assert!(refusal(secrets.list(&ListParams::default()).await).contains("cannot list"));
        assert!(refusal(secrets.get("x").await).contains("cannot get"));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        assert!(!may_exec(client, namespace).await?, "exec in {namespace}");
        let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        refusal(pods.patch("x", &PatchParams::default(), &patch).await);
        refusal(
            pods.patch_ephemeral_containers("x", &PatchParams::default(), &patch)
                .await,
        );
    }
    Ok(())
}
