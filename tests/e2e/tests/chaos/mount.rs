//! What happens to mounts when a mounter, a kubelet or a client container ends without warning. One at a time: all
//! volumes of a node are affected.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use mooring_contract::names::{MOUNTER_CONFIG, NAMESPACE};
use mooring_harness::clients::{client_pods_of, image_of_its_own, remove_image};
use mooring_harness::nodes::{POOL, on_own_nodes};
use mooring_harness::processes::kill_all;
use mooring_harness::{Scope, is_whole_suite, wait_until};
use mooring_program::reasons;
use serde_json::{Value, json};

const NODE: &str = "node-1";
const LIMIT: Duration = Duration::from_secs(90);

/// How often each is killed.
fn rounds() -> usize {
    if is_whole_suite() { 10 } else { 3 }
}

/// Ends the mounter of a node like a crash, and waits until the next one is ready. In turn, its container is restarted
/// and its Pod is replaced, which avoids the kubelet's growing backoff.
async fn kill_mounter(scope: &Scope, round: usize) -> Result<()> {
    let old = scope.mounter(NODE).await?;
    let pids = scope.processes_of(NAMESPACE, &old).await?;
    ensure!(!pids.is_empty(), "the mounter has no process");
    kill_all(&pids);
    let replaced = round.is_multiple_of(2);
    if replaced {
        let mounters: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
        mounters.delete(&old, &DeleteParams::default().grace_period(0)).await?;
    }
    wait_until("the next mounter to answer", LIMIT, async || {
        let new = scope.mounter(NODE).await?;
        let ready = scope.mounter_status(NODE).await?["ready"] == true;
        let now = scope.processes_of(NAMESPACE, &new).await?;
        let others = !now.is_empty() && now.iter().all(|pid| !pids.contains(pid));
        Ok(((new != old) == replaced && ready && others).then_some(()))
    })
    .await
}

/// Ends a kubelet like a crash, and waits until the next one has dealt with these volumes: by then, it has unmounted
/// what it takes for an orphan's, and asked for its Pods' mounts again.
async fn kill_kubelet(scope: &Scope, volumes: &[String]) -> Result<()> {
    let log = scope.own_cluster()?.layout.logs(NODE).join("kubelet.log");
    let begun = log.metadata().with_context(|| format!("no {}", log.display()))?.len();
    scope.own_cluster()?.kill_in_node(1, "kubelet")?;
    wait_until("the next kubelet to answer", LIMIT, async || {
        scope.kubectl(["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/healthz")])?;
        Ok(Some(()))
    })
    .await?;
    wait_until("the next kubelet to ask for its volumes", LIMIT, async || {
        let mut file = File::open(&log)?;
        file.seek(SeekFrom::Start(begun))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let is_done = |volume: &&String| {
            let said = |how: &str| text.contains(&format!("MountVolume.SetUp {how} for volume \\\"{volume}\\\""));
            said("succeeded") || said("failed")
        };
        let missing: Vec<_> = volumes.iter().filter(|volume| !is_done(volume)).collect();
        ensure!(missing.is_empty(), "nothing of {missing:?} yet");
        Ok(Some(()))
    })
    .await
}

/// Proves: M2
#[test]
fn volumes_stay_usable_and_mounted_once_while_mounter_and_kubelet_are_killed() {
    on_own_nodes("chaos-mount", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        scope.volume("ssh", &server.volume("data"))?;
        let file = scope.volume_name("local");
        scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
        scope.volume("local", &json!({"client": "local", "source": file}))?;
        let users = ["on-ssh", "on-local"];
        for (user, claim) in users.iter().zip(["ssh", "local"]) {
            scope.writer(user, NODE, claim)?;
        }
        for user in users {
            scope.pod_ready(user).await?;
        }
        let before = scope.mounts_on(1)?;
        assert_eq!(before.len(), 2, "{before:?}");
        let all = scope.on_node(1, "wc -l </proc/self/mountinfo")?;
        let volumes = ["ssh", "local"].map(|claim| scope.volume_name(claim));

        for round in 1..=rounds() {
            let started = users.map(|user| scope.written(user));
            kill_mounter(&scope, round).await?;
            kill_kubelet(&scope, &volumes).await?;
            assert_eq!(scope.mounts_on(1)?, before, "round {round}");
            assert_eq!(scope.loop_devices()?.len(), 1, "round {round}");
            for (user, started) in users.iter().zip(started) {
                let started = started?;
                wait_until(&format!("{user} to write more in round {round}"), LIMIT, async || {
                    Ok((scope.written(user)? > started).then_some(()))
                })
                .await?;
            }
        }
        wait_until(
            "the node's mount table to be no longer than before",
            Duration::from_mins(3),
            async || {
                let now = scope.on_node(1, "wc -l </proc/self/mountinfo")?;
                let (now, all): (usize, usize) = (now.trim().parse()?, all.trim().parse()?);
                ensure!(now <= all, "{now} lines instead of {all}");
                Ok(Some(()))
            },
        )
        .await?;
        for user in users {
            scope.stopped_and_intact(user).await?;
        }

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
fn another_client_pod_takes_over_from_a_killed_one_and_no_data_is_lost() {
    on_own_nodes("chaos-client", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        let image = image_of_its_own(&scope, "killed")?;
        let mut options = server.volume("data");
        options["client-image"] = image.clone().into();
        scope.volume("data", &options)?;
        for round in 1..=rounds() {
            let user = format!("user-{round}");
            scope.writer(&user, NODE, "data")?;
            scope.pod_ready(&user).await?;
            wait_until("all files to have been written", LIMIT, async || {
                Ok((scope.written(&user)? >= 8).then_some(()))
            })
            .await?;
            let mounts = scope.mounts_on(1)?;
            ensure!(mounts.len() == 1, "round {round}: {mounts:?}");
            let mut killed = 0;
            for pod in client_pods_of(&scope, &image).await? {
                let name = pod.metadata.name.context("a Pod without a name")?;
                let pids = scope.processes_of(NAMESPACE, &name).await?;
                killed += pids.len();
                kill_all(&pids);
                // A restarted one mounts its volumes again (chaos_revive); with its Pod, it loses its records of them.
                let clients: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
                clients.delete(&name, &DeleteParams::default().grace_period(0)).await?;
            }
            ensure!(killed > 0, "round {round}: there was no client container");
            // What a starting kubelet does with a dead mount.
            if round == rounds() / 2 {
                kill_kubelet(&scope, &[scope.volume_name("data")]).await?;
            }
            let event = format!("involvedObject.name={user},reason={}", reasons::VOLUME_REVIVED);
            wait_until("the volume to be in use again", LIMIT, async || {
                let told = scope.kubectl(["get", "events", "--field-selector", &event, "-o", "name"])?;
                scope.exec(&user, ["ls", "/data"])?;
                Ok((!told.is_empty()).then_some(()))
            })
            .await?;
            scope.delete(&format!("pod/{user}"))?;
            scope.pod_gone(&user).await?;
            assert_eq!(scope.mounts_on(1)?, Vec::<String>::new(), "round {round}");
        }
        scope.pod("reader", NODE, "data", Value::Null)?;
        scope.pod_ready("reader").await?;
        // The file that was being written when its client was killed has no checksum.
        scope.intact("reader")?;
        scope.delete("pod/reader")?;
        scope.pod_gone("reader").await?;
        wait_until("idle client Pods to be deleted", LIMIT, async || {
            Ok(client_pods_of(&scope, &image).await?.is_empty().then_some(()))
        })
        .await?;
        remove_image(&scope, &image)
    });
}

#[test]
fn a_pod_created_while_the_mounter_is_away_starts_when_it_is_back() {
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
        // The same field manager, so the keys that it no longer sets are removed.
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
            Ok(events.contains("its last good version stays in force").then_some(()))
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
