//! What a provisioning Pod's token allows, and a token of its service account that is bound to no Pod.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use mooring_contract::names::{FLEX_DRIVER, NAMESPACE, annotations, finalizers};
use mooring_harness::credentials::{dry_run, refusal};
use mooring_harness::in_namespace;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, MAKER};
use serde_json::{Value, json};

use super::{has_no_right_to_secrets_and_pods, parsed, with};

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

        // No Secret: not another run's, its own, one of its namespace or of another; no Pod, claim, token or node.
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
        // ... nor a volume that gives out something else than it seems to.
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
        for (pointer, value, why) in other_volumes(&theirs) {
            let said = refusal(volumes.create(&dry_run(), &parsed(&with(&own, pointer, value))?).await);
            assert!(said.contains(why), "{why:?} is not in {said}");
        }
        let on_one_node = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]});
        let on_one_node = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [on_one_node]}]}});
        for source in ["hostPath", "local"] {
            let mut volume = with(&own, "/spec/flexVolume", Value::Null);
            volume["spec"][source] = json!({"path": "/"});
            // Without it, the API server refuses a local volume by itself.
            volume["spec"]["nodeAffinity"] = on_one_node.clone();
            let said = refusal(volumes.create(&dry_run(), &parsed(&volume)?).await);
            assert!(said.contains("a provisioning image may make"), "{source}: {said}");
        }
        for name in ["data", "theirs"] {
            scope.claim_gone(name).await?;
        }
        scope.nothing_left(&uid).await
    });
}

/// What an image may not make of its volume: where in the PV, and what the policy says of it.
fn other_volumes(theirs: &str) -> Vec<(&'static str, Value, &'static str)> {
    let options = "/spec/flexVolume/options";
    vec![
        (
            options,
            json!({"client": "nfs", "source": "/dev/vda1"}),
            "path or a device of the node",
        ),
        (
            options,
            json!({"client": "ext4", "source": "//dev/loop1"}),
            "path or a device of the node",
        ),
        (
            options,
            json!({"client": "nfs", "source": "192.0.2.1:/x", "mount-options": "ro, suid"}),
            "removes a protection",
        ),
        (
            options,
            json!({"client": "nfs", "source": "192.0.2.1:/x", "client-image": "mooring.dev/client-sshfs:0.1.0"}),
            "has no client-image",
        ),
        (
            options,
            json!({"client": "sshfs", "source": "[-oProxyCommand=sh]:/x"}),
            "those that its client has",
        ),
        (
            options,
            json!({"client": "nfs", "source": "192.0.2.1:/x", "server": "x"}),
            "those that its client has",
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
    ]
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
