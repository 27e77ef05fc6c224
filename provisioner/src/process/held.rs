//! Whether the admission policies hold this controller to what it may do. Where they don't, anybody who gets the
//! controller's token can take over a node. Until the API server has said that they do, the controller does nothing.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PostParams};
use mooring_program::held::{self, CURE, Held, PERIOD};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::process::health::{Health, Phase};

/// First pause before the API server is asked again: it may only just be starting too.
const FIRST_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

const NOT_HELD: &str = "no admission policy restricts this controller";

/// Waits until a policy holds the controller. Returns whether it is to go on: not if it was stopped meanwhile. The API
/// server is asked in `namespaces`, those in which the controller makes Pods.
pub(crate) async fn wait(client: Client, namespaces: &[String], health: &Health, stop: &CancellationToken) -> bool {
    if !held::is_to_be_held() {
        return true;
    }
    let mut pause = FIRST_PAUSE;
    loop {
        match ask(&client, namespaces).await {
            Held::Yes => return true,
            Held::No => {
                health.set(Phase::NotHeld);
                error!("{NOT_HELD}, so it does nothing: {CURE}");
            }
            Held::Unknown(said) => {
                health.set(Phase::HeldUnknown);
                error!(
                    said,
                    "the API server does not say whether an admission policy restricts this controller, so it does \
                     nothing: see that the API server can be reached, and that ClusterRole flex-provisioner-configs is \
                     bound in a namespace of the setting config-namespaces"
                );
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => info!("asking again"),
            () = stop.cancelled() => return false,
        }
        pause = (pause * 2).min(PERIOD);
    }
}

/// Returns when no policy holds the controller any more, after one did: until then [`wait`] waits.
pub(crate) async fn lost(client: Client, namespaces: &[String]) {
    if held::is_to_be_held() {
        until_lost(async || ask(&client, namespaces).await).await;
        error!("{NOT_HELD} any more, so it begins anew and waits: {CURE}");
    } else {
        std::future::pending::<()>().await;
    }
}

async fn until_lost(ask: impl AsyncFn() -> Held) {
    let mut was_held = false;
    loop {
        let held = ask().await;
        if was_held && held == Held::No {
            return;
        }
        was_held |= held == Held::Yes;
        tokio::time::sleep(held.pause()).await;
    }
}

/// Asks what the API server would say to a Pod that the controller must not make.
async fn ask(client: &Client, namespaces: &[String]) -> Held {
    let pod: Pod = match serde_json::from_value(forbidden_pod()) {
        Ok(pod) => pod,
        Err(error) => return Held::Unknown(error.to_string()),
    };
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut answers = vec![];
    for namespace in namespaces {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        answers.push(held::ask(pods.create(&dry_run, &pod)).await);
    }
    overall(answers)
}

/// What the answers of all namespaces amount to. The policies match the controller in every namespace, so one that
/// refuses is enough: in another, the controller may have no rights yet.
fn overall(answers: Vec<Held>) -> Held {
    let mut overall = Held::Unknown("there is no namespace to ask in".to_owned());
    for answer in answers {
        overall = match (overall, answer) {
            (Held::No, _) | (_, Held::No) => Held::No,
            (Held::Yes, _) | (_, Held::Yes) => Held::Yes,
            (Held::Unknown(_), unknown @ Held::Unknown(_)) => unknown,
        };
    }
    overall
}

/// A Pod that lacks the label of a provisioning Pod, and nothing else: Pod Security, at its most restricted level, lets
/// it in.
fn forbidden_pod() -> Value {
    json!({
        "metadata": {"generateName": "flex-provisioner-asks-"},
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "none",
                "image": "none.invalid/none",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use super::{Held, forbidden_pod, overall, until_lost};
    use k8s_openapi::api::core::v1::Pod;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_controller_goes_on_asking_and_ends_only_when_it_certainly_is_held_no_more() {
        let unknown = Held::Unknown("no answer".to_owned());
        let answers = vec![Held::No, unknown, Held::Yes, Held::No];
        let (answers, begun) = (RefCell::new(answers), Instant::now());
        until_lost(async || answers.borrow_mut().pop().unwrap()).await;
        assert!(answers.borrow().is_empty());
        // Seldom while it is held, and soon again where it is not yet, or nobody knows.
        assert_eq!(begun.elapsed(), Duration::from_secs(10 + 120 + 10));
    }

    #[test]
    fn one_namespace_without_a_policy_is_enough_to_stop_and_one_with_a_policy_to_go_on() {
        let unknown = || Held::Unknown("no right".to_owned());
        for (answers, expected) in [
            (vec![Held::Yes], Held::Yes),
            (vec![unknown(), Held::Yes, unknown()], Held::Yes),
            (vec![Held::Yes, Held::No, unknown()], Held::No),
            (vec![unknown()], unknown()),
        ] {
            assert_eq!(overall(answers.clone()), expected, "{answers:?}");
        }
        assert!(matches!(overall(vec![]), Held::Unknown(_)));
    }

    #[test]
    fn the_pod_that_is_asked_about_is_not_labelled_as_a_provisioning_pod() {
        let pod: Pod = serde_json::from_value(forbidden_pod()).unwrap();
        assert_eq!(pod.metadata.labels, None);
    }
}
