//! The admission policies of configmaps/install: whom a claim names as its creator, what a Pod may mount by itself, and
//! what a provisioning image may do with its right to create volumes.

use anyhow::Result;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams, ResourceExt};
use mooring_harness::credentials::refusal;
use mooring_harness::provisioner::{MAKER, claim};
use mooring_harness::{Scope, client, in_namespace};
use serde_json::{Value, json};

async fn as_user<K>(scope: &Scope, user: &str) -> Result<Api<K>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    let groups = ["system:masters", "developers"];
    Ok(Api::namespaced(
        client(&scope.target, Some((user, &groups))).await?,
        &scope.namespace,
    ))
}

fn parsed<K: serde::de::DeserializeOwned>(object: &Value) -> Result<K> {
    Ok(serde_json::from_value(object.clone())?)
}

#[test]
fn a_claim_says_who_made_it_and_nobody_can_forge_that() {
    in_namespace("stamp", async |scope| {
        let claims: Api<PersistentVolumeClaim> = as_user(&scope, "tom").await?;
        let wanted: PersistentVolumeClaim = parsed(&claim("data", "there-is-no-such-class", "1Gi"))?;
        let made = claims.create(&PostParams::default(), &wanted).await?;
        assert_eq!(made.annotations()["mooring.dev/username"], "tom");
        let groups: Vec<_> = made.annotations()["mooring.dev/groups"].split(',').collect();
        assert!(
            groups.contains(&"developers") && groups.contains(&"system:authenticated"),
            "{groups:?}"
        );

        // On creation, the stamp is correct whatever the user wrote.
        for (key, value) in [("mooring.dev/username", "root"), ("mooring.dev/groups", "admins")] {
            let name = key.replace('/', "-");
            let mut forged = claim(&name, "there-is-no-such-class", "1Gi");
            forged["metadata"]["annotations"] = json!({key: value});
            match claims.create(&PostParams::default(), &parsed(&forged)?).await {
                Err(error) => assert!(error.to_string().contains("leave it out"), "{error}"),
                Ok(made) => {
                    assert_ne!(made.annotations()[key], value, "{key} was forged");
                }
            }
        }
        // After that, neither the creator nor another user can change it, nor can the status.
        let eve: Api<PersistentVolumeClaim> = as_user(&scope, "eve").await?;
        let change = Patch::Merge(json!({"metadata": {"annotations": {"mooring.dev/username": "eve"}}}));
        for api in [&claims, &eve] {
            let said = refusal(api.patch("data", &PatchParams::default(), &change).await);
            assert!(said.contains("leave it out"), "{said}");
        }
        let _ = eve.patch_status("data", &PatchParams::default(), &change).await;
        assert_eq!(eve.get("data").await?.annotations()["mooring.dev/username"], "tom");
        // A stamp that is removed comes back.
        let off = Patch::Merge(json!({"metadata": {"annotations": {"mooring.dev/username": null, "a": "b"}}}));
        let kept = eve.patch("data", &PatchParams::default(), &off).await?;
        assert_eq!(kept.annotations()["mooring.dev/username"], "tom");
        Ok(())
    });
}

fn pod_with(volume: &Value) -> Result<Pod> {
    parsed(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"},
        "spec": {
            // It never runs: the test only asks whether it may be created.
            "schedulingGates": [{"name": "testbed.mooring.dev/never"}],
            "containers": [{"name": "main", "image": "busybox:1"}],
            "volumes": [volume],
        },
    }))
}

/// Proves: M5
#[test]
fn a_pod_mounts_nothing_by_itself_unless_its_namespace_may() {
    in_namespace("inline", async |scope| {
        let pods: Api<Pod> = scope.api();
        let inline = |options: Value| {
            [
                json!({"name": "v", "flexVolume": {"driver": "mooring.dev/vcs", "options": options}}),
                json!({"name": "v", "csi": {"driver": "vcs.mooring.dev", "volumeAttributes": options}}),
            ]
        };
        let sshfs = json!({"client": "sshfs", "source": "nobody@192.0.2.1:/x"});
        let try_it = async |volume: &Value| {
            pods.create(
                &PostParams {
                    dry_run: true,
                    ..PostParams::default()
                },
                &pod_with(volume)?,
            )
            .await
            .map_or_else(|error| Ok(Err(error)), |pod| anyhow::Ok(Ok(pod)))
        };
        for volume in inline(sshfs.clone()) {
            let said = refusal(try_it(&volume).await?);
            assert!(said.contains("use a PersistentVolumeClaim"), "{said}");
        }
        scope.kubectl([
            "annotate",
            "namespace",
            &scope.namespace,
            "mooring.dev/inline-clients=sshfs,pool,local,host",
            "mooring.dev/inline-sources=nobody@192.0.2.1:/**,x",
        ])?;
        for volume in inline(sshfs.clone()) {
            // A policy sees a namespace a moment after it changed.
            mooring_harness::wait_until("sshfs to be allowed", std::time::Duration::from_mins(2), async || {
                Ok(Some(try_it(&volume).await??))
            })
            .await?;
        }
        for (client, why) in [
            ("pool", "are never allowed"),
            ("local", "are never allowed"),
            ("host", "are never allowed"),
            ("nfs", "client \"nfs\" are not allowed"),
        ] {
            for volume in inline(json!({"client": client, "source": "x"})) {
                let said = refusal(try_it(&volume).await?);
                assert!(said.contains(why), "{client}: {why:?} is not in {said}");
            }
        }
        for (key, value) in [
            ("client-image", "mooring.dev/evil:1"),
            ("mount-options", "ssh_command=/bin/sh"),
        ] {
            let mut options = sshfs.clone();
            options[key] = json!(value);
            for volume in inline(options) {
                let said = refusal(try_it(&volume).await?);
                assert!(said.contains(key) || said.contains("mount options"), "{said}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_provisioning_pod_can_make_the_volume_of_its_own_claim_only() {
    in_namespace("maker", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("service-account-name", MAKER)
            .on_provision("sleep 1000");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let victim = scope.claim("victim", "there-is-no-such-class", "1Gi").await?;
        scope.runs("provision", &uid).await?;
        let token = scope.exec_in_run("provision", &uid, ["cat", "/run/mooring/properties/service-token"])?;

        let volumes: Api<PersistentVolume> = Api::all(scope.with_token(&token).await?);
        let good = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": format!("pvc-{uid}")},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": provisioner.class, "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": scope.namespace, "name": "data", "uid": uid},
                "flexVolume": {"driver": "mooring.dev/vcs", "options": {"client": "sshfs", "source": "nobody@192.0.2.1:/x"}},
            },
        });
        let try_it = async |volume: &Value| -> Result<kube::Result<PersistentVolume>> {
            let dry = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            Ok(volumes.create(&dry, &parsed(volume)?).await)
        };
        try_it(&good).await??;

        let with = |pointer: &str, value: Value| {
            let mut volume = good.clone();
            if let Some(place) = volume.pointer_mut(pointer) {
                *place = value;
            }
            volume
        };
        let flex = "/spec/flexVolume/options/client";
        let mut host_path = with("/spec/flexVolume", Value::Null);
        host_path["spec"]["hostPath"] = json!({"path": "/"});
        let mut secret = good.clone();
        secret["spec"]["flexVolume"]["secretRef"] = json!({"name": "x", "namespace": "kube-system"});
        let mut for_victim = with("/metadata/name", json!(format!("pvc-{victim}")));
        for_victim["spec"]["claimRef"] =
            json!({"kind": "PersistentVolumeClaim", "namespace": scope.namespace, "name": "victim", "uid": victim});
        for (volume, why) in [
            (host_path, "a provisioning image may make"),
            (with(flex, json!("pool")), "hand out the node itself"),
            (with(flex, json!("host")), "hand out the node itself"),
            (secret, "secretRef must name a Secret"),
            (for_victim, "may not touch"),
            (with("/spec/claimRef/uid", json!(victim)), "must have the claimRef"),
            (
                with("/metadata/name", json!(format!("{}-x", scope.namespace))),
                "may not touch",
            ),
        ] {
            let said = refusal(try_it(&volume).await?);
            assert!(said.contains(why), "{why} is not in {said}");
        }
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}
