//! What the controller asks about the policies that hold it, asked before a real API server.

use http::Method;
use mooring_contract::names::{CLUSTER_FEATURES, NAMESPACE};
use mooring_program::held::denied_by;
use serde_json::{Value, json};

use super::real_api::RealApi;
use crate::process::held::questions;

const OWN: &str = "flex-provisioner-0";

/// In Mooring's namespace, what an installation has there.
fn installation(real: &RealApi) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    real.must(&Method::POST, "/api/v1/namespaces", &namespace);
    let core = format!("/api/v1/namespaces/{NAMESPACE}");
    for (plural, object) in [
        ("serviceaccounts", json!({"metadata": {"name": "flex-provisioner"}})),
        ("configmaps", json!({"metadata": {"name": CLUSTER_FEATURES}})),
        (
            "pods",
            json!({
                "metadata": {"name": OWN, "labels": {"app.kubernetes.io/name": "flex-provisioner"}},
                "spec": {"containers": [{"name": "flex-provisioner", "image": "none"}]},
            }),
        ),
    ] {
        real.must(&Method::POST, &format!("{core}/{plural}"), &object);
    }
}

#[test]
fn what_the_controller_asks_is_refused_by_the_policy_that_it_asks_about_and_else_is_a_dry_run() {
    let Some(real) = RealApi::start() else {
        return;
    };
    installation(&real);
    let all = |plural: &str| real.must(&Method::GET, &format!("/api/v1/{plural}"), &Value::Null)["items"].clone();
    let everything = || ["pods", "configmaps", "secrets", "persistentvolumes"].map(all);
    let before = everything();
    for question in questions(NAMESPACE, OWN, &[NAMESPACE.to_owned(), "admin".to_owned()]) {
        let (_, said) = real.call_by_controller(&question.method, &question.target, &question.body);
        let said = said["message"].as_str().unwrap_or_default();
        assert_eq!(denied_by(said), Some(question.policy), "{question:?}: {said}");
        real.must(&question.method, &question.target, &question.body);
    }
    assert_eq!(everything(), before);
}
