//! New versions of mounter, shim and client image are rolled out, and taken back, while volumes are in use. Alone: every mounter
//! of the cluster is replaced.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ResourceExt as _;
use kube::{Api, Client};
use mooring_contract::names::{FLEX_EXECUTABLE, labels};
use mooring_testbed::harness::clients::{
    MOUNTER_IMAGE, SSH_CLIENT_IMAGE, client_pods_of, image_of_its_own, next_mounter, remove_image,
};
use mooring_testbed::harness::nodes::{POOL, driver_directory, on_own_nodes};
use mooring_testbed::harness::rollout::Installed;
use mooring_testbed::harness::{Scope, wait_until};
use serde_json::json;

const NODE: &str = "node-1";

/// Longest wait for a client Pod to come or go, and for the node to say so.
const LIMIT: Duration = Duration::from_mins(3);

/// What the node says of client Pods of an earlier version: how many, and which.
async fn old_client_pods(client: &Client) -> Result<(String, String)> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(NODE).await?;
    let of = |all: &std::collections::BTreeMap<String, String>| {
        all.get(labels::NODE_OLD_CLIENT_PODS).cloned().unwrap_or_default()
    };
    Ok((of(node.labels()), of(node.annotations())))
}

async fn until_old(scope: &Scope, count: &str) -> Result<String> {
    wait_until(&format!("{NODE} to say {count} old client Pods"), LIMIT, async || {
        let (said, words) = old_client_pods(&scope.client).await?;
        ensure!(said == count, "it says {said:?}: {words}");
        Ok(Some(words))
    })
    .await
}

/// The client Pods of an image, with how often their containers were started again.
async fn serving(scope: &Scope, image: &str) -> Result<Vec<(String, i32)>> {
    let restarts = |pod: &Pod| {
        let statuses = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        statuses.map_or(0, |all| all.iter().map(|one| one.restart_count).sum())
    };
    let pods = client_pods_of(scope, image).await?;
    Ok(pods
        .iter()
        .map(|pod| (pod.uid().unwrap_or_default(), restarts(pod)))
        .collect())
}

/// The shim on the node, by its sum.
fn shim(scope: &Scope) -> Result<String> {
    scope.on_node(
        1,
        &format!(
            "sha256sum {}",
            driver_directory(scope.own_cluster()?).join(FLEX_EXECUTABLE).display()
        ),
    )
}

/// Volumes in use go on as they are: the very mounts, no error, and something written since.
async fn untouched(scope: &Scope, users: &[&str], mounts: &[String], before: &[usize]) -> Result<()> {
    assert_eq!(scope.mounts_on(1)?, mounts);
    for (user, before) in users.iter().zip(before) {
        wait_until(&format!("{user} to write on"), LIMIT, async || {
            Ok((scope.written(user)? > before + 3).then_some(()))
        })
        .await?;
    }
    Ok(())
}

#[test]
fn an_upgrade_and_its_way_back_disturb_no_volume_and_old_client_pods_go_with_their_last_one() {
    on_own_nodes("chaos-upgrade", async |scope| {
        scope.require_mooring().await?;
        let server = scope.ssh_server(NODE, &["a", "b"]).await?;
        for name in ["a", "b"] {
            scope.volume(name, &server.volume(name))?;
        }
        let file = scope.volume_name("local");
        scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
        scope.volume("local", &json!({"client": "local", "source": file}))?;
        let users = ["on-a", "on-local"];
        for (user, claim) in users.iter().zip(["a", "local"]) {
            scope.writer(user, NODE, claim)?;
        }
        for user in users {
            scope.pod_ready(user).await?;
        }
        let written = || users.map(|user| scope.written(user).unwrap_or_default());
        let mounts = scope.mounts_on(1)?;
        assert_eq!(mounts.len(), 2, "{mounts:?}");
        until_old(&scope, "0").await?;
        let installed = Installed::now(&scope).await?;
        let old_image = format!("{SSH_CLIENT_IMAGE}:{}", env!("CARGO_PKG_VERSION"));
        ensure!(installed.image().starts_with(MOUNTER_IMAGE), "{}", installed.image());
        let (old, old_shim) = (serving(&scope, &old_image).await?, shim(&scope)?);
        assert_eq!(old.len(), 1, "{old:?}");
        let new_image = image_of_its_own(&scope, "next")?;
        let new_mounter = next_mounter(&scope, "next")?;

        let before = written();
        installed.upgrade(&new_mounter, "sshfs", &new_image).await?;
        untouched(&scope, &users, &mounts, &before).await?;
        assert_eq!(serving(&scope, &old_image).await?, old);
        assert_ne!(shim(&scope)?, old_shim);
        let words = until_old(&scope, "1").await?;
        ensure!(
            words.contains(&old_image) && words.contains(&format!("{}/on-a", scope.namespace)),
            "{words}"
        );

        // What is mounted from now on is served by the new one, and the old one serves what it has.
        scope.writer("on-b", NODE, "b")?;
        scope.pod_ready("on-b").await?;
        let new = serving(&scope, &new_image).await?;
        assert_eq!(new.len(), 1, "{new:?}");
        assert_eq!(serving(&scope, &old_image).await?, old);

        // With its last volume it goes, and the node says so.
        scope.stopped_and_intact("on-a").await?;
        scope.delete("pod/on-a")?;
        scope.pod_gone("on-a").await?;
        wait_until("the old client Pod to go", LIMIT, async || {
            Ok(serving(&scope, &old_image).await?.is_empty().then_some(()))
        })
        .await?;
        let words = until_old(&scope, "0").await?;
        assert_eq!(words, "");

        // The way back is an upgrade as well.
        let users = ["on-b", "on-local"];
        let mounts = scope.mounts_on(1)?;
        let before = users.map(|user| scope.written(user).unwrap_or_default());
        installed.roll_back().await?;
        untouched(&scope, &users, &mounts, &before).await?;
        assert_eq!(serving(&scope, &new_image).await?, new);
        assert_eq!(shim(&scope)?, old_shim);
        until_old(&scope, "1").await?;
        for user in users {
            scope.stopped_and_intact(user).await?;
            scope.delete(&format!("pod/{user}"))?;
            scope.pod_gone(user).await?;
        }
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        until_old(&scope, "0").await?;
        drop(installed);
        for image in [new_image, new_mounter] {
            remove_image(&scope, &image)?;
        }
        Ok(())
    });
}
