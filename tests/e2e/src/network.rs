//! Keeps the policies of `configmaps/install/network.yaml` in line with the Pods and ports that they are about. No test
//! sends packets: the testbed's network enforces no `NetworkPolicy`.

use mooring_contract::names::labels;
use mooring_contract::worker::PORT;
use mooring_testbed::layout::repository;
use mooring_testbed::manifests::documents;
use serde_json::{Value, json};

fn installed(file: &str) -> Vec<Value> {
    let path = repository().join("configmaps/install").join(file);
    documents(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The template of the Pods of a workload.
fn template(file: &str, kind: &str) -> Value {
    let all = installed(file);
    let workload = all.iter().find(|document| document["kind"] == kind);
    workload.expect(kind)["spec"]["template"].clone()
}

/// A policy's spec, which has one rule for what comes in, with one origin and one port.
fn policy(name: &str) -> Value {
    let all = installed("network.yaml");
    let found = all.iter().find(|document| document["metadata"]["name"] == name);
    let spec = found.expect(name)["spec"].clone();
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));
    let rules = spec["ingress"].as_array().unwrap();
    assert_eq!(rules.len(), 1, "{name}");
    for part in ["from", "ports"] {
        assert_eq!(rules[0][part].as_array().map(Vec::len), Some(1), "{name}: {part}");
    }
    spec
}

/// Whether a policy is about Pods with these labels.
fn selects(policy: &Value, labels: &Value) -> bool {
    let wanted = policy["podSelector"]["matchLabels"].as_object().unwrap();
    wanted.iter().all(|(label, value)| labels[label] == *value)
}

#[test]
fn the_ports_for_metrics_are_open_to_namespaces_with_a_label_alone() {
    let metrics = policy("metrics");
    let rule = &metrics["ingress"][0];
    assert_eq!(
        rule["from"][0],
        json!({"namespaceSelector": {"matchLabels": {"mooring.dev/metrics": "true"}}})
    );
    let port = &rule["ports"][0]["port"];
    for (file, kind) in [("mounter.yaml", "DaemonSet"), ("provisioner.yaml", "Deployment")] {
        let pods = template(file, kind);
        assert!(selects(&metrics, &pods["metadata"]["labels"]), "{file}");
        let ports = pods["spec"]["containers"][0]["ports"].as_array().unwrap();
        assert!(ports.iter().any(|one| one["name"] == *port), "{file}: {ports:?}");
    }
}

#[test]
fn the_port_of_workers_is_open_to_the_controller_alone() {
    let workers = policy("workers");
    assert!(selects(&workers, &json!({labels::WORKER: "true"})));
    let rule = &workers["ingress"][0];
    assert_eq!(rule["ports"][0]["port"], json!(PORT));
    let from = &rule["from"][0];
    // Without a namespaceSelector, it is about Pods of the policy's own namespace.
    assert_eq!(from["namespaceSelector"], Value::Null);
    let controller = template("provisioner.yaml", "Deployment");
    assert!(selects(from, &controller["metadata"]["labels"]));
    let mounter = template("mounter.yaml", "DaemonSet");
    assert!(!selects(from, &mounter["metadata"]["labels"]));
}
