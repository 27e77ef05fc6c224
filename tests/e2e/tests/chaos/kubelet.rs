//! A kubelet that is reconfigured to look for drivers in another directory, or in none. Alone: all Pods of its node are affected.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ResourceExt as _};
use mooring_contract::names::{FLEX_DRIVER_DIR, FLEX_EXECUTABLE, FLEX_SOCKET, NAMESPACE, labels};
use mooring_harness::nodes::{driver_directory_outside, on_own_nodes};
use mooring_harness::provisioner::user_of;
use mooring_harness::{Scope, skipped_without_all, wait_until};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::progress::note;
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Longest wait for shim and socket to be where the kubelet looks: the mounter checks every 5 s.
const LIMIT: Duration = Duration::from_mins(2);

/// The other directory.
const ELSEWHERE: &str = "/var/lib/kubelet/drivers";

/// A directory that nobody can make.
const NOWHERE: &str = "/sys/drivers";

/// Not a kubelet, but a tenant's process with that name, which tries to get the mounter's socket.
const IMPOSTER: &str = r"printf '#!/bin/sh\nsleep 1000000\n' >/tmp/kubelet; chmod 755 /tmp/kubelet; mkdir /tmp/plugins
    exec /tmp/kubelet --volume-plugin-dir=/tmp/plugins";

/// A kubelet with a changed configuration. Dropping this restores the earlier one.
struct Changed {
    cluster: Cluster,
    file: PathBuf,
    before: String,
}

impl Changed {
    /// Makes it look for drivers elsewhere, after its next start.
    fn to(cluster: &Cluster, plugins: &str) -> Result<Self> {
        let file = cluster.layout.node(NODE).join("etc/kubernetes/kubelet.json");
        let before = std::fs::read_to_string(&file).context("failed to read the kubelet's configuration")?;
        let mut configuration: Value = serde_json::from_str(&before)?;
        configuration["volumePluginDir"] = plugins.into();
        let changed = Self {
            cluster: cluster.clone(),
            file,
            before,
        };
        changed.write(&configuration.to_string())?;
        Ok(changed)
    }

    fn write(&self, configuration: &str) -> Result<()> {
        std::fs::write(&self.file, configuration).context("failed to write the kubelet's configuration")
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let restarted = self
            .write(&self.before)
            .and_then(|()| self.cluster.kill_in_node(1, "kubelet"));
        if let Err(error) = restarted {
            note(format!(
                "the kubelet of {NODE} still looks for drivers elsewhere: {error:#}"
            ));
        }
    }
}

fn is_whole(driver: &Path) -> bool {
    [FLEX_EXECUTABLE, FLEX_SOCKET]
        .iter()
        .all(|file| driver.join(file).exists())
}

/// Waits until shim and socket are in the directory that the kubelet uses and in the one that it will use.
async fn in_both(now: &Path, soon: &Path) -> Result<()> {
    wait_until("the shim to be where the kubelet will look", LIMIT, async || {
        ensure!(is_whole(now), "it is gone from where the kubelet looks now");
        Ok(is_whole(soon).then_some(()))
    })
    .await
}

/// Waits until shim and socket are in one directory only, nothing is left in the other, and the mounter's status says
/// so.
async fn only_in(scope: &Scope, here: &Path, not_here: &Path) -> Result<()> {
    wait_until(
        &format!("the shim to be in {} only", here.display()),
        LIMIT,
        async || {
            ensure!(is_whole(here) && !not_here.exists(), "not yet there only");
            let status = scope.mounter_status(NODE).await?;
            ensure!(status["ready"] == true, "{status:#}");
            Ok(Some(()))
        },
    )
    .await
}

/// A Pod with a volume of its own, in memory.
fn user(scope: &Scope, name: &str) -> Result<()> {
    scope.volume(
        name,
        &json!({"client": scope.namespace, "fs-type": "tmpfs", "mount-options": "size=1m"}),
    )?;
    scope.pod(name, NODE, name, Value::Null)
}

#[test]
fn the_shim_follows_the_kubelet_to_another_plugin_directory_and_back_and_no_imposter() {
    on_own_nodes("chaos-kubelet", async |scope| {
        scope.require_mooring().await?;
        let cluster = scope.own_cluster()?.clone();
        let before = driver_directory_outside(NODE)?;
        let elsewhere = cluster
            .layout
            .node(NODE)
            .join(ELSEWHERE.trim_start_matches('/'))
            .join(FLEX_DRIVER_DIR);
        only_in(&scope, &before, &elsewhere).await?;
        let imposter = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "imposter"},
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "busybox:1", "command": ["sh", "-c", IMPOSTER]}],
            },
        });
        // Started before the next kubelet, so that it comes first in any process list.
        scope.apply(&imposter.to_string())?;
        scope.pod_ready("imposter").await?;
        scope.mounter_config(&scope.namespace, "self")?;
        user(&scope, "old")?;
        scope.pod_ready("old").await?;

        let changed = Changed::to(&cluster, ELSEWHERE)?;
        // A kubelet that starts without the driver would not recognize any mounted volume.
        in_both(&before, &elsewhere).await?;
        cluster.kill_in_node(1, "kubelet")?;
        only_in(&scope, &elsewhere, &before).await?;
        user(&scope, "new")?;
        scope.pod_ready("new").await?;
        ensure!(scope.exec("imposter", ["ls", "-A", "/tmp/plugins"])?.is_empty());

        // The next mounter finds the same directory.
        let mounter = scope.mounter(NODE).await?;
        let mounters: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
        mounters.delete(&mounter, &DeleteParams::default()).await?;
        wait_until("another mounter", LIMIT, async || {
            Ok((scope.mounter(NODE).await? != mounter).then_some(()))
        })
        .await?;
        only_in(&scope, &elsewhere, &before).await?;
        scope.exec("old", ["touch", "/data/used"])?;
        scope.delete("pod/old")?;
        scope.pod_gone("old").await?;

        changed.write(&changed.before)?;
        in_both(&elsewhere, &before).await?;
        drop(changed);
        only_in(&scope, &before, &elsewhere).await?;
        scope.delete("pod/new")?;
        scope.pod_gone("new").await?;
        ensure!(scope.mounts_on(1)?.is_empty(), "{:?}", scope.mounts_on(1)?);
        ensure!(scope.exec("imposter", ["ls", "-A", "/tmp/plugins"])?.is_empty());
        scope.on_node(1, &format!("rmdir {ELSEWHERE}"))?;
        Ok(())
    });
}

fn on_node(mut pod: Value) -> Value {
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": NODE});
    pod
}

#[test]
fn a_node_without_a_plugin_directory_is_ready_for_csi_and_gets_no_pod_with_flexvolume() {
    if skipped_without_all() {
        return;
    }
    on_own_nodes("chaos-no-plugins", async |scope| {
        scope.require_mooring().await?;
        let server = scope.ssh_server("node-2", &["data"]).await?;
        let changed = Changed::to(scope.own_cluster()?, NOWHERE)?;
        changed.cluster.kill_in_node(1, "kubelet")?;
        let label = format!("{}{}", labels::NODE_CLIENT_PREFIX, labels::FLEX_VOLUME);
        let nodes: Api<Node> = Api::all(scope.client.clone());
        let node = wait_until("the node to say that it lacks FlexVolume", LIMIT, async || {
            let node = nodes.get(NODE).await?;
            let is_unready = node.labels().get(&label).is_some_and(|word| word == labels::NOT_READY);
            Ok(is_unready.then_some(node))
        })
        .await?;
        let cure = node.annotations().get(&label).context("no annotation")?;
        ensure!(cure.contains(NOWHERE) && cure.contains("volumePluginDir"), "{cure}");
        let sshfs = format!("{}sshfs", labels::NODE_CLIENT_PREFIX);
        for ready in [labels::NODE_MOUNTER, &sshfs] {
            ensure!(
                node.labels().get(ready).is_some_and(|word| word == labels::READY),
                "{ready}"
            );
        }
        // A kubelet that has just started knows no Pod yet.
        let status = wait_until("the mounter's status", LIMIT, async || {
            Ok(Some(scope.mounter_status(NODE).await?))
        })
        .await?;
        ensure!(
            status["ready"] == true && status["unable"]["FlexVolume"] == cure.as_str(),
            "{status:#}"
        );

        scope.csi_volume("csi", &server.volume("data"), &Value::Null)?;
        scope.pod("csi", NODE, "csi", Value::Null)?;
        scope.pod_ready("csi").await?;
        // The run has the node's pool by CSI, too.
        let local = scope
            .provisioner()
            .key(
                "image",
                concat!("mooring.dev/provisioner-local:", env!("CARGO_PKG_VERSION")),
            )
            .key("backend-volume", "client=pool")
            .key("volume-source", "csi")
            .key("volume-binding-mode", "WaitForFirstConsumer");
        local.apply().await?;
        let uid = scope.claim("local", &local.class, "16Mi").await?;
        scope.apply(&on_node(user_of("local", "local", "echo kept >/data/file; sleep 1000000")).to_string())?;
        scope.pod_ready("local").await?;
        scope.delete("pod/local")?;
        scope.pod_gone("local").await?;
        scope.delete("persistentvolumeclaim/local")?;
        scope.gone_without_trace("local", &uid).await?;
        let script = format!(
            "pv options client=sshfs source={} secret-name=ssh secret-namespace=$PVC_NAMESPACE",
            server.source("data")
        );
        let provisioner = scope
            .provisioner()
            .key("volume-source", "flexVolume")
            .key("volume-binding-mode", "WaitForFirstConsumer")
            .on_provision(&script);
        provisioner.apply().await?;
        scope.claim("flex", &provisioner.class, "1Mi").await?;
        scope.apply(&on_node(user_of("flex", "flex", "sleep 1000000")).to_string())?;
        let event = scope
            .event("flex", "didn't match PersistentVolume's node affinity")
            .await?;
        ensure!(event.reason.as_deref() == Some("FailedScheduling"), "{event:?}");

        drop(changed);
        scope.pod_ready("flex").await?;
        for name in ["csi", "flex"] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
        }
        Ok(())
    });
}
