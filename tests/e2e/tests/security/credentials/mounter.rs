//! What a mounter's token allows.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, Secret, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, ResourceExt};
use kube::{Api, Client};
use mooring_contract::names::{NAMESPACE, SETTINGS_CONFIG, annotations, labels};
use mooring_harness::credentials::{dry_run, refusal};
use mooring_harness::nodes::on_two_nodes;
use mooring_harness::provisioner::CONFIG_NAMESPACE;
use serde_json::{Value, json};

use super::{has_no_right_to_secrets_and_pods, parsed, with};

/// A client Pod as the mounter creates it, on a node.
fn client_pod(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "client-security-", "namespace": NAMESPACE,
            "labels": {labels::COMPONENT: labels::COMPONENT_CLIENT, labels::NODE: node},
        },
        "spec": {
            "nodeName": node, "hostNetwork": true,
            "serviceAccountName": "client", "automountServiceAccountToken": false,
            "containers": [{
                "name": "client", "image": "mooring.dev/client-sshfs:0.1.0", "securityContext": {"privileged": true},
                "volumeMounts": [{"name": "kubelet", "mountPath": "/var/lib/kubelet"}],
            }],
            "volumes": [{"name": "kubelet", "hostPath": {"path": "/var/lib/kubelet", "type": "Directory"}}],
        },
    })
}

/// Proves: M6
#[test]
fn a_mounter_s_token_makes_client_pods_of_its_own_node_and_nothing_else() {
    on_two_nodes("sec-mounter", async |scope, [one, two]| {
        let mounter = scope.mounter(&one).await?;
        let token = scope.token_of(NAMESPACE, "mounter", Some(&mounter)).await?;
        let client = scope.with_token(&token).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let good: Value = serde_json::from_str(&scope.target.with_image_names(&client_pod(&one).to_string()))?;
        pods.create(&dry_run(), &parsed(&good)?).await?;
        for (pointer, value, why) in other_pods(&two) {
            // A label's name may contain a slash.
            let pod = match pointer.strip_prefix("/metadata/labels/") {
                Some(label) => with(&good, "/metadata/labels/x", json!("y"))
                    .pointer_mut("/metadata/labels")
                    .map_or_else(
                        || good.clone(),
                        |labels| {
                            let mut labels = labels.clone();
                            labels[label.replace("~1", "/")] = value.clone();
                            with(&good, "/metadata/labels", labels)
                        },
                    ),
                None => with(&good, pointer, value),
            };
            let said = refusal(pods.create(&dry_run(), &parsed(&pod)?).await);
            assert!(said.contains(why), "{pointer}: {why:?} is not in {said}");
        }
        // No Pod of the controller's, of another node's mounter or of its own; nor in other namespaces.
        let dry = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        for other in [scope.mounter(&two).await?, mounter, scope.leader()?] {
            refusal(pods.delete(&other, &dry).await);
        }
        refusal(pods.delete_collection(&dry, &ListParams::default()).await);
        for namespace in [CONFIG_NAMESPACE, "kube-system", &scope.namespace] {
            let elsewhere: Api<Pod> = Api::namespaced(client.clone(), namespace);
            let pod = with(&good, "/metadata/namespace", json!(namespace));
            refusal(elsewhere.create(&dry_run(), &parsed(&pod)?).await);
            refusal(elsewhere.list(&ListParams::default()).await);
        }
        has_no_right_to_secrets_and_pods(&client, &[NAMESPACE, CONFIG_NAMESPACE, "kube-system"]).await?;
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
        let configs: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        refusal(configs.patch(SETTINGS_CONFIG, &PatchParams::default(), &patch).await);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let request = parsed(&json!({"spec": {}}))?;
        refusal(
            accounts
                .create_token_request("flex-provisioner", &dry_run(), &request)
                .await,
        );

        reports_in_its_own_name_only(&client, &scope.namespace).await?;

        // Without its node in it, a token allows nothing.
        let unbound = scope.token_of(NAMESPACE, "mounter", None).await?;
        let pods: Api<Pod> = Api::namespaced(scope.with_token(&unbound).await?, NAMESPACE);
        let said = refusal(pods.create(&dry_run(), &parsed(&good)?).await);
        assert!(said.contains("bound to no node"), "{said}");
        Ok(())
    });
}

/// What a client Pod may not have: where in [`client_pod`], and what the policy says of it.
fn other_pods(other_node: &str) -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("/spec/nodeName", json!(other_node), "own node only"),
        ("/spec/nodeName", Value::Null, "own node only"),
        ("/metadata/labels", json!({"app": "x"}), "client Pods only"),
        ("/metadata/generateName", json!("provision-"), "begins with client-"),
        (
            "/metadata/labels/app.kubernetes.io~1name",
            json!("flex-provisioner"),
            "labels that the mounter gives",
        ),
        (
            "/spec/serviceAccountName",
            json!("flex-provisioner"),
            "runs as service account client",
        ),
        (
            "/spec/serviceAccountName",
            json!("default"),
            "runs as service account client",
        ),
        ("/spec/automountServiceAccountToken", json!(true), "has no token"),
        ("/spec/hostPID", json!(true), "shares no processes"),
        ("/spec/hostIPC", json!(true), "shares no processes"),
        (
            "/spec/volumes",
            json!([{"name": "kubelet", "hostPath": {"path": "/"}}]),
            "no other volume",
        ),
        (
            "/spec/volumes",
            json!([{"name": "kubelet", "secret": {"secretName": "x"}}]),
            "no other volume",
        ),
        (
            "/spec/volumes",
            json!([{"name": "kubelet", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
            "no other volume",
        ),
        (
            "/spec/imagePullSecrets",
            json!([{"name": "provision-somebody-s"}]),
            "imagePullSecrets",
        ),
        (
            "/spec/containers/0/env",
            json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}}]),
            "no environment",
        ),
        ("/spec/containers/0/image", json!("busybox:1"), "not among the allowed"),
        (
            "/spec/containers/0/image",
            json!("mooring.dev.evil.example/x:1"),
            "not among the allowed",
        ),
        (
            "/spec/containers/0/image",
            json!("evil.example/mooring.dev/x:1"),
            "not among the allowed",
        ),
        (
            "/spec/containers/0/image",
            json!("mooring.dev/a/b:1"),
            "not among the allowed",
        ),
        (
            "/spec/initContainers",
            json!([{"name": "i", "image": "docker.io/evil/x:1"}]),
            "not among the allowed",
        ),
    ]
}

async fn reports_in_its_own_name_only(client: &Client, own: &str) -> Result<()> {
    for (namespace, controller, kind) in [
        (own, "kubelet", "Pod"),
        (own, "mooring-mounter", "PersistentVolumeClaim"),
        (own, "mooring-mounter", "ConfigMap"),
        ("default", "mooring-mounter", "Node"),
    ] {
        let event = json!({
            "metadata": {"name": "forged"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
            "action": "Mount", "reason": "Forged", "reportingController": controller, "reportingInstance": "x",
            "regarding": {"kind": kind, "name": "x", "namespace": namespace},
        });
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(client.clone(), namespace);
        let said = refusal(events.create(&dry_run(), &parsed(&event)?).await);
        assert!(said.contains("a mounter"), "{said}");
    }
    Ok(())
}

/// A patch of what a mounter writes on its own node.
fn mark(part: &str, key: &str, value: Value) -> Value {
    let mut marks = json!({});
    marks[key] = value;
    json!({"metadata": {part: marks}})
}

/// Proves: M6
#[test]
fn a_mounter_s_token_sees_the_pods_of_its_own_node_in_that_node_s_name_and_nothing_else() {
    on_two_nodes("sec-node-pods", async |scope, [one, two]| {
        let mounter = scope.mounter(&one).await?;
        let token = scope.token_of(NAMESPACE, "mounter", Some(&mounter)).await?;
        let own_name = format!("system:node:{one}");
        let own = scope.with_token_as(&token, Some(&own_name)).await?;
        let on = |node: &str| ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods: Api<Pod> = Api::all(own.clone());
        let seen = pods.list_metadata(&on(&one)).await?;
        ensure!(seen.items.iter().any(|pod| pod.name_any() == mounter));

        assert!(refusal(pods.list(&on(&two)).await).contains("cannot list"));
        assert!(refusal(pods.list(&ListParams::default()).await).contains("cannot list"));
        let elsewhere: Api<Pod> = Api::namespaced(own.clone(), NAMESPACE);
        let mine = "impersonate-on:associated-node";
        assert!(refusal(elsewhere.get(&mounter).await).contains(mine));
        let only_asked = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        assert!(refusal(elsewhere.delete(&mounter, &only_asked).await).contains(mine));
        let secrets: Api<Secret> = Api::all(own.clone());
        assert!(refusal(secrets.list(&ListParams::default()).await).contains(mine));
        let secrets: Api<Secret> = Api::namespaced(own.clone(), NAMESPACE);
        assert!(refusal(secrets.get("x").await).contains(mine));
        let nodes: Api<Node> = Api::all(own);
        assert!(refusal(nodes.get(&one).await).contains(mine));

        // It can't impersonate any other user.
        let other = format!("system:node:{two}");
        for user in [&other, "system:kube-controller-manager", "system:admin"] {
            let client = scope.with_token_as(&token, Some(user)).await?;
            let pods: Api<Pod> = Api::all(client);
            assert!(refusal(pods.list(&on(&one)).await).contains("impersonate"), "{user}");
        }
        let token = scope.token_of(NAMESPACE, "mounter", None).await?;
        let unbound = scope.with_token_as(&token, Some(&own_name)).await?;
        let pods: Api<Pod> = Api::all(unbound);
        assert!(refusal(pods.list(&on(&one)).await).contains("impersonate"));
        Ok(())
    });
}

/// Proves: M6
#[test]
fn a_mounter_s_token_marks_its_own_node_and_changes_nothing_else_of_any() {
    on_two_nodes("sec-node", async |scope, [one, two]| {
        let mounter = scope.mounter(&one).await?;
        let token = scope.token_of(NAMESPACE, "mounter", Some(&mounter)).await?;
        let client = scope.with_token(&token).await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let ours = format!("{}x", labels::NODE_CLIENT_PREFIX);
        let good = mark("labels", &ours, json!(labels::READY));
        for patch in [
            &good,
            &mark("labels", labels::NODE_MOUNTER, json!(labels::NOT_READY)),
            &mark("annotations", &ours, json!("load the kernel module fuse")),
            &mark("labels", labels::NODE_OLD_CLIENT_PODS, json!("12")),
            &mark("annotations", labels::NODE_OLD_CLIENT_PODS, json!("a Pod")),
            &mark("annotations", annotations::NODE_POOL, json!("{}")),
            &mark("labels", labels::NODE_MOUNTER, Value::Null),
        ] {
            nodes.patch(&one, &dry, &Patch::Merge(patch)).await?;
        }
        let others = "and no others";
        let elsewhere = "client.mooring.dev.example.com/x";
        for (patch, why) in [
            (mark("labels", "a", json!("b")), others),
            (mark("labels", elsewhere, json!(labels::READY)), others),
            (mark("labels", "kubernetes.io/hostname", json!(two)), others),
            (mark("labels", "kubernetes.io/hostname", Value::Null), others),
            (
                mark("labels", "node-role.kubernetes.io/control-plane", json!("")),
                others,
            ),
            (mark("labels", "mooring.dev/component", json!(labels::READY)), others),
            (mark("labels", annotations::NODE_POOL, json!(labels::READY)), others),
            (mark("labels", &ours, json!("maybe")), "ready or not-ready"),
            (mark("labels", &ours, json!("12")), "ready or not-ready"),
            (
                mark("labels", labels::NODE_OLD_CLIENT_PODS, json!("many")),
                "ready or not-ready",
            ),
            (mark("annotations", "a", json!("b")), others),
            (mark("annotations", &ours, json!("x".repeat(1001))), "1000 characters"),
            (json!({"spec": {"unschedulable": true}}), "no taint"),
            (
                json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}),
                "no taint",
            ),
            (json!({"metadata": {"finalizers": ["a.example.com/b"]}}), "no taint"),
            (
                json!({"metadata": {"ownerReferences":
                    [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]}}),
                "no taint",
            ),
        ] {
            let said = refusal(nodes.patch(&one, &dry, &Patch::Merge(&patch)).await);
            assert!(said.contains(why), "{patch}: {why:?} is not in {said}");
        }
        // By every kind of patch.
        let apply = PatchParams {
            dry_run: true,
            ..PatchParams::apply("mooring-mounter").force()
        };
        let mut all = json!({"apiVersion": "v1", "kind": "Node"});
        all["metadata"] = good["metadata"].clone();
        nodes.patch(&one, &apply, &Patch::Apply(&all)).await?;
        for patch in [Patch::Merge(&good), Patch::Strategic(&good)] {
            let said = refusal(nodes.patch(&two, &dry, &patch).await);
            assert!(said.contains("no other node"), "{said}");
        }
        let said = refusal(nodes.patch(&two, &apply, &Patch::Apply(&all)).await);
        assert!(said.contains("no other node"), "{said}");

        // It can't list all nodes, nor create, replace or delete one, nor change a node's status.
        assert!(refusal(nodes.list(&ListParams::default()).await).contains("cannot list"));
        assert!(refusal(nodes.get(&one).await).contains("cannot get"));
        assert!(refusal(nodes.patch_status(&one, &dry, &Patch::Merge(&good)).await).contains("cannot patch"));
        let mine = Api::<Node>::all(scope.client.clone()).get(&one).await?;
        assert!(refusal(nodes.replace(&one, &dry_run(), &mine).await).contains("cannot update"));
        assert!(refusal(nodes.create(&dry_run(), &mine).await).contains("cannot create"));
        let delete = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        assert!(refusal(nodes.delete(&one, &delete).await).contains("cannot delete"));

        // Its Events are about its own node only.
        let event = |node: &str| {
            json!({
                "metadata": {"name": "told"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
                "action": "Look", "reason": "Told", "reportingController": "mooring-mounter", "reportingInstance": "x",
                "regarding": {"kind": "Node", "name": node},
            })
        };
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(client, "default");
        events.create(&dry_run(), &parsed(&event(&one))?).await?;
        let said = refusal(events.create(&dry_run(), &parsed(&event(&two))?).await);
        assert!(said.contains("its own node"), "{said}");

        // Without its node in it, a token allows nothing.
        let unbound = scope.token_of(NAMESPACE, "mounter", None).await?;
        let nodes: Api<Node> = Api::all(scope.with_token(&unbound).await?);
        let said = refusal(nodes.patch(&one, &dry, &Patch::Merge(&good)).await);
        assert!(said.contains("bound to no node"), "{said}");
        Ok(())
    });
}
