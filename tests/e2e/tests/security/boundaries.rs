//! Tries to get the node's own disk: as a ConfigMap's author, with the controller's token, and past both at the mounter
//! itself. Also tries to reach servers that are not allowed, through options besides a volume's source.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mooring_contract::names::{CSI_DRIVER, FLEX_DRIVER, NAMESPACE, PROVISIONER, annotations, finalizers, labels};
use mooring_harness::credentials::{dry_run, owned_by_nothing, refusal};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, TEST_LABEL};
use mooring_harness::{Scope, in_namespace, wait_until};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;

const NODE: &str = "node-1";
const SSHFS: &str = concat!("mooring.dev/client-sshfs:", env!("CARGO_PKG_VERSION"));
const THEIRS: &str = "is a path or a device of the node";

fn parsed<K: DeserializeOwned>(object: Value) -> Result<K> {
    Ok(serde_json::from_value(object)?)
}

/// Whatever has accepted a volume before, the mounter checks it last.
#[test]
fn a_mounter_gives_nothing_of_its_node_to_a_volume_that_no_administrator_made() {
    on_own_nodes("sec-node-disk", async |scope| {
        let refused = [
            (
                json!({"client": "ext4", "source": "/dev/loop1", "client-image": SSHFS}),
                THEIRS,
            ),
            (
                json!({"client": "ext4", "source": "//dev/loop1", "client-image": SSHFS}),
                THEIRS,
            ),
            (
                json!({"client": "disk", "fs-type": "ext4", "source": "UUID=1", "client-image": SSHFS}),
                THEIRS,
            ),
            (
                json!({"client": "smb", "fs-type": "ext4", "source": "//dev/loop1", "client-image": SSHFS}),
                "use smb",
            ),
            // A path of the node, and storage that this image is not for.
            (
                json!({"client": "ext4", "source": "a:/b", "client-image": SSHFS}),
                "not made for ext4 volumes",
            ),
            // Brackets around what ssh would take for an option.
            (
                json!({"client": "sshfs", "source": "[-oProxyCommand=touch /tmp/x]:/y"}),
                "names no server",
            ),
            (
                json!({"client": "glusterfs", "source": "192.0.2.1:/v", "backup-servers": "--log-file=/x"}),
                "write servers' names",
            ),
            (
                json!({"client": "sshfs", "source": "u@192.0.2.1:/x", "server": "somebody-s"}),
                "client sshfs has no option",
            ),
        ];
        scope.all_refused(&refused, true).await?;

        // An administrator's PersistentVolume may name a path of the node. A provisioned one may not, whatever it says.
        let client = scope.namespace.clone();
        scope.mounter_config(&client, "self")?;
        wait_until("the mounter to have read it", Duration::from_mins(2), async || {
            let status = scope.mounter_status(NODE).await?;
            Ok((status["clients"][&client] == "self").then_some(()))
        })
        .await?;
        let options = json!({"client": client, "fs-type": "tmpfs", "source": "/scratch", "mount-options": "size=1m"});
        for name in ["theirs", "provisioned"] {
            scope.volume(name, &options)?;
        }
        let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
        let mark = Patch::Merge(json!({"metadata": {"annotations": {annotations::PROVISIONED_BY: PROVISIONER}}}));
        let provisioned = scope.volume_name("provisioned");
        volumes.patch(&provisioned, &PatchParams::default(), &mark).await?;
        for name in ["theirs", "provisioned"] {
            scope.pod(name, NODE, name, Value::Null)?;
        }
        scope.pod_ready("theirs").await?;
        scope.event("provisioned", THEIRS).await?;
        assert_eq!(scope.mounts_on(1)?.len(), 1);
        Ok(())
    });
}

/// A `PersistentVolume` for the claim with this uid, which someone else than the controller creates.
fn volume(scope: &Scope, uid: &str, by: &str, options: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": format!("pvc-{uid}"), "annotations": {annotations::PROVISIONED_BY: by},
                     "labels": {TEST_LABEL: scope.namespace}},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "x",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": scope.namespace, "name": "a", "uid": uid},
            "flexVolume": {"driver": FLEX_DRIVER, "options": options},
        },
    })
}

#[test]
fn the_controller_s_token_gives_no_node_s_device_and_leaves_others_volumes_alone() {
    in_namespace("sec-controller-disk", async |scope| {
        let leader = scope.leader()?;
        let token = scope.token_of(NAMESPACE, "flex-provisioner", Some(&leader)).await?;
        let client = scope.with_token(&token).await?;
        gives_runs_no_node_s_device(&client).await?;

        let volumes: Api<PersistentVolume> = Api::all(client);
        let [own, foreign] = [
            "5ec0b001-0000-4000-8000-000000000001",
            "5ec0b001-0000-4000-8000-000000000002",
        ];
        let sshfs = json!({"client": "sshfs", "source": "u@192.0.2.1:/x"});
        volumes
            .create(&dry_run(), &parsed(volume(&scope, own, PROVISIONER, &sshfs))?)
            .await?;
        let mut by_hand = volume(&scope, own, PROVISIONER, &sshfs);
        by_hand["metadata"]["name"] = json!(scope.volume_name("by-hand"));
        let device = volume(
            &scope,
            own,
            PROVISIONER,
            &json!({"client": "ext4", "source": "/dev/loop1"}),
        );
        let slashes = volume(
            &scope,
            own,
            PROVISIONER,
            &json!({"client": "ext4", "source": "//dev/loop1"}),
        );
        let with_secret = |source: &Value| {
            let mut volume = volume(&scope, own, PROVISIONER, &sshfs);
            let spec = volume["spec"].as_object_mut().context("no spec")?;
            spec.remove("flexVolume");
            spec.extend(source.as_object().cloned().unwrap_or_default());
            anyhow::Ok(volume)
        };
        let by_flex = |namespace: &str| {
            with_secret(&json!({"flexVolume": {
                "driver": FLEX_DRIVER, "options": sshfs, "secretRef": {"name": "s", "namespace": namespace}}}))
        };
        let by_csi = |field: &str, namespace: &str| {
            with_secret(&json!({"csi": {
                "driver": CSI_DRIVER, "volumeHandle": "x", "volumeAttributes": sshfs,
                field: {"name": "s", "namespace": namespace}}}))
        };
        for namespace in [&scope.namespace, CONFIG_NAMESPACE] {
            for good in [by_flex(namespace)?, by_csi("nodePublishSecretRef", namespace)?] {
                volumes.create(&dry_run(), &parsed(good)?).await?;
            }
        }
        for (bad, words) in [
            (by_flex("kube-system")?, "names one Secret"),
            (by_csi("nodePublishSecretRef", "kube-system")?, "names one Secret"),
            (by_csi("nodeStageSecretRef", &scope.namespace)?, "names one Secret"),
            (by_hand, "named after its claim's uid"),
            (device, "no PersistentVolume of a path or a device"),
            (slashes, "no PersistentVolume of a path or a device"),
        ] {
            let said = refusal(volumes.create(&dry_run(), &parsed(bad)?).await);
            assert!(said.contains(words), "{words:?} is not in {said}");
        }

        // Volumes that exist and belong to another provisioner, or to an administrator.
        scope.apply_anywhere(&volume(&scope, foreign, "example.com/nfs", &sshfs).to_string())?;
        scope.volume("hers", &sshfs)?;
        let change = Patch::Merge(json!({"metadata": {"annotations": {annotations::CONFIG: "a/b"}}}));
        let dry = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        let only_asked = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let theirs = format!("pvc-{foreign}");
        let hers = scope.volume_name("hers");
        let mut said = Vec::new();
        for name in [&theirs, &hers] {
            said.push(refusal(volumes.patch(name, &only_asked, &change).await));
            said.push(refusal(volumes.delete(name, &dry).await));
        }
        let all: Api<PersistentVolume> = Api::all(scope.client.clone());
        all.delete(&theirs, &DeleteParams::default()).await?;
        for said in said {
            assert!(said.contains("and nobody else's"), "{said}");
        }
        Ok(())
    });
}

async fn gives_runs_no_node_s_device(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), CONFIG_NAMESPACE);
    let pod = |options: &Value, fs_type: &str| {
        parsed::<Pod>(json!({
            "metadata": {"name": "provision-x", "labels": {labels::COMPONENT: labels::COMPONENT_PROVISIONING}},
            "spec": {
                "containers": [{
                    "name": "provision", "image": "mooring.dev/provisioner-base:0.1.0",
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                }],
                "volumes": [{"name": "backend", "csi": {
                    "driver": CSI_DRIVER, "volumeAttributes": options, "fsType": fs_type}}],
            },
        }))
    };
    for good in [
        json!({"client": "pool"}),
        json!({"client": "nfs", "source": "192.0.2.1:/exports"}),
        json!({"client": "acme", "source": "a/b", "client-image": SSHFS, "pool": "c"}),
    ] {
        pods.create(&dry_run(), &pod(&good, "")?).await?;
    }
    for (options, fs_type) in [
        (
            json!({"client": "ext4", "source": "/dev/loop1", "client-image": SSHFS}),
            "",
        ),
        (
            json!({"client": "ext4", "source": "//dev/loop1", "client-image": SSHFS}),
            "",
        ),
        (json!({"client": "smb", "source": "//dev/loop1"}), "ext4"),
        (
            json!({"client": "smb", "source": "//dev/loop1", "fs-type": "ext4"}),
            "ext4",
        ),
        (
            json!({"client": "acme", "source": "x", "fs-type": "overlay", "mount-options": "lowerdir=/"}),
            "overlay",
        ),
        (json!({"client": "sshfs", "source": "[-oProxyCommand=sh]:/x"}), ""),
        (json!({"client": "acme", "source": "x", "a b": "ext4"}), ""),
    ] {
        let said = refusal(pods.create(&dry_run(), &pod(&options, fs_type)?).await);
        assert!(said.contains("the volume of a provisioning Pod"), "{options}: {said}");
    }
    Ok(())
}

#[test]
fn the_controller_s_token_orphans_nothing_and_hands_no_volume_to_another_claim() {
    in_namespace("sec-controller-owners", async |scope| {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        let uid = scope.claim("own", &provisioner.class, "1Gi").await?;
        let hers = scope.claim("hers", "there-is-no-such-class", "1Gi").await?;
        scope.claim_bound("own").await?;
        let leader = scope.leader()?;
        let token = scope.token_of(NAMESPACE, "flex-provisioner", Some(&leader)).await?;
        let client = scope.with_token(&token).await?;
        let only_asked = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };

        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &scope.namespace);
        let record = json!({"metadata": {
            "annotations": {annotations::OPERATION: "{}"},
            "finalizers": ["kubernetes.io/pvc-protection", finalizers::CLAIM],
        }});
        claims.patch("hers", &only_asked, &Patch::Merge(record)).await?;
        let noted = |key: &str, value: Value| {
            let mut notes = json!({});
            notes[key] = value;
            json!({"metadata": {"annotations": notes}})
        };
        let as_admin: Api<PersistentVolumeClaim> = Api::namespaced(scope.client.clone(), &scope.namespace);
        let selected = Patch::Merge(noted(annotations::SELECTED_NODE, json!(NODE)));
        as_admin.patch("hers", &PatchParams::default(), &selected).await?;
        let at_once = noted(annotations::NODE_EXPANSION_NOT_REQUIRED, json!("true"));
        claims.patch("own", &only_asked, &Patch::Merge(&at_once)).await?;
        for (name, change, why) in [
            ("hers", owned_by_nothing(), "the owner of no object"),
            (
                "hers",
                noted(annotations::SELECTED_NODE, Value::Null),
                "Kubernetes' own annotations",
            ),
            ("hers", at_once, "Kubernetes' own annotations"),
            (
                "hers",
                json!({"metadata": {"finalizers": null}}),
                "no finalizers but its own",
            ),
            (
                "hers",
                json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "example.com/x"]}}),
                "no finalizers but its own",
            ),
            (
                "own",
                noted(annotations::SELECTED_NODE, json!(NODE)),
                "Kubernetes' own annotations",
            ),
            (
                "own",
                noted("pv.kubernetes.io/bind-completed", Value::Null),
                "Kubernetes' own annotations",
            ),
            (
                "hers",
                json!({"spec": {"volumeName": format!("pvc-{uid}")}}),
                "nothing that a claim asks for",
            ),
        ] {
            let said = refusal(claims.patch(name, &only_asked, &Patch::Merge(change)).await);
            assert!(said.contains(why), "{name}: {why:?} is not in {said}");
        }
        // A change of the status may change metadata too.
        let orphaned = Patch::Merge(owned_by_nothing());
        let said = refusal(claims.patch_status("own", &only_asked, &orphaned).await);
        assert!(said.contains("the owner of no object"), "{said}");

        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let volume = format!("pvc-{uid}");
        for (change, why) in [
            (owned_by_nothing(), "the owner of no object"),
            (
                json!({"metadata": {"finalizers": ["example.com/x"]}}),
                "no finalizers but its own",
            ),
            (
                json!({"spec": {"claimRef": {"name": "hers", "uid": hers}}}),
                "never its claim",
            ),
            (json!({"spec": {"claimRef": null}}), "never its claim"),
            (json!({"spec": {"mountOptions": ["suid"]}}), "never its claim"),
        ] {
            let said = refusal(volumes.patch(&volume, &only_asked, &Patch::Merge(change)).await);
            assert!(said.contains(why), "{why:?} is not in {said}");
        }

        let classes: Api<StorageClass> = Api::all(client);
        let all: Api<StorageClass> = Api::all(scope.client.clone());
        let mut class = all.get(&provisioner.class).await?;
        classes.replace(&provisioner.class, &dry_run(), &class).await?;
        let orphaned: StorageClass = parsed(json!({
            "metadata": owned_by_nothing()["metadata"], "provisioner": class.provisioner,
        }))?;
        class.metadata.owner_references = orphaned.metadata.owner_references;
        let said = refusal(classes.replace(&provisioner.class, &dry_run(), &class).await);
        assert!(said.contains("the owner of no object"), "{said}");
        Ok(())
    });
}

#[test]
fn the_controller_s_token_sizes_only_what_is_its_own() {
    in_namespace("sec-controller-size", async |scope| {
        let leader = scope.leader()?;
        let token = scope.token_of(NAMESPACE, "flex-provisioner", Some(&leader)).await?;
        let client = scope.with_token(&token).await?;
        let only_asked = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        scope.volume("hers", &json!({"client": "sshfs", "source": "u@192.0.2.1:/x"}))?;
        scope.claim_bound("hers").await?;
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        let uid = scope.claim("own", &provisioner.class, "2Gi").await?;
        scope.claim_bound("own").await?;

        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &scope.namespace);
        let larger = Patch::Merge(json!({"status": {"capacity": {"storage": "5Gi"}}}));
        let lost = Patch::Merge(json!({"status": {"phase": "Lost"}}));
        claims.patch_status("own", &only_asked, &larger).await?;
        let said = refusal(claims.patch_status("own", &only_asked, &lost).await);
        assert!(said.contains("only what is about its size"), "{said}");
        // As external-provisioner makes it for another driver.
        let theirs = scope.claim("theirs", "there-is-no-such-class", "1Gi").await?;
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": format!("pvc-{theirs}"), "labels": {TEST_LABEL: scope.namespace}},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "storageClassName": "there-is-no-such-class", "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": scope.namespace, "name": "theirs", "uid": theirs},
                "csi": {"driver": "example.com", "volumeHandle": "x"},
            },
        });
        scope.apply_anywhere(&volume.to_string())?;
        scope.claim_bound("theirs").await?;
        for name in ["hers", "theirs"] {
            let said = refusal(claims.patch_status(name, &only_asked, &larger).await);
            assert!(said.contains("bound to a volume that it made"), "{name}: {said}");
        }

        let volumes: Api<PersistentVolume> = Api::all(client);
        let own = format!("pvc-{uid}");
        let sized = |size: &str| Patch::Merge(json!({"spec": {"capacity": {"storage": size}}}));
        volumes.patch(&own, &only_asked, &sized("5Gi")).await?;
        let said = refusal(volumes.patch(&own, &only_asked, &sized("1Gi")).await);
        assert!(said.contains("makes no PersistentVolume smaller"), "{said}");
        Ok(())
    });
}

/// snapshot-controller and administrators say which snapshot is a user's.
#[test]
fn the_controller_s_token_reports_on_snapshots_of_its_own_driver_and_changes_nothing_else_of_any() {
    in_namespace("sec-controller-snapshots", async |scope| {
        scope.snapshot_api()?;
        let metadata = |name: &str| {
            let name = format!("{}-{name}", scope.namespace);
            json!({"name": name, "labels": {TEST_LABEL: scope.namespace}})
        };
        let content = |name: &str, driver: &str| {
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
                "metadata": metadata(name),
                "spec": {
                    "driver": driver, "deletionPolicy": "Retain", "source": {"snapshotHandle": "a/b/c"},
                    "volumeSnapshotRef": {"namespace": scope.namespace, "name": name},
                },
            })
        };
        let group = json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
            "metadata": metadata("others"),
            "spec": {
                "driver": "example.com", "deletionPolicy": "Retain", "source": {"groupSnapshotHandles": {
                    "volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["a"]}},
                "volumeGroupSnapshotRef": {"namespace": scope.namespace, "name": "others"},
            },
        });
        scope.apply_anywhere(&group.to_string())?;
        for (name, driver) in [("own", "vcs.mooring.dev"), ("others", "example.com")] {
            scope.apply_anywhere(&content(name, driver).to_string())?;
        }
        let leader = scope.leader()?;
        let token = scope.token_of(NAMESPACE, "flex-provisioner", Some(&leader)).await?;
        let client = scope.with_token(&token).await?;
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "snapshot.storage.k8s.io",
            "v1",
            "VolumeSnapshotContent",
        ));
        let contents: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
        let kind = GroupVersionKind::gvk("groupsnapshot.storage.k8s.io", "v1", "VolumeGroupSnapshotContent");
        let groups: Api<DynamicObject> = Api::all_with(client, &ApiResource::from_gvk(&kind));
        let only_asked = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let name = |end: &str| format!("{}-{end}", scope.namespace);
        let ready = Patch::Merge(json!({"status": {"snapshotHandle": "a/b/c", "readyToUse": true}}));
        contents.patch_status(&name("own"), &only_asked, &ready).await?;
        let said = refusal(contents.patch_status(&name("others"), &only_asked, &ready).await);
        assert!(said.contains("of Mooring's own driver only"), "{said}");
        let noted = Patch::Merge(json!({"metadata": {"annotations": {annotations::OPERATION: "{}"}}}));
        contents.patch(&name("own"), &only_asked, &noted).await?;
        let said = refusal(contents.patch(&name("others"), &only_asked, &noted).await);
        assert!(said.contains("of Mooring's own driver only"), "{said}");
        let another = Patch::Merge(json!({"spec": {"deletionPolicy": "Delete"}}));
        let said = refusal(contents.patch(&name("own"), &only_asked, &another).await);
        assert!(said.contains("only its status, its record and its finalizer"), "{said}");
        let said = refusal(groups.patch(&name("others"), &only_asked, &noted).await);
        assert!(said.contains("of Mooring's own driver only"), "{said}");
        let orphaned = Patch::Merge(owned_by_nothing());
        let said = refusal(contents.patch(&name("own"), &only_asked, &orphaned).await);
        assert!(said.contains("the owner of no object"), "{said}");
        // Nor does it make or delete classes for them of other drivers.
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
        let classes: Api<DynamicObject> = Api::all_with(scope.with_token(&token).await?, &ApiResource::from_gvk(&kind));
        let class = |name: &str, driver: &str| {
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": metadata(name),
                "driver": driver, "deletionPolicy": "Delete",
            })
        };
        classes.create(&dry_run(), &parsed(class("own", CSI_DRIVER))?).await?;
        scope.apply_anywhere(&class("others", "example.com").to_string())?;
        let dry = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        for said in [
            refusal(classes.create(&dry_run(), &parsed(class("more", "example.com"))?).await),
            refusal(classes.delete(&name("others"), &dry).await),
        ] {
            assert!(
                said.contains("VolumeSnapshotClasses of Mooring's driver only"),
                "{said}"
            );
        }
        // It has no such rights in the first place.
        let made: DynamicObject = parsed(content("more", "vcs.mooring.dev"))?;
        for said in [
            refusal(contents.create(&PostParams::default(), &made).await),
            refusal(contents.delete(&name("own"), &DeleteParams::default()).await),
        ] {
            assert!(said.contains("cannot"), "{said}");
        }
        Ok(())
    });
}
