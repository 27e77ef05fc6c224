//! What happens to mounts when a mounter or a kubelet ends without warning. One at a time: all volumes of a node feel it.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use mooring_contract::names::{MOUNTER_CONFIG, NAMESPACE};
use mooring_testbed::harness::nodes::{POOL, on_own_nodes};
use mooring_testbed::harness::{Scope, wait_until};
use serde_json::{Value, json};

const NODE: &str = "node-1";
const LIMIT: Duration = Duration::from_secs(90);

/// Ends the mounter of a node as a crash would, and waits until the next one is ready.
async fn kill_mounter(scope: &Scope) -> Result<()> {
    let old = scope.mounter(NODE).await?;
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    pods.delete(&old, &DeleteParams::default().grace_period(0)).await?;
    wait_until("the next mounter to answer", LIMIT, async || {
        let new = scope.mounter(NODE).await?;
        let ready = scope.mounter_status(NODE).await?["ready"] == true;
        Ok((new != old && ready).then_some(()))
    })
    .await
}

/// Ends a kubelet as a crash would, and waits until the next one has looked after its Pods.
async fn kill_kubelet(scope: &Scope) -> Result<()> {
    scope.own_cluster()?.kill_in_node(1, "kubelet")?;
    wait_until("the next kubelet to answer", LIMIT, async || {
        scope.kubectl(["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/healthz")])?;
        Ok(Some(()))
    })
    .await?;
    // It goes through its volumes in its first seconds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(())
}

/// How many lines the user of a volume has written, none of which may have failed.
fn written(scope: &Scope, pod: &str) -> Result<usize> {
    let failed = scope.exec(pod, ["cat", "/tmp/failed"])?;
    anyhow::ensure!(failed.is_empty(), "{pod} could not write: {failed}");
    let count = scope.exec(pod, ["cat", "/data/count"])?;
    count
        .trim()
        .parse()
        .with_context(|| format!("{pod} has written {count:?}"))
}

#[test]
fn volumes_are_used_on_and_mounted_once_while_mounter_and_kubelet_are_killed() {
    on_own_nodes("chaos-mount", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        scope.volume("ssh", &server.volume("data"))?;
        let file = scope.volume_name("local");
        scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
        scope.volume("local", &json!({"client": "local", "source": file}))?;
        let users = ["on-ssh", "on-local"];
        for (user, claim) in users.iter().zip(["ssh", "local"]) {
            let script = "touch /tmp/failed; i=0; while :; do i=$((i+1)); \
                          echo $i >/data/new 2>>/tmp/failed && mv /data/new /data/count 2>>/tmp/failed; sleep 0.1; done";
            let main = json!([{
                "name": "main", "image": "busybox:1", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }]);
            scope.pod(user, NODE, claim, json!({"containers": main}))?;
        }
        for user in users {
            scope.pod_ready(user).await?;
        }
        let before = scope.mounts_on(1)?;
        assert_eq!(before.len(), 2, "{before:?}");
        let all = scope.on_node(1, "wc -l </proc/self/mountinfo")?;

        for round in 1..=2 {
            let started = users.map(|user| written(&scope, user).ok());
            kill_mounter(&scope).await?;
            kill_kubelet(&scope).await?;
            assert_eq!(scope.mounts_on(1)?, before, "round {round}");
            assert_eq!(scope.loop_devices()?.len(), 1, "round {round}");
            for (user, started) in users.iter().zip(started) {
                let now = written(&scope, user)?;
                assert!(Some(now) > started, "{user} stands still at {now} in round {round}");
            }
        }
        wait_until(
            "the node's mount table to be as long as before",
            Duration::from_secs(20),
            async || {
                let now = scope.on_node(1, "wc -l </proc/self/mountinfo")?;
                anyhow::ensure!(now == all, "{} lines instead of {}", now.trim(), all.trim());
                Ok(Some(()))
            },
        )
        .await?;

        // The new mounter unmounts what the old one has mounted.
        for user in users {
            scope.delete(&format!("pod/{user}"))?;
            scope.pod_gone(user).await?;
        }
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        Ok(())
    });
}

#[test]
fn a_pod_that_comes_while_the_mounter_is_away_starts_when_it_is_back() {
    on_own_nodes("chaos-late", async |scope| {
        let file = scope.volume_name("data");
        scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
        scope.volume("data", &json!({"client": "local", "source": file}))?;
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
        let mounter = scope.mounter(NODE).await?;
        pods.delete(&mounter, &DeleteParams::default().grace_period(0)).await?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        assert_eq!(scope.mounts_on(1)?.len(), 1);
        Ok(())
    });
}

#[test]
fn a_bad_mounter_config_changes_nothing_and_says_so() {
    on_own_nodes("chaos-config", async |scope| {
        let good = scope.namespace.clone();
        let clients = async || anyhow::Ok(scope.mounter_status(NODE).await?["clients"].clone());
        scope.mounter_config(&good, "self")?;
        let before = wait_until("the mounter to have read its ConfigMap", LIMIT, async || {
            Ok(Some(clients().await?).filter(|clients| clients[&good] == "self"))
        })
        .await?;
        // The same field manager: what it no longer says is gone.
        scope.mounter_config("local", "host")?;
        let error = wait_until("the mounter to complain", LIMIT, async || {
            Ok(scope.mounter_status(NODE).await?["configError"]
                .as_str()
                .map(str::to_owned))
        })
        .await?;
        assert!(
            error.contains("key local") && error.contains("remove this rule"),
            "{error}"
        );
        assert_eq!(clients().await?, before);
        let selector = format!("involvedObject.name={MOUNTER_CONFIG}");
        wait_until("an Event on the ConfigMap", LIMIT, async || {
            let args = [
                "-n",
                NAMESPACE,
                "get",
                "events",
                "--field-selector",
                &selector,
                "-o",
                "jsonpath={.items[*].message}",
            ];
            let events = mooring_testbed::command::output(&mut scope.target.kubectl(args))?;
            Ok(events.contains("what was in force stays in force").then_some(()))
        })
        .await?;
        scope.mounter_config(&good, "host")?;
        wait_until("the mounter to take the mended ConfigMap over", LIMIT, async || {
            let status = scope.mounter_status(NODE).await?;
            Ok((status["clients"][&good] == "host" && status["configError"].is_null()).then_some(()))
        })
        .await
    });
}
