//! Whether the admission policies restrict this mounter to its node. They name its service account with its namespace:
//! if they were installed for another namespace, they match nobody, and anyone with a mounter's token has every node.
//!
//! By dry run, the daemon asks the API server for what a mounter must not do: delete its own Pod, and create a client
//! Pod of an image that nobody allowed. Exactly one policy forbids each. While the API server would allow one, nothing
//! is mounted.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use mooring_contract::names::{CLIENT_SERVICE_ACCOUNT, labels};
use serde_json::{Value, json};
use tracing::{error, info};

use crate::core::Obstacle;

/// How often to ask again while the policies don't hold the mounter, or the API server does not say.
const PERIOD: Duration = Duration::from_secs(10);

/// Longest for one answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Where a Pod has its service account's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The cure when no policy does.
const CURE: &str = "no admission policy holds this mounter to its node, so it mounts nothing: the policies of \
     configmaps/install/admission.yaml name its service account and its namespace, so change that namespace in them, or \
     install Mooring in namespace mooring";

/// What the API server says to a Pod that must not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// A policy refuses it.
    Yes,
    /// It would be made.
    No,
    /// Something else refuses it, or there is no answer.
    Unknown,
}

/// Asks until the policies hold the mounter, whose Pod is `own`, and sets the obstacle while they don't. A mounter
/// outside a Pod has a user's own rights, which the policies don't restrict.
pub(crate) async fn watch(client: Client, namespace: String, node: String, own: String, obstacle: Obstacle) {
    if !Path::new(TOKEN).exists() {
        return;
    }
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    loop {
        let answers = [ask_to_delete(&pods, &own).await, ask(&pods, client_pod(&node)).await];
        if answers.contains(&Held::No) {
            if obstacle.set(Some(CURE.to_owned())) {
                error!(namespace, "{CURE}");
            }
        } else if answers == [Held::Yes; 2] {
            if obstacle.set(None) {
                info!("the admission policies hold this mounter to its node now");
            }
            return;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// For policy `mooring-mounter`: no mounter's Pod is a client Pod.
async fn ask_to_delete(pods: &Api<Pod>, own: &str) -> Held {
    let only_asked = DeleteParams::default().dry_run();
    let answer = tokio::time::timeout(LIMIT, pods.delete(own, &only_asked)).await;
    answer.map_or(Held::Unknown, |answer| judge(&answer))
}

async fn ask(pods: &Api<Pod>, pod: Value) -> Held {
    let Ok(pod) = serde_json::from_value(pod) else {
        return Held::Unknown;
    };
    let only_asked = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let answer = tokio::time::timeout(LIMIT, pods.create(&only_asked, &pod)).await;
    answer.map_or(Held::Unknown, |answer| judge(&answer))
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

fn judge<T>(answer: &kube::Result<T>) -> Held {
    match answer {
        Ok(_) => Held::No,
        Err(kube::Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy") => Held::Yes,
        // The policy for images refuses every Pod while its ConfigMap is missing.
        Err(kube::Error::Api(status)) if status.message.contains("no params found") => Held::Yes,
        Err(_) => Held::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::{Held, client_pod, judge};
    use kube::core::Status;

    #[test]
    fn only_a_refusal_by_the_policy_proves_it_and_only_an_admitted_pod_disproves_it() {
        let refused = |message: &str| {
            let status = Status::failure(message, "Forbidden").with_code(403).boxed();
            judge(&Err::<(), _>(kube::Error::Api(status)))
        };
        assert_eq!(judge(&Ok(())), Held::No);
        let policy = "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'mooring-mounter' with binding 'mooring-mounter' denied request";
        assert_eq!(refused(policy), Held::Yes);
        assert_eq!(
            refused("pods is forbidden: User cannot create resource \"pods\""),
            Held::Unknown
        );
    }

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
