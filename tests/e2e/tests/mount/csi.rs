//! Volumes that the kubelet mounts with CSI: the same volumes and the same mounter as with FlexVolume. Alone: mounter
//! and kubelet of a node are restarted.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use mooring_contract::names::{CSI_DEVICES_DIR, CSI_DRIVER, CSI_REGISTRATION_SOCKET, NAMESPACE, annotations};
use mooring_harness::nodes::{POOL, on_own_nodes};
use mooring_harness::{Scope, wait_until};
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Where containers have the device of a raw block volume.
const DEVICE: &str = "/dev/disk";

/// Longest until the kubelet has noticed a new or a missing socket, and the API shows it.
const REGISTERED_LIMIT: Duration = Duration::from_mins(2);

/// Longest until another mounter or the kubelet runs and has done what was requested meanwhile.
const RESTART_LIMIT: Duration = Duration::from_mins(2);

/// Creates an empty image file in the pool of node-1, and a claim of the same name whose volume uses CSI.
fn blank(scope: &Scope, name: &str, more: &Value) -> Result<()> {
    let file = scope.volume_name(name);
    scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
    scope.csi_volume(name, &json!({"client": "local", "source": file}), more)
}

/// Waits until the API says that the kubelet has the driver, or that it has not.
async fn registered(scope: &Scope, wanted: bool) -> Result<()> {
    wait_until("the kubelet to have the driver or not", REGISTERED_LIMIT, async || {
        let drivers = scope.kubectl(["get", "csinode", NODE, "-o", "jsonpath={.spec.drivers[*].name}"])?;
        Ok((drivers.split(' ').any(|name| name == CSI_DRIVER) == wanted).then_some(()))
    })
    .await
}

/// Waits until none of this test's volumes is mounted, and the kubelet has cleaned up.
async fn nothing_left(scope: &Scope) -> Result<()> {
    let directories = format!(
        "cd /var/lib/kubelet; ls -d pods/*/volumes/kubernetes.io~csi/{0}* {1}/{0}* {1}/publish/{0}* 2>/dev/null || \
         true",
        scope.namespace,
        CSI_DEVICES_DIR.join("/")
    );
    wait_until("nothing to be left", RESTART_LIMIT, async || {
        let (mounts, left) = (scope.mounts_on(1)?, scope.on_node(1, &directories)?);
        let loops = scope.loop_devices()?;
        Ok((mounts.is_empty() && left.is_empty() && loops.is_empty()).then_some(()))
    })
    .await
}

/// Deletes a Pod and waits until it is gone.
async fn end(scope: &Scope, pod: &str) -> Result<()> {
    scope.delete(&format!("pod/{pod}"))?;
    scope.pod_gone(pod).await
}

/// Creates a Pod that has a claim's volume as a device.
fn with_device(scope: &Scope, name: &str, claim: &str) -> Result<()> {
    with_device_for(scope, name, claim, false)
}

/// The same, for reading only or for writing too.
fn with_device_for(scope: &Scope, name: &str, claim: &str, read_only: bool) -> Result<()> {
    let main = json!({
        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
        "volumeDevices": [{"name": "data", "devicePath": DEVICE}],
    });
    let claim_used = json!({"claimName": claim, "readOnly": read_only});
    let volumes = json!([{"name": "data", "persistentVolumeClaim": claim_used}]);
    scope.pod(name, NODE, claim, json!({"containers": [main], "volumes": volumes}))
}

/// Two Pods that are to read a device, and between them one that is to write it, all with one device: the kernel
/// refuses writes of the node's root as well, but not while that Pod is there.
async fn readers_and_a_writer(scope: &Scope) -> Result<()> {
    blank(scope, "shared", &json!({"volumeMode": "Block"}))?;
    let write = format!("echo hello | dd of={DEVICE} bs=512 seek=9 conv=notrunc,fsync 2>&1");
    let read = format!("dd if={DEVICE} bs=512 skip=9 count=1 2>/dev/null | head -n 1");
    with_device_for(scope, "reader-1", "shared", true)?;
    scope.pod_ready("reader-1").await?;
    let minor = scope.exec("reader-1", ["stat", "-c", "%T", DEVICE])?;
    let minor = u32::from_str_radix(minor.trim(), 16)?;
    // Not the file that the loop device shows: its node.
    let by_root = format!(
        "[ -b /dev/loop{minor} ] && echo root | dd of=/dev/loop{minor} bs=512 seek=18 conv=notrunc,fsync 2>&1 || true"
    );
    let refused = |said: &str| said.contains("Operation not permitted");
    let said = scope.on_node(1, &by_root)?;
    ensure!(refused(&said), "{said}");

    with_device_for(scope, "writer", "shared", false)?;
    with_device_for(scope, "reader-2", "shared", true)?;
    scope.pod_ready("writer").await?;
    scope.pod_ready("reader-2").await?;
    scope.exec("writer", ["sh", "-c", &write])?;
    for reader in ["reader-1", "reader-2"] {
        assert_eq!(scope.exec(reader, ["sh", "-c", &read])?, "hello\n", "{reader}");
        // Here by the rules that the kubelet gives the container.
        let said = scope.exec(reader, ["sh", "-c", &format!("{write} || true")])?;
        ensure!(refused(&said), "{reader}: {said}");
    }
    let said = scope.on_node(1, &by_root)?;
    ensure!(!refused(&said), "{said}");
    end(scope, "writer").await?;
    let said = scope.on_node(1, &by_root)?;
    ensure!(refused(&said), "{said}");
    assert_eq!(scope.exec("reader-1", ["sh", "-c", &read])?, "hello\n");
    end(scope, "reader-1").await?;
    end(scope, "reader-2").await?;
    // Whatever is behind a device of this number next can be written.
    let still_refuses = scope.on_node(1, &format!("blockdev --getro /dev/loop{minor}"))?;
    ensure!(still_refuses == "0\n", "{still_refuses}");
    Ok(())
}

/// Gives an image file to one Pod after another as a device, and asks for what can't be one.
async fn raw_block_volumes(scope: &Scope) -> Result<()> {
    let raw = json!({"volumeMode": "Block"});
    blank(scope, "disk", &raw)?;
    scope.csi_volume("letters", &json!({"client": "nfs", "source": "10.0.0.1:/x"}), &raw)?;
    with_device(scope, "first", "disk")?;
    with_device(scope, "letters", "letters")?;
    scope.pod_ready("first").await?;
    let size = scope.exec("first", ["sh", "-c", &format!("wc -c <{DEVICE}")])?;
    assert_eq!(size.trim(), "67108864");
    let write = format!("echo hello | dd of={DEVICE} bs=512 seek=9 conv=notrunc,fsync");
    scope.exec("first", ["sh", "-c", &write])?;
    end(scope, "first").await?;
    with_device(scope, "second", "disk")?;
    scope.pod_ready("second").await?;
    let read = format!("dd if={DEVICE} bs=512 skip=9 count=1 2>/dev/null | head -n 1");
    assert_eq!(scope.exec("second", ["sh", "-c", &read])?, "hello\n");
    // It was blank, and nothing else was written.
    let first = format!("dd if={DEVICE} bs=512 count=9 2>/dev/null | tr -d '\\000' | wc -c");
    assert_eq!(scope.exec("second", ["sh", "-c", &first])?, "0\n");
    let image = scope.volume_name("disk");
    scope.on_node(1, &format!("truncate -s 96M {POOL}/{image}"))?;
    let capacity = json!({"spec": {"capacity": {"storage": "96Mi"}}}).to_string();
    scope.kubectl(["patch", "pv", &image, "-p", &capacity])?;
    // The kubelet looks at a Pod's volumes when the Pod changes, and else every minute or so.
    scope.kubectl(["annotate", "pod", "second", "testbed.mooring.dev/look=now"])?;
    wait_until("the Pod to see the new size", RESTART_LIMIT, async || {
        let size = scope.exec("second", ["sh", "-c", &format!("wc -c <{DEVICE}")])?;
        Ok((size.trim() == (96 << 20).to_string()).then_some(()))
    })
    .await?;
    scope.event("letters", "raw block volume").await?;
    end(scope, "letters").await?;

    // By their access mode no Pod may write them; the other device is written.
    let readers = json!({"volumeMode": "Block", "accessModes": ["ReadOnlyMany"]});
    scope.csi_volume("read", &json!({"client": "local", "source": image}), &readers)?;
    with_device(scope, "looker", "read")?;
    scope.event("looker", "another access mode").await?;
    end(scope, "second").await?;
    scope.pod_ready("looker").await?;
    assert_eq!(scope.exec("looker", ["sh", "-c", &read])?, "hello\n");
    let refused = scope.exec("looker", ["sh", "-c", &format!("{write} 2>&1 || true")])?;
    ensure!(refused.contains("Operation not permitted"), "{refused}");
    end(scope, "looker").await?;
    readers_and_a_writer(scope).await
}

#[test]
fn a_volume_is_read_and_written_by_two_pods_and_the_last_leaves_nothing() {
    on_own_nodes("mount-csi", async |scope| {
        registered(&scope, true).await?;
        blank(&scope, "data", &json!({"mountOptions": ["noatime"]}))?;
        let group = json!({"securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}});
        scope.pod("one", NODE, "data", group)?;
        scope.pod("two", NODE, "data", Value::Null)?;
        scope.pod_ready("one").await?;
        scope.pod_ready("two").await?;
        let mounted = scope.exec("one", ["grep", " /data ext4 ", "/proc/mounts"])?;
        ensure!(mounted.contains("nosuid,nodev,noatime"), "{mounted}");
        scope.exec("one", ["sh", "-c", "echo hello >/data/letter"])?;
        assert_eq!(
            scope.exec("one", ["stat", "-c", "%u:%g", "/data/letter"])?,
            "1000:2000\n"
        );
        assert_eq!(scope.exec("one", ["stat", "-c", "%g %a", "/data"])?, "2000 2775\n");
        assert_eq!(scope.exec("two", ["cat", "/data/letter"])?, "hello\n");
        scope.exec("two", ["dd", "if=/dev/zero", "of=/data/big", "bs=1M", "count=20"])?;
        scope.exec("two", ["sync"])?;
        assert_eq!((scope.mounts_on(1)?.len(), scope.loop_devices()?.len()), (2, 1));
        let status = scope.mounter_status(NODE).await?.to_string();
        ensure!(
            status.contains(&format!("kubernetes.io~csi/{}", scope.namespace)),
            "{status}"
        );
        end(&scope, "one").await?;

        let claim = json!({"claimName": "data", "readOnly": true});
        let more = json!({"volumes": [{"name": "data", "persistentVolumeClaim": claim}]});
        scope.pod("reader", NODE, "data", more)?;
        scope.pod_ready("reader").await?;
        assert_eq!(scope.exec("reader", ["cat", "/data/letter"])?, "hello\n");
        let error = scope.exec("reader", ["touch", "/data/x"]).unwrap_err();
        ensure!(error.to_string().contains("Read-only file system"), "{error:#}");
        raw_block_volumes(&scope).await?;
        // The kubelet measures once a minute.
        wait_until("the kubelet to see 20 MiB used", Duration::from_mins(3), async || {
            Ok(scope.usage(NODE, "data")?.filter(|used| *used >= 20 << 20))
        })
        .await?;
        end(&scope, "reader").await?;
        end(&scope, "two").await?;
        nothing_left(&scope).await
    });
}

/// Proves: M2
#[test]
fn a_restarted_mounter_and_a_restarted_kubelet_lose_nothing() {
    on_own_nodes("mount-csi-again", async |scope| {
        scope.require_mooring().await?;
        blank(&scope, "data", &Value::Null)?;
        scope.pod("old", NODE, "data", Value::Null)?;
        scope.pod_ready("old").await?;
        let before = scope.mounts_on(1)?;
        assert_eq!(before.len(), 1);

        let mounter = scope.mounter(NODE).await?;
        let mounters: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
        mounters.delete(&mounter, &DeleteParams::default()).await?;
        wait_until("another mounter", RESTART_LIMIT, async || {
            Ok((scope.mounter(NODE).await? != mounter).then_some(()))
        })
        .await?;
        scope.require_mooring().await?;
        assert_eq!(scope.mounts_on(1)?, before);
        scope.exec("old", ["touch", "/data/after-the-mounter"])?;
        scope.pod("new", NODE, "data", Value::Null)?;
        scope.pod_ready("new").await?;
        end(&scope, "new").await?;
        assert_eq!(scope.mounts_on(1)?, before);

        // Its registration socket is where a starting kubelet looks for drivers.
        scope.own_cluster()?.kill_in_node(1, "kubelet")?;
        scope.pod("newer", NODE, "data", Value::Null)?;
        scope.pod_ready("newer").await?;
        registered(&scope, true).await?;
        assert_eq!(scope.mounts_on(1)?.len(), 2);
        end(&scope, "newer").await?;

        let socket = format!("/var/lib/kubelet/{}", CSI_REGISTRATION_SOCKET.join("/"));
        scope.on_node(1, &format!("rm {socket}"))?;
        wait_until("the socket to be back", REGISTERED_LIMIT, async || {
            scope.on_node(1, &format!("test -S {socket}")).map(Some)
        })
        .await?;
        registered(&scope, true).await?;

        assert_eq!(scope.mounts_on(1)?, before);
        scope.exec("old", ["ls", "/data/after-the-mounter"])?;
        end(&scope, "old").await?;
        nothing_left(&scope).await
    });
}

#[test]
fn a_client_container_s_volume_has_its_secret_is_revived_and_a_pod_s_own_needs_leave() {
    on_own_nodes("mount-csi-sshfs", async |scope| {
        let server = scope.ssh_server("node-2", &["letters"]).await?;
        scope.csi_volume("letters", &server.volume("letters"), &Value::Null)?;
        scope.pod("user", NODE, "letters", Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["sh", "-c", "echo hello >/data/letter"])?;
        assert_eq!(scope.exec("ssh", ["cat", "/srv/volumes/letters/letter"])?, "hello\n");

        let source = server.source("letters");
        let kill = format!(
            "for process in /proc/[0-9]*; do
               [ \"$(cat $process/comm 2>/dev/null)\" = sshfs ] || continue
               tr '\\0' ' ' <$process/cmdline | grep -qF ' {source} ' && kill -9 ${{process#/proc/}} && echo killed
             done"
        );
        let killed = scope.on_node(1, &format!("{kill} || true"))?;
        assert_eq!(killed, "killed\n");
        wait_until("the volume to be revived", RESTART_LIMIT, async || {
            let text = scope.exec("user", ["cat", "/data/letter"])?;
            ensure!(text == "hello\n", "the letter is {text:?}");
            Ok(Some(()))
        })
        .await?;
        scope.event("user", "mounted again").await?;

        let own = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"},
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "csi": {
                    "driver": CSI_DRIVER,
                    "volumeAttributes": {"client": "sshfs", "source": source},
                    "nodePublishSecretRef": {"name": "ssh"},
                }}],
            },
        });
        let refused = scope.apply(&own.to_string()).unwrap_err().to_string();
        ensure!(refused.contains(annotations::INLINE_CLIENTS), "{refused}");
        for (key, value) in [
            (annotations::INLINE_CLIENTS, "sshfs"),
            (annotations::INLINE_SOURCES, "*@*:/**"),
        ] {
            let pair = format!("{key}={value}");
            scope.kubectl(["annotate", "namespace", &scope.namespace, &pair])?;
        }
        wait_until("the Pod to be let in", REGISTERED_LIMIT, async || {
            scope.apply(&own.to_string()).map(Some)
        })
        .await?;
        scope.pod_ready("own").await?;
        assert_eq!(scope.exec("own", ["cat", "/data/letter"])?, "hello\n");
        end(&scope, "own").await?;
        end(&scope, "user").await?;
        nothing_left(&scope).await
    });
}

#[test]
fn what_can_t_be_mounted_has_an_event_with_the_text_that_flex_volumes_have() {
    on_own_nodes("mount-csi-refused", async |scope| {
        let source = scope.volume_name("nowhere");
        let cases = [
            (
                "type",
                json!({"client": "local", "source": source, "fs-type": "btrfs"}),
                "use ext4 or xfs",
            ),
            (
                "missing",
                json!({"client": "local", "source": source}),
                "there is no image file",
            ),
            ("typo", json!({"client": "local", "sourec": source}), "sourec"),
            ("nobody", json!({"client": "nobodys", "source": "x"}), "mounter-config"),
        ];
        for (name, options, _) in &cases {
            scope.csi_volume(name, options, &Value::Null)?;
            scope.pod(name, NODE, name, Value::Null)?;
        }
        for (name, _, words) in &cases {
            scope.event(name, words).await?;
        }
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        for (name, _, _) in &cases {
            end(&scope, name).await?;
        }
        nothing_left(&scope).await
    });
}
