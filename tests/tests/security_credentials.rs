//! Tries to break out with credentials that somebody may come by: a provisioning Pod's, a mounter's, the controller's, a tenant's
//! own. What each could do at most is docs/security.md's business.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, ResourceExt};
use kube::{Api, Client};
use mooring_contract::names::{FLEX_DRIVER, NAMESPACE, annotations, finalizers, labels};
use mooring_testbed::harness::credentials::{dry_run, refusal};
use mooring_testbed::harness::nodes::on_own_nodes;
use mooring_testbed::harness::provisioner::{CONFIG_NAMESPACE, MAKER, claim};
use mooring_testbed::harness::{Scope, in_namespace, wait_until};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;

fn parsed<K: DeserializeOwned>(object: &Value) -> Result<K> {
    serde_json::from_value(object.clone()).with_context(|| format!("not what it should be: {object}"))
}

/// With this value in place of what is there, or in addition.
fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut object = object.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(Value::Object(parent)) = object.pointer_mut(parent) {
        parent.insert(key.to_owned(), value);
    }
    object
}

/// Whether a token is good for running commands in Pods.
async fn may_exec(client: &Client, namespace: &str) -> Result<bool> {
    let ask = json!({"spec": {"resourceAttributes": {
        "namespace": namespace, "verb": "create", "resource": "pods", "subresource": "exec", "name": "x",
    }}});
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let asked = serde_json::from_value(ask)?;
    let answer = reviews.create(&PostParams::default(), &asked).await?;
    Ok(answer.status.context("a review without an answer")?.allowed)
}

/// What a token can't even ask for is refused before any policy looks at it.
async fn has_no_right_to_secrets_and_pods(client: &Client, namespaces: &[&str]) -> Result<()> {
    for namespace in namespaces {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        assert!(refusal(secrets.list(&ListParams::default()).await).contains("cannot list"));
        assert!(refusal(secrets.get("x").await).contains("cannot get"));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        assert!(!may_exec(client, namespace).await?, "exec in {namespace}");
        let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        refusal(pods.patch("x", &PatchParams::default(), &patch).await);
        refusal(
            pods.patch_ephemeral_containers("x", &PatchParams::default(), &patch)
                .await,
        );
    }
    Ok(())
}

#[test]
fn a_provisioning_pod_s_token_is_good_for_its_own_volume_and_nothing_else() {
    in_namespace("sec-maker", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("service-account-name", MAKER)
            .on_provision("sleep 1000");
        provisioner.apply().await?;
        let other = scope.provisioner_named("-other").printing();
        other.apply().await?;
        let theirs = scope.claim("theirs", &other.class, "1Gi").await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.runs("provision", &uid).await?;
        scope.claim_bound("theirs").await?;
        let token = scope.exec_in_run("provision", &uid, ["cat", "/run/mooring/properties/service-token"])?;
        let client = scope.with_token(&token).await?;

        // No Secret, be it another run's, its own, of its namespace or of another; no Pod, claim, token or node.
        has_no_right_to_secrets_and_pods(&client, &[CONFIG_NAMESPACE, "kube-system", NAMESPACE, &scope.namespace])
            .await?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &scope.namespace);
        let patch = Patch::Merge(json!({"spec": {"volumeName": format!("pvc-{uid}")}}));
        refusal(claims.patch("theirs", &PatchParams::default(), &patch).await);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), CONFIG_NAMESPACE);
        let request = parsed(&json!({"spec": {}}))?;
        refusal(accounts.create_token_request(MAKER, &dry_run(), &request).await);

        let volumes: Api<PersistentVolume> = Api::all(client);
        refusal(volumes.list(&ListParams::default()).await);
        // Neither another claim's volume, bound or not, ...
        let said = refusal(volumes.delete(&format!("pvc-{theirs}"), &DeleteParams::default()).await);
        assert!(said.contains("may not touch"), "{said}");
        // ... nor one that is another thing than it seems.
        let own = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pvc-{uid}")},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": provisioner.class,
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": scope.namespace, "name": "data", "uid": uid},
                "flexVolume": {"driver": FLEX_DRIVER, "options": {"client": "nfs", "source": "192.0.2.1:/x"}},
            },
        });
        volumes.create(&dry_run(), &parsed(&own)?).await?;
        let options = "/spec/flexVolume/options";
        for (pointer, value, why) in [
            (
                options,
                json!({"client": "nfs", "source": "/dev/vda1"}),
                "path or a device of the node",
            ),
            (
                options,
                json!({"client": "nfs", "source": "label=root"}),
                "path or a device of the node",
            ),
            (
                options,
                json!({"client": "nfs", "source": "192.0.2.1:/x/../../etc"}),
                "part \"..\"",
            ),
            (
                options,
                json!({"client": "x", "source": "x", "fs-type": "overlay"}),
                "view of the node",
            ),
            (options, json!({"client": "cgroup", "source": "x"}), "view of the node"),
            ("/spec/flexVolume/fsType", json!("proc"), "view of the node"),
            (
                options,
                json!({"client": "local", "source": format!("pvc-{theirs}.img")}),
                "another claim's volume",
            ),
            (
                "/metadata/annotations",
                json!({annotations::CONFIG: "mooring/local", annotations::REQUEST: "{}"}),
                "controller's own",
            ),
            ("/metadata/finalizers", json!([finalizers::VOLUME]), "controller's own"),
        ] {
            let said = refusal(volumes.create(&dry_run(), &parsed(&with(&own, pointer, value))?).await);
            assert!(said.contains(why), "{why:?} is not in {said}");
        }
        for source in ["hostPath", "local"] {
            let mut volume = with(&own, "/spec/flexVolume", Value::Null);
            volume["spec"][source] = json!({"path": "/"});
            let said = refusal(volumes.create(&dry_run(), &parsed(&volume)?).await);
            assert!(
                said.contains("a provisioning image may make") || source == "local",
                "{said}"
            );
        }
        for name in ["data", "theirs"] {
            scope.claim_gone(name).await?;
        }
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_token_that_is_bound_to_no_pod_touches_no_volume_of_others() {
    in_namespace("sec-unbound", async |scope| {
        let token = scope.token_of(CONFIG_NAMESPACE, MAKER, None).await?;
        let theirs: Api<PersistentVolume> = Api::all(scope.with_token(&token).await?);
        let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
        let foreign = |uid: &str, extra: Value| {
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {
                    "name": format!("pvc-{uid}"), "annotations": extra,
                    "labels": {"testbed.mooring.dev/namespace": scope.namespace},
                },
                "spec": {
                    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "x",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"kind": "PersistentVolumeClaim", "namespace": scope.namespace, "name": "a", "uid": uid},
                    "nfs": {"server": "192.0.2.1", "path": "/x"},
                },
            })
        };
        for (uid, extra, mine) in [
            (
                "5ec0a001-0000-4000-8000-000000000001",
                json!({"pv.kubernetes.io/provisioned-by": "example.com/nfs"}),
                false,
            ),
            (
                "5ec0a001-0000-4000-8000-000000000002",
                json!({annotations::CONFIG: "mooring/local"}),
                false,
            ),
            (
                "5ec0a001-0000-4000-8000-000000000003",
                json!({annotations::CONFIG: format!("{CONFIG_NAMESPACE}/x")}),
                true,
            ),
        ] {
            scope.apply_anywhere(&foreign(uid, extra).to_string())?;
            let name = format!("pvc-{uid}");
            let dry = DeleteParams {
                dry_run: true,
                ..DeleteParams::default()
            };
            let answer = theirs.delete(&name, &dry).await;
            volumes.delete(&name, &DeleteParams::default()).await?;
            if mine {
                answer?;
            } else {
                let said = refusal(answer);
                assert!(said.contains("another provisioner"), "{said}");
            }
        }
        Ok(())
    });
}

/// A client Pod as the mounter makes it, on a node.
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

#[test]
fn a_mounter_s_token_makes_client_pods_of_its_own_node_and_nothing_else() {
    on_own_nodes("sec-mounter", async |scope| {
        let mounter = scope.mounter("node-1").await?;
        let token = scope.token_of(NAMESPACE, "mounter", Some(&mounter)).await?;
        let client = scope.with_token(&token).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let good = client_pod("node-1");
        pods.create(&dry_run(), &parsed(&good)?).await?;
        for (pointer, value, why) in [
            ("/spec/nodeName", json!("node-2"), "own node only"),
            ("/spec/nodeName", Value::Null, "own node only"),
            ("/metadata/labels", json!({"app": "x"}), "client Pods only"),
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
        ] {
            // A slash in a label's name.
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
        // No Pod of the controller's, of another node's mounter or of its own; nor elsewhere.
        let dry = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        for other in [scope.mounter("node-2").await?, mounter, scope.leader()?] {
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
        refusal(
            configs
                .patch("allowed-client-images", &PatchParams::default(), &patch)
                .await,
        );
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let request = parsed(&json!({"spec": {}}))?;
        refusal(
            accounts
                .create_token_request("flex-provisioner", &dry_run(), &request)
                .await,
        );

        // It speaks in its own name only.
        for (namespace, controller, kind) in [
            (scope.namespace.as_str(), "kubelet", "Pod"),
            (&scope.namespace, "mooring-mounter", "PersistentVolumeClaim"),
            (&scope.namespace, "mooring-mounter", "ConfigMap"),
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

        // Without its node in it, a token is good for nothing.
        let unbound = scope.token_of(NAMESPACE, "mounter", None).await?;
        let pods: Api<Pod> = Api::namespaced(scope.with_token(&unbound).await?, NAMESPACE);
        let said = refusal(pods.create(&dry_run(), &parsed(&good)?).await);
        assert!(said.contains("bound to no node"), "{said}");
        Ok(())
    });
}

/// What a mounter says of its own node.
fn mark(part: &str, key: &str, value: Value) -> Value {
    let mut marks = json!({});
    marks[key] = value;
    json!({"metadata": {part: marks}})
}

#[test]
fn a_mounter_s_token_sees_the_pods_of_its_own_node_in_that_node_s_name_and_nothing_else() {
    on_own_nodes("sec-node-pods", async |scope| {
        let mounter = scope.mounter("node-1").await?;
        let token = scope.token_of(NAMESPACE, "mounter", Some(&mounter)).await?;
        let own = scope.with_token_as(&token, Some("system:node:node-1")).await?;
        let on = |node: &str| ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods: Api<Pod> = Api::all(own.clone());
        let seen = pods.list_metadata(&on("node-1")).await?;
        ensure!(seen.items.iter().any(|pod| pod.name_any() == mounter));

        assert!(refusal(pods.list(&on("node-2")).await).contains("cannot list"));
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
        let nodes: Api<Node> = Api::all(own);
        assert!(refusal(nodes.get("node-1").await).contains(mine));

        // In no other name at all.
        for user in ["system:node:node-2", "system:kube-controller-manager", "system:admin"] {
            let client = scope.with_token_as(&token, Some(user)).await?;
            let pods: Api<Pod> = Api::all(client);
            assert!(
                refusal(pods.list(&on("node-1")).await).contains("impersonate"),
                "{user}"
            );
        }
        let token = scope.token_of(NAMESPACE, "mounter", None).await?;
        let unbound = scope.with_token_as(&token, Some("system:node:node-1")).await?;
        let pods: Api<Pod> = Api::all(unbound);
        assert!(refusal(pods.list(&on("node-1")).await).contains("impersonate"));
        Ok(())
    });
}

#[test]
fn a_mounter_s_token_marks_its_own_node_and_changes_nothing_else_of_any() {
    on_own_nodes("sec-node", async |scope| {
        let mounter = scope.mounter("node-1").await?;
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
            &mark("labels", labels::NODE_MOUNTER, Value::Null),
        ] {
            nodes.patch("node-1", &dry, &Patch::Merge(patch)).await?;
        }
        let others = "and no others";
        let elsewhere = "client.mooring.dev.example.com/x";
        for (patch, why) in [
            (mark("labels", "a", json!("b")), others),
            (mark("labels", elsewhere, json!(labels::READY)), others),
            (mark("labels", "kubernetes.io/hostname", json!("node-2")), others),
            (mark("labels", "kubernetes.io/hostname", Value::Null), others),
            (
                mark("labels", "node-role.kubernetes.io/control-plane", json!("")),
                others,
            ),
            (mark("labels", "mooring.dev/component", json!(labels::READY)), others),
            (mark("labels", &ours, json!("maybe")), "ready or not-ready"),
            (mark("labels", &ours, json!("12")), "ready or not-ready"),
            (
                mark("labels", labels::NODE_OLD_CLIENT_PODS, json!("many")),
                "ready or not-ready",
            ),
            (mark("annotations", "a", json!("b")), others),
            (mark("annotations", &ours, json!("x".repeat(1001))), "1000 letters"),
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
            let said = refusal(nodes.patch("node-1", &dry, &Patch::Merge(&patch)).await);
            assert!(said.contains(why), "{patch}: {why:?} is not in {said}");
        }
        // In whatever way it is said.
        let apply = PatchParams {
            dry_run: true,
            ..PatchParams::apply("mooring-mounter").force()
        };
        let mut all = json!({"apiVersion": "v1", "kind": "Node"});
        all["metadata"] = good["metadata"].clone();
        nodes.patch("node-1", &apply, &Patch::Apply(&all)).await?;
        for patch in [Patch::Merge(&good), Patch::Strategic(&good)] {
            let said = refusal(nodes.patch("node-2", &dry, &patch).await);
            assert!(said.contains("no other node"), "{said}");
        }
        let said = refusal(nodes.patch("node-2", &apply, &Patch::Apply(&all)).await);
        assert!(said.contains("no other node"), "{said}");

        // It can neither read them all, nor make, replace or delete one, nor change a node's status.
        assert!(refusal(nodes.list(&ListParams::default()).await).contains("cannot list"));
        assert!(refusal(nodes.get("node-1").await).contains("cannot get"));
        assert!(refusal(nodes.patch_status("node-1", &dry, &Patch::Merge(&good)).await).contains("cannot patch"));
        let mine = Api::<Node>::all(scope.client.clone()).get("node-1").await?;
        assert!(refusal(nodes.replace("node-1", &dry_run(), &mine).await).contains("cannot update"));
        assert!(refusal(nodes.create(&dry_run(), &mine).await).contains("cannot create"));
        let delete = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        assert!(refusal(nodes.delete("node-1", &delete).await).contains("cannot delete"));

        // It tells of its own node only.
        let event = |node: &str| {
            json!({
                "metadata": {"name": "told"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
                "action": "Look", "reason": "Told", "reportingController": "mooring-mounter", "reportingInstance": "x",
                "regarding": {"kind": "Node", "name": node},
            })
        };
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(client, "default");
        events.create(&dry_run(), &parsed(&event("node-1"))?).await?;
        let said = refusal(events.create(&dry_run(), &parsed(&event("node-2"))?).await);
        assert!(said.contains("its own node"), "{said}");

        // Without its node in it, a token is good for nothing.
        let unbound = scope.token_of(NAMESPACE, "mounter", None).await?;
        let nodes: Api<Node> = Api::all(scope.with_token(&unbound).await?);
        let said = refusal(nodes.patch("node-1", &dry, &Patch::Merge(&good)).await);
        assert!(said.contains("bound to no node"), "{said}");
        Ok(())
    });
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
            ] {
                let said = refusal(pods.create(&dry_run(), &parsed(&with(&good, pointer, value))?).await);
                assert!(said.contains(why), "{pointer}: {why:?} is not in {said}");
            }
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        for account in ["flex-provisioner", "mounter", "client"] {
            let pod = with(&good, "/spec/serviceAccountName", json!(account));
            let said = refusal(pods.create(&dry_run(), &parsed(&pod)?).await);
            assert!(said.contains("never runs as a part"), "{said}");
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
            let bound = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": leader}}});
            let said = refusal(
                accounts
                    .create_token_request(account, &dry_run(), &parsed(&bound)?)
                    .await,
            );
            assert!(said.contains("no token of a part of Mooring"), "{said}");
        }
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
        // Where no provisioner ConfigMaps are honoured it can do nothing at all.
        has_no_right_to_secrets_and_pods(&client, &["kube-system", &scope.namespace]).await?;
        let elsewhere: Api<Pod> = Api::namespaced(client, &scope.namespace);
        refusal(elsewhere.create(&dry_run(), &parsed(&good)?).await);
        Ok(())
    });
}

#[test]
fn what_mooring_notes_on_a_claim_is_not_its_user_s_to_change() {
    in_namespace("sec-record", async |scope| {
        // All that a namespace's own administrator could have, and the status besides.
        scope.apply(
            &json!({"apiVersion": "v1", "kind": "List", "items": [
                {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "claims"}, "rules": [
                    {"apiGroups": [""], "resources": ["persistentvolumeclaims", "persistentvolumeclaims/status"], "verbs": ["*"]},
                ]},
                {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "claims"},
                 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "claims"},
                 "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}]},
            ]})
            .to_string(),
        )?;
        let eve: Api<PersistentVolumeClaim> =
            Api::namespaced(scope.as_user("eve", &["system:authenticated"]).await?, &scope.namespace);
        let provisioner = scope.provisioner().printing().on_provision("sleep 1000");
        provisioner.apply().await?;

        let forged = claim("forged", &provisioner.class, "1Gi");
        for (pointer, value) in [
            (
                "/metadata/annotations",
                json!({annotations::OPERATION: "{\"operation\":\"delete\"}"}),
            ),
            ("/metadata/finalizers", json!([finalizers::CLAIM])),
        ] {
            let said = refusal(eve.create(&dry_run(), &parsed(&with(&forged, pointer, value))?).await);
            assert!(said.contains("Mooring's own record"), "{said}");
        }

        let wanted: PersistentVolumeClaim = parsed(&claim("data", &provisioner.class, "1Gi"))?;
        let uid = eve
            .create(&PostParams::default(), &wanted)
            .await?
            .uid()
            .context("no uid")?;
        scope.runs("provision", &uid).await?;
        let held = |claim: &PersistentVolumeClaim| {
            let recorded = claim.annotations().contains_key(annotations::OPERATION);
            recorded && claim.finalizers().iter().any(|name| name == finalizers::CLAIM)
        };
        assert!(held(&eve.get("data").await?));
        for change in [
            json!({"metadata": {"annotations": {annotations::OPERATION: null}}}),
            json!({"metadata": {"annotations": {annotations::OPERATION: "{}"}}}),
            json!({"metadata": {"finalizers": null}}),
            json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}}),
        ] {
            let change = Patch::Merge(change);
            let said = refusal(eve.patch("data", &PatchParams::default(), &change).await);
            assert!(said.contains("Mooring's own record"), "{said}");
            // By the status nothing of it changes either, whether it is refused or left out.
            let _ = eve.patch_status("data", &PatchParams::default(), &change).await;
            assert!(held(&eve.get("data").await?), "{change:?}");
        }
        // Her own things she may still change, and delete the claim.
        let own = Patch::Merge(json!({"metadata": {"annotations": {"note": "mine"}}}));
        eve.patch("data", &PatchParams::default(), &own).await?;
        eve.delete("data", &DeleteParams::default()).await?;
        scope.claim_until("data", "to be gone", |seen| seen.is_none()).await?;
        scope.nothing_left(&uid).await
    });
}

/// A Pod's spec with this volume in it.
fn pod_spec(volume: &Value) -> Value {
    json!({
        "restartPolicy": "Never",
        "schedulingGates": [{"name": "testbed.mooring.dev/never"}],
        "containers": [{"name": "main", "image": "busybox:1"}],
        "volumes": [volume],
    })
}

#[test]
fn no_way_of_making_a_pod_lets_a_tenant_mount_what_nobody_allowed() {
    in_namespace("sec-inline", async |scope| {
        scope.kubectl([
            "annotate",
            "namespace",
            &scope.namespace,
            "mooring.dev/inline-clients=nfs,sshfs,pool,local,host",
            "mooring.dev/inline-sources=192.0.2.1:/exports/*,*@files.example:/srv/**,**.img",
        ])?;
        let pods: Api<Pod> = scope.api();
        let pod_with = |volume: &Value| parsed::<Pod>(&json!({"metadata": {"name": "user"}, "spec": pod_spec(volume)}));
        let inline = |options: Value| {
            [
                json!({"name": "v", "flexVolume": {"driver": FLEX_DRIVER, "options": options}}),
                json!({"name": "v", "csi": {"driver": "vcs.mooring.dev", "volumeAttributes": options}}),
            ]
        };
        let allowed = json!({"client": "nfs", "source": "192.0.2.1:/exports/team"});
        for volume in inline(allowed.clone()) {
            // A policy sees a namespace a moment after it changed.
            wait_until("nfs to be allowed", Duration::from_secs(20), async || {
                Ok(pods.create(&dry_run(), &pod_with(&volume)?).await.ok())
            })
            .await?;
        }
        for (options, why) in [
            (json!({"client": "pool"}), "never allowed"),
            (json!({"client": "local", "source": "pvc-1.img"}), "never allowed"),
            (
                json!({"client": "host", "source": "192.0.2.1:/exports/a"}),
                "never allowed",
            ),
            (
                json!({"client": "smb", "source": "192.0.2.1:/exports/a"}),
                "inline-clients",
            ),
            (json!({"source": "192.0.2.1:/exports/a"}), "inline-clients"),
            (
                json!({"client": "nfs", "source": "198.51.100.1:/exports/a"}),
                "inline-sources",
            ),
            (
                json!({"client": "nfs", "source": "192.0.2.1:/exports/a/b"}),
                "inline-sources",
            ),
            (
                json!({"client": "nfs", "source": "192.0.2.1:/exports"}),
                "inline-sources",
            ),
            (
                json!({"client": "nfs", "source": "192a0b2c1:/exports/a"}),
                "inline-sources",
            ),
            (json!({"client": "nfs"}), "inline-sources"),
            (
                json!({"client": "sshfs", "source": "u@evil.example:/x@files.example:/srv/a"}),
                "inline-sources",
            ),
            (
                json!({"client": "sshfs", "source": "u@files.example:/srv/../etc"}),
                "part \"..\"",
            ),
            (
                json!({"client": "nfs", "source": "/var/lib/mooring/pool/pvc-1.img"}),
                "path or a device of the node",
            ),
            (
                json!({"client": "nfs", "source": "LABEL=x.img"}),
                "path or a device of the node",
            ),
        ] {
            for volume in inline(options.clone()) {
                let said = refusal(pods.create(&dry_run(), &pod_with(&volume)?).await);
                assert!(said.contains(why), "{options}: {why:?} is not in {said}");
            }
        }
        for (key, value, why) in [
            ("fs-type", "ext4", "fs-type"),
            ("client-image", "mooring.dev/provisioner-base:0.1.0", "client-image"),
            ("mount-options", "suid", "mount options"),
            ("mount-options", "ro,dev", "mount options"),
            ("mount-options", "ro, lowerdir=/", "mount options"),
        ] {
            for volume in inline(with(&allowed, &format!("/{key}"), json!(value))) {
                let said = refusal(pods.create(&dry_run(), &pod_with(&volume)?).await);
                assert!(said.contains(why), "{why:?} is not in {said}");
            }
        }
        for kind in ["flexVolume", "csi"] {
            let index = usize::from(kind == "csi");
            let volume = with(
                &inline(allowed.clone())[index],
                &format!("/{kind}/fsType"),
                json!("ext4"),
            );
            let said = refusal(pods.create(&dry_run(), &pod_with(&volume)?).await);
            assert!(said.contains("fs-type"), "{said}");
        }
        by_others(&scope, &inline(json!({"client": "pool"}))[0]).await
    });
}

/// What makes Pods on a tenant's behalf is held as the tenant is; what is a claim in the end is not.
async fn by_others(scope: &Scope, volume: &Value) -> Result<()> {
    let spec = with(&pod_spec(volume), "/schedulingGates", Value::Null);
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": spec});
    let always = with(&template, "/spec/restartPolicy", json!("Always"));
    let selector = json!({"matchLabels": {"app": "x"}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "deployed"},
         "spec": {"replicas": 1, "selector": selector, "template": always}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {"template": template}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "set"},
         "spec": {"replicas": 1, "serviceName": "x", "selector": selector, "template": always}},
    ]});
    scope.apply(&list.to_string())?;
    let events: Api<Event> = scope.api();
    for kind in ["ReplicaSet", "Job", "StatefulSet"] {
        wait_until(
            &format!("an Event on the {kind}"),
            Duration::from_secs(30),
            async || {
                let all = events.list(&ListParams::default()).await?.items;
                let told = |event: &Event| {
                    event.involved_object.kind.as_deref() == Some(kind)
                        && event
                            .message
                            .as_deref()
                            .is_some_and(|said| said.contains("never allowed"))
                };
                Ok(all.iter().any(told).then_some(()))
            },
        )
        .await?;
    }
    let pods: Api<Pod> = scope.api();
    assert_eq!(pods.list(&ListParams::default()).await?.items.len(), 0);

    // A volume can't be put into a Pod that is there.
    let innocent = json!({"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "there-is-no-such-class",
        "resources": {"requests": {"storage": "1Gi"}},
    }}}});
    let pod: Pod = parsed(&json!({"metadata": {"name": "user"}, "spec": pod_spec(&innocent)}))?;
    pods.create(&PostParams::default(), &pod).await?;
    let change = Patch::Strategic(json!({"spec": {"volumes": [volume]}}));
    refusal(pods.patch("user", &PatchParams::default(), &change).await);
    // Its ephemeral volume is a claim like any other.
    let claims: Api<PersistentVolumeClaim> = scope.api();
    let claim = wait_until("the ephemeral volume's claim", Duration::from_secs(30), async || {
        Ok(claims.get_opt("user-e").await?)
    })
    .await?;
    assert_eq!(
        claim.annotations()[annotations::USERNAME],
        "system:serviceaccount:kube-system:ephemeral-volume-controller"
    );
    Ok(())
}
