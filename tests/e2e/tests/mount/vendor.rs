//! A vendor's client image as `docs/vendors.md` describes it: an executable and a record of its own, and services of the
//! agent.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_contract::names::NAMESPACE;
use mooring_harness::clients::{client_pods_of, own_image, remove_image};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::processes::kill_all;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::layout::repository;
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

/// The vendor's image (tests/images/acme).
const IMAGE: &str = "mooring.dev/testbed-acme";

/// A server with a device that has a file system.
const SERVER: &str = concat!(
    "{apiVersion: v1, kind: Pod, metadata: {name: acme}, spec: {nodeName: node-1, terminationGracePeriodSeconds: 1, \
     containers: [{name: main, image: 'mooring.dev/client-block:",
    env!("CARGO_PKG_VERSION"),
    "', command: [sh, -c, 'truncate -s 64M /disk; mkfs.ext4 -q /disk; exec qemu-nbd -f raw -x disk -e 8 -t /disk'], \
     readinessProbe: {tcpSocket: {port: 10809}, periodSeconds: 1}}]}}"
);

/// Longest until a volume whose daemon was killed can be used again.
const REVIVE_LIMIT: Duration = Duration::from_mins(2);

/// The processes of the client container that the vendor's program started.
async fn daemons(scope: &Scope, image: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for pod in client_pods_of(scope, image).await? {
        for pid in scope
            .processes_of(NAMESPACE, &pod.metadata.name.context("no name")?)
            .await?
        {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            if command.contains("acme-device") || command.contains("qemu-storage-daemon") {
                found.push(pid);
            }
        }
    }
    Ok(found)
}

#[test]
fn a_vendor_s_client_has_its_options_judged_its_services_watched_and_all_of_them_ended() {
    on_own_nodes("mount-vendor", async |scope| {
        scope.apply(SERVER)?;
        let server = scope.pod_ready("acme").await?;
        let address = server.status.and_then(|status| status.pod_ip).context("no address")?;
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
        ensure!(
            daemons(&scope, &image).await?.is_empty(),
            "a refused volume has daemons"
        );
        scope.volume("data", &volume(&json!({"tier": "fast"})))?;
        scope.pod("user", "node-2", "data", Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["sh", "-c", "echo kept >/data/letter && sync /data/letter"])?;

        // The vendor's program waits for the one that does the work. The volume comes back when either has ended.
        for part in ["qemu-storage-daemon", "acme-device"] {
            let before = daemons(&scope, &image).await?;
            ensure!(before.len() == 2, "the daemon and its child: {before:?}");
            let is_part = |pid: &i32| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|command| String::from_utf8_lossy(&command).contains(part))
            };
            let killed: Vec<_> = before.iter().copied().filter(is_part).collect();
            kill_all(&killed);
            let start = Instant::now();
            let again = "cat /data/letter && touch /data/again && sync /data/again";
            wait_until("the volume to be mounted again", REVIVE_LIMIT, async || {
                let after = daemons(&scope, &image).await?;
                let is_new = after.len() == 2 && !after.iter().any(|pid| before.contains(pid));
                Ok((is_new && scope.exec("user", ["sh", "-c", again]).is_ok()).then_some(()))
            })
            .await?;
            note(format!("back {} after {part} was killed", spoken(start.elapsed())));
        }

        let all = daemons(&scope, &image).await?;
        for pod in ["user", "tier", "option", "type", "nowhere"] {
            scope.delete(&format!("pod/{pod}"))?;
            scope.pod_gone(pod).await?;
        }
        // Services end when the volume is unmounted, though the client container stays for a while.
        let left: Vec<_> = all
            .iter()
            .filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
            .collect();
        ensure!(left.is_empty(), "{left:?} of {all:?} run on");
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
