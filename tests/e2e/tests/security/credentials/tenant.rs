//! What a tenant may write: claims and Pods of their own namespace.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, ResourceExt};
use mooring_contract::names::{FLEX_DRIVER, annotations, finalizers};
use mooring_harness::credentials::{dry_run, refusal};
use mooring_harness::provisioner::claim;
use mooring_harness::{Scope, in_namespace, wait_until};
use serde_json::{Value, json};

use super::{parsed, with};

#[test]
fn what_mooring_notes_on_a_claim_is_not_its_user_s_to_change() {
    in_namespace("sec-record", async |scope| {
        // All rights that a namespace's own administrator could have, and the status besides.
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
            // The status changes nothing of it either, whether the request is refused or the change is dropped.
            let _ = eve.patch_status("data", &PatchParams::default(), &change).await;
            assert!(held(&eve.get("data").await?), "{change:?}");
        }
        // She may still change her own annotations, and delete the claim.
        let own = Patch::Merge(json!({"metadata": {"annotations": {"note": "mine"}}}));
        eve.patch("data", &PatchParams::default(), &own).await?;
        eve.delete("data", &DeleteParams::default()).await?;
        scope.claim_until("data", "to be gone", |seen| seen.is_none()).await?;
        scope.nothing_left(&uid).await
    });
}

fn pod_spec(volume: &Value) -> Value {
    json!({
        "restartPolicy": "Never",
        "schedulingGates": [{"name": "testbed.mooring.dev/never"}],
        "containers": [{"name": "main", "image": "busybox:1"}],
        "volumes": [volume],
    })
}

/// Proves: M5
#[test]
fn no_way_of_making_a_pod_lets_a_tenant_mount_what_nobody_allowed() {
    in_namespace("sec-inline", async |scope| {
        scope.kubectl([
            "annotate",
            "namespace",
            &scope.namespace,
            "mooring.dev/inline-clients=nfs,sshfs,glusterfs,block,iscsi,acme,pool,local,host",
            "mooring.dev/inline-sources=192.0.2.1:/exports/*,*@files.example:/srv/**,**.img,iscsi://192.0.2.1/**,//dev/*,[**,\
             nfs://192.0.2.1/images/*,nfs://192.0.2.1/images/named",
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
            wait_until("nfs to be allowed", Duration::from_mins(2), async || {
                Ok(Some(pods.create(&dry_run(), &pod_with(&volume)?).await?))
            })
            .await?;
        }
        for volume in inline(json!({"client": "block", "source": "nfs://192.0.2.1/images/named"})) {
            pods.create(&dry_run(), &pod_with(&volume)?).await?;
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
            // Any part of it may be a link on the server.
            (
                json!({"client": "block", "source": "nfs://192.0.2.1/images/other"}),
                "inline-sources",
            ),
            (
                json!({"client": "block", "source": "nfs://192.0.2.1/team/disk.img"}),
                "inline-sources",
            ),
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
            (
                json!({"client": "sshfs", "source": "//dev/loop1"}),
                "path or a device of the node",
            ),
            // Other options are checked like the source.
            (
                json!({"client": "glusterfs", "source": "192.0.2.1:/exports/a", "backup-servers": "198.51.100.1"}),
                "does not take from a Pod",
            ),
            (
                json!({"client": "block", "source": "iscsi://192.0.2.1/iqn.x/0", "initiator": "iqn.of-another:node"}),
                "does not take from a Pod",
            ),
            (
                json!({"client": "iscsi", "source": "iscsi://192.0.2.1/iqn.x/0", "initiator": "iqn.of-another:node"}),
                "does not take from a Pod",
            ),
            (
                json!({"client": "nfs", "source": "192.0.2.1:/exports/a", "server": "somebody-s"}),
                "does not take from a Pod",
            ),
            (
                json!({"client": "acme", "source": "192.0.2.1:/exports/a", "servers": "x"}),
                "does not take from a Pod",
            ),
            (
                json!({"client": "sshfs", "source": "[-oProxyCommand=sh]:/x"}),
                "does not fit its client",
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
            ("mount-options", "vers=3", "mount options"),
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
        // Nobody else's Pod passes for a run of the controller, when it is made or later.
        let run = json!({"mooring.dev/component": "provisioning"});
        for own in inline(allowed.clone()) {
            let passing = with(&json!(pod_with(&own)?), "/metadata/labels", run.clone());
            let said = refusal(pods.create(&dry_run(), &parsed(&passing)?).await);
            assert!(said.contains("Pods that Mooring's controller makes"), "{said}");
            pods.create(&PostParams::default(), &pod_with(&own)?).await?;
            let change = Patch::Merge(json!({"metadata": {"labels": run}}));
            let said = refusal(pods.patch("user", &PatchParams::default(), &change).await);
            assert!(said.contains("Pods that Mooring's controller makes"), "{said}");
            scope.delete("pod/user")?;
            scope.pod_gone("user").await?;
        }
        by_others(&scope, &inline(json!({"client": "pool"}))[0]).await
    });
}

/// What creates Pods for a tenant is limited like the tenant. A volume that becomes a claim is not.
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

    // An existing Pod can't get another volume.
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
    let claim = wait_until("the ephemeral volume's claim", Duration::from_mins(2), async || {
        Ok(claims.get_opt("user-e").await?)
    })
    .await?;
    assert_eq!(
        claim.annotations()[annotations::USERNAME],
        "system:serviceaccount:kube-system:ephemeral-volume-controller"
    );
    Ok(())
}
