//! Servers that hang, that are slow, or that go away: only their own volumes are affected, and the Pods' Events name
//! the server.

mod silent;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use mooring_harness::nodes::{POOL, on_own_nodes};
use mooring_harness::{Scope, wait_until};
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Longest wait for an Event or a healed volume: the kubelet's call, the mounter's circuit breaker and the kubelet's
/// backoff, on a busy machine.
const LIMIT: Duration = Duration::from_mins(6);

/// The fewest pauses of a slow server while a test uses it.
const PAUSES: usize = 5;

/// Waits for an Event that contains all of these words.
async fn told(scope: &Scope, pod: &str, words: &[&str]) -> Result<()> {
    let selector = ListParams::default().fields(&format!("involvedObject.name={pod}"));
    wait_until(&format!("an Event on {pod} with {words:?}"), LIMIT, async || {
        let events = scope.api::<Event>().list(&selector).await?.items;
        let has_them = |event: &Event| {
            let message = event.message.as_deref().unwrap_or_default();
            words.iter().all(|word| message.contains(word))
        };
        Ok(events.iter().any(has_them).then_some(()))
    })
    .await
}

/// Deletes a Pod and waits until it is gone.
async fn gone(scope: &Scope, pod: &str) -> Result<()> {
    scope.delete(&format!("pod/{pod}"))?;
    scope.pod_gone(pod).await
}

/// Gives a Pod its volume, and has it write there.
async fn used(scope: &Scope, pod: &str) -> Result<()> {
    scope.pod(pod, NODE, pod, Value::Null)?;
    scope.pod_ready(pod).await?;
    scope.exec(pod, ["sh", "-c", "echo here >/data/f"]).map(drop)
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

        // Those that are mounted while "late" waits.
        local(&scope, "disk")?;
        scope.volume("other", &fine.volume("data"))?;
        let stopped = scope.stop("hung").await?;
        // One that gives up by itself, and one that would wait forever.
        let mut late = hung.volume("late");
        scope.volume("next", &late)?;
        late["mount-options"] = "ConnectTimeout=600".into();
        scope.volume("late", &late)?;
        scope.pod("late", NODE, "late", Value::Null)?;
        scope.pod("next", NODE, "next", Value::Null)?;
        // While the mount waits, its user learns which server it waits for.
        told(&scope, "late", &[&hung.address, "has not answered for 10 s"]).await?;
        tokio::try_join!(used(&scope, "disk"), used(&scope, "other"))?;
        told(&scope, "next", &[&hung.address, "does not speak"]).await?;

        // A volume of the server can be unmounted, although the server does not answer.
        gone(&scope, "used").await?;
        let mounts = scope.mounts_on(1)?;
        assert!(!mounts.iter().any(|line| line.contains("-used ")), "{mounts:?}");

        // If its next attempt were the one that tries the server again, its own end would count as an answer.
        gone(&scope, "next").await?;
        told(&scope, "late", &[&hung.address, "did not answer", "longer than"]).await?;
        for name in ["disk", "other"] {
            let again = async || {
                gone(&scope, name).await?;
                used(&scope, name).await
            };
            scope.mounted_beside(NODE, name, "late", again).await?;
        }
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
        // From now on, mounts are refused at once.
        told(&scope, "late", &[&hung.address, "is not tried again"]).await?;

        drop(stopped);
        wait_until("late to start by itself", LIMIT, async || {
            scope.exec("late", ["touch", "/data/f"])?;
            Ok(Some(()))
        })
        .await?;
        let status = scope.mounter_status(NODE).await?;
        ensure!(
            !status["trippedServers"].to_string().contains(&hung.address),
            "{status:#}"
        );
        storage_health(&scope, &hung.address, false).await?;
        // Before its server goes: the client was told to wait ten minutes for a server.
        gone(&scope, "late").await
    });
}

#[test]
fn a_volume_of_a_slow_server_is_whole_and_another_volume_is_mounted_meanwhile() {
    on_own_nodes("mount-slow", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        // The server runs for a fifth of the time.
        let (over, pauses) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let slowing = {
            let (scope, over, pauses) = (scope.clone(), Arc::clone(&over), Arc::clone(&pauses));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let stopped = scope.stop("ssh").await?;
                    tokio::time::sleep(Duration::from_millis(400)).await;
                    drop(stopped);
                    pauses.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                anyhow::Ok(())
            })
        };
        let used = use_it(&scope, &server.volume("data"), &pauses, || slowing.is_finished()).await;
        over.store(true, Ordering::Relaxed);
        slowing.await?.context("failed to slow the server down")?;
        let sum = used?;
        let there = scope.exec("ssh", ["sha256sum", "/srv/volumes/data/a"])?;
        ensure!(there.starts_with(&sum), "the server has {there}, not {sum}");
        Ok(())
    });
}

/// Writes to a volume while its server is paused several times; returns the checksum of the data.
async fn use_it(scope: &Scope, volume: &Value, pauses: &AtomicUsize, over: impl Fn() -> bool) -> Result<String> {
    scope.volume("data", volume)?;
    scope.pod("user", NODE, "data", Value::Null)?;
    local(scope, "disk")?;
    scope.pod("disk", NODE, "disk", Value::Null)?;
    scope.pod_ready("disk").await?;
    scope.pod_ready("user").await?;
    let until = pauses.load(Ordering::Relaxed) + PAUSES;
    let mut sum = String::new();
    while pauses.load(Ordering::Relaxed) < until && !over() {
        let script = "dd if=/dev/urandom of=/tmp/a bs=64k count=4 2>/dev/null && cp /tmp/a /data/a && cmp /tmp/a \
                      /data/a && sha256sum </tmp/a";
        let said = scope.exec("user", ["sh", "-c", script])?;
        said.split_whitespace()
            .next()
            .context("no checksum")?
            .clone_into(&mut sum);
    }
    gone(scope, "user").await?;
    Ok(sum)
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
        // A command may still run in the container that is ending, so the directory is made with each try.
        let directory = ["install", "-d", "-o", "mooring", "-m", "0770", "/srv/volumes/data"];
        wait_until("the volume to be of use again", Duration::from_mins(2), async || {
            scope.exec("ssh", directory)?;
            scope.exec("user", ["sh", "-c", "echo two >/data/b && cat /data/b"])?;
            Ok(Some(()))
        })
        .await?;
        assert_eq!(scope.mounts_on(1)?, before);
        Ok(())
    });
}
