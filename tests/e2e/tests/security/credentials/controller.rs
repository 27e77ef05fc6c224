//! What the controller's token allows.

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, Pod, Secret, ServiceAccount};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use mooring_contract::names::{NAMESPACE, labels};
use mooring_harness::credentials::{dry_run, refusal};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, TEST_LABEL};
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};

use super::{has_no_right_to_secrets_and_pods, parsed, with};

async fn changes_no_secret_but_those_of_attachments(scope: &Scope, client: &Client) -> Result<()> {
    let name = format!("{}-s", scope.namespace);
    let its = format!("attachment-pvc-{name}");
    let secret = |name: &str, component: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": CONFIG_NAMESPACE,
                         "labels": {TEST_LABEL: scope.namespace, labels::COMPONENT: component}},
        })
    };
    scope.apply_anywhere(&secret(&name, labels::COMPONENT_ATTACHMENT).to_string())?;
    scope.apply_anywhere(&secret(&its, labels::COMPONENT_ATTACHMENT).to_string())?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), CONFIG_NAMESPACE);
    let dry_patch = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let dry = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    let patch = Patch::Merge(json!({"stringData": {"a": "b"}}));
    let why = "Secrets of attachments only";
    assert!(refusal(secrets.patch(&name, &dry_patch, &patch).await).contains(why));
    assert!(refusal(secrets.delete(&name, &dry).await).contains(why));
    secrets.patch(&its, &dry_patch, &patch).await?;
    secrets.delete(&its, &dry).await?;
    // It would be a token that never ends.
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "mounter"}},
    });
    let said = refusal(secrets.create(&dry_run(), &parsed(&token)?).await);
    assert!(said.contains("Opaque and mooring.dev/vcs only"), "{said}");
    Ok(())
}

/// It runs no Pod as a service account of Mooring's own, and gets no token of one.
async fn acts_as_no_part_of_mooring(client: &Client, good: &Value, leader: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    for account in ["flex-provisioner", "mounter", "client"] {
        let pod = with(good, "/spec/serviceAccountName", json!(account));
        let said = refusal(pods.create(&dry_run(), &parsed(&pod)?).await);
        assert!(said.contains("never runs as a part"), "{said}");
        let bound = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": leader}}});
        let (dry, bound) = (dry_run(), parsed(&bound)?);
        let said = refusal(accounts.create_token_request(account, &dry, &bound).await);
        assert!(said.contains("no token of Mooring's own service accounts"), "{said}");
    }
    Ok(())
}

/// The mounters give the node's pool to what has the label of runs.
async fn makes_no_run_of_another_pod(pods: &Api<Pod>, other: &str) {
    let dry_patch = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let run = Patch::Merge(json!({"metadata": {"labels": {labels::COMPONENT: labels::COMPONENT_PROVISIONING}}}));
    let said = refusal(pods.patch(other, &dry_patch, &run).await);
    assert!(said.contains("provisioning Pods only"), "{said}");
}

/// Neither what mounters may run, nor classes of others.
async fn changes_no_setting_and_no_class_of_others(scope: &Scope, client: &Client) -> Result<()> {
    let dry_patch = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    // The garbage collector deletes what belongs to an object that there is not.
    let orphaned = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "00000000-0000-4000-8000-000000000000"},
    ]}});
    for change in [json!({"data": {"images": "**"}}), orphaned, json!({"immutable": true})] {
        let change = Patch::Merge(change);
        let said = refusal(configs.patch("allowed-client-images", &dry_patch, &change).await);
        assert!(said.contains("annotations of ConfigMaps only"), "{said}");
    }
    let note = Patch::Merge(json!({"metadata": {"annotations": {"mooring.dev/status": "x"}}}));
    configs.patch("allowed-client-images", &dry_patch, &note).await?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "kubernetes.io/no-provisioner",
        "metadata": {"name": format!("{}-others", scope.namespace)},
    });
    let classes: Api<StorageClass> = Api::all(client.clone());
    let said = refusal(classes.create(&dry_run(), &parsed(&class)?).await);
    assert!(said.contains("Mooring's provisioners only"), "{said}");
    let own = with(&class, "/provisioner", json!("vcs.mooring.dev"));
    classes.create(&dry_run(), &parsed(&own)?).await?;
    Ok(())
}

#[test]
fn the_controller_s_token_makes_no_privileged_pod_no_host_path_and_no_mounter_s_token() {
    in_namespace("sec-controller", async |scope| {
        let leader = scope.leader()?;
        let token = scope.token_of(NAMESPACE, "flex-provisioner", Some(&leader)).await?;
        let client = scope.with_token(&token).await?;
        let good = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "provision-x", "labels": {labels::COMPONENT: labels::COMPONENT_PROVISIONING}},
            "spec": {
                "containers": [{
                    "name": "provision", "image": "mooring.dev/provisioner-base:0.1.0",
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                }],
                "volumes": [{"name": "properties", "secret": {"secretName": "provision-x-1"}}],
            },
        });
        for namespace in [NAMESPACE, CONFIG_NAMESPACE] {
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            pods.create(&dry_run(), &parsed(&good)?).await?;
            for (pointer, value, why) in [
                (
                    "/metadata/labels",
                    json!({labels::COMPONENT: "client"}),
                    "provisioning Pods only",
                ),
                // The DaemonSet would adopt it.
                (
                    "/metadata/labels",
                    json!({labels::COMPONENT: labels::COMPONENT_PROVISIONING, "app.kubernetes.io/name": "mounter"}),
                    "and no others",
                ),
                (
                    "/metadata/ownerReferences",
                    json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "mounter", "uid": "x",
                            "controller": true}]),
                    "no workload owns it",
                ),
                ("/spec/nodeName", json!("node-1"), "the scheduler chooses"),
                ("/spec/hostNetwork", json!(true), "shares no network"),
                ("/spec/hostPID", json!(true), "shares no network"),
                (
                    "/spec/containers/0/securityContext",
                    json!({"privileged": true}),
                    "no privilege",
                ),
                ("/spec/containers/0/securityContext", Value::Null, "no privilege"),
                (
                    "/spec/containers/0/securityContext/capabilities",
                    json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
                    "no capability",
                ),
                (
                    "/spec/volumes",
                    json!([{"name": "h", "hostPath": {"path": "/"}}]),
                    "no other volume",
                ),
                (
                    "/spec/volumes",
                    json!([{"name": "s", "secret": {"secretName": "another"}}]),
                    "no other volume",
                ),
                (
                    "/spec/volumes",
                    json!([{"name": "s", "projected": {"sources": [{"secret": {"name": "another"}}]}}]),
                    "no other volume",
                ),
            ] {
                let said = refusal(pods.create(&dry_run(), &parsed(&with(&good, pointer, value))?).await);
                assert!(said.contains(why), "{pointer}: {why:?} is not in {said}");
            }
        }
        acts_as_no_part_of_mooring(&client, &good, &leader).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        makes_no_run_of_another_pod(&pods, &leader).await;
        let dry = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        refusal(pods.delete(&leader, &dry).await);
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("{}-host", scope.namespace)},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"}},
        });
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let said = refusal(volumes.create(&dry_run(), &parsed(&volume)?).await);
        assert!(said.contains("Mooring's own driver only"), "{said}");
        changes_no_secret_but_those_of_attachments(&scope, &client).await?;
        changes_no_setting_and_no_class_of_others(&scope, &client).await?;
        // In namespaces whose ConfigMaps are not honoured, it can do nothing at all.
        has_no_right_to_secrets_and_pods(&client, &["kube-system", &scope.namespace]).await?;
        let elsewhere: Api<Pod> = Api::namespaced(client, &scope.namespace);
        refusal(elsewhere.create(&dry_run(), &parsed(&good)?).await);
        Ok(())
    });
}
