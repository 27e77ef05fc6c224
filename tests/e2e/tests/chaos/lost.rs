//! Client Pods that disappear while no mounter runs: their volumes' users get the volumes back in place, or an Event.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use mooring_contract::names::NAMESPACE;
use mooring_harness::clients::{client_pods_of, image_of_its_own, remove_image};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::processes::{Stopped, kill_all, name_of};
use mooring_harness::{Scope, wait_until};
use mooring_program::reasons;
use serde_json::Value;

const NODE: &str = "node-1";

/// Longest wait for the volume to be usable again: the kubelet waits ten seconds before it restarts a mounter that was
/// killed before, and a client Pod has to start.
const LIMIT: Duration = Duration::from_mins(2);

/// How the mounter goes away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Away {
    /// Its container ends, and is restarted in the same Pod.
    Container,
    /// Its Pod goes, with everything it had in memory.
    Pod,
}

/// Removes the mounter, and meanwhile what serves the volume; returns when both are gone.
async fn lose(scope: &Scope, image: &str, away: Away) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let now = DeleteParams::default().grace_period(0);
    let mounter = scope.mounter(NODE).await?;
    let clients = client_pods_of(scope, image).await?;
    ensure!(!clients.is_empty(), "no client Pod serves the volume");
    let mut of_clients = Vec::new();
    for client in &clients {
        let name = client.metadata.name.as_deref().context("a Pod without a name")?;
        of_clients.extend(scope.processes_of(NAMESPACE, name).await?);
    }
    let of_mounter = scope.processes_of(NAMESPACE, &mounter).await?;
    ensure!(
        !of_mounter.is_empty() && !of_clients.is_empty(),
        "nothing is there to be killed"
    );
    kill_all(&of_mounter);
    if away == Away::Pod {
        pods.delete(&mounter, &now).await?;
    }
    // In this order: the kubelet must not start the containers again.
    for client in clients {
        let name = client.metadata.name.context("a Pod without a name")?;
        pods.delete(&name, &now).await?;
    }
    kill_all(&of_clients);
    Ok(())
}

/// Kills the volume's daemon while the mounter stands still: the agent mounts it again, and the Pod keeps the dead
/// mount. Returns when it is mounted again.
async fn revived_unseen(scope: &Scope, image: &str) -> Result<Stopped> {
    let device = || -> Result<_> {
        let mounts = scope.mounts_on(1)?;
        let device = mounts.first().and_then(|line| line.split_whitespace().nth(2));
        Ok(device.map(str::to_owned))
    };
    let before = device()?;
    ensure!(before.is_some(), "the volume is not mounted");
    let stopped = scope.elsewhere(NAMESPACE).stop(&scope.mounter(NODE).await?).await?;
    let mut daemons = Vec::new();
    for client in client_pods_of(scope, image).await? {
        let name = client.metadata.name.context("a Pod without a name")?;
        let processes = scope.processes_of(NAMESPACE, &name).await?;
        daemons.extend(processes.into_iter().filter(|&pid| name_of(pid) == "sshfs"));
    }
    ensure!(!daemons.is_empty(), "no daemon serves the volume");
    kill_all(&daemons);
    wait_until("the agent to mount it again", LIMIT, async || {
        let now = device()?;
        Ok((now.is_some() && now != before).then_some(()))
    })
    .await?;
    ensure!(
        scope.exec("user", ["cat", "/data/word"]).is_err(),
        "the Pod has the new mount already: nothing is left to be found"
    );
    Ok(stopped)
}

fn is_told(scope: &Scope, reason: &str, cure: &str) -> Result<bool> {
    let about = format!("involvedObject.name=user,reason={reason}");
    let events = scope.kubectl([
        "get",
        "events",
        "--field-selector",
        &about,
        "-o",
        "jsonpath={.items[*].message}",
    ])?;
    Ok(events.contains(cure))
}

/// Replaces the Pod by one of the same name, which has the volume.
async fn start_again(scope: &Scope) -> Result<()> {
    scope.delete("pod/user")?;
    scope.pod_gone("user").await?;
    scope.pod("user", NODE, "data", Value::Null)?;
    scope.pod_ready("user").await?;
    let word = scope.exec("user", ["cat", "/data/word"])?;
    ensure!(word == "again\n", "{word:?}");
    Ok(())
}

#[test]
fn a_volume_whose_client_pod_went_while_no_mounter_was_there_is_in_use_again_or_its_pod_is_told() {
    on_own_nodes("chaos-away", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        let image = image_of_its_own(&scope, "away")?;
        let mut options = server.volume("data");
        options["client-image"] = image.clone().into();
        scope.volume("data", &options)?;
        scope.pod("user", NODE, "data", Value::Null)?;
        let user = scope.pod_ready("user").await?;
        scope.exec("user", ["sh", "-c", "echo moored >/data/word"])?;

        lose(&scope, &image, Away::Container).await?;
        wait_until("the volume to be in use again", LIMIT, async || {
            let word = scope.exec("user", ["cat", "/data/word"])?;
            ensure!(word == "moored\n", "{word:?}");
            Ok(Some(()))
        })
        .await?;
        scope.exec("user", ["sh", "-c", "echo again >/data/word"])?;
        scope.event("user", "can be used again").await?;
        assert_eq!(scope.mounts_on(1)?.len(), 1);
        let now = scope.pod_ready("user").await?;
        assert_eq!(now.metadata.uid, user.metadata.uid, "the Pod is another");

        // What died before the client Pod went is recorded nowhere, and known by the id of its volume.
        let mounter = revived_unseen(&scope, &image).await?;
        lose(&scope, &image, Away::Container).await?;
        drop(mounter);
        wait_until(
            "the volume to be in use again though no agent knows its dead mount",
            LIMIT,
            async || {
                let word = scope.exec("user", ["cat", "/data/word"])?;
                ensure!(word == "again\n", "{word:?}");
                Ok(Some(()))
            },
        )
        .await?;
        let now = scope.pod_ready("user").await?;
        assert_eq!(now.metadata.uid, user.metadata.uid, "the Pod is another");

        // A mounter in a new Pod has forgotten the volume, and can't ask the client Pod that is gone.
        lose(&scope, &image, Away::Pod).await?;
        wait_until(
            "the volume to be in use again, or its Pod to be told",
            LIMIT,
            async || {
                let is_there = scope
                    .exec("user", ["cat", "/data/word"])
                    .is_ok_and(|word| word == "again\n");
                let told = is_told(&scope, reasons::VOLUME_LOST, "delete the Pod")?;
                Ok((is_there || told).then_some(()))
            },
        )
        .await?;
        start_again(&scope).await?;
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        remove_image(&scope, &image)
    });
}
