//! Client Pods, and client images of a test's own.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use mooring_contract::names::{NAMESPACE, labels};

use super::Scope;
use crate::command::output;

/// The client image for ssh servers.
pub const SSH_CLIENT_IMAGE: &str = "mooring.dev/client-sshfs";

/// The sshfs client image under another name, on all nodes, which no other test uses.
pub fn image_of_its_own(scope: &Scope, tag: &str) -> Result<String> {
    let image = format!("{SSH_CLIENT_IMAGE}:{}-{tag}", scope.namespace);
    for node in 1..=scope.own_cluster()?.description.nodes {
        let usual = format!("{SSH_CLIENT_IMAGE}:0.1.0");
        let args = ["-n", "k8s.io", "images", "tag", "--force", &usual, &image];
        output(&mut scope.own_cluster()?.in_node(node, "ctr", args)?)?;
    }
    Ok(image)
}

/// Takes such a name away.
pub fn remove_image(scope: &Scope, image: &str) -> Result<()> {
    for node in 1..=scope.own_cluster()?.description.nodes {
        let args = ["-n", "k8s.io", "images", "remove", image];
        output(&mut scope.own_cluster()?.in_node(node, "ctr", args)?)?;
    }
    Ok(())
}

/// All client Pods of an image.
pub async fn client_pods_of(scope: &Scope, image: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let selector = format!("{}={}", labels::COMPONENT, labels::COMPONENT_CLIENT);
    let mut pods = pods.list(&ListParams::default().labels(&selector)).await?.items;
    pods.retain(|pod| {
        let spec = pod.spec.as_ref();
        spec.is_some_and(|spec| spec.containers.iter().any(|one| one.image.as_deref() == Some(image)))
    });
    Ok(pods)
}
