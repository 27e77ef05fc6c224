//! Whether the admission policies restrict this mounter to its node. They name its service account with its namespace:
//! if they were installed for another namespace, they match nobody, and anyone with a mounter's token has every node.
//!
//! By dry run, the daemon asks the API server for what a mounter must not do: delete its own Pod, and create a client
//! Pod of an image that nobody allowed. Exactly one policy forbids each. While the API server would allow one, nothing
//! is mounted.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use mooring_contract::names::{CLIENT_SERVICE_ACCOUNT, labels};
use mooring_program::held::{self, Held, PERIOD};
use serde_json::{Value, json};
use tracing::{Instrument as _, error, info, info_span};

use crate::core::Obstacle;

/// The cure when no policy does.
const CURE: &str = "no admission policy restricts this mounter to its node, so it mounts nothing: the policies in \
                    configmaps/install/admission.yaml name another namespace, so install Mooring with its Helm chart, \
                    or with the transformer of configmaps/registry";

/// Asks until the policies hold the mounter, whose Pod is `own`, and sets the obstacle while they don't. A mounter
/// outside a Pod has a user's own rights, which the policies don't restrict.
pub(crate) async fn watch(client: Client, namespace: String, node: String, own: String, obstacle: Obstacle) {
    if !held::is_to_be_held() {
        return;
    }
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    loop {
        let span = info_span!("held", node.name = node);
        let answers = async { [ask_to_delete(&pods, &own).await, ask(&pods, client_pod(&node)).await] };
        let answers = answers.instrument(span).await;
        if answers.contains(&Held::No) {
            if obstacle.set(Some(CURE.to_owned())) {
                error!(namespace, "{CURE}");
            }
        } else if answers == [Held::Yes, Held::Yes] {
            if obstacle.set(None) {
                info!("the admission policies now restrict this mounter to its node");
            }
            return;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// For policy `mooring-mounter`: no mounter's Pod is a client Pod.
async fn ask_to_delete(pods: &Api<Pod>, own: &str) -> Held {
    let only_asked = DeleteParams::default().dry_run();
    held::ask(pods.delete(own, &only_asked)).await
}

async fn ask(pods: &Api<Pod>, pod: Value) -> Held {
    let pod = match serde_json::from_value(pod) {
        Ok(pod) => pod,
        Err(error) => return Held::Unknown(error.to_string()),
    };
    let only_asked = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    held::ask(pods.create(&only_asked, &pod)).await
}

/// A client Pod of an image that nobody allowed: for policy `mooring-client-images`, which is bound to one namespace.
fn client_pod(node: &str) -> Value {
    json!({
        "metadata": {
            "generateName": "mounter-asks-",
            "labels": {labels::COMPONENT: labels::COMPONENT_CLIENT},
        },
        "spec": {
            "nodeName": node,
            "serviceAccountName": CLIENT_SERVICE_ACCOUNT,
            "automountServiceAccountToken": false,
            "containers": [{"name": "none", "image": "none.invalid/none"}],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::client_pod;

    #[test]
    fn the_client_pod_that_is_asked_about_is_one_but_for_its_image() {
        let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(client_pod("node-1")).unwrap();
        let spec = pod.spec.unwrap();
        assert_eq!(
            (spec.node_name.as_deref(), spec.service_account_name.as_deref()),
            (Some("node-1"), Some("client"))
        );
        assert_eq!(pod.metadata.labels.unwrap()["mooring.dev/component"], "client");
    }
}
