//! What the controller's token allows.

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, Pod, Secret, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mooring_contract::names::{FIELD_MANAGER, NAMESPACE, SETTINGS_CONFIG, labels};
use mooring_harness::credentials::{dry_run, owned_by_nothing, refusal};
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
    let orphaned = Patch::Merge(owned_by_nothing());
    let said = refusal(secrets.patch(&its, &dry_patch, &orphaned).await);
    assert!(said.contains("the owner of no object"), "{said}");
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
    for (change, why) in [
        (
            json!({"data": {"allowed-client-images": "**"}}),
            "annotations of ConfigMaps only",
        ),
        (json!({"immutable": true}), "annotations of ConfigMaps only"),
        (owned_by_nothing(), "the owner of no object"),
    ] {
        let change = Patch::Merge(change);
        let said = refusal(configs.patch(SETTINGS_CONFIG, &dry_patch, &change).await);
        assert!(said.contains(why), "{why:?} is not in {said}");
    }
    let note = Patch::Merge(json!({"metadata": {"annotations": {"mooring.dev/status": "x"}}}));
    configs.patch(SETTINGS_CONFIG, &dry_patch, &note).await?;
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

/// Nor does it change Events that others reported.
async fn reports_in_its_own_name_only(scope: &Scope, client: &Client) -> Result<()> {
    let event = |controller: &str| {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "of-another", "namespace": scope.namespace},
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "action": "Mount", "reason": "Forged",
            "reportingController": controller, "reportingInstance": "x",
            "regarding": {"kind": "Pod", "name": "x", "namespace": scope.namespace},
        })
    };
    let why = "Events of its own only";
    let events: Api<Event> = Api::namespaced(client.clone(), &scope.namespace);
    events.create(&dry_run(), &parsed(&event(FIELD_MANAGER))?).await?;
    let said = refusal(events.create(&dry_run(), &parsed(&event("kubelet"))?).await);
    assert!(said.contains(why), "{said}");
    let all: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    all.create(&PostParams::default(), &parsed(&event("kubelet"))?).await?;
    let dry_patch = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let said = refusal(
        events
            .patch("of-another", &dry_patch, &Patch::Merge(owned_by_nothing()))
            .await,
    );
    assert!(said.contains(why), "{said}");
    Ok(())
}

/// What a run's Pod may not have: where it is, and what the policies say of it.
fn other_pods() -> Vec<(&'static str, Value, &'static str)> {
    vec![
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
            "reads its own Secret",
        ),
        // That of another run, whose name only begins like this Pod's.
        (
            "/spec/volumes",
            json!([{"name": "s", "secret": {"secretName": "provision-x-y-1"}}]),
            "reads its own Secret",
        ),
        (
            "/spec/containers/0/env",
            json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "another", "key": "a"}}}]),
            "reads its own Secret",
        ),
        (
            "/spec/containers/0/envFrom",
            json!([{"secretRef": {"name": "another"}}]),
            "reads its own Secret",
        ),
        (
            "/spec/priorityClassName",
            json!("system-cluster-critical"),
            "names no priority class",
        ),
        // It would keep all other Pods off its node.
        (
            "/spec/affinity",
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": {}},
            ]}}),
            "never by other Pods",
        ),
        (
            "/spec/volumes",
            json!([{"name": "s", "projected": {"sources": [{"secret": {"name": "another"}}]}}]),
            "no other volume",
        ),
    ]
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
            for (pointer, value, why) in other_pods() {
                let said = refusal(pods.create(&dry_run(), &parsed(&with(&good, pointer, value))?).await);
                assert!(said.contains(why), "{pointer}: {why:?} is not in {said}");
            }
            let a_client = with(&good, "/metadata/labels", json!({labels::COMPONENT: "client"}));
            let said = refusal(pods.create(&dry_run(), &parsed(&a_client)?).await);
            // Without settings in the namespace, either policy may speak first.
            let whys = ["provisioning Pods only", "no params found for policy binding"];
            assert!(whys.iter().any(|why| said.contains(why)), "{whys:?}: {said}");
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
        reports_in_its_own_name_only(&scope, &client).await?;
        // In namespaces whose ConfigMaps are not honoured, it can do nothing at all.
        has_no_right_to_secrets_and_pods(&client, &["kube-system", &scope.namespace]).await?;
        let elsewhere: Api<Pod> = Api::namespaced(client, &scope.namespace);
        refusal(elsewhere.create(&dry_run(), &parsed(&good)?).await);
        Ok(())
    });
}
