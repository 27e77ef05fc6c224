//! Kubernetes' ordinary volumes that the drop-in turns into Mooring's, on nodes that have no client for them.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::api::{PostParams, ResourceExt};
use kube::{Api, Resource};
use mooring_contract::names::{CSI_DRIVER, FLEX_DRIVER};
use mooring_harness::nodes::on_two_nodes;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, TEST_LABEL, options_of, user_of};
use mooring_harness::{Scope, in_namespace, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest wait for a changed policy or its parameters to take effect: each API server reads them again.
const LIMIT: Duration = Duration::from_mins(2);

/// Annotation of an object that was rewritten.
const MARK: &str = "mooring.dev/drop-in";

/// A Pod that mounts these volumes, and that a schedulingGate keeps from running.
fn pod_with(scope: &Scope, volumes: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "user", "labels": scope.own_label()},
        "spec": {
            "schedulingGates": [{"name": "testbed.mooring.dev/never"}],
            "containers": [{"name": "main", "image": "busybox:1"}],
            "volumes": volumes,
        },
    })
}

/// An object as the API server would store it. It is not kept.
async fn made<K>(api: &Api<K>, object: &Value) -> Result<Value>
where
    K: Resource + Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let object: K = serde_json::from_value(object.clone())?;
    Ok(serde_json::to_value(api.create(&dry_run, &object).await?)?)
}

/// The same, once the drop-in rewrites it.
async fn rewritten<K>(api: &Api<K>, object: &Value) -> Result<Value>
where
    K: Resource + Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    wait_until("the drop-in to be in force", LIMIT, async || {
        let made = made(api, object).await?;
        Ok((!made["metadata"]["labels"][MARK].is_null()).then_some(made))
    })
    .await
}

fn volume_with(scope: &Scope, name: &str, more: &Value) -> Value {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": scope.volume_name(name), "labels": scope.own_label()},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": scope.namespace, "name": name},
        },
    });
    if let (Some(spec), Some(more)) = (volume["spec"].as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    volume
}

#[test]
fn ordinary_volumes_of_a_pod_are_rewritten_where_the_namespace_says_so_and_nowhere_else() {
    in_namespace("drop-in-pods", async |scope| {
        let pods: Api<Pod> = scope.api();
        let volumes = json!([
            {"name": "scratch", "emptyDir": {}},
            {"name": "files", "nfs": {"server": "10.10.2.4", "path": "/exports/a", "readOnly": true}},
            {"name": "six", "nfs": {"server": "fd00::4", "path": "/exports/b"}},
            {"name": "disk", "iscsi": {
                "targetPortal": "10.10.2.5:3261", "iqn": "iqn.2026-01.com.example:disk", "lun": 3, "fsType": "xfs",
                "chapAuthSession": true, "secretRef": {"name": "chap"},
            }},
            {"name": "many", "glusterfs": {"endpoints": "servers", "path": "vol/dir"}},
            {"name": "tree", "cephfs": {
                "monitors": ["10.10.2.6:6789", "10.10.2.7:6789"], "path": "/volumes/a", "user": "tom", "readOnly": true,
                "secretRef": {"name": "ceph"},
            }},
            {"name": "image", "rbd": {"monitors": ["10.10.2.6"], "image": "disk", "fsType": "xfs", "secretRef": {"name": "ceph"}}},
        ]);
        let pod = pod_with(&scope, &volumes);
        scope.drop_in("")?;
        // A drop-in in the cluster does not affect a namespace that has not turned it on.
        let untouched = made(&pods, &pod).await?;
        assert_eq!(untouched["spec"]["volumes"][1]["nfs"]["server"], "10.10.2.4");

        let sources = "10.10.2.4:/exports/**,[fd00::4]:/exports/**,iscsi://10.10.2.5:3261/**,*.svc:/vol/**,\
             10.10.2.6:6789**:/volumes/**,rbd://*/rbd/*";
        scope.allow_drop_in(
            "nfs, iscsi ,glusterfs,cephfs,rbd",
            "nfs,block,glusterfs,cephfs,rbd",
            sources,
        )?;
        let seen = rewritten(&pods, &pod).await?;
        let flex = |options: Value| json!({"driver": FLEX_DRIVER, "options": options});
        let mut files = flex(json!({"client": "nfs", "source": "10.10.2.4:/exports/a"}));
        files["readOnly"] = true.into();
        let mut disk = flex(json!({
            "client": "block", "source": "iscsi://10.10.2.5:3261/iqn.2026-01.com.example:disk/3",
        }));
        disk["fsType"] = "xfs".into();
        disk["secretRef"] = json!({"name": "chap"});
        let mut tree = flex(json!({
            "client": "cephfs", "source": "10.10.2.6:6789,10.10.2.7:6789:/volumes/a", "user": "tom",
        }));
        tree["readOnly"] = true.into();
        tree["secretRef"] = json!({"name": "ceph"});
        // Options that are not given have the defaults of Kubernetes' own volumes.
        let mut image = flex(json!({"client": "rbd", "source": "rbd://10.10.2.6/rbd/disk", "user": "admin"}));
        image["fsType"] = "xfs".into();
        image["secretRef"] = json!({"name": "ceph"});
        let many = format!("servers.{}.svc:/vol/dir", scope.namespace);
        assert_eq!(
            seen["spec"]["volumes"].as_array().context("no volumes")?[..7],
            [
                json!({"name": "scratch", "emptyDir": {}}),
                json!({"name": "files", "flexVolume": files}),
                json!({"name": "six", "flexVolume": flex(json!({"client": "nfs", "source": "[fd00::4]:/exports/b"}))}),
                json!({"name": "disk", "flexVolume": disk}),
                json!({"name": "many", "flexVolume": flex(json!({"client": "glusterfs", "source": many}))}),
                json!({"name": "tree", "flexVolume": tree}),
                json!({"name": "image", "flexVolume": image}),
            ]
        );
        assert_eq!(
            seen["metadata"]["annotations"][MARK],
            "files=nfs,six=nfs,disk=iscsi,many=glusterfs,tree=cephfs,image=rbd"
        );

        // Only one kind is turned on. And what the namespace may not mount, it may not mount this way either.
        scope.kubectl([
            "annotate",
            "--overwrite",
            "namespace",
            &scope.namespace,
            "mooring.dev/drop-in=iscsi",
        ])?;
        wait_until("iscsi alone to be rewritten", LIMIT, async || {
            let seen = made(&pods, &pod).await?;
            Ok((seen["metadata"]["annotations"][MARK] == "disk=iscsi").then_some(()))
        })
        .await?;
        let elsewhere = json!([{"name": "v", "iscsi": {"targetPortal": "192.0.2.1", "iqn": "iqn.2026-01.com.example:x", "lun": 0}}]);
        let refused = made(&pods, &pod_with(&scope, &elsewhere)).await;
        let said = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(said.contains("mooring.dev/inline-sources"), "{said}");
        // A Pod can't choose another node's name at the server.
        let mut named = pod.clone();
        named["spec"]["volumes"][3]["iscsi"]["initiatorName"] = "iqn.2026-01.com.example:node".into();
        let refused = made(&pods, &named).await.err();
        let said = refused.map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(said.contains("does not take from a Pod"), "{said}");
        // The namespace may not use the kernel's client either, unless it says so.
        scope.drop_in_with("", &[("iscsi-client", "iscsi")])?;
        wait_until("client iscsi to be asked for", LIMIT, async || {
            let refused = made(&pods, &pod).await.err();
            let said = refused.map(|error| format!("{error:#}")).unwrap_or_default();
            Ok(said.contains("mooring.dev/inline-clients").then_some(()))
        })
        .await?;
        // With its file system: both clients can make one.
        scope.kubectl([
            "annotate",
            "--overwrite",
            "namespace",
            &scope.namespace,
            "mooring.dev/inline-clients=nfs,iscsi",
        ])?;
        let seen = wait_until("client iscsi to be allowed", LIMIT, async || {
            made(&pods, &pod).await.map(Some)
        })
        .await?;
        let disk = &seen["spec"]["volumes"][3]["flexVolume"];
        assert_eq!(
            (&disk["options"]["client"], &disk["fsType"]),
            (&json!("iscsi"), &json!("xfs"))
        );
        scope.drop_in_with("", &[("iscsi-client", "iscsi"), ("volume-source", "csi")])?;
        wait_until("the same with CSI", LIMIT, async || {
            let seen = made(&pods, &pod).await?;
            let expected = json!({"name": "disk", "csi": {
                "driver": CSI_DRIVER, "fsType": "xfs", "readOnly": false, "volumeAttributes": disk["options"],
                "nodePublishSecretRef": disk["secretRef"],
            }});
            Ok((seen["spec"]["volumes"][3] == expected).then_some(()))
        })
        .await
    });
}

#[test]
fn ordinary_persistent_volumes_are_rewritten_with_their_options() {
    in_namespace("drop-in-volumes", async |scope| {
        let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
        scope.drop_in("nfs,iscsi,cephfs,rbd,glusterfs")?;
        let nfs = json!({
            "nfs": {"server": "10.10.2.4", "path": "/exports/a", "readOnly": true},
            "mountOptions": ["nfsvers=4.1", "noatime"],
        });
        let seen = rewritten(&volumes, &volume_with(&scope, "nfs", &nfs)).await?;
        assert_eq!(
            seen["spec"]["flexVolume"],
            json!({
                "driver": FLEX_DRIVER, "readOnly": true,
                "options": {"client": "nfs", "source": "10.10.2.4:/exports/a", "mount-options": "nfsvers=4.1,noatime"},
            })
        );
        assert!(seen["spec"]["nfs"].is_null() && seen["spec"]["mountOptions"].is_null());
        assert_eq!(seen["metadata"]["annotations"][MARK], "nfs");

        let disk = json!({"targetPortal": "10.10.2.5", "iqn": "iqn.2026-01.com.example:disk", "lun": 1, "fsType": "ext4",
            "secretRef": {"name": "chap", "namespace": "storage"}});
        let seen = rewritten(&volumes, &volume_with(&scope, "disk", &json!({"iscsi": disk}))).await?;
        assert_eq!(
            seen["spec"]["flexVolume"],
            json!({
                "driver": FLEX_DRIVER, "fsType": "ext4", "secretRef": {"name": "chap", "namespace": "storage"},
                "options": {"client": "block", "source": "iscsi://10.10.2.5/iqn.2026-01.com.example:disk/1"},
            })
        );

        let secret = json!({"name": "ceph", "namespace": "storage"});
        let tree = json!({
            "cephfs": {"monitors": ["10.10.2.6", "10.10.2.7"], "user": "tom", "readOnly": true, "secretRef": secret},
            "mountOptions": ["noatime"],
        });
        let seen = rewritten(&volumes, &volume_with(&scope, "tree", &tree)).await?;
        assert_eq!(
            seen["spec"]["flexVolume"],
            json!({
                "driver": FLEX_DRIVER, "readOnly": true, "secretRef": secret,
                "options": {"client": "cephfs", "source": "10.10.2.6,10.10.2.7:/", "user": "tom", "mount-options": "noatime"},
            })
        );
        let image =
            json!({"rbd": {"monitors": ["10.10.2.6:6789"], "pool": "fast", "image": "disk", "secretRef": secret}});
        let seen = rewritten(&volumes, &volume_with(&scope, "image", &image)).await?;
        assert_eq!(
            seen["spec"]["flexVolume"],
            json!({
                "driver": FLEX_DRIVER, "secretRef": secret,
                "options": {"client": "rbd", "source": "rbd://10.10.2.6:6789/fast/disk", "user": "admin"},
            })
        );

        // With the kernel's client, where the administrator says so.
        scope.drop_in_with("nfs,iscsi,cephfs,rbd,glusterfs", &[("iscsi-client", "iscsi")])?;
        wait_until("iscsi volumes to be the kernel's", LIMIT, async || {
            let seen = made(&volumes, &volume_with(&scope, "disk", &json!({"iscsi": disk}))).await?;
            Ok((seen["spec"]["flexVolume"]["options"]["client"] == "iscsi").then_some(()))
        })
        .await?;
        scope.drop_in_with("nfs,iscsi,cephfs,rbd,glusterfs", &[("volume-source", "csi")])?;
        wait_until("volumes to use CSI", LIMIT, async || {
            let seen = made(&volumes, &volume_with(&scope, "tree", &tree)).await?;
            let expected = json!({
                "driver": CSI_DRIVER, "readOnly": true, "nodePublishSecretRef": secret,
                "volumeHandle": seen["metadata"]["name"],
                "volumeAttributes": {
                    "client": "cephfs", "source": "10.10.2.6,10.10.2.7:/", "user": "tom", "mount-options": "noatime",
                },
            });
            Ok((seen["spec"]["csi"] == expected && seen["spec"]["mountOptions"].is_null()).then_some(()))
        })
        .await?;

        // Mooring leaves alone what it can't serve: a raw device, and servers without a namespace.
        let raw = json!({"iscsi": disk, "volumeMode": "Block"});
        let mut nowhere = volume_with(
            &scope,
            "nowhere",
            &json!({"glusterfs": {"endpoints": "servers", "path": "vol"}}),
        );
        nowhere["spec"]["claimRef"] = Value::Null;
        for volume in [volume_with(&scope, "raw", &raw), nowhere] {
            let seen = made(&volumes, &volume).await?;
            assert!(
                seen["spec"]["flexVolume"].is_null() && seen["spec"]["csi"].is_null(),
                "{seen}"
            );
        }
        Ok(())
    });
}

#[test]
fn an_ordinary_glusterfs_volume_is_mounted_on_nodes_without_glusterfs() {
    on_two_nodes("drop-in-glusterfs", async |scope, [one, two]| {
        let server = scope.storage_server("glusterfs", &one, &Value::Null).await?;
        scope.exec(
            "glusterfs",
            [
                "sh",
                "-c",
                "mkdir -p /mnt/v && mount -t glusterfs localhost:/volumes /mnt/v && \
            mkdir /mnt/v/team && echo hello >/mnt/v/team/letter && umount /mnt/v",
            ],
        )?;
        scope.drop_in("glusterfs")?;
        scope.allow_drop_in("glusterfs", "glusterfs", "*.svc:/volumes,*.svc:/volumes/**")?;
        // As in Kubernetes' own instructions, except for `clusterIP: None`.
        scope.apply(
            &json!({"apiVersion": "v1", "kind": "List", "items": [
                {
                    "apiVersion": "v1", "kind": "Service", "metadata": {"name": "servers"},
                    "spec": {"clusterIP": "None", "ports": [{"port": 1}]},
                },
                {
                    "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "servers"},
                    "subsets": [{"addresses": [{"ip": server.address}], "ports": [{"port": 1}]}],
                },
            ]})
            .to_string(),
        )?;
        let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
        let source = json!({"endpoints": "servers", "path": "volumes"});
        let volume = volume_with(&scope, "data", &json!({"glusterfs": source}));
        rewritten(&volumes, &volume).await?;
        scope.apply_anywhere(&volume.to_string())?;
        scope.apply(
            &json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume["metadata"]["name"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            })
            .to_string(),
        )?;
        // From the claim, one of its directories; and the same volume in the Pod itself, read-only.
        let mut user = user_of(
            "user",
            "data",
            "cat /data/letter; touch /own/x 2>&1 || true; sleep 1000000",
        );
        user["metadata"]["labels"] = scope.own_label();
        user["spec"]["nodeName"] = json!(two);
        user["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "data", "mountPath": "/data", "subPath": "team"}, {"name": "own", "mountPath": "/own"}]);
        let own =
            json!({"name": "own", "glusterfs": {"endpoints": "servers", "path": "volumes/team", "readOnly": true}});
        user["spec"]["volumes"].as_array_mut().context("no volumes")?.push(own);
        rewritten(&scope.api::<Pod>(), &user).await?;
        scope.apply(&user.to_string())?;
        scope.pod_ready("user").await?;
        assert_eq!(scope.exec("user", ["cat", "/own/letter"])?, "hello\n");
        scope
            .log_is("user", "hello\ntouch: /own/x: Read-only file system\n")
            .await?;
        let listed = scope.kubectl(["get", "pods,persistentvolumes", "-l", MARK, "-o", "name"])?;
        let expected = format!("pod/user\npersistentvolume/{}\n", scope.volume_name("data"));
        assert_eq!(listed, expected);
        Ok(())
    });
}

#[test]
fn an_ordinary_iscsi_volume_is_mounted_on_nodes_without_iscsi() {
    on_two_nodes("drop-in-iscsi", async |scope, [one, two]| {
        const PASSWORD: &str = "not-to-be-seen-34";
        let chap = json!({"chap-username": "mooring", "chap-password": PASSWORD});
        let server = scope.storage_server("tgt", &one, &chap).await?;
        scope.apply(
            &json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chap"}, "type": FLEX_DRIVER,
                "stringData": {"node.session.auth.username": "mooring", "node.session.auth.password": PASSWORD},
            })
            .to_string(),
        )?;
        // A disk that someone has already: made here by the stock image.
        let provisioner = scope
            .provisioner()
            .example("iscsi.yaml")?
            .key("secret-name", &server.secret)
            .key("server", &server.address)
            .key("mount-secret", format!("{}-none/{CONFIG_NAMESPACE}", scope.namespace));
        provisioner.apply().await?;
        let uid = scope.claim("disk", &provisioner.class, "32Mi").await?;
        scope.claim_bound("disk").await?;
        let made = scope.provisioned(&uid).await?.context("no volume")?;
        let options = options_of(&made)?;
        let source: Vec<_> = options["source"].trim_start_matches("iscsi://").split('/').collect();
        let &[portal, target, lun] = source.as_slice() else {
            anyhow::bail!("not expected: {}", options["source"]);
        };

        scope.drop_in("")?;
        scope.allow_drop_in("iscsi", "block", &format!("iscsi://{portal}/**"))?;
        let user = |name: &str, command: &str| {
            let mut user = user_of(name, "disk", command);
            user["metadata"]["labels"] = json!({TEST_LABEL: scope.namespace});
            user["spec"]["nodeName"] = json!(two);
            user["spec"]["volumes"] = json!([{"name": "data", "iscsi": {
                "targetPortal": portal, "iqn": target, "lun": lun.parse::<u8>().unwrap_or_default(), "fsType": "ext4",
                "chapAuthSession": true, "secretRef": {"name": "chap"},
            }}]);
            user
        };
        rewritten(&scope.api::<Pod>(), &user("writer", "true")).await?;
        for (name, command) in [("writer", "echo hello >/data/letter"), ("reader", "cat /data/letter")] {
            scope.apply(&user(name, command).to_string())?;
            let pod = scope.pod_succeeded(name).await?;
            assert_eq!(pod.annotations()[MARK], "data=iscsi");
        }
        scope.log_is("reader", "hello\n").await?;
        scope.claim_gone("disk").await?;
        // The server goes with the namespace: nothing could remove the volume after it.
        scope.nothing_left(&uid).await
    });
}
