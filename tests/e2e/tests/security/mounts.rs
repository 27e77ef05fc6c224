//! Tries to break out through a mounted volume: through its content, and through its options. The test writes these
//! volumes by hand, so only the mounter itself stands in the way.

use anyhow::Result;
use mooring_harness::Scope;
use mooring_harness::nodes::{POOL, on_own_nodes};
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Runs a command in one container of the Pod `user`.
fn exec(scope: &Scope, container: &str, script: &str) -> Result<String> {
    scope.exec_in("user", Some(container), ["sh", "-c", script])
}

/// Proves: M4
#[test]
fn a_set_user_id_program_and_a_device_on_a_volume_are_of_no_use() {
    on_own_nodes("sec-nosuid", async |scope| {
        let file = scope.volume_name("data");
        scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
        scope.volume("data", &json!({"client": "local", "source": file}))?;
        let container = |name: &str, user: u32| {
            json!({
                "name": name, "image": "mooring.dev/testbed-sshd:0.1.0", "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "1000000"], "securityContext": {"runAsUser": user},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "plain", "mountPath": "/plain"}],
            })
        };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"},
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 1,
                "containers": [container("root", 0), container("tenant", 1000)],
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "plain", "emptyDir": {}},
                ],
            },
        });
        scope.apply(&pod.to_string())?;
        scope.pod_ready("user").await?;
        for place in ["/data", "/plain"] {
            exec(
                &scope,
                "root",
                &format!(
                    "chmod 755 {place}; cp /usr/bin/id {place}/id && chmod 4755 {place}/id && mknod -m 666 \
                     {place}/zero c 1 5"
                ),
            )?;
        }
        // On a directory of the node both work, so the checks above can fail.
        assert_eq!(exec(&scope, "tenant", "/plain/id -u")?, "0\n");
        assert_eq!(exec(&scope, "tenant", "head -c 1 /plain/zero | wc -c")?, "1\n");
        assert_eq!(exec(&scope, "tenant", "/data/id -u")?, "1000\n");
        let refused = exec(&scope, "root", "head -c 1 /data/zero").unwrap_err().to_string();
        assert!(refused.contains("Permission denied"), "{refused}");
        Ok(())
    });
}

#[test]
fn no_options_make_a_view_of_the_node_out_of_a_volume() {
    on_own_nodes("sec-options", async |scope| {
        // One type for each of the three ways to serve one. The client image has busybox' own mount.
        let client = |mode: &str| format!("{}-{mode}", scope.namespace);
        scope.apply_mounter_config(&json!({
            client("self"): "self", client("host"): "host", client("image"): "mooring.dev/provisioner-base:0.1.0",
        }))?;
        mooring_harness::wait_until(
            "the mounter to have read it",
            std::time::Duration::from_mins(2),
            async || {
                let status = scope.mounter_status(NODE).await?;
                Ok((status["clients"][client("image")].is_string()).then_some(()))
            },
        )
        .await?;
        for mode in ["self", "host", "image"] {
            let with = |more: Value| {
                let mut options = json!({"client": client(mode), "source": "x"});
                for (key, value) in more.as_object().cloned().unwrap_or_default() {
                    options[key] = value;
                }
                options
            };
            let mut cases = vec![
                (
                    json!({"fs-type": "overlay", "mount-options": "lowerdir=/var/lib/kubelet:/etc"}),
                    "view of the node",
                ),
                (json!({"fs-type": "proc"}), "view of the node"),
                (json!({"fs-type": "sysfs"}), "view of the node"),
                (
                    json!({"fs-type": "cgroup", "mount-options": "memory"}),
                    "view of the node",
                ),
                (json!({"fs-type": "devtmpfs"}), "view of the node"),
                (
                    json!({"fs-type": "ext4", "mount-options": "source=/dev/vda1"}),
                    "takes the place of",
                ),
                (json!({"fs-type": "ext4", "source": "dev/null"}), "name of a file"),
                (
                    json!({"fs-type": "none", "source": "/etc", "mount-options": "bind"}),
                    "mount option \"bind\"",
                ),
                (
                    json!({"fs-type": "tmpfs", "mount-options": "remount"}),
                    "mount option \"remount\"",
                ),
                (
                    json!({"fs-type": "ext4", "mount-options": "loop=/dev/loop0"}),
                    "mount option",
                ),
                (
                    json!({"fs-type": "tmpfs", "mount-options": "X-mount.mkdir"}),
                    "mount option",
                ),
            ];
            if mode == "image" {
                // It has no program for any type, and it may not give out the kernel's.
                cases.extend(["ext4", "xfs", "tmpfs"].map(|fs_type| (json!({"fs-type": fs_type}), "not made for")));
            }
            if mode != "self" {
                cases.extend([
                    (json!({"fs-type": "-ooverlay"}), "plain file system type"),
                    (json!({"fs-type": "fuse.sh"}), "plain file system type"),
                    (json!({"fs-type": "ext4,overlay"}), "plain file system type"),
                    (json!({"source": "-oremount,dev"}), "source"),
                    (json!({"source": "--bind"}), "source"),
                ]);
            }
            let cases: Vec<_> = cases
                .into_iter()
                .map(|(options, words)| (with(options), words))
                .collect();
            scope.all_refused(&cases, false).await?;
        }
        Ok(())
    });
}

/// Proves: M4
#[test]
fn commas_blanks_and_dashes_in_mount_options_smuggle_nothing_in() {
    on_own_nodes("sec-smuggle", async |scope| {
        let client = scope.namespace.clone();
        scope.mounter_config(&client, "self")?;
        mooring_harness::wait_until(
            "the mounter to have read it",
            std::time::Duration::from_mins(2),
            async || {
                let status = scope.mounter_status(NODE).await?;
                Ok((status["clients"][&client] == "self").then_some(()))
            },
        )
        .await?;
        let cases = [
            ("a", "size=1m,nosuid,nodev"),
            ("b", "size=1m, nosuid , nodev ,,"),
            ("c", "size=1m,SUID,DEV"),
            ("d", "size=1m,suid=1,dev=1"),
            ("e", "size=1m -o suid,nodev"),
            ("f", "-osuid,size=1m"),
        ];
        for (name, options) in cases {
            scope.volume(
                name,
                &json!({"client": client, "fs-type": "tmpfs", "mount-options": options}),
            )?;
            scope.pod(name, NODE, name, Value::Null)?;
        }
        for name in ["a", "b"] {
            scope.pod_ready(name).await?;
            let table = scope.exec(name, ["grep", " /data tmpfs ", "/proc/mounts"])?;
            assert!(table.contains("nosuid,nodev"), "{table}");
        }
        // An option that the kernel does not know is an error, and never a similar option.
        for name in ["c", "d", "e", "f"] {
            scope.event(name, "MountVolume.SetUp failed").await?;
        }
        let table = scope.mounts_on(1)?;
        assert_eq!(table.len(), 2, "{table:#?}");
        assert!(table.iter().all(|line| line.contains("nosuid,nodev")), "{table:#?}");
        Ok(())
    });
}
