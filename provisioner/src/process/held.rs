//! Whether the admission policies hold this controller to what it may do. They name its service account with its namespace: installed under another
//! one and not changed, they match nobody, and whoever gets the controller's token has a node.
//!
//! The API server is asked what it would say to a Pod that the controller must not make. Where that is let in, the controller does nothing
//! until it isn't.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::process::health::{Health, Phase};

/// How often it is asked again.
const PERIOD: Duration = Duration::from_secs(10);

/// Where a Pod has its service account's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// What the API server says to a Pod that must not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// A policy refuses it.
    Yes,
    /// It would be made.
    No,
    /// It is refused by something else, or nothing is heard.
    Unknown,
}

/// Waits until a policy holds the controller; whether it is to go on. One that runs outside of the cluster has somebody's own rights, which the
/// policies are not about.
pub(crate) async fn wait(client: Client, namespace: &str, health: &Health, stop: &CancellationToken) -> bool {
    if !Path::new(TOKEN).exists() {
        return true;
    }
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    loop {
        match ask(&pods).await {
            Held::Yes => return true,
            Held::Unknown => {
                warn!("the API server did not say whether admission policy mooring-controller holds this controller");
                return true;
            }
            Held::No => {}
        }
        health.set(Phase::NotHeld);
        error!(
            namespace,
            "no admission policy holds this controller, so it does nothing: the policies of configmaps/install/admission.yaml name \
             its service account with its namespace, so change that namespace in them, or install Mooring in namespace mooring"
        );
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => info!("asking again"),
            () = stop.cancelled() => return false,
        }
    }
}

async fn ask(pods: &Api<Pod>) -> Held {
    // Not labelled as a provisioning Pod.
    let pod = serde_json::from_value(json!({
        "metadata": {"generateName": "flex-provisioner-asks-"},
        "spec": {"containers": [{"name": "none", "image": "none.invalid/none"}]},
    }));
    let Ok(pod) = pod else { return Held::Unknown };
    let only_asked = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    judge(&pods.create(&only_asked, &pod).await)
}

fn judge<T>(answer: &kube::Result<T>) -> Held {
    match answer {
        Ok(_) => Held::No,
        Err(kube::Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy") => Held::Yes,
        Err(_) => Held::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::{Held, judge};
    use kube::core::Status;

    #[test]
    fn only_a_policy_holds_and_only_a_pod_that_is_let_in_shows_that_none_does() {
        let refused = |message: &str| {
            let status = Status::failure(message, "Forbidden").with_code(403).boxed();
            judge(&Err::<(), _>(kube::Error::Api(status)))
        };
        assert_eq!(judge(&Ok(())), Held::No);
        let policy = "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'mooring-controller' with binding 'mooring-controller' denied request";
        assert_eq!(refused(policy), Held::Yes);
        assert_eq!(
            refused("pods is forbidden: User cannot create resource \"pods\""),
            Held::Unknown
        );
    }
}
