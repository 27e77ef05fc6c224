//! A vendor's client image as `docs/vendors.md` describes it: an executable and a record of its own, and services of
//! the agent.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::NAMESPACE;
use mooring_harness::clients::{client_pods_of, own_image, remove_image};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::processes::kill_all;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::layout::repository;
use serde_json::{Value, json};

/// The vendor's image (tests/images/acme).
const IMAGE: &str = "mooring.dev/testbed-acme";

/// Longest until all processes of a service have ended.
const END_LIMIT: Duration = Duration::from_mins(2);

fn command_of(pid: i32) -> String {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).replace('\0', " ")
}

/// The processes of the client container that the vendor's program started.
async fn daemons(scope: &Scope, image: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for pod in client_pods_of(scope, image).await? {
        let name = pod.metadata.name.context("no name")?;
        found.extend(scope.processes_of(NAMESPACE, &name).await?);
    }
    let is_daemon = |pid: &i32| {
        let command = command_of(*pid);
        ["acme-device", "qemu-storage-daemon"]
            .iter()
            .any(|name| command.contains(name))
    };
    Ok(found.into_iter().filter(is_daemon).collect())
}

async fn all_ended(after: &str, pids: &[i32]) -> Result<()> {
    wait_until(&format!("{pids:?} to end after {after}"), END_LIMIT, async || {
        let ended = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
        Ok(pids.iter().all(ended).then_some(()))
    })
    .await
}

#[test]
fn a_vendor_s_client_has_its_options_judged_its_services_watched_and_all_of_them_ended() {
    on_own_nodes("mount-vendor", async |scope| {
        let address = scope.nbd_server("node-1", "mkfs.ext4 -q /disk").await?;
        let image = own_image(&scope, IMAGE, "own")?;
        let volume = |more: &Value| {
            let mut volume = json!({"client": "acme", "client-image": image, "source": format!("{address}/disk")});
            for (key, value) in more.as_object().into_iter().flatten() {
                volume[key] = value.clone();
            }
            volume
        };
        for (name, more, words) in [
            ("tier", json!({"tier": "golden"}), "write fast or cheap"),
            ("option", json!({"colour": "red"}), "colour"),
            ("type", json!({"fs-type": "btrfs"}), "btrfs"),
            (
                "nowhere",
                json!({"source": format!("{address}/nowhere")}),
                "/nowhere can't be had",
            ),
        ] {
            scope.volume(name, &volume(&more))?;
            scope.pod(name, "node-2", name, Value::Null)?;
            scope.event(name, words).await?;
        }
        for name in ["tier", "option", "type", "nowhere"] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
        }
        let left = daemons(&scope, &image).await?;
        ensure!(left.is_empty(), "refused volumes have daemons: {left:?}");

        scope.volume("data", &volume(&json!({"tier": "fast"})))?;
        let write = "echo kept >/data/letter; sync /data/letter";
        let read = "[ $(cat /data/letter) = kept ]";
        // Whichever of the two processes ends, the other is ended too, and the next Pod has the volume again.
        for (name, script, killed) in [
            ("first", write, Some("qemu-storage-daemon")),
            ("second", read, Some("acme-device")),
            ("third", read, None),
        ] {
            scope.pod(name, "node-2", "data", Value::Null)?;
            scope.pod_ready(name).await?;
            scope.exec(name, ["sh", "-euc", script])?;
            let all = daemons(&scope, &image).await?;
            ensure!(all.len() == 2, "not the daemon and its child: {all:?}");
            if let Some(killed) = killed {
                let part = all.iter().copied().filter(|pid| command_of(*pid).contains(killed));
                kill_all(&part.collect::<Vec<_>>());
                all_ended(&format!("{killed} was killed"), &all).await?;
                let failed = scope.exec(name, ["sh", "-c", "echo more >>/data/letter; sync /data/letter"]);
                ensure!(failed.is_err(), "a write to a device without a daemon succeeded");
            }
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
            // The client container stays for a while, without them.
            all_ended(&format!("Pod {name} was deleted"), &all).await?;
        }

        // The same volume as a device: its file system is the device's content.
        scope.csi_volume("raw", &volume(&Value::Null), &json!({"volumeMode": "Block"}))?;
        let read = "dd if=/dev/disk bs=2 skip=540 count=1 2>/dev/null | od -An -tx2; blockdev --getsize64 /dev/disk";
        for (name, killed) in [("device", true), ("other-device", false)] {
            let main = json!({
                "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
                "volumeDevices": [{"name": "data", "devicePath": "/dev/disk"}],
            });
            scope.pod(name, "node-2", "raw", json!({"containers": [main]}))?;
            scope.pod_ready(name).await?;
            // The magic number of ext4.
            let read = scope.exec(name, ["sh", "-c", read])?;
            assert_eq!(read.split_whitespace().collect::<Vec<_>>(), ["ef53", "67108864"]);
            if killed {
                kill_all(&daemons(&scope, &image).await?);
                let failed = "dd if=/dev/zero of=/dev/disk bs=512 seek=100000 count=1 conv=fsync 2>&1";
                wait_until("writes to fail", END_LIMIT, async || {
                    Ok(scope.exec(name, ["sh", "-c", failed]).is_err().then_some(()))
                })
                .await?;
            }
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
        }
        remove_image(&scope, &image)
    });
}

#[test]
fn the_vendor_s_client_is_the_one_of_the_docs() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).unwrap();
    let script = read("tests/images/acme/acme");
    let example: Vec<_> = script.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(example.len() > 4);
    let docs = read("docs/vendors.md");
    assert!(docs.contains(&example.join("\n")), "docs/vendors.md has another client");
}
