//! The mounter's own Node.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

/// Reads it by a patch that changes nothing: the right to read Nodes would be for all of them.
pub(crate) async fn read(client: &Client, node: &str) -> kube::Result<ObjectMeta> {
    patch(client, node, &PatchParams::default(), &Patch::Merge(json!({}))).await
}

/// Patches it. Returns what it has then.
pub(crate) async fn patch(
    client: &Client,
    node: &str,
    params: &PatchParams,
    patch: &Patch<Value>,
) -> kube::Result<ObjectMeta> {
    let api: Api<Node> = Api::all(client.clone());
    Ok(api.patch_metadata(node, params, patch).await?.metadata)
}
