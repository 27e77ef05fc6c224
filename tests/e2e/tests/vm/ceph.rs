//! Volumes of Ceph that one node mounts with its kernel, and another, whose kernel has no Ceph, with a program: CephFS
//! and images. The first node is a virtual machine with Debian's stock kernel and nothing else of Ceph; the cluster is
//! a real one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_contract::names::{NAMESPACE, labels};
use mooring_harness::ceph::{IN_EVERY_KEY, WRONG_KEY, key_of};
use mooring_harness::guest_node::{MACHINE_NODE, with_machine_node};
use mooring_harness::provisioner::{claim, options_of, user_of};
use mooring_harness::{Scope, wait_until};
use mooring_testbed::command::output;
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

/// The client in the nodes' Secret.
const NODES: &str = "cephfs-nodes";

/// Longest for what a container does when it starts there: starting a process takes thirty times as long.
const START_LIMIT: Duration = Duration::from_mins(5);

/// Longest until Pods are gone while the whole cluster hangs.
const GONE_LIMIT: Duration = Duration::from_mins(5);

/// Lists the machine's images that the kernel has as devices.
const DEVICES: &str = "ls /sys/bus/rbd/devices";

/// Ends the machine's client containers, by their agents.
const KILL: &str = "for process in /proc/[0-9]*; do
        case $(tr '\\0' ' ' <$process/cmdline 2>/dev/null) in
        '/run/mooring/mounter agent'*) kill -9 ${process#/proc/} ;;
        esac
    done";

fn user_on(node: &str, name: &str) -> Value {
    let mut user = user_of(name, "data", "sleep 1000000");
    user["spec"]["nodeName"] = node.into();
    user["spec"]["terminationGracePeriodSeconds"] = 1.into();
    user
}

/// The type of a Pod's file system at `/data`, from the kernel's mount table.
fn type_in(scope: &Scope, pod: &str) -> Result<String> {
    let mounted = scope.exec(pod, ["grep", " /data ", "/proc/mounts"])?;
    ensure!(mounted.contains("nosuid") && mounted.contains("nodev"), "{mounted}");
    let fs_type = mounted.split(' ').nth(2).context("no type")?;
    Ok(fs_type.to_owned())
}

fn no_key_is_seen(scope: &Scope) -> Result<()> {
    for place in ["/proc/[0-9]*/mounts", "/proc/[0-9]*/cmdline"] {
        let seen = scope.on_machine(&format!("cat {place} 2>/dev/null | tr '\\0' ' '; true"))?;
        ensure!(!seen.contains(IN_EVERY_KEY), "a key is in {place}");
    }
    Ok(())
}

/// The restarts of the machine's client containers.
fn restarts(scope: &Scope) -> Result<String> {
    let selector = format!("--selector={}=cephfs,{}={MACHINE_NODE}", labels::CLIENT, labels::NODE);
    let path =
        "jsonpath={.items[*].status.containerStatuses[*].restartCount}{.items[*].status.containerStatuses[*].ready}";
    let mut get = scope
        .target
        .kubectl(["-n", NAMESPACE, "get", "pods", &selector, "-o", path]);
    Ok(output(&mut get)?)
}

/// Kills the client container while the volume is written to.
async fn killed(scope: &Scope) -> Result<()> {
    let before = scope.mounts_on_machine()?;
    let began = restarts(scope)?;
    ensure!(began == "0true", "{began}");
    // It ends at the first write that fails.
    let beat =
        "n=0; while n=$((n + 1)); do echo $n >/data/beat && sync /data/beat || exit; sleep 1; done >/dev/null 2>&1 &";
    scope.exec("writer", ["sh", "-c", beat])?;
    scope.on_machine(KILL)?;
    // Each write truncates the file first.
    let count = async || -> Result<u64> {
        wait_until("a number that was written", START_LIMIT, async || {
            let written = scope.exec("writer", ["cat", "/data/beat"])?;
            let number = written.trim();
            (!number.is_empty())
                .then(|| number.parse().with_context(|| format!("{written:?}")))
                .transpose()
        })
        .await
    };
    wait_until("the client container to be back", START_LIMIT, async || {
        Ok((restarts(scope)? == "1true").then_some(()))
    })
    .await?;
    let back = count().await?;
    wait_until("more writes", START_LIMIT, async || {
        Ok((count().await? > back).then_some(()))
    })
    .await?;
    ensure!(scope.mounts_on_machine()? == before, "it was mounted again");
    Ok(())
}

/// An image of a pool: the kernel's device on the machine, and a program's on a node whose kernel lacks the driver.
async fn image(scope: &Scope, server: &str) -> Result<()> {
    let user = "rbd-nodes";
    scope.on_ceph("rbd create --size 64M rbd/both")?;
    scope.ceph_secret(&scope.namespace, "rbd-key", user, key_of(user))?;
    let volume = json!({"client": "rbd", "source": format!("rbd://{server}/rbd/both"), "secret": "rbd-key"});
    scope.volume("image", &volume)?;
    scope.pod("first", MACHINE_NODE, "image", Value::Null)?;
    scope.pod_ready("first").await?;
    let mounts = scope.mounts_on_machine()?;
    let by_kernel = |line: &&String| line.contains(" - ext4 /run/mooring-devices/rbd") && line.contains("nosuid");
    ensure!(mounts.iter().filter(by_kernel).count() == 1, "{mounts:?}");
    no_key_is_seen(scope)?;
    scope.exec("first", ["sh", "-c", "head -c 4m /dev/urandom >/data/file; sync"])?;
    let sum = scope.exec("first", ["sha256sum", "/data/file"])?;

    scope.pod("beside", MACHINE_NODE, "image", Value::Null)?;
    scope.pod_ready("beside").await?;
    ensure!(scope.exec("beside", ["sha256sum", "/data/file"])? == sum, "other data");
    ensure!(scope.on_machine(DEVICES)?.lines().count() == 1, "a second device");
    scope.delete("pod/beside")?;
    scope.pod_gone("beside").await?;

    scope.pod("second", "node-1", "image", Value::Null)?;
    scope.event("second", "another node has this volume mounted").await?;
    scope.delete("pod/first")?;
    scope.pod_gone("first").await?;
    wait_until("the device to be removed", START_LIMIT, async || {
        Ok(scope.on_machine(DEVICES)?.trim().is_empty().then_some(()))
    })
    .await?;
    scope.pod_ready("second").await?;
    ensure!(scope.exec("second", ["sha256sum", "/data/file"])? == sum, "other data");
    scope.delete("pod/second")?;
    scope.pod_gone("second").await?;

    // A mount that fails leaves nothing behind.
    scope.volume("none", &json!({"client": "rbd", "source": format!("rbd://{server}/rbd/none"), "secret": "rbd-key", "driver": "kernel"}))?;
    scope.pod("none", MACHINE_NODE, "none", Value::Null)?;
    scope.event("none", "failed to open the image rbd/none").await?;
    scope.delete("pod/none")?;
    scope.pod_gone("none").await?;
    ensure!(scope.on_machine(DEVICES)?.trim().is_empty(), "a device is left");
    Ok(())
}

/// Creates a Pod of the machine that has a claim's image as a device.
fn with_device(scope: &Scope, name: &str, claim: &str) -> Result<()> {
    let main = json!({
        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
        "volumeDevices": [{"name": "data", "devicePath": "/dev/disk"}],
    });
    let more = json!({"containers": [main], "terminationGracePeriodSeconds": 1});
    scope.pod(name, MACHINE_NODE, claim, more)
}

/// An image as a raw block volume: the kernel's device itself, one for all Pods. It outlives the client container, and grows
/// in use.
async fn the_kernel_s_device_itself(scope: &Scope, server: &str) -> Result<()> {
    scope.on_ceph("rbd create --size 64M rbd/raw")?;
    let options = json!({"client": "rbd", "source": format!("rbd://{server}/rbd/raw"), "secret": "rbd-key"});
    scope.csi_volume("raw", &options, &json!({"volumeMode": "Block"}))?;
    with_device(scope, "raw", "raw")?;
    scope.pod_ready("raw").await?;
    ensure!(scope.on_machine(DEVICES)?.lines().count() == 1, "not by the kernel");
    let in_pod = |script: &str| scope.exec("raw", ["sh", "-c", script]);
    let write = |text: &str| format!("echo {text} | dd of=/dev/disk bs=512 seek=9 conv=notrunc,fsync 2>&1");
    let read = "dd if=/dev/disk bs=512 skip=9 count=1 2>/dev/null | head -n 1; blockdev --getsize64 /dev/disk";
    in_pod(&write("hello"))?;
    ensure!(in_pod(read)? == "hello\n67108864\n", "{}", in_pod(read)?);
    with_device(scope, "beside", "raw")?;
    scope.pod_ready("beside").await?;
    ensure!(
        scope.on_machine(DEVICES)?.lines().count() == 1,
        "a second device of one image"
    );
    ensure!(scope.exec("beside", ["sh", "-c", read])? == "hello\n67108864\n");
    scope.delete("pod/beside")?;
    scope.pod_gone("beside").await?;

    scope.on_machine(KILL)?;
    in_pod(&write("still"))?;
    scope.on_ceph("rbd resize --no-progress --size 96M rbd/raw")?;
    let capacity = json!({"spec": {"capacity": {"storage": "96Mi"}}}).to_string();
    scope.kubectl(["patch", "pv", &scope.volume_name("raw"), "-p", &capacity])?;
    scope.kubectl(["annotate", "pod", "raw", "testbed.mooring.dev/look=now"])?;
    wait_until("the Pod to see the new size", START_LIMIT, async || {
        Ok((in_pod(read)? == "still\n100663296\n").then_some(()))
    })
    .await?;
    scope.delete("pod/raw")?;
    scope.pod_gone("raw").await?;
    wait_until("the device to be removed", START_LIMIT, async || {
        Ok(scope.on_machine(DEVICES)?.trim().is_empty().then_some(()))
    })
    .await
}

/// Deletes Pods that write all the time, with the kernel's client and with programs, while nothing of the cluster
/// answers. It comes last, since a stopped Ceph needs minutes to recover.
async fn deleted_while_all_of_ceph_hangs(scope: &Scope, server: &str) -> Result<()> {
    let directory = json!({"client": "cephfs", "source": format!("{server}:/volumes/mooring"), "secret": "key"});
    let image = |name: &str| {
        let source = format!("rbd://{server}/rbd/{name}");
        json!({"client": "rbd", "source": source, "secret": "rbd-key", "io-timeout": "20"})
    };
    let pods = [
        ("by-kernel", MACHINE_NODE, "ceph", &directory),
        ("by-fuse", "node-1", "fuse.ceph-fuse", &directory),
        ("image-by-kernel", MACHINE_NODE, "ext4", &image("kernel")),
        ("image-by-qemu", "node-1", "ext4", &image("qemu")),
    ];
    scope.on_ceph("rbd create --size 64M rbd/kernel; rbd create --size 64M rbd/qemu")?;
    for (pod, node, _, volume) in pods {
        scope.volume(pod, volume)?;
        scope.pod(pod, node, pod, Value::Null)?;
    }
    for (pod, _, fs_type, _) in pods {
        // An image gets its file system first, which takes a while there.
        scope.pod_ready(pod).await?;
        ensure!(type_in(scope, pod)? == fs_type, "not {fs_type}");
        let writes =
            format!("(while :; do date >>/data/of-{pod}; sync /data/of-{pod}; sleep 1; done) >/dev/null 2>&1 &");
        scope.exec(pod, ["sh", "-c", &writes])?;
    }
    scope.on_ceph("rbd create --size 64M rbd/device")?;
    scope.csi_volume("device-by-kernel", &image("device"), &json!({"volumeMode": "Block"}))?;
    with_device(scope, "device-by-kernel", "device-by-kernel")?;
    scope.pod_ready("device-by-kernel").await?;
    let writes = "(while date | dd of=/dev/disk bs=512 conv=notrunc,fsync; do sleep 1; done) >/dev/null 2>&1 &";
    scope.exec("device-by-kernel", ["sh", "-c", writes])?;
    let stopped = scope.stop("ceph").await?;
    let file_systems = ["by-kernel", "by-fuse"];
    let images = ["image-by-kernel", "image-by-qemu", "device-by-kernel"];
    let deleted = [&images[..], &file_systems].concat();
    scope.deleted_within(&deleted, GONE_LIMIT).await?;
    scope.say_given_up(&file_systems).await?;
    // The kernel tells the cluster that it lets the image go, and waits for its answer. At the end of the test there is
    // no cluster any more.
    drop(stopped);
    let continued = Instant::now();
    wait_until("the kernel to let the image go", GONE_LIMIT, async || {
        Ok(scope.on_machine(DEVICES)?.trim().is_empty().then_some(()))
    })
    .await?;
    note(format!(
        "the image was let go {} after Ceph went on",
        spoken(continued.elapsed())
    ));
    Ok(())
}

async fn both_ways(scope: &Scope) -> Result<()> {
    let server = scope.ceph("node-1", "cephfs").await?;
    // The image that talks to the cluster is on that node.
    let provisioner = scope
        .ceph_example("cephfs", &server)?
        .key("node-selector", "kubernetes.io/hostname=node-1");
    provisioner.apply().await?;
    let mut wanted = claim("data", &provisioner.class, "16Mi");
    wanted["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    let uid = scope.claim_with(None, &wanted).await?;
    scope.claim_bound("data").await?;
    let bound = Instant::now();
    scope.apply(&user_on("node-1", "reader").to_string())?;
    scope.apply(&user_on(MACHINE_NODE, "writer").to_string())?;
    scope.pod_ready("writer").await?;
    note(format!(
        "a Pod had CephFS by the kernel after {}",
        spoken(bound.elapsed())
    ));

    // Each uses the other's kind: one is forced, one is impossible, one lacks a right.
    let volume = scope.provisioned(&uid).await?.context("no volume")?;
    let source = options_of(&volume)?.remove("source").context("no source")?;
    scope.ceph_secret(&scope.namespace, "key", NODES, key_of(NODES))?;
    scope.ceph_secret(&scope.namespace, "wrong", NODES, WRONG_KEY)?;
    let with = |secret: &str, key: &str, value: &str| json!({"client": "cephfs", "source": source, "secret": secret, key: value});
    scope.volume("forced", &with("key", "driver", "fuse"))?;
    scope.volume("newer", &with("key", "mount-options", "ro,ms_mode=prefer-crc"))?;
    scope.volume("stranger", &with("wrong", "driver", "kernel"))?;
    scope.volume("lacking", &with("key", "driver", "kernel"))?;
    for pod in ["forced", "newer", "stranger"] {
        scope.pod(pod, MACHINE_NODE, pod, Value::Null)?;
    }
    scope.pod("lacking", "node-1", "lacking", Value::Null)?;

    ensure!(type_in(scope, "writer")? == "ceph");
    scope.exec("writer", ["sh", "-c", "echo hello >/data/letter; sync /data/letter"])?;
    scope.pod_ready("reader").await?;
    ensure!(type_in(scope, "reader")? == "fuse.ceph-fuse");
    ensure!(scope.exec("reader", ["cat", "/data/letter"])? == "hello\n");
    scope.event("lacking", "the kernel of this node has no ceph").await?;
    scope.event("stranger", "does not know user cephfs-nodes").await?;
    scope.pod_ready("forced").await?;
    ensure!(type_in(scope, "forced")? == "fuse.ceph-fuse");
    scope.pod_ready("newer").await?;
    ensure!(type_in(scope, "newer")? == "ceph");
    let shown = scope.exec("newer", ["sh", "-c", "cat /data/letter; touch /data/x 2>&1; true"])?;
    ensure!(
        shown.contains("hello") && shown.contains("Read-only file system"),
        "{shown}"
    );
    no_key_is_seen(scope)?;
    for pod in ["forced", "newer", "stranger", "lacking"] {
        scope.delete(&format!("pod/{pod}"))?;
    }
    for pod in ["forced", "newer", "stranger", "lacking"] {
        scope.pod_gone(pod).await?;
    }

    let full = scope.exec("writer", ["sh", "-c", "truncate -s 64M /data/big 2>&1; true"])?;
    ensure!(full.contains("quota exceeded"), "{full}");
    // The server accounts for data after some seconds.
    let more = "for _ in $(seq 60); do head -c 1m /dev/zero && sync /data/big && sleep 0.3 || exit 0; done \
                >>/data/big; exit 1";
    scope.exec("writer", ["sh", "-c", more])?;
    scope.exec("writer", ["rm", "/data/big"])?;
    killed(scope).await?;

    for pod in ["writer", "reader"] {
        scope.delete(&format!("pod/{pod}"))?;
    }
    for pod in ["writer", "reader"] {
        scope.pod_gone(pod).await?;
    }
    scope.claim_gone("data").await?;
    scope.nothing_left(&uid).await?;
    let left = scope.on_ceph("ceph fs subvolume ls cephfs --group_name mooring")?;
    ensure!(left.trim() == "[]", "{left}");

    image(scope, &server.address).await?;
    the_kernel_s_device_itself(scope, &server.address).await?;
    deleted_while_all_of_ceph_hangs(scope, &server.address).await?;
    let mounts = scope.mounts_on_machine()?;
    ensure!(mounts.is_empty(), "{mounts:?}");
    Ok(())
}

#[test]
fn the_kernel_mounts_ceph_volumes_where_it_can_and_a_program_does_elsewhere() {
    with_machine_node("vm-ceph", async |scope| {
        scope.require_mooring().await?;
        Box::pin(both_ways(&scope)).await
    });
}
