//! Whether the admission policies restrict this mounter to its node. They name its service account with its namespace:
//! if they were installed for another namespace, they match nobody, and anyone with a mounter's token has every node.
//!
//! By dry run, the daemon asks the API server for what a mounter must not do: delete its own Pod, and create a client
//! Pod of an image that nobody allowed. Exactly one policy forbids each. While the API server would allow one, nothing
//! is mounted.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use mooring_contract::names::{CLIENT_IMAGES_POLICY, CLIENT_SERVICE_ACCOUNT, labels, policies};
use mooring_program::held::{self, CURE, Held};
use serde_json::{Value, json};
use tracing::{Instrument as _, error, info, info_span};

use crate::core::Obstacle;

/// Asks whether the policies hold the mounter, whose Pod is `own`, and sets the obstacle while they don't. A mounter
/// outside a Pod has a user's own rights, which the policies don't restrict.
pub(crate) async fn watch(client: Client, namespace: String, node: String, own: String, obstacle: Obstacle) {
    if !held::is_to_be_held() {
        return;
    }
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let mut certain = [const { None }; 2];
    loop {
        let span = info_span!("held", node.name = node);
        let answers = async { [ask_to_delete(&pods, &own).await, ask(&pods, client_pod(&node)).await] };
        let held = overall(&mut certain, answers.instrument(span).await);
        note(&held, &namespace, &obstacle);
        tokio::time::sleep(held.pause()).await;
    }
}

/// Each policy forbids something else. Of each, the last certain answer counts: a policy of the cluster's own that
/// refuses the client Pod first hides one for good. The mounter's own is the one that has to hold.
fn overall(certain: &mut [Option<Held>; 2], answers: [Held; 2]) -> Held {
    for (certain, answer) in certain.iter_mut().zip(&answers) {
        if !matches!(answer, Held::Unknown(_)) {
            *certain = Some(answer.clone());
        }
    }
    if certain.contains(&Some(Held::No)) {
        return Held::No;
    }
    let [own, _] = answers;
    own
}

/// Sets the obstacle, or that there is none. Where nobody knows, it stays as it is.
fn note(held: &Held, namespace: &str, obstacle: &Obstacle) {
    match held {
        Held::No => {
            let why = format!("no admission policy restricts this mounter to its node, so it mounts nothing: {CURE}");
            if obstacle.set(Some(why.clone())) {
                error!(namespace, "{why}");
            }
        }
        Held::Yes => {
            if obstacle.set(None) {
                info!("the admission policies now restrict this mounter to its node");
            }
        }
        Held::Unknown(_) => {}
    }
}

/// For policy `mooring-mounter`: no mounter's Pod is a client Pod.
async fn ask_to_delete(pods: &Api<Pod>, own: &str) -> Held {
    // A Pod that is ending anyway is asked about only for an end that is sooner.
    let only_asked = DeleteParams::default().dry_run().grace_period(0);
    held::ask(policies::MOUNTER, pods.delete(own, &only_asked)).await
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
    held::ask(CLIENT_IMAGES_POLICY, pods.create(&only_asked, &pod)).await
}

/// A client Pod of an image that nobody allowed: for policy `mooring-client-images`, which is bound to one namespace.
fn client_pod(node: &str) -> Value {
    json!({
        "metadata": {
            // Policy `mooring-mounter` lets this Pod be made.
            "generateName": "client-asks-",
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
    use super::{Held, Obstacle, client_pod, note, overall};

    #[test]
    fn a_policy_that_does_not_hold_stops_mounts_until_it_holds_and_one_that_nobody_sees_stops_none() {
        let unknown = || Held::Unknown("no answer".to_owned());
        let (obstacle, mut certain) = (Obstacle::default(), [const { None }; 2]);
        for (answers, expected, is_stopped) in [
            ([unknown(), Held::Yes], unknown(), false),
            ([Held::Yes, Held::Yes], Held::Yes, false),
            ([Held::Yes, Held::No], Held::No, true),
            ([Held::Yes, unknown()], Held::No, true),
            ([Held::Yes, Held::Yes], Held::Yes, false),
            ([Held::No, unknown()], Held::No, true),
            ([unknown(), unknown()], Held::No, true),
            ([Held::Yes, unknown()], Held::Yes, false),
        ] {
            let held = overall(&mut certain, answers);
            assert_eq!(held, expected);
            note(&held, "mooring", &obstacle);
            assert_eq!(obstacle.get().is_some(), is_stopped, "{held:?}");
        }
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
        assert!(pod.metadata.generate_name.unwrap().starts_with("client-"));
    }
}
