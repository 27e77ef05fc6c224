//! Raw block volumes of a client container: the Pod has the device itself.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_contract::names::NAMESPACE;
use mooring_harness::clients::{BLOCK_CLIENT_IMAGE, client_pods_of, own_image, remove_image};
use mooring_harness::iscsi::IQN;
use mooring_harness::nodes::{POOL, on_own_nodes};
use mooring_harness::processes::kill_all;
use mooring_harness::{Scope, skipped_without_all, wait_until};
use mooring_testbed::command::output;
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

use super::REVIVE_LIMIT;

/// Longest until a Pod is gone whose server hangs: its grace period and the four minutes of `docs/nodes.md`.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(4 * 60 + 1);

/// Where containers have the device of a raw block volume.
const DEVICE: &str = "/dev/disk";

/// What is read where [`WRITE`] has written.
const READ: &str = "dd if=/dev/disk bs=512 skip=9 count=1 iflag=direct 2>/dev/null | head -n 1";

const WRITE: &str = "echo hello | dd of=/dev/disk bs=512 seek=9 conv=notrunc,fsync 2>&1";

/// What a Pod is told whose server does not answer.
const GIVEN_UP: &str = "failed to open the device";

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

        // Two devices of one volume on a node would overwrite each other's work, so both Pods have the same one, for as
        // long as one of them is there, whoever came first.
        with_device(&scope, "beside", "node-2", "disk")?;
        scope.pod_ready("beside").await?;
        assert_eq!(loop_of(&scope, "beside")?, loops[0]);
        in_shell(&scope, "beside", &WRITE.replace("hello", "there"))?;
        assert_eq!(in_shell(&scope, "first", READ)?, "there\n");
        end(&scope, "first").await?;
        in_shell(&scope, "beside", WRITE)?;
        with_device(&scope, "first", "node-2", "disk")?;
        scope.pod_ready("first").await?;
        assert_eq!(loop_of(&scope, "first")?, loops[0]);
        end(&scope, "beside").await?;
        assert_eq!(in_shell(&scope, "first", READ)?, "hello\n");

        // Another volume has nothing of it, also where its client Pod would be of another image.
        let unnamed = json!({"client": "block", "source": options["source"]});
        scope.csi_volume("other", &unnamed, &json!({"volumeMode": "Block"}))?;
        with_device(&scope, "other", "node-2", "other")?;
        scope
            .event("other", &format!("PersistentVolume {} has", scope.volume_name("disk")))
            .await?;
        end(&scope, "other").await?;

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

        // Its container keeps the number of a device that ends with the client container.
        for pod in client_pods_of(&scope, &image).await? {
            kill_all(
                &scope
                    .processes_of(NAMESPACE, &pod.metadata.name.context("no name")?)
                    .await?,
            );
        }
        wait_until("the device to be of no use", REVIVE_LIMIT, async || {
            let read = in_shell(
                &scope,
                "second",
                "dd if=/dev/disk bs=4096 count=1 iflag=direct of=/dev/null 2>&1",
            );
            Ok(read.is_err().then_some(()))
        })
        .await?;
        end(&scope, "second").await?;

        // Nobody writes to it, by its access mode.
        scope.csi_volume(
            "read",
            &options,
            &json!({"volumeMode": "Block", "accessModes": ["ReadOnlyMany"]}),
        )?;
        with_device(&scope, "reader", "node-2", "read")?;
        scope.pod_ready("reader").await?;
        assert_eq!(in_shell(&scope, "reader", READ)?, "hello\n");
        let refused = in_shell(&scope, "reader", &format!("{WRITE} || true"))?;
        ensure!(refused.contains("Operation not permitted"), "{refused}");
        loops.push(loop_of(&scope, "reader")?);
        end(&scope, "reader").await?;
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

/// Makes a target's device, and the volume on it, larger while a Pod uses it; the Pod sees the new size.
async fn grows(scope: &Scope, pod: &str, name: &str) -> Result<()> {
    let enlarge = format!(
        "truncate -s 96M /srv/volumes/{name}
         id=$(tgt-admin --show | awk '$1 == \"Target\" && $3 == \"{IQN}:{name}\" {{ print $2 + 0 }}')
         lun() {{ tgtadm --lld iscsi --mode logicalunit --tid \"$id\" --lun 1 \"$@\"; }}
         lun --op delete
         lun --op new --backing-store /srv/volumes/{name}"
    );
    scope.exec("tgt", ["sh", "-euc", &enlarge])?;
    let capacity = json!({"spec": {"capacity": {"storage": "96Mi"}}}).to_string();
    scope.kubectl(["patch", "pv", &scope.volume_name(name), "-p", &capacity])?;
    let asked = Instant::now();
    // The kubelet looks at a Pod's volumes when the Pod changes, and else every minute or so.
    scope.kubectl(["annotate", "pod", pod, "testbed.mooring.dev/look=now"])?;
    wait_until("the Pod to see the new size", REVIVE_LIMIT, async || {
        let size = in_shell(scope, pod, "wc -c </dev/disk")?;
        Ok((size.trim() == (96 << 20).to_string()).then_some(()))
    })
    .await?;
    note(format!("the new size was seen after {}", spoken(asked.elapsed())));
    Ok(())
}

/// Makes a volume that no server has.
fn disk_of_node(scope: &Scope, pod: &str) -> Result<()> {
    let image = scope.volume_name(pod);
    scope.on_node(2, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{image}"))?;
    let options = json!({"client": "local", "source": image});
    scope.csi_volume(pod, &options, &json!({"volumeMode": "Block"}))
}

/// Gives a Pod of the same node the device of [`disk_of_node`], which waits for no server.
async fn another_is_served(scope: &Scope, pod: &str) -> Result<()> {
    with_device(scope, pod, "node-2", pod)?;
    scope.pod_ready(pod).await?;
    in_shell(scope, pod, WRITE)?;
    Ok(())
}

/// Waits until a Pod's volume has a condition that names its server, if `is_silent`, and else until it has none.
async fn health(scope: &Scope, pod: &str, server: &str, is_silent: bool) -> Result<()> {
    let conditions = "jsonpath={.status.volumeHealth[?(@.name==\"data\")].healthConditions[*]}";
    wait_until(&format!("{pod} to be silent: {is_silent}"), REVIVE_LIMIT, async || {
        let seen = scope.kubectl(["get", "pod", pod, "-o", conditions])?;
        let shown = seen.contains("Inaccessible") && seen.contains(server);
        Ok((shown == is_silent).then_some(()))
    })
    .await
}

/// Proves: M1
#[test]
fn a_raw_block_volume_by_iscsi_grows_in_use_and_its_silent_server_holds_up_no_other() {
    on_own_nodes("mount-device-hung", async |scope| {
        let server = scope.storage_server("tgt", "node-1", &Value::Null).await?;
        let names = ["grows", "goes-on", "next"];
        for (name, source) in names.iter().zip(scope.iscsi_targets(&server.address, names)?) {
            // It is given up long before.
            let options = json!({"client": "block", "source": source, "io-timeout": "0"});
            scope.csi_volume(name, &options, &json!({"volumeMode": "Block"}))?;
        }
        for name in ["grows", "goes-on"] {
            with_device(&scope, name, "node-2", name)?;
        }
        for name in ["grows", "goes-on"] {
            scope.pod_ready(name).await?;
            in_shell(&scope, name, WRITE)?;
        }
        let (device, file) = loop_of(&scope, "grows")?;
        grows(&scope, "grows", "grows").await?;
        assert_eq!(in_shell(&scope, "grows", READ)?, "hello\n");
        for name in ["grows", "goes-on"] {
            let writes = "(while date | dd of=/dev/disk bs=512 seek=10 conv=notrunc,fsync && date >>/tmp/beats; do
                              sleep 0.2
                          done) >/dev/null 2>&1 &";
            in_shell(&scope, name, writes)?;
            wait_until("the first write to be on the device", REVIVE_LIMIT, async || {
                in_shell(&scope, name, "wc -l </tmp/beats").map(Some)
            })
            .await?;
        }

        disk_of_node(&scope, "disk")?;
        let stopped = scope.stop("tgt").await?;
        let hung = Instant::now();
        with_device(&scope, "next", "node-2", "next")?;
        another_is_served(&scope, "disk").await?;
        scope
            .event("next", &format!("waits for {}, which has not answered", server.address))
            .await?;
        note(format!("the server was named after {}", spoken(hung.elapsed())));
        scope.event("next", GIVEN_UP).await?;
        let again = async || {
            end(&scope, "disk").await?;
            // The kubelet waits longer and longer before it tries again for the same Pod.
            end(&scope, "next").await?;
            with_device(&scope, "next", "node-2", "next")?;
            another_is_served(&scope, "disk").await
        };
        scope.mounted_beside("node-2", "disk", "next", again).await?;
        end(&scope, "next").await?;
        health(&scope, "goes-on", &server.address, true).await?;
        note(format!("the condition was there after {}", spoken(hung.elapsed())));
        scope.given_up(&["grows"], GIVE_UP_LIMIT).await?;
        let beats = in_shell(&scope, "goes-on", "wc -l </tmp/beats")?;
        drop(stopped);
        wait_until("the other Pod to go on", REVIVE_LIMIT, async || {
            Ok((in_shell(&scope, "goes-on", "wc -l </tmp/beats")? != beats).then_some(()))
        })
        .await?;
        health(&scope, "goes-on", &server.address, false).await?;
        with_device(&scope, "again", "node-2", "grows")?;
        scope.pod_ready("again").await?;
        assert_eq!(in_shell(&scope, "again", READ)?, "hello\n");
        for pod in ["again", "goes-on", "disk"] {
            end(&scope, pod).await?;
        }
        wait_until("the loop device to be gone", REVIVE_LIMIT, async || {
            let is_left = shown_by(&scope, device)? == file;
            Ok((!is_left && scope.mounts_on(2)?.is_empty()).then_some(()))
        })
        .await
    });
}

/// Proves: M1
#[test]
fn a_raw_block_volume_by_nbd_keeps_its_size_in_use_and_its_silent_server_holds_up_no_other() {
    if skipped_without_all() {
        return;
    }
    on_own_nodes("mount-device-nbd", async |scope| {
        let address = scope.nbd_server("node-1", "true").await?;
        // It is given up long before.
        let options = json!({"client": "block", "source": format!("nbd://{address}/disk"), "io-timeout": "0"});
        scope.csi_volume("nbd-disk", &options, &json!({"volumeMode": "Block"}))?;
        with_device(&scope, "first", "node-2", "nbd-disk")?;
        scope.pod_ready("first").await?;
        in_shell(&scope, "first", WRITE)?;
        let (device, file) = loop_of(&scope, "first")?;

        // NBD says a size once, when a client comes.
        let capacity = json!({"spec": {"capacity": {"storage": "96Mi"}}}).to_string();
        scope.kubectl(["patch", "pv", &scope.volume_name("nbd-disk"), "-p", &capacity])?;
        scope.kubectl(["annotate", "pod", "first", "testbed.mooring.dev/look=now"])?;
        scope
            .event("first", "the device has 67108864 bytes on this node")
            .await?;
        end(&scope, "first").await?;
        in_shell(&scope, "nbd", "truncate -s 96M /disk; kill $(cat /run/nbd.pid)")?;
        disk_of_node(&scope, "other")?;
        another_is_served(&scope, "other").await?;
        with_device(&scope, "second", "node-2", "nbd-disk")?;
        scope.pod_ready("second").await?;
        assert_eq!(
            in_shell(&scope, "second", "wc -c </dev/disk")?.trim(),
            (96 << 20).to_string()
        );
        assert_eq!(in_shell(&scope, "second", READ)?, "hello\n");
        let writes = "(while date | dd of=/dev/disk bs=512 seek=10 conv=notrunc,fsync; do sleep 0.2; done) \
                      >/dev/null 2>&1 &";
        in_shell(&scope, "second", writes)?;

        disk_of_node(&scope, "meanwhile")?;
        let stopped = scope.stop("nbd").await?;
        let hung = Instant::now();
        another_is_served(&scope, "meanwhile").await?;
        in_shell(&scope, "other", WRITE)?;
        health(&scope, "second", &address, true).await?;
        note(format!("the condition was there after {}", spoken(hung.elapsed())));
        scope.given_up(&["second"], GIVE_UP_LIMIT).await?;
        drop(stopped);
        with_device(&scope, "again", "node-2", "nbd-disk")?;
        scope.pod_ready("again").await?;
        assert_eq!(in_shell(&scope, "again", READ)?, "hello\n");
        for pod in ["again", "other", "meanwhile"] {
            end(&scope, pod).await?;
        }
        wait_until("the loop device to be gone", REVIVE_LIMIT, async || {
            let is_left = shown_by(&scope, device)? == file;
            Ok((!is_left && scope.mounts_on(2)?.is_empty()).then_some(()))
        })
        .await
    });
}
