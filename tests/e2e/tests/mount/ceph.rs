//! Volumes of a Ceph cluster on nodes without any Ceph program or kernel driver: directories by ceph-fuse and images by
//! qemu-storage-daemon, each in a client container. The image `ceph` creates them.

mod cephfs_copies;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_harness::ceph::{IN_EVERY_KEY, WRONG_KEY, key_of};
use mooring_harness::nodes::on_two_nodes;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim, options_of, user_of};
use mooring_harness::snapshots::snapshot_of;
use mooring_harness::{Scope, is_whole_suite, skipped_without_all, wait_until};
use serde_json::{Value, json};

/// Longest until a Pod sees that its device was made larger.
const GROWN_LIMIT: Duration = Duration::from_mins(2);

const PROGRAMS: &str = "ceph-fuse mount.ceph rbd qemu-storage-daemon";

/// Fails if a key can be seen on a node of the testbed's own cluster.
fn no_key_is_seen(scope: &Scope, node: u8) -> Result<()> {
    if scope.target.own_cluster().is_none() {
        return Ok(());
    }
    for place in ["/proc/mounts", "/proc/*/cmdline"] {
        let seen = scope.on_node(node, &format!("cat {place} 2>/dev/null | tr '\\0' ' '; true"))?;
        assert!(!seen.contains(IN_EVERY_KEY), "a key is in {place}");
    }
    Ok(())
}

/// The source of a claim's volume.
async fn source_of(scope: &Scope, uid: &str) -> Result<String> {
    let volume = scope.provisioned(uid).await?.context("no volume")?;
    let options = options_of(&volume)?;
    assert!(!format!("{options:?}").contains(IN_EVERY_KEY), "{options:?}");
    options.get("source").cloned().context("no source")
}

/// Starts a Pod for each volume (name, source, Secret), none of which can be mounted, and waits until its Events have
/// the words.
async fn are_refused(scope: &Scope, node: &str, client: &str, volumes: &[(&str, &str, &str, &str)]) -> Result<()> {
    for (name, source, secret, _) in volumes {
        scope.volume(name, &json!({"client": client, "source": source, "secret": secret}))?;
        scope.pod(name, node, name, Value::Null)?;
    }
    for (name, _, _, words) in volumes {
        let message = scope.event(name, words).await?.message.unwrap_or_default();
        assert!(!message.contains(IN_EVERY_KEY), "{message}");
    }
    for (name, ..) in volumes {
        scope.delete(&format!("pod/{name}"))?;
        scope.pod_gone(name).await?;
    }
    Ok(())
}

fn user_on(node: &str, name: &str) -> Value {
    let mut user = user_of(name, "data", "sleep 1000000");
    user["spec"]["nodeName"] = node.into();
    user
}

/// Deletes a ConfigMap, and waits until the class of what it has discovered is gone with it, and the run.
fn classes_gone_with(scope: &Scope, provisioner: &Provisioner, thing: &str) -> Result<()> {
    provisioner.delete()?;
    let class = format!("storageclass/{}-{thing}", provisioner.class);
    scope.kubectl(["wait", "--for=delete", "--timeout=180s", &class])?;
    let runs = format!("-l=mooring.dev/config-name={}", provisioner.name);
    let there = format!("-n={CONFIG_NAMESPACE}");
    scope.kubectl(["wait", "--for=delete", "--timeout=180s", &there, "pods", &runs])?;
    Ok(())
}

#[test]
fn a_cephfs_claim_is_written_on_one_node_read_on_another_held_to_its_size_and_gone() {
    on_two_nodes("mount-cephfs", async |scope, [one, two]| {
        scope.nodes_lack(PROGRAMS)?;
        let server = scope.ceph(&one, "cephfs").await?;
        let provisioner = scope.ceph_example("cephfs", &server)?;
        provisioner.apply().await?;
        let mut wanted = claim("data", &provisioner.class, "16Mi");
        wanted["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        let uid = scope.claim_with(None, &wanted).await?;
        scope.claim_bound("data").await?;

        let mut writer = user_on(&one, "writer");
        writer["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsNonRoot": true});
        scope.apply(&writer.to_string())?;
        scope.pod_ready("writer").await?;
        scope.exec("writer", ["sh", "-c", "echo hello >/data/letter"])?;
        scope.apply(&user_on(&two, "reader").to_string())?;
        scope.pod_ready("reader").await?;
        assert_eq!(scope.exec("reader", ["cat", "/data/letter"])?, "hello\n");
        no_key_is_seen(&scope, 1)?;

        let full = scope.exec("writer", ["sh", "-c", "truncate -s 64M /data/big 2>&1; true"])?;
        assert!(full.contains("quota exceeded"), "{full}");
        // The cluster accounts for data from another node after some seconds.
        let more = "for _ in $(seq 60); do head -c 1m /dev/zero && sync /data/big && sleep 0.3 || exit 0; done \
                    >>/data/big; exit 1";
        scope.exec("writer", ["sh", "-c", more])?;

        let source = source_of(&scope, &uid).await?;
        let nodes = "cephfs-nodes";
        scope.ceph_secret(&scope.namespace, "key", nodes, key_of(nodes))?;
        scope.ceph_secret(&scope.namespace, "wrong", nodes, WRONG_KEY)?;
        let options = json!({"client": "cephfs", "source": source, "mount-options": "ro,noatime", "secret": "key"});
        scope.volume("fixed", &options)?;
        scope.pod("looker", &two, "fixed", Value::Null)?;
        scope.pod_ready("looker").await?;
        let refused = scope.exec("looker", ["sh", "-c", "cat /data/letter; touch /data/x 2>&1; true"])?;
        assert!(
            refused.contains("hello") && refused.contains("Read-only file system"),
            "{refused}"
        );
        let mounted = scope.exec("looker", ["grep", " /data ", "/proc/mounts"])?;
        for word in ["mooring:", "fuse.ceph-fuse", "ro,", "nosuid", "nodev", "noatime"] {
            assert!(mounted.contains(word), "{word} is not in {mounted}");
        }
        let at = |path: &str| format!("{}:{path}", server.address);
        let refused = [
            ("wrong-key", source.as_str(), "wrong", "does not know user cephfs-nodes"),
            ("not-allowed", &at("/"), "key", "may not use the directory /"),
            (
                "no-directory",
                &at("/volumes/mooring/no"),
                "key",
                "has no directory /volumes/mooring/no",
            ),
            (
                "no-server",
                "192.0.2.1:/",
                "key",
                "whether the monitors 192.0.2.1 are up",
            ),
        ];
        are_refused(&scope, &two, "cephfs", &refused).await?;

        for pod in ["writer", "reader", "looker"] {
            scope.delete(&format!("pod/{pod}"))?;
            scope.pod_gone(pod).await?;
        }
        let list = "ceph fs subvolume ls cephfs --group_name mooring";
        assert!(scope.on_ceph(list)?.contains(&uid));
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        assert_eq!(scope.on_ceph(list)?.trim(), "[]");

        let discovering = provisioner.key("operations", "provision, delete, expand, discover");
        discovering.apply().await?;
        discovering.status("1 storage class by discovery").await?;
        classes_gone_with(&scope, &discovering, "cephfs")?;
        if is_whole_suite() {
            cephfs_copies::are_made_while_a_volume_is_written_and_outlive_it(&scope, &server, [&one, &two]).await?;
        }
        Ok(())
    });
}

/// An image as a raw block volume: written by a Pod on one node, and made larger in use; then read by one on another
/// node, and larger again.
async fn as_a_device(scope: &Scope, server: &str, nodes: [&str; 2]) -> Result<()> {
    scope.on_ceph("rbd create --size 64M rbd/device")?;
    let source = format!("rbd://{server}/rbd/device");
    let options = json!({"client": "rbd", "source": source, "secret": "key"});
    scope.csi_volume("device", &options, &json!({"volumeMode": "Block"}))?;
    let write = "echo hello | dd of=/dev/disk bs=512 seek=9 conv=notrunc,fsync 2>&1";
    let read = "dd if=/dev/disk bs=512 skip=9 count=1 2>/dev/null | head -n 1; blockdev --getsize64 /dev/disk";
    // The kernel drops the file's new size where a write overtakes it, and keeps the old one a while for a read.
    let busy = "while :; do
            dd if=/dev/disk of=/dev/null bs=512 count=1 iflag=direct
            dd if=/dev/zero of=/dev/disk bs=512 seek=99 count=1 oflag=direct conv=notrunc
            usleep 20000
        done 2>/dev/null";
    for (pod, node, script, wanted) in [("writes", nodes[0], write, "64M"), ("reads", nodes[1], read, "128M")] {
        let main = json!({
            "name": "main", "image": "busybox:1", "command": ["sh", "-c", busy],
            "volumeDevices": [{"name": "data", "devicePath": "/dev/disk"}],
        });
        scope.on_ceph(&format!(
            "[ {wanted} = 64M ] || rbd resize --no-progress --size {wanted} rbd/device"
        ))?;
        scope.pod(pod, node, "device", json!({"containers": [main]}))?;
        scope.pod_ready(pod).await?;
        let said = scope.exec(pod, ["sh", "-euc", script])?;
        if pod == "writes" {
            scope.on_ceph("rbd resize --no-progress --size 96M rbd/device")?;
            let capacity = json!({"spec": {"capacity": {"storage": "96Mi"}}}).to_string();
            scope.kubectl(["patch", "pv", &scope.volume_name("device"), "-p", &capacity])?;
            // The kubelet looks at a Pod's volumes when the Pod changes, and else every minute or so.
            scope.kubectl(["annotate", "pod", pod, "testbed.mooring.dev/look=now"])?;
            wait_until("the Pod to see the new size", GROWN_LIMIT, async || {
                let said = scope.exec(pod, ["sh", "-euc", read])?;
                Ok((said == "hello\n100663296\n").then_some(()))
            })
            .await?;
            // The program takes the image's size, and never gives it one.
            ensure!(scope.on_ceph("rbd info rbd/device")?.contains("size 96 MiB"));
        } else {
            ensure!(said == "hello\n134217728\n", "{said}");
        }
        scope.delete(&format!("pod/{pod}"))?;
        scope.pod_gone(pod).await?;
    }
    Ok(())
}

/// The claim's volume is made of another object's content.
fn made_of(name: &str, class: &str, size: &str, source: Value) -> Value {
    let mut claim = claim(name, class, size);
    claim["spec"]["dataSource"] = source;
    claim
}

/// The snapshot of [`take_on_monday`], as the source of a claim.
fn monday() -> Value {
    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"})
}

/// Has Pod `first` write to claim `data`, before a snapshot of it is taken and after.
fn take_on_monday(scope: &Scope, snapshots: &str) -> Result<()> {
    scope.exec("first", ["sh", "-euc", "echo monday >/data/day; sync"])?;
    scope.apply(&snapshot_of("data", "monday", snapshots).to_string())?;
    let ready = "--for=jsonpath={.status.readyToUse}=true";
    scope.kubectl(["wait", ready, "--timeout=180s", "volumesnapshot/monday"])?;
    scope.exec("first", ["sh", "-euc", "echo tuesday >/data/day; sync"])?;
    Ok(())
}

/// Restores the snapshot `monday`, which was taken while a Pod wrote, as a claim `readers` that Pods of both nodes read
/// at the same time, with what the journal of its file system holds. Returns the claim's uid.
async fn read_on_all(scope: &Scope, class: &str, nodes: [&str; 2]) -> Result<String> {
    let mut blank = claim("blank", class, "320Mi");
    blank["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
    scope.claim_with(None, &blank).await?;
    scope
        .event("blank", "ask for a copy of another claim or of a snapshot")
        .await?;

    let mut readers = made_of("readers", class, "320Mi", monday());
    readers["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
    let uid = scope.claim_with(None, &readers).await?;
    scope.claim_bound("readers").await?;
    let pods = ["reader-one", "reader-two"];
    for (pod, node) in pods.into_iter().zip(nodes) {
        scope.pod(pod, node, "readers", Value::Null)?;
    }
    for pod in pods {
        scope.pod_ready(pod).await?;
    }
    for pod in pods {
        ensure!(scope.exec(pod, ["cat", "/data/day"])? == "monday\n", "{pod}");
        let said = scope.exec(pod, ["sh", "-c", "touch /data/new 2>&1 || true"])?;
        ensure!(said.contains("Read-only file system"), "{pod} wrote: {said}");
    }
    for pod in pods {
        scope.delete(&format!("pod/{pod}"))?;
        scope.pod_gone(pod).await?;
    }
    scope.claim_gone("blank").await?;
    Ok(uid)
}

#[test]
fn an_rbd_volume_is_copied_while_it_is_written_and_its_copies_and_snapshots_outlive_it() {
    if skipped_without_all() {
        return;
    }
    on_two_nodes("mount-rbd-copies", async |scope, [one, two]| {
        let _controller = scope.snapshot_controller()?;
        let server = scope.ceph(&one, "rbd").await?;
        let operations = "provision, delete, expand, clone, snapshot, delete-snapshot, restore";
        let provisioner = scope
            .ceph_example("rbd", &server)?
            .key("volume-source", "csi")
            .key("operations", operations);
        provisioner.apply().await?;
        let snapshots = scope.snapshot_class("Delete")?;
        // ext4 grows only where the machine lets its containers have CAP_SYS_RESOURCE.
        let class = provisioner.class_of("xfs")?;
        let uid = scope.claim("data", &class, "320Mi").await?;
        scope.apply(&user_on(&one, "first").to_string())?;
        scope.pod_ready("first").await?;
        take_on_monday(&scope, &snapshots)?;
        let copies = [
            ("restored", "384Mi", monday(), "monday\n"),
            (
                "copy",
                "320Mi",
                json!({"kind": "PersistentVolumeClaim", "name": "data"}),
                "tuesday\n",
            ),
        ];
        let mut uids = Vec::new();
        for (name, size, source, day) in copies {
            uids.push(scope.claim_with(None, &made_of(name, &class, size, source)).await?);
            scope.claim_bound(name).await?;
            scope.pod(name, &two, name, Value::Null)?;
            scope.pod_ready(name).await?;
            ensure!(scope.exec(name, ["cat", "/data/day"])? == day, "{name}");
        }
        let kibibytes = |pod: &str| {
            let said = scope.exec(pod, ["sh", "-c", "df -kP /data | tail -n 1 | awk '{ print $2 }'"])?;
            anyhow::Ok(said.trim().parse::<u64>()?)
        };
        let (first, restored) = (kibibytes("first")?, kibibytes("restored")?);
        ensure!(restored >= first + (60 << 10), "{restored} KiB instead of {first} KiB");

        uids.push(read_on_all(&scope, &class, [&one, &two]).await?);

        // It goes before what was made of it, which shares its data until then, while Pods use that.
        let shared = scope.on_ceph(&format!("rbd children --all rbd/pvc-{uid}"))?;
        ensure!(shared.lines().count() == 2, "{shared}");
        scope.delete("pod/first")?;
        scope.pod_gone("first").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        let images = scope.on_ceph("rbd ls rbd; rbd trash ls --all rbd")?;
        ensure!(!images.contains(&uid) && images.lines().count() == 4, "{images}");
        scope.claim_gone("readers").await?;
        for (name, day) in [("restored", "monday\n"), ("copy", "tuesday\n")] {
            ensure!(scope.exec(name, ["cat", "/data/day"])? == day, "{name}");
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
            scope.claim_gone(name).await?;
        }
        scope.kubectl(["delete", "--timeout=180s", "volumesnapshot/monday"])?;
        for uid in uids {
            scope.nothing_left(&uid).await?;
        }
        wait_until("no image to be left", GROWN_LIMIT, async || {
            let images = scope.on_ceph("rbd ls rbd; rbd trash ls --all rbd")?;
            Ok(images.is_empty().then_some(()))
        })
        .await
    });
}

#[test]
fn an_rbd_volume_is_mounted_by_a_client_container_one_node_at_a_time_and_gone_with_its_claim() {
    on_two_nodes("mount-rbd", async |scope, [one, two]| {
        scope.nodes_lack(PROGRAMS)?;
        let server = scope.ceph(&one, "rbd").await?;
        let provisioner = scope.ceph_example("rbd", &server)?;
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
        scope.claim_bound("data").await?;

        scope.apply(&user_on(&one, "first").to_string())?;
        scope.pod_ready("first").await?;
        scope.exec("first", ["sh", "-c", "head -c 8m /dev/urandom >/data/file"])?;
        let sum = scope.exec("first", ["sha256sum", "/data/file"])?;
        let full = scope.exec(
            "first",
            ["sh", "-c", "dd if=/dev/zero of=/data/big bs=1M 2>&1; rm /data/big"],
        )?;
        assert!(full.contains("No space left on device"), "{full}");
        no_key_is_seen(&scope, 1)?;

        let nodes = "rbd-nodes";
        scope.ceph_secret(&scope.namespace, "key", nodes, key_of(nodes))?;
        scope.ceph_secret(&scope.namespace, "wrong", nodes, WRONG_KEY)?;
        let source = source_of(&scope, &uid).await?;
        let none = format!("rbd://{}/rbd/none", server.address);
        let refused = [
            (
                "wrong-key",
                source.as_str(),
                "wrong",
                "user rbd-nodes with the key in the volume's Secret",
            ),
            ("no-image", none.as_str(), "key", "failed to open the image rbd/none"),
        ];
        are_refused(&scope, &two, "rbd", &refused).await?;

        // The cluster would admit a second node; the file system does not.
        scope.apply(&user_on(&two, "second").to_string())?;
        scope.event("second", "another node has this volume mounted").await?;
        scope.delete("pod/first")?;
        scope.pod_gone("first").await?;
        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/file"])?, sum);

        scope.delete("pod/second")?;
        scope.pod_gone("second").await?;
        as_a_device(&scope, &server.address, [&one, &two]).await?;
        assert!(scope.on_ceph("rbd ls rbd")?.contains(&uid));
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        assert_eq!(scope.on_ceph("rbd ls rbd; rbd trash ls rbd")?, "device\n");

        // A class for each pool that is meant for images.
        let discovering = provisioner.key("operations", "provision, delete, expand, discover");
        discovering.apply().await?;
        discovering.status("1 storage class by discovery").await?;
        let uid = scope
            .claim("pooled", &format!("{}-rbd", discovering.class), "48Mi")
            .await?;
        scope.claim_bound("pooled").await?;
        assert!(scope.on_ceph("rbd ls rbd")?.contains(&uid));
        scope.claim_gone("pooled").await?;
        scope.nothing_left(&uid).await?;
        classes_gone_with(&scope, &discovering, "rbd")?;
        Ok(())
    });
}
