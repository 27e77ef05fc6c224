//! Tries to break out through a provisioner ConfigMap, a StorageClass, a Secret's keys or an image's output. Among the
//! tries are published holes of other provisioners: a Pod template in a ConfigMap (CVE-2026-44543), a path pattern in a
//! class (CVE-2025-62878) and `..` in a volume's directory (CVE-2026-3864).

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, Pod, PodSpec};
use kube::Api;
use kube::api::{DeleteParams, PostParams, ResourceExt};
use mooring_contract::names::{FLEX_DRIVER, NAMESPACE, PROVISIONER, annotations, finalizers, labels};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, SCRIPTED, TEST_LABEL, claim, until};
use mooring_harness::{Scope, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn images_that_only_look_like_allowed_ones_are_refused() {
    in_namespace("sec-images", async |scope| {
        // Allowed are mooring.dev/** and custom/*, which means docker.io/custom/*.
        let digest = "0123456789abcdef".repeat(4);
        let images = [
            "mooring.dev.evil.example/testbed-scripted:0.1.0".to_owned(),
            "evil.example/mooring.dev/testbed-scripted:0.1.0".to_owned(),
            "docker.io.evil.example/custom/iscsi-provision".to_owned(),
            "evil.example/custom/iscsi-provision".to_owned(),
            "mooring.dev:5000/testbed-scripted:0.1.0".to_owned(),
            "localhost/custom/x".to_owned(),
            "custom".to_owned(),
            "custom/a/b".to_owned(),
            "busybox:1".to_owned(),
            "Custom/iscsi-provision".to_owned(),
            "custom/Iscsi-provision".to_owned(),
            format!("evil/x@sha256:{digest}"),
            format!("custom@sha256:{digest}"),
            "mooring.dev/x@sha256:0123".to_owned(),
            "mooring.dev/../evil/x".to_owned(),
            "mooring.dev//x".to_owned(),
            "mooring.dev/x evil/y".to_owned(),
            "mooring.dev/x\nevil/y".to_owned(),
            "https://mooring.dev/x".to_owned(),
        ];
        let mut refused = Vec::new();
        for (index, image) in images.iter().enumerate() {
            let provisioner = scope
                .provisioner_named(&format!("-{index}"))
                .printing()
                .key("image", image);
            provisioner.write()?;
            refused.push(provisioner);
        }
        for (provisioner, image) in refused.iter().zip(&images) {
            let status = provisioner.status("refused: ").await?;
            assert!(
                status.contains("\"image\"") || status.contains("image:") || status.contains("image "),
                "{image}: {status}"
            );
        }
        Ok(())
    });
}

/// A Pod without its names and its properties.
fn skeleton(spec: &PodSpec) -> Value {
    let mut spec = json!(spec);
    spec["containers"][0]["env"] = Value::Null;
    spec["nodeName"] = Value::Null;
    for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
        volume["secret"] = Value::Null;
    }
    spec
}

/// CVE-2026-44543: the Pod's template in a ConfigMap.
///
/// Proves: P5
#[test]
fn no_key_of_a_configmap_shapes_the_provisioning_pod() {
    in_namespace("sec-shape", async |scope| {
        let plain = scope.provisioner().on_provision("sleep 1000");
        let template = json!({"spec": {"hostPID": true, "containers": [{"name": "x", "securityContext": {"privileged": true},
            "volumeMounts": [{"name": "h", "mountPath": "/host"}]}], "volumes": [{"name": "h", "hostPath": {"path": "/"}}]}})
        .to_string();
        let mut shaped = scope.provisioner_named("-shaped").on_provision("sleep 1000");
        for key in [
            "helperPod.yaml",
            "pod-template",
            "podTemplate",
            "spec",
            "pod.yaml",
            "template",
        ] {
            shaped = shaped.key(key, &*template);
        }
        for (key, value) in [
            ("hostPath", "/"),
            ("host-path", "/"),
            ("hostNetwork", "true"),
            ("hostPID", "true"),
            ("privileged", "true"),
            ("securityContext", "{\"privileged\": true}"),
            ("capabilities", "SYS_ADMIN"),
            ("volumes", "[{name: h, hostPath: {path: /}}]"),
            ("volume-mounts", "[{name: h, mountPath: /host}]"),
            ("command", "[sh, -c, 'touch /tmp/pwned']"),
            ("args", "[x]"),
            ("automountServiceAccountToken", "true"),
            ("serviceAccountName", "flex-provisioner"),
            ("init-containers", "[{name: i, image: evil/x}]"),
            ("runtime-class-name", "evil"),
            ("node-name", "node-1"),
        ] {
            shaped = shaped.key(key, value);
        }
        // Keys that are almost known keys are errors, and so is one that would be a property of Mooring's own; the rest
        // are properties.
        shaped.write()?;
        let status = shaped.status("refused: ").await?;
        assert!(
            status.contains("node-name") && status.contains("serviceAccountName"),
            "{status}"
        );
        shaped.data.remove("node-name");
        shaped.data.remove("serviceAccountName");
        shaped.apply().await?;
        plain.apply().await?;
        let mut skeletons = Vec::new();
        for (name, class) in [("plain", &plain.class), ("shaped", &shaped.class)] {
            let uid = scope.claim(name, class, "1Gi").await?;
            let pod = scope.runs("provision", &uid).await?;
            skeletons.push(skeleton(&pod.spec.context("no spec")?));
            if name == "shaped" {
                let found = scope.exec_in_run("provision", &uid, ["cat", "/run/mooring/properties/pod-template"])?;
                assert_eq!(found, template, "it is a property like any other");
                assert!(
                    scope
                        .exec_in_run("provision", &uid, ["ls", "/host", "/tmp/pwned"])
                        .is_err()
                );
            }
        }
        assert_eq!(skeletons[0], skeletons[1]);
        for name in ["plain", "shaped"] {
            scope.claim_gone(name).await?;
        }
        Ok(())
    });
}

/// Proves: P5
#[test]
fn known_keys_of_a_configmap_carry_nothing_but_what_they_are_for() {
    in_namespace("sec-keys", async |scope| {
        let cases = [
            ("node-selector", "{a: {hostNetwork: true}}", "node selector"),
            ("node-selector", "a=b,c: d\nhostPID: true", "label of a node"),
            (
                "tolerations",
                "[{key: a, operator: Exists, hostPath: {path: /}}]",
                "no field of a toleration",
            ),
            ("tolerations", "{key: a}", "tolerations"),
            ("service-account-name", "kube-system/default", "object's name"),
            ("service-account-name", "../kube-system/default", "object's name"),
            ("secret-name", "kube-system/x", "object's name"),
            ("secret-name", "../x", "object's name"),
            ("timeout", "1h; hostPID: true", "length of time"),
            ("client-image", "evil image", "not an image's name"),
            ("mount-options", "noatime,dev", "removes a protection"),
            ("mount-options", "suid", "removes a protection"),
            ("mount-options", "logdev=/dev/vda1", "file of the machine"),
            ("mount-options", "ro -o dev", "has a blank"),
            ("backend-volume", "client=x,source=/", "path or a device"),
            (
                "backend-volume",
                "client=x,source=/dev/vda1,fs-type=ext4",
                "path or a device",
            ),
            ("backend-volume", "client=ext4,source=//dev/loop1", "path or a device"),
            (
                "backend-volume",
                "client=sshfs,source=[-oProxyCommand=sh]:/x",
                "names no server",
            ),
            (
                "backend-volume",
                "client=glusterfs,source=a:/b,backup-servers=-x",
                "write servers' names",
            ),
            (
                "backend-volume",
                "client=nfs,source=a:/b,server=c",
                "client nfs has no option",
            ),
            ("backend-volume", "client=x,source=server:/a/../../b", "part \"..\""),
            (
                "backend-volume",
                "client=x,source=x,fs-type=overlay,mount-options=lowerdir=/",
                "view of the node",
            ),
            ("backend-volume", "client=../x", "not a client's name"),
        ];
        let mut written = Vec::new();
        for (index, (key, value, _)) in cases.iter().enumerate() {
            let provisioner = scope
                .provisioner_named(&format!("-{index}"))
                .printing()
                .key(key, *value);
            provisioner.write()?;
            written.push(provisioner);
        }
        for (provisioner, (key, value, words)) in written.iter().zip(&cases) {
            let status = provisioner.status("refused: ").await?;
            assert!(status.contains(words), "{key}={value}: {words:?} is not in {status}");
        }
        Ok(())
    });
}

#[test]
fn no_image_runs_with_the_rights_of_a_part_of_mooring_or_of_another_namespace() {
    in_namespace("sec-account", async |scope| {
        // In Mooring's own namespace, where these accounts exist.
        let configs: Api<ConfigMap> = Api::namespaced(scope.client.clone(), NAMESPACE);
        for account in ["flex-provisioner", "mounter", "client"] {
            let name = format!("{}-{account}", scope.namespace);
            let config: ConfigMap = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {
                    labels::TYPE: labels::TYPE_PROVISIONER_CONFIG, labels::STORAGE_CLASS: name, TEST_LABEL: scope.namespace,
                }},
                "data": {"plugin-name": PROVISIONER, "image": SCRIPTED, "service-account-name": account},
            }))?;
            configs.create(&PostParams::default(), &config).await?;
            let said = |config: Option<&ConfigMap>| {
                let status = config.and_then(|config| config.annotations().get(annotations::STATUS));
                status.is_some_and(|status| status.contains("belongs to a part of Mooring"))
            };
            let seen = until(&configs, &name, "to be refused", LIMIT, said).await;
            configs.delete(&name, &DeleteParams::default()).await?;
            seen?;
        }
        // An account of this namespace, which is not the ConfigMap's.
        scope.apply(
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "theirs"}}).to_string(),
        )?;
        let provisioner = scope.provisioner().printing().key("service-account-name", "theirs");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.event("data", "theirs").await?;
        assert!(scope.provisioned(&uid).await?.is_none());
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn properties_that_would_change_how_programs_run_are_refused_wherever_they_come_from() {
    in_namespace("sec-env", async |scope| {
        let keys = [
            "PATH",
            "HOME",
            "ld-preload",
            "LD.LIBRARY.PATH",
            "kubernetes-service-host",
            "bash-env",
            "git-ssh-command",
            "node-options",
        ];
        let mut provisioner = scope.provisioner_named("-bad").printing();
        for key in keys {
            provisioner = provisioner.key(key, "x");
        }
        provisioner = provisioner
            .key("a-b", "1")
            .key("a.b", "2")
            .key("pv-NAME", "x")
            .key("nul", "a\0b");
        provisioner.write()?;
        let status = provisioner.status("refused: ").await?;
        for key in keys.iter().chain(&["a.b", "pv-NAME", "nul"]) {
            assert!(status.contains(key), "{key} is not in {status}");
        }

        // A class's parameters and a Secret's keys are known only when a claim is created.
        let good = scope.provisioner().printing();
        good.apply().await?;
        let class = format!("{}-class", scope.namespace);
        scope.apply_anywhere(
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": {"name": class, "labels": {TEST_LABEL: scope.namespace}}, "provisioner": PROVISIONER,
                "parameters": {
                    "mooring.dev/config-namespace": CONFIG_NAMESPACE, "mooring.dev/config-name": good.name,
                    "LD_PRELOAD": "/run/mooring/properties/x",
                },
            })
            .to_string(),
        )?;
        let secret = format!("{}-env", scope.namespace);
        let keyed = scope
            .provisioner_named("-keyed")
            .printing()
            .key("secret-name", &*secret);
        keyed.apply().await?;
        let manifest = |key: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, "namespace": CONFIG_NAMESPACE},
                   "stringData": {key: "x"}})
            .to_string()
        };
        // A path is not even valid as a Secret's key.
        for key in ["../x", "..", "a/b"] {
            assert!(scope.apply_anywhere(&manifest(key)).is_err(), "{key}");
        }
        scope.apply_anywhere(&manifest("HOME"))?;
        let mut uids = Vec::new();
        for (name, class, words) in [("class", &class, "LD_PRELOAD"), ("keyed", &keyed.class, "HOME")] {
            let uid = scope.claim(name, class, "1Gi").await?;
            scope.event(name, words).await?;
            uids.push(uid);
        }
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        for uid in &uids {
            assert!(
                pods.get_opt(&format!("provision-{uid}")).await?.is_none(),
                "something ran"
            );
        }
        for name in ["class", "keyed"] {
            scope.claim_gone(name).await?;
        }
        scope.kubectl(["-n", CONFIG_NAMESPACE, "delete", "secret", &secret])?;
        Ok(())
    });
}

#[test]
fn values_arrive_as_they_are_whatever_a_shell_would_make_of_them() {
    in_namespace("sec-values", async |scope| {
        let nasty = "a\nPATH=/evil\n$(touch /tmp/pwned) `touch /tmp/pwned` $(PATH) ${PATH}; touch /tmp/pwned #'\"\\ \
                     -rf ../..\u{1b}[2J é";
        let user = "tom\"; touch /tmp/pwned; $(touch /tmp/pwned)";
        let provisioner = scope
            .provisioner()
            .on_provision("sleep 1000")
            .key("nasty", nasty)
            .key("..", "");
        // Two dots are not valid as a property's name (nor as a ConfigMap's key).
        assert!(provisioner.write().is_err());
        let mut provisioner = provisioner;
        provisioner.data.remove("..");
        provisioner.apply().await?;
        let uid = scope
            .claim_with(Some(user), &claim("data", &provisioner.class, "1Gi"))
            .await?;
        scope.runs("provision", &uid).await?;
        let read = |path: &str| scope.exec_in_run("provision", &uid, ["cat", path]);
        assert_eq!(read("/run/mooring/properties/nasty")?, nasty);
        assert_eq!(read("/run/mooring/properties/username")?, user);
        let request: Value = serde_json::from_str(&read("/run/mooring/request.json")?)?;
        assert_eq!(
            (&request["parameters"]["nasty"], &request["username"]),
            (&json!(nasty), &json!(user))
        );
        // Process 1 is the image's; variables end with NUL.
        let environment = read("/proc/1/environ")?;
        let variables: Vec<_> = environment.split('\0').collect();
        assert!(variables.contains(&&*format!("NASTY={nasty}")), "{environment}");
        assert!(variables.contains(&&*format!("USERNAME={user}")), "{environment}");
        assert!(!variables.contains(&"PATH=/evil"));
        assert!(
            scope.exec_in_run("provision", &uid, ["ls", "/tmp/pwned"]).is_err(),
            "a value was run"
        );
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// CVE-2025-62878: a path pattern in a StorageClass.
#[test]
fn a_path_pattern_in_a_class_or_a_configmap_leads_nowhere() {
    in_namespace("sec-pattern", async |scope| {
        let mut local = scope
            .provisioner()
            .key("image", "mooring.dev/provisioner-local:0.1.0")
            .key("volume-source", "flexVolume")
            .key("backend-volume", "client=pool");
        for key in [
            "pathPattern",
            "path-pattern",
            "subDir",
            "sub-directory",
            "directory",
            "pool",
        ] {
            local = local.key(key, "../../../etc/{{ .PVC.Name }}");
        }
        local.apply().await?;
        let class = format!("{}-class", scope.namespace);
        scope.apply_anywhere(
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": {"name": class, "labels": {TEST_LABEL: scope.namespace}}, "provisioner": PROVISIONER,
                "parameters": {
                    "mooring.dev/config-namespace": CONFIG_NAMESPACE, "mooring.dev/config-name": local.name,
                    "pathPattern": "{{ .PVC.Namespace }}/../../../../etc", "subDir": "../..", "source": "../../etc/shadow",
                },
            })
            .to_string(),
        )?;
        let uid = scope.claim("data", &class, "16Mi").await?;
        scope.event("data", "which the image does not know").await?;
        assert!(scope.provisioned(&uid).await?.is_none());
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P2
#[test]
fn an_image_can_t_describe_a_volume_that_gives_out_the_node_or_another_claim_s_data() {
    in_namespace("sec-printed", async |scope| {
        // The claim's name decides what its run prints.
        let cases = [
            (
                "overlay",
                "client=x source=x fs-type=overlay mount-options=lowerdir=/var/lib/kubelet",
                "view of the node",
            ),
            ("cgroup", "client=cgroup source=x", "view of the node"),
            ("device", "client=x source=/dev/vda1 fs-type=ext4", "path or a device"),
            ("slashes", "client=ext4 source=//dev/loop1", "path or a device"),
            ("tag", "client=x source=UUID=1 fs-type=ext4", "path or a device"),
            ("dots", "client=sshfs source=u@192.0.2.1:/srv/../../etc", "part \"..\""),
            (
                "suid",
                "client=sshfs source=u@192.0.2.1:/srv mount-options=suid,dev",
                "removes a protection",
            ),
            (
                "file",
                "client=local source=pvc-of-somebody-else.img",
                "another claim's volume",
            ),
            (
                "image",
                "client=x source=a:b client-image=mooring.dev/provisioner-base:0.1.0",
                "does not name",
            ),
        ];
        let arms: Vec<String> = cases
            .iter()
            .map(|(name, options, _)| format!("{name}) pv options {options} ;;"))
            .collect();
        let provisioner = scope
            .provisioner()
            .printing()
            .on_provision(&format!("case $PVC_NAME in\n{}\nesac", arms.join("\n")));
        provisioner.apply().await?;
        let mut uids = Vec::new();
        for (name, _, _) in &cases {
            uids.push(scope.claim(name, &provisioner.class, "1Gi").await?);
        }
        for ((name, _, words), uid) in cases.iter().zip(&uids) {
            scope.event(name, words).await?;
            assert!(scope.provisioned(uid).await?.is_none(), "{name}");
        }
        for (name, _, _) in &cases {
            scope.delete(&format!("persistentvolumeclaim/{name}"))?;
        }
        for uid in &uids {
            scope.nothing_left(uid).await?;
        }
        Ok(())
    });
}

/// A released PersistentVolume as anyone who may write one could forge it, with everything that makes Mooring take it
/// for its own.
fn forged(scope: &Scope, config: &str, class: &str, uid: &str, request_of: &str, source: &str) -> Value {
    let request = json!({
        "contract": 1, "operation": "provision", "pv-name": format!("pvc-{request_of}"), "username": "", "groups": [],
        "size": 1, "size-gi": 1, "pvc-name": "gone", "pvc-namespace": scope.namespace, "pvc-uid": request_of,
        "storage-class": class, "access-modes": ["ReadWriteMany"], "volume-mode": "Filesystem", "fs-type": "",
        "mount-options": [], "reclaim-policy": "Delete", "node-name": "", "topology": {}, "service-account": "",
        "kube-api": "", "parameters": {},
    });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": format!("pvc-{uid}"), "finalizers": [finalizers::VOLUME],
            "annotations": {
                annotations::PROVISIONED_BY: PROVISIONER,
                annotations::CONFIG: format!("{CONFIG_NAMESPACE}/{config}"),
                annotations::REQUEST: request.to_string(),
            },
        },
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": class,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": scope.namespace, "name": "gone", "uid": uid},
            "flexVolume": {"driver": FLEX_DRIVER, "options": {"client": "sshfs", "source": source}},
        },
    })
}

/// CVE-2026-3864: someone who may write a PersistentVolume puts `..` into its directory, so that what is there is
/// removed.
#[test]
fn deleting_a_volume_removes_no_directory_but_its_own_whatever_its_source_says() {
    in_namespace("sec-dots", async |scope| {
        let node = nodes(&scope).await?;
        let server = scope.ssh_server(&node, &["victim"]).await?;
        scope.exec("ssh", ["touch", "/srv/volumes/victim/precious"])?;
        let secret = format!("{}-ssh", scope.namespace);
        scope.apply_anywhere(
            &json!({"apiVersion": "v1", "kind": "Secret", "stringData": server.secret(),
                    "metadata": {"name": secret, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: scope.namespace}}})
            .to_string(),
        )?;
        let sshfs = scope
            .provisioner()
            .key("image", "mooring.dev/provisioner-sshfs:0.1.0")
            .key("volume-source", "flexVolume")
            .key("secret-name", &*secret)
            .key("server", &*server.address)
            .key("directory", "/srv/volumes")
            .key("mount-secret", format!("{secret}/{CONFIG_NAMESPACE}"));
        sshfs.apply().await?;
        let uid = |number: u8| format!("5ec0d075-0000-4000-8000-0000000000{number:02}");
        let volume = |number: u8, request_of: u8, source: &str| {
            forged(
                &scope,
                &sshfs.name,
                &sshfs.class,
                &uid(number),
                &uid(request_of),
                source,
            )
        };
        let cases = [
            (
                volume(1, 1, &server.source(&format!("pvc-{}/../victim", uid(1)))),
                "is not a directory named",
            ),
            (volume(2, 2, &server.source("victim")), "is not a directory named"),
            (
                volume(3, 3, &server.source(&format!("../volumes/victim/../pvc-{}", uid(3)))),
                "is not a directory named",
            ),
            // The annotation says what to delete: it must be about this volume.
            (
                volume(4, 9, &server.source("victim")),
                "does not delete the data of a copy",
            ),
        ];
        for (volume, _) in &cases {
            scope.apply_anywhere(&volume.to_string())?;
        }
        let mut told = Ok(());
        for (index, (_, words)) in cases.iter().enumerate() {
            let name = format!("pvc-{}", uid(u8::try_from(index + 1)?));
            told = told.and(scope.event_in("default", &name, words).await.map(drop));
        }
        let left = scope.exec("ssh", ["ls", "/srv/volumes/victim"]);
        // An administrator removes the finalizer of what can't be deleted.
        let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
        for index in 0..cases.len() {
            let name = format!("pvc-{}", uid(u8::try_from(index + 1)?));
            volumes.delete(&name, &DeleteParams::default()).await?;
            // The copy goes without that, and may be gone.
            drop(scope.kubectl([
                "patch",
                "pv",
                &name,
                "--type=merge",
                "-p",
                "{\"metadata\": {\"finalizers\": null}}",
            ]));
        }
        told?;
        assert_eq!(left?, "precious\n");
        // The controller gets only what the test took from it, and cleans that up itself.
        for index in 0..cases.len() {
            let pod = format!("pod/delete-{}", uid(u8::try_from(index + 1)?));
            scope.kubectl(["-n", CONFIG_NAMESPACE, "delete", "--ignore-not-found", &pod])?;
        }
        for index in 0..cases.len() {
            scope.nothing_left(&uid(u8::try_from(index + 1)?)).await?;
        }
        scope.kubectl(["-n", CONFIG_NAMESPACE, "delete", "secret", &secret])?;
        Ok(())
    });
}

/// A node's name.
async fn nodes(scope: &Scope) -> Result<String> {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(scope.client.clone());
    let all = nodes.list_metadata(&kube::api::ListParams::default()).await?.items;
    all.first().map(ResourceExt::name_any).context("no node")
}
