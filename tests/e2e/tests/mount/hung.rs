//! Servers that hang, that are slow, or that go away: only their own volumes are affected, and the Pods' Events name
//! the server.

mod silent;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use mooring_harness::nodes::{POOL, on_own_nodes};
use mooring_harness::{Scope, recorded, wait_until};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// The kubelet gets an answer within 100 s of its call; the rest is for a busy machine and for writing the Event.
const ANSWER_LIMIT: Duration = Duration::from_secs(140);

/// Longest until a server that answers again is tried again: the mounter refuses its mounts for 30 s, and the kubelet's
/// own backoff grows to two minutes.
const HEAL_LIMIT: Duration = Duration::from_mins(4);

/// Waits for an Event that contains all of these words, and returns when the first of them was recorded.
async fn told(scope: &Scope, pod: &str, words: &[&str], limit: Duration) -> Result<Timestamp> {
    let selector = ListParams::default().fields(&format!("involvedObject.name={pod}"));
    wait_until(&format!("an Event on {pod} with {words:?}"), limit, async || {
        let events = scope.api::<Event>().list(&selector).await?.items;
        let has_them = |event: &&Event| {
            let message = event.message.as_deref().unwrap_or_default();
            words.iter().all(|word| message.contains(word))
        };
        Ok(events.iter().filter(has_them).filter_map(recorded).min())
    })
    .await
}

/// Deletes a Pod whose server hangs, and waits until it is gone: no longer than its grace period plus the two minutes
/// of `docs/nodes.md`.
async fn gone(scope: &Scope, pod: &str) -> Result<()> {
    let asked = Instant::now();
    scope.delete(&format!("pod/{pod}"))?;
    scope.pod_gone(pod).await?;
    note(format!("{pod} was gone after {:?}", asked.elapsed()));
    Ok(())
}

/// Waits until the node's `CSINode` says that a server does not answer, or says so no more: the kubelet asks every 10 s
/// here.
async fn storage_health(scope: &Scope, server: &str, is_silent: bool) -> Result<()> {
    wait_until(
        "the CSINode to show the server or not",
        Duration::from_mins(1),
        async || {
            let seen = scope.kubectl(["get", "csinode", NODE, "-o", "jsonpath={.status.storageHealth}"])?;
            let shown = seen.contains(server) && seen.contains("StorageUnreachable");
            Ok((shown == is_silent).then_some(()))
        },
    )
    .await
}

fn local(scope: &Scope, name: &str) -> Result<()> {
    let file = scope.volume_name(name);
    scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
    scope.volume(name, &json!({"client": "local", "source": file}))
}

/// Proves: M1
#[test]
fn a_hung_server_holds_up_its_own_volumes_only_is_named_and_heals() {
    on_own_nodes("mount-hung", async |scope| {
        let hung = scope.ssh_server_called("hung", "node-2", &["used", "late"]).await?;
        let fine = scope.ssh_server_called("fine", "node-2", &["data"]).await?;
        scope.volume("used", &hung.volume("used"))?;
        let script = "while :; do date >>/data/dates; sleep 0.2; done";
        let main = json!([{
            "name": "main", "image": "busybox:1", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }]);
        scope.pod("used", NODE, "used", json!({"containers": main}))?;
        scope.pod_ready("used").await?;

        let stopped = scope.stop("hung").await?;
        // One that gives up by itself, and one that would wait forever.
        let mut late = hung.volume("late");
        scope.volume("next", &late)?;
        late["mount-options"] = "ConnectTimeout=600".into();
        scope.volume("late", &late)?;
        let asked = Timestamp::now();
        scope.pod("late", NODE, "late", Value::Null)?;
        scope.pod("next", NODE, "next", Value::Null)?;
        told(&scope, "next", &[&hung.address, "does not speak"], ANSWER_LIMIT).await?;
        // The server still hangs, and so does the mount that waits for it.
        local(&scope, "disk")?;
        scope.volume("other", &fine.volume("data"))?;
        for name in ["disk", "other"] {
            scope.pod(name, NODE, name, Value::Null)?;
        }
        for name in ["disk", "other"] {
            scope.pod_ready(name).await?;
            scope.exec(name, ["sh", "-c", "echo here >/data/f"])?;
        }

        // A volume of the server can be unmounted, although the server does not answer.
        gone(&scope, "used").await?;
        let mounts = scope.mounts_on(1)?;
        assert!(!mounts.iter().any(|line| line.contains("-used ")), "{mounts:?}");

        // If this mount gives up by itself, the mounter takes that for an answer, and lets others through.
        gone(&scope, "next").await?;
        let words = [&*hung.address, "did not answer", "longer than"];
        let after = told(&scope, "late", &words, ANSWER_LIMIT).await?.duration_since(asked);
        // By the Event's own time: what this test did meanwhile takes as long as its Pods need to go.
        ensure!(
            after.as_secs_f64() < ANSWER_LIMIT.as_secs_f64(),
            "it was told after {after:#}"
        );
        note(format!("late was told after {after:#}"));
        // Anyone who reaches the port may read the metrics: they have the number of servers, not their names.
        let metrics = scope.mounter_metrics(NODE).await?;
        ensure!(
            !metrics.contains("tripped_servers 0") && !metrics.contains(&hung.address),
            "{metrics}"
        );
        let status = scope.mounter_status(NODE).await?;
        let tripped = status["trippedServers"].to_string();
        ensure!(tripped.contains(&hung.address), "{status:#}");
        ensure!(!tripped.contains(&fine.address), "{status:#}");
        storage_health(&scope, &hung.address, true).await?;
        // While the mount waited, its user was told which server it waited for.
        told(
            &scope,
            "late",
            &[&hung.address, "has not answered for 10 s"],
            ANSWER_LIMIT,
        )
        .await?;
        // From now on, mounts are refused at once.
        told(&scope, "late", &[&hung.address, "is not tried again"], ANSWER_LIMIT).await?;

        drop(stopped);
        let start = Instant::now();
        wait_until("late to start by itself", HEAL_LIMIT, async || {
            scope.exec("late", ["touch", "/data/f"])?;
            Ok(Some(()))
        })
        .await?;
        note(format!("healed within {:?}", start.elapsed()));
        let status = scope.mounter_status(NODE).await?;
        ensure!(
            !status["trippedServers"].to_string().contains(&hung.address),
            "{status:#}"
        );
        storage_health(&scope, &hung.address, false).await?;
        // Before its server goes: the client was told to wait ten minutes for a server.
        scope.delete("pod/late")?;
        scope.pod_gone("late").await
    });
}

#[test]
fn a_slow_server_is_slow_for_its_own_volumes_and_they_are_whole() {
    on_own_nodes("mount-slow", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        // The server runs for a fifth of the time: every answer takes half a second or so.
        let over = Arc::new(AtomicBool::new(false));
        let slowing = {
            let (scope, over) = (scope.clone(), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    if let Ok(stopped) = scope.stop("ssh").await {
                        tokio::time::sleep(Duration::from_millis(400)).await;
                        drop(stopped);
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            })
        };
        let used = use_it(&scope, &server.volume("data")).await;
        over.store(true, Ordering::Relaxed);
        slowing.await?;
        used
    });
}

async fn use_it(scope: &Scope, volume: &Value) -> Result<()> {
    scope.volume("data", volume)?;
    scope.pod("user", NODE, "data", Value::Null)?;
    local(scope, "disk")?;
    scope.pod("disk", NODE, "disk", Value::Null)?;
    scope.pod_ready("disk").await?;
    scope.pod_ready("user").await?;
    let script = "dd if=/dev/urandom of=/tmp/a bs=64k count=4 2>/dev/null && cp /tmp/a /data/a && cmp /tmp/a /data/a";
    scope.exec("user", ["sh", "-c", script])?;
    scope.delete("pod/user")?;
    scope.pod_gone("user").await?;
    Ok(())
}

#[test]
fn a_server_that_comes_back_is_used_again_without_a_new_mount() {
    on_own_nodes("mount-away", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        scope.volume("data", &server.volume("data"))?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["sh", "-c", "echo one >/data/a"])?;
        let before = scope.mounts_on(1)?;
        // It ends without notice, as in a power cut. The Pod's container restarts with the files that it was created
        // with.
        let pids = scope.processes_of(&scope.namespace, "ssh").await?;
        mooring_harness::processes::kill_all(&pids);
        wait_until("the server to be back", Duration::from_mins(1), async || {
            scope.exec(
                "ssh",
                ["install", "-d", "-o", "mooring", "-m", "0770", "/srv/volumes/data"],
            )?;
            Ok(Some(()))
        })
        .await?;
        wait_until("the volume to be of use again", Duration::from_mins(2), async || {
            scope.exec("user", ["sh", "-c", "echo two >/data/b && cat /data/b"])?;
            Ok(Some(()))
        })
        .await?;
        assert_eq!(scope.mounts_on(1)?, before);
        Ok(())
    });
}
