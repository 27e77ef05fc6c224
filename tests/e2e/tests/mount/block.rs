//! Block devices of a server, on nodes without program or kernel module for them: client `block` with iSCSI, NBD and
//! files of NFS, and the image `tgt`, which creates iSCSI targets on a server.

mod device;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mooring_contract::names::NAMESPACE;
use mooring_harness::clients::{BLOCK_CLIENT_IMAGE, client_pods_of, own_image, remove_image};
use mooring_harness::iscsi::PASSWORD;
use mooring_harness::nodes::{on_own_nodes, on_two_nodes};
use mooring_harness::processes::kill_all;
use mooring_harness::provisioner::user_of;
use mooring_harness::{skipped_without_all, wait_until};
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
        let (server, provisioner) = scope.iscsi_example(&one).await?;
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

        // Nobody answers at the first portal.
        let address = &server.address;
        let source = format!("iscsi://{address}:1,{address}:3260/iqn.2025-01.dev.mooring:pvc-{uid}/1");
        scope.mount_secret("chap", &json!({"chap-username": "mooring", "chap-password": PASSWORD}))?;
        scope.volume(
            "portals",
            &json!({"client": "block", "source": source, "secret": "chap"}),
        )?;
        scope.pod("third", &one, "portals", Value::Null)?;
        scope.pod_ready("third").await?;
        assert_eq!(scope.exec("third", ["sha256sum", "/data/file"])?, sum);
        // So that a rolling restart goes on after a change of the Secret.
        scope.mount_secret(
            "chap",
            &json!({"chap-username": "mooring", "chap-password": "changed-since-1"}),
        )?;
        scope.pod("fourth", &one, "portals", Value::Null)?;
        scope.pod_ready("fourth").await?;
        assert_eq!(scope.exec("fourth", ["sha256sum", "/data/file"])?, sum);
        for pod in ["third", "fourth"] {
            scope.delete(&format!("pod/{pod}"))?;
            scope.pod_gone(pod).await?;
        }

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
                scope.exec("first", ["sha256sum", "/data/disk"]).map(Some)
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
    if skipped_without_all() {
        return;
    }
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
            scope.exec("writer", ["test", "-s", "/data/dates"]).map(Some)
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

        // A second Pod of the node has the same file system, also after the first one. Another volume has nothing of
        // it, whether it is used in the same way or in another.
        scope.pod("beside", &two, "disk", Value::Null)?;
        scope.pod_ready("beside").await?;
        assert_eq!(scope.exec("beside", ["sha256sum", "/data/file"])?, sum);
        let owner = format!("PersistentVolume {} has nbd://", scope.volume_name("disk"));
        let others = [("same", "ext4"), ("otherwise", "xfs"), ("bytes", "raw")];
        for (name, fs_type) in others {
            scope.volume(name, &json!({"client": "block", "source": source, "fs-type": fs_type}))?;
            scope.pod(name, &two, name, Value::Null)?;
        }
        for (name, _) in others {
            scope.event(name, &owner).await?;
            scope.delete(&format!("pod/{name}"))?;
        }
        scope.delete("pod/first")?;
        scope.pod_gone("first").await?;
        let written = "cp /data/file /data/copy && sync && sha256sum </data/copy";
        let copied = scope.exec("beside", ["sh", "-c", written])?;
        assert_eq!(copied.split(' ').next(), sum.split(' ').next());
        scope.delete("pod/beside")?;
        scope.pod_gone("beside").await?;
        for (name, _) in others {
            scope.pod_gone(name).await?;
        }
        scope.pod("second", &one, "disk", Value::Null)?;
        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/file"])?, sum);
        assert_eq!(
            scope.exec("second", ["sha256sum", "/data/copy"])?.split(' ').next(),
            sum.split(' ').next()
        );

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
fn a_file_of_an_nfs_server_is_a_device_on_nodes_without_nfs() {
    on_two_nodes("mount-file", async |scope, [one, two]| {
        let server = scope.storage_server("nfs", &one, &Value::Null).await?;
        scope.exec("nfs", ["truncate", "-s", "48M", "/srv/open/disk"])?;
        let source = |path: &str| format!("nfs://{}{path}", server.address);
        scope.volume("file", &json!({"client": "block", "source": source("/srv/open/disk")}))?;
        scope.pod("first", &two, "file", Value::Null)?;
        scope.pod_ready("first").await?;
        scope.exec("first", ["sh", "-c", "head -c 8m /dev/urandom >/data/file && sync"])?;
        let sum = scope.exec("first", ["sha256sum", "/data/file"])?;

        // A write waits for a server that is silent, and goes on with it.
        let signal = |signal: &str| scope.exec("nfs", ["sh", "-c", &format!("kill -{signal} $(cat /run/ganesha/pid)")]);
        signal("STOP")?;
        let write = "(dd if=/dev/zero of=/data/more bs=1M count=1 conv=fsync; echo $? >/tmp/written) >/dev/null 2>&1 &";
        scope.exec("first", ["sh", "-c", write])?;
        let waits = wait_until("the write to wait for its server", HANG_LIMIT, async || {
            scope.exec("first", ["sh", "-c", "grep 'State:.D' /proc/$(pidof dd)/status"])?;
            Ok(Some(()))
        })
        .await
        .and_then(|()| scope.exec("first", ["test", "!", "-e", "/tmp/written"]));
        signal("CONT")?;
        waits?;
        wait_until("the write to end", HANG_LIMIT, async || {
            let code = scope.exec("first", ["cat", "/tmp/written"])?;
            ensure!(code == "0\n", "dd ended with {code}");
            Ok(Some(()))
        })
        .await?;
        scope.delete("pod/first")?;
        scope.pod_gone("first").await?;
        scope.pod("second", &one, "file", Value::Null)?;
        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/file"])?, sum);

        scope.volume(
            "closed",
            &json!({"client": "block", "source": source("/srv/closed/disk")}),
        )?;
        scope.pod("refused", &two, "closed", Value::Null)?;
        scope.event("refused", "whether the server accepts this node").await?;
        for pod in ["second", "refused"] {
            scope.delete(&format!("pod/{pod}"))?;
            scope.pod_gone(pod).await?;
        }
        Ok(())
    });
}

#[test]
fn a_client_container_that_is_killed_leaves_no_loop_device() {
    if skipped_without_all() {
        return;
    }
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
