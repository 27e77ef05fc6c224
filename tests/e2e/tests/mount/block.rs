//! Block devices of a server, on nodes without program or kernel module for them: client `block` with iSCSI and NBD,
//! and the image `tgt`, which creates iSCSI targets on a server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_contract::names::NAMESPACE;
use mooring_harness::clients::{BLOCK_CLIENT_IMAGE, client_pods_of, own_image, remove_image};
use mooring_harness::iscsi::PASSWORD;
use mooring_harness::nodes::{on_own_nodes, on_two_nodes};
use mooring_harness::processes::kill_all;
use mooring_harness::provisioner::user_of;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::command::output;
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

/// Longest until a Pod whose server hangs is gone, on a slow machine: its requests fail after the test's `io-timeout`.
const HANG_LIMIT: Duration = Duration::from_mins(4);

/// Longest until a volume that was mounted again can be used.
const REVIVE_LIMIT: Duration = Duration::from_mins(2);

fn user_on(node: &str, name: &str) -> Value {
    let mut user = user_of(name, "data", "sleep 1000000");
    user["spec"]["nodeName"] = node.into();
    user
}

#[test]
fn an_iscsi_volume_is_mounted_by_a_client_container_one_node_at_a_time_and_gone_with_its_claim() {
    on_two_nodes("mount-block", async |scope, [one, two]| {
        scope.nodes_lack("iscsiadm qemu-storage-daemon")?;
        let (_, provisioner) = scope.iscsi_example(&one).await?;
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
        if scope.target.own_cluster().is_some() {
            for place in ["/proc/mounts", "/proc/*/cmdline"] {
                let seen = scope.on_node(1, &format!("cat {place} 2>/dev/null | tr '\\0' ' '; true"))?;
                assert!(!seen.contains(PASSWORD), "the password is in {place}");
            }
        }

        // Kubernetes does not keep a second node from a volume without attaching; the file system does.
        scope.apply(&user_on(&two, "second").to_string())?;
        scope.event("second", "another node has this volume mounted").await?;
        scope.delete("pod/first")?;
        scope.pod_gone("first").await?;
        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/file"])?, sum);

        scope.delete("pod/second")?;
        scope.pod_gone("second").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        let left = scope.exec("tgt", ["sh", "-c", "ls /srv/volumes /etc/tgt/conf.d; tgt-admin --show"])?;
        assert!(!left.contains(&uid), "{left}");
        Ok(())
    });
}

#[test]
fn a_raw_volume_shows_the_device_as_a_file_and_again_after_its_daemon_is_killed() {
    on_own_nodes("mount-raw", async |scope| {
        let (_, provisioner) = scope.iscsi_example("node-1").await?;
        provisioner.apply().await?;
        let class = provisioner.class_of("raw")?;
        let uid = scope.claim("data", &class, "48Mi").await?;
        scope.claim_bound("data").await?;
        let mut first = user_on("node-1", "first");
        first["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 1000});
        scope.apply(&first.to_string())?;
        scope.pod_ready("first").await?;
        let size = scope.exec("first", ["stat", "-c", "%s", "/data/disk"])?;
        assert_eq!(size.trim(), (48 << 20).to_string());
        let write = "head -c 8m /dev/urandom | dd of=/data/disk bs=1M seek=4 conv=notrunc,fsync 2>&1";
        scope.exec("first", ["sh", "-c", write])?;
        let sum = scope.exec("first", ["sha256sum", "/data/disk"])?;

        // The one program of the first kind on this node, and of the others those for this volume.
        for daemon in ["nbdfuse", &format!("qemu-storage-daemon*{uid}")] {
            scope.on_node(
                1,
                &format!(
                    "killed=
                     for process in /proc/[0-9]*; do
                         case $(tr '\\0' ' ' <$process/cmdline 2>/dev/null) in
                         {daemon}*) kill -9 ${{process#/proc/}} && killed=1 || true ;;
                         esac
                     done
                     [ -n \"$killed\" ]"
                ),
            )?;
            let killed = Instant::now();
            let after = wait_until("the device to be shown again", REVIVE_LIMIT, async || {
                Ok(scope.exec("first", ["sha256sum", "/data/disk"]).ok())
            })
            .await?;
            assert_eq!(after, sum);
            note(format!(
                "shown again {} after {daemon} was killed",
                spoken(killed.elapsed())
            ));
        }
        let write = "head -c 512 /dev/urandom | dd of=/data/disk bs=512 conv=notrunc,fsync 2>&1";
        scope.exec("first", ["sh", "-c", write])?;
        let sum = scope.exec("first", ["sha256sum", "/data/disk"])?;

        scope.delete("pod/first")?;
        scope.pod_gone("first").await?;
        scope.apply(&user_on("node-2", "second").to_string())?;
        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/disk"])?, sum);
        scope.delete("pod/second")?;
        scope.pod_gone("second").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_pod_that_writes_to_a_device_whose_server_hangs_can_be_deleted() {
    on_own_nodes("mount-block-hung", async |scope| {
        let (_, provisioner) = scope.iscsi_example("node-1").await?;
        let provisioner = provisioner.key("io-timeout", "20");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
        scope.claim_bound("data").await?;
        let mut writer = user_of(
            "writer",
            "data",
            "while :; do date >>/data/dates; sync; sleep 0.5; done",
        );
        writer["spec"]["nodeName"] = "node-2".into();
        writer["spec"]["terminationGracePeriodSeconds"] = 1.into();
        scope.apply(&writer.to_string())?;
        scope.pod_ready("writer").await?;
        wait_until("it to write", HANG_LIMIT, async || {
            Ok(scope.exec("writer", ["test", "-s", "/data/dates"]).ok())
        })
        .await?;

        let stopped = scope.stop("tgt").await?;
        scope.deleted_within(&["writer"], HANG_LIMIT).await?;
        drop(stopped);
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_device_of_an_nbd_server_is_mounted_on_nodes_without_nbd() {
    on_two_nodes("mount-nbd", async |scope, [one, two]| {
        let address = scope.nbd_server(&one, "true").await?;
        let source = format!("nbd://{address}/disk");
        scope.volume("disk", &json!({"client": "block", "source": source}))?;
        scope.pod("first", &two, "disk", Value::Null)?;
        scope.pod_ready("first").await?;
        scope.exec("first", ["sh", "-c", "head -c 8m /dev/urandom >/data/file"])?;
        let sum = scope.exec("first", ["sha256sum", "/data/file"])?;
        scope.delete("pod/first")?;
        scope.pod_gone("first").await?;
        scope.pod("second", &one, "disk", Value::Null)?;
        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/file"])?, sum);

        let nowhere = format!("nbd://{address}/nowhere");
        scope.volume("nowhere", &json!({"client": "block", "source": nowhere}))?;
        scope.pod("nowhere", &two, "nowhere", Value::Null)?;
        scope.event("nowhere", "/nowhere: see whether the server is up").await?;
        let shown = json!({"client": "block", "source": source, "fs-type": "raw", "mount-options": "discard"});
        scope.volume("shown", &shown)?;
        scope.pod("shown", &two, "shown", Value::Null)?;
        scope
            .event("shown", "mount option discard is for a file system")
            .await?;
        for pod in ["second", "nowhere", "shown"] {
            scope.delete(&format!("pod/{pod}"))?;
            scope.pod_gone(pod).await?;
        }
        Ok(())
    });
}

#[test]
fn a_client_container_that_is_killed_leaves_no_loop_device() {
    on_own_nodes("mount-loop", async |scope| {
        let address = scope.nbd_server("node-1", "true").await?;
        let image = own_image(&scope, BLOCK_CLIENT_IMAGE, "loop")?;
        let source = format!("nbd://{address}/disk");
        scope.volume(
            "disk",
            &json!({"client": "block", "source": source, "client-image": image}),
        )?;
        scope.pod("user", "node-2", "disk", Value::Null)?;
        scope.pod_ready("user").await?;
        let device = scope.exec("user", ["sh", "-c", "grep ' /data ' /proc/mounts | cut -d' ' -f1"])?;
        let device = device.trim().strip_prefix("/dev/").context("no device")?;
        let attribute =
            |name: &str| scope.on_node(2, &format!("cat /sys/block/{device}/loop/{name} 2>/dev/null || true"));
        let file = attribute("backing_file")?;
        assert!(file.contains("/mooring/private/services/"), "{device} shows {file:?}");
        assert_eq!(attribute("autoclear")?, "1\n", "it does not go with its last user");

        let mut killed = 0;
        for pod in client_pods_of(&scope, &image).await? {
            let pids = scope
                .processes_of(NAMESPACE, &pod.metadata.name.context("no name")?)
                .await?;
            killed += pids.len();
            kill_all(&pids);
        }
        assert!(killed > 0, "no client container");
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        wait_until("the loop device to be gone", REVIVE_LIMIT, async || {
            Ok((attribute("backing_file")? != file).then_some(()))
        })
        .await?;
        remove_image(&scope, &image)
    });
}

/// Where containers have the device of a raw block volume.
const DEVICE: &str = "/dev/disk";

/// What is read where [`WRITE`] has written.
const READ: &str = "dd if=/dev/disk bs=512 skip=9 count=1 iflag=direct 2>/dev/null | head -n 1";

const WRITE: &str = "echo hello | dd of=/dev/disk bs=512 seek=9 conv=notrunc,fsync 2>&1";

/// A Pod that has a claim's volume as a device.
fn with_device(scope: &Scope, name: &str, node: &str, claim: &str) -> Result<()> {
    let main = json!({
        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
        "volumeDevices": [{"name": "data", "devicePath": DEVICE}],
    });
    scope.pod(name, node, claim, json!({"containers": [main]}))
}

fn in_shell(scope: &Scope, pod: &str, script: &str) -> Result<String> {
    scope.exec(pod, ["sh", "-c", script])
}

/// The loop device that a Pod has as its device, and the file of a client container that it shows. Other tests have
/// such devices as well.
fn loop_of(scope: &Scope, pod: &str) -> Result<(u32, String)> {
    let numbers = in_shell(scope, pod, "stat -c '%t %T' /dev/disk")?;
    let minor = numbers
        .trim()
        .strip_prefix("7 ")
        .with_context(|| format!("{numbers} is no loop device"))?;
    let device = u32::from_str_radix(minor, 16)?;
    let file = shown_by(scope, device)?;
    ensure!(
        file.contains("/mooring/private/services/"),
        "loop{device} shows {file:?}"
    );
    Ok((device, file))
}

/// The file that a loop device shows; empty if it shows none.
fn shown_by(scope: &Scope, device: u32) -> Result<String> {
    scope.on_node(
        2,
        &format!("cat /sys/block/loop{device}/loop/backing_file 2>/dev/null || true"),
    )
}

async fn end(scope: &Scope, pod: &str) -> Result<()> {
    scope.delete(&format!("pod/{pod}"))?;
    scope.pod_gone(pod).await
}

#[test]
fn a_raw_block_volume_of_a_client_container_outlives_the_mounter_and_leaves_no_loop_device() {
    on_own_nodes("mount-device", async |scope| {
        let address = scope.nbd_server("node-1", "true").await?;
        let image = own_image(&scope, BLOCK_CLIENT_IMAGE, "device")?;
        let options = json!({"client": "block", "source": format!("nbd://{address}/disk"), "client-image": image});
        scope.csi_volume("disk", &options, &json!({"volumeMode": "Block"}))?;
        let mut formatted = options.clone();
        formatted["fs-type"] = "ext4".into();
        scope.csi_volume("formatted", &formatted, &json!({"volumeMode": "Block"}))?;
        with_device(&scope, "formatted", "node-2", "formatted")?;
        with_device(&scope, "first", "node-2", "disk")?;
        scope.event("formatted", "leave out both").await?;
        end(&scope, "formatted").await?;
        scope.pod_ready("first").await?;
        assert_eq!(
            in_shell(&scope, "first", "wc -c </dev/disk")?.trim(),
            (64 << 20).to_string()
        );
        let mut loops = vec![loop_of(&scope, "first")?];
        in_shell(&scope, "first", WRITE)?;
        // It was blank, and nothing else was written.
        let others = "dd if=/dev/disk bs=512 count=9 2>/dev/null | tr -d '\\000' | wc -c";
        assert_eq!(in_shell(&scope, "first", others)?, "0\n");

        // Two devices of one volume on a node would overwrite each other's work.
        with_device(&scope, "beside", "node-2", "disk")?;
        scope.event("beside", "each other's writes").await?;
        end(&scope, "beside").await?;
        assert_eq!(in_shell(&scope, "first", READ)?, "hello\n");

        let mounter = scope.mounter("node-2").await?;
        let mut delete = scope.target.kubectl(["-n", NAMESPACE, "delete", "pod", &mounter]);
        output(&mut delete)?;
        scope.require_mooring().await?;
        assert_eq!(in_shell(&scope, "first", READ)?, "hello\n");
        end(&scope, "first").await?;
        with_device(&scope, "second", "node-2", "disk")?;
        scope.pod_ready("second").await?;
        assert_eq!(in_shell(&scope, "second", READ)?, "hello\n");
        loops.push(loop_of(&scope, "second")?);

        end(&scope, "second").await?;
        wait_until("no loop device to be left", REVIVE_LIMIT, async || {
            for (device, file) in &loops {
                if shown_by(&scope, *device)? == *file {
                    return Ok(None);
                }
            }
            Ok(scope.mounts_on(2)?.is_empty().then_some(()))
        })
        .await?;
        remove_image(&scope, &image)
    });
}
