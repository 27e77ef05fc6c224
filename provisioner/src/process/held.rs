//! Whether the admission policies hold this controller to what it may do. Where they don't, anybody who gets the
//! controller's token can take over a node. Until the API server has said that they do, the controller does nothing.

use std::collections::BTreeMap;

use futures::future::join_all;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use kube::Client;
use mooring_contract::names::{CLUSTER_FEATURES, labels, policies};
use mooring_program::held::{self, CURE, Held, PERIOD};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::process::health::{Health, Phase};

/// First pause before the API server is asked again: it may only just be starting too.
const FIRST_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

const NOT_HELD: &str = "no admission policy restricts this controller";

/// The image, type or provisioner of what is never made.
const NONE: &str = "none.invalid/none";

/// Something that the controller must not do, and the one policy of Mooring's that refuses it.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) policy: &'static str,
    pub(crate) method: Method,
    /// With the query that makes it a dry run; for a deletion, the body does that.
    pub(crate) target: String,
    pub(crate) body: Value,
}

/// What to ask for the controller that is Pod `own` of `namespace`, and makes Pods in `namespaces`. Nothing can be asked
/// about claims and snapshots without a user's.
///
/// The API server names the first policy that refuses, perhaps the cluster's own on new Pods. Hardly any is about who
/// deletes one, so the controller asks to delete itself.
pub(crate) fn questions(namespace: &str, own: &str, namespaces: &[String]) -> Vec<Question> {
    let question = |policy, method, path: String, body| Question {
        policy,
        method,
        target: format!("{path}?dryRun=All"),
        body,
    };
    let core = format!("/api/v1/namespaces/{namespace}");
    let features = format!("{core}/configmaps/{CLUSTER_FEATURES}");
    let mut all = vec![
        question(
            policies::CONTROLLER,
            Method::DELETE,
            format!("{core}/pods/{own}"),
            // A Pod that is ending anyway is asked about only for an end that is sooner.
            json!({"dryRun": ["All"], "gracePeriodSeconds": 0}),
        ),
        question(
            policies::CONTROLLER_METADATA,
            Method::PATCH,
            features.clone(),
            json!({"metadata": {"finalizers": [NONE]}}),
        ),
        question(
            policies::CONTROLLER_CONFIG_MAPS,
            Method::PATCH,
            features,
            json!({"immutable": true}),
        ),
        // A token has no dry run. This one would be the controller's own, which it has already.
        question(
            policies::CONTROLLER_TOKENS,
            Method::POST,
            format!("{core}/serviceaccounts/flex-provisioner/token"),
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
        ),
        question(
            policies::CONTROLLER_VOLUMES,
            Method::POST,
            "/api/v1/persistentvolumes".to_owned(),
            named(json!({"spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "none.invalid", "volumeHandle": "none"},
            }})),
        ),
        question(
            policies::CONTROLLER_CLASSES,
            Method::POST,
            "/apis/storage.k8s.io/v1/storageclasses".to_owned(),
            named(json!({"provisioner": NONE})),
        ),
        question(
            policies::CONTROLLER_EVENTS,
            Method::POST,
            format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"),
            named(json!({
                "type": "Normal", "reason": "Asked", "action": "Ask", "eventTime": "2026-01-01T00:00:00.000000Z",
                "reportingController": NONE, "reportingInstance": own,
                "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": own},
            })),
        ),
    ];
    // In a tenant's namespace, somebody may change Pods before the policies see them: there, only the Pod is asked about
    // that no change makes one of the controller's.
    let create = |policy, namespace: &str, plural, body| {
        let path = format!("/api/v1/namespaces/{namespace}/{plural}");
        question(policy, Method::POST, path, named(body))
    };
    let mut urgent = pod();
    urgent["metadata"] = json!({"labels": {labels::COMPONENT: labels::COMPONENT_PROVISIONING}});
    urgent["spec"]["priorityClassName"] = json!("system-cluster-critical");
    all.extend([
        create(policies::CONTROLLER_PRIORITY, namespace, "pods", urgent),
        create(
            policies::CONTROLLER_SECRETS,
            namespace,
            "secrets",
            json!({"type": NONE}),
        ),
    ]);
    all.extend(
        namespaces
            .iter()
            .map(|namespace| create(policies::CONTROLLER, namespace, "pods", pod())),
    );
    all
}

/// Waits until the policies hold the controller. Returns whether it is to go on: not if it was stopped meanwhile.
pub(crate) async fn wait(client: Client, questions: &[Question], health: &Health, stop: &CancellationToken) -> bool {
    if !held::is_to_be_held() {
        return true;
    }
    let mut pause = FIRST_PAUSE;
    loop {
        let answers = ask(&client, questions).await;
        match overall(&answers) {
            Held::Yes => {
                for (policy, answer) in answers {
                    if let Held::Unknown(said) = answer {
                        warn!(
                            policy,
                            said, "the API server does not say whether this admission policy is in force"
                        );
                    }
                }
                return true;
            }
            Held::No => {
                let let_through =
                    |(policy, answer): (&&str, &Held)| (*answer == Held::No).then_some((*policy).to_owned());
                let missing: Vec<_> = answers.iter().filter_map(let_through).collect();
                health.set(Phase::NotHeld);
                error!(
                    "{NOT_HELD} as {} should, so it does nothing: {CURE}",
                    missing.join(", ")
                );
            }
            Held::Unknown(said) => {
                health.set(Phase::HeldUnknown);
                error!(
                    said,
                    "the API server does not say whether an admission policy restricts this controller, so it does \
                     nothing: see that the API server can be reached, and that ClusterRole flex-provisioner-configs is \
                     bound in Mooring's own namespace, or at least in one of the setting config-namespaces whose Pods \
                     no other policy refuses first"
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

/// Returns when the policies hold the controller no more, after they did: until then [`wait`] waits.
pub(crate) async fn lost(client: Client, questions: &[Question]) {
    if held::is_to_be_held() {
        until_lost(async || overall(&ask(&client, questions).await)).await;
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

/// What is known of each policy.
type Answers = BTreeMap<&'static str, Held>;

async fn ask(client: &Client, questions: &[Question]) -> Answers {
    let asked = questions.iter().map(async |question| {
        let answer = held::ask(question.policy, put(client, question)).await;
        (question.policy, answer)
    });
    by_policy(join_all(asked).await)
}

async fn put(client: &Client, question: &Question) -> kube::Result<Value> {
    let content = match question.method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder().method(&question.method).uri(&question.target);
    let request = request.header(CONTENT_TYPE, content);
    let request = request.body(question.body.to_string().into_bytes());
    client.request(request.map_err(kube::Error::HttpError)?).await
}

/// A policy matches the controller in every namespace, so one refusal is enough: in another namespace, the controller
/// may have no rights yet, or a policy of the cluster's own may refuse first.
fn by_policy(answers: Vec<(&'static str, Held)>) -> Answers {
    let mut all = Answers::new();
    for (policy, answer) in answers {
        let known = all.remove(policy).unwrap_or_else(|| answer.clone());
        let known = match (known, answer) {
            (Held::No, _) | (_, Held::No) => Held::No,
            (Held::Yes, _) | (_, Held::Yes) => Held::Yes,
            (Held::Unknown(_), unknown @ Held::Unknown(_)) => unknown,
        };
        all.insert(policy, known);
    }
    all
}

/// By its rights to Pods, the controller could take over nodes, so that policy has to be seen. Of another, it is enough
/// that it is not seen to be missing: a policy of the cluster's own may always refuse first.
fn overall(answers: &Answers) -> Held {
    if answers.values().any(|answer| *answer == Held::No) {
        return Held::No;
    }
    let of_pods = answers.get(policies::CONTROLLER).cloned();
    of_pods.unwrap_or_else(|| Held::Unknown("nothing was asked".to_owned()))
}

/// An object with a name of its own.
fn named(mut object: Value) -> Value {
    object["metadata"]["generateName"] = json!("flex-provisioner-asks-");
    object
}

/// A Pod that lacks the label of a provisioning Pod, and nothing else: Pod Security, at its most restricted level, lets
/// it in.
fn pod() -> Value {
    json!({
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "none",
                "image": NONE,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use mooring_contract::names::policies::{CONTROLLER, CONTROLLER_CLASSES};
    use tokio::time::Instant;

    use super::{Held, by_policy, overall, until_lost};

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
    fn the_policy_on_pods_has_to_be_seen_and_of_the_others_none_must_be_missing() {
        let unknown = || Held::Unknown("no right".to_owned());
        let (pods, classes) = (|held| (CONTROLLER, held), |held| (CONTROLLER_CLASSES, held));
        for (answers, expected) in [
            (vec![pods(Held::Yes)], Held::Yes),
            (vec![pods(unknown()), pods(Held::Yes), pods(unknown())], Held::Yes),
            (vec![pods(Held::Yes), pods(Held::No), pods(unknown())], Held::No),
            (vec![pods(unknown())], unknown()),
            (vec![pods(Held::Yes), classes(Held::No)], Held::No),
            (vec![pods(Held::Yes), classes(unknown())], Held::Yes),
            (vec![pods(unknown()), classes(Held::Yes)], unknown()),
        ] {
            assert_eq!(overall(&by_policy(answers.clone())), expected, "{answers:?}");
        }
        assert!(matches!(overall(&by_policy(vec![])), Held::Unknown(_)));
    }
}
