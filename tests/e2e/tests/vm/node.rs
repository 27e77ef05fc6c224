//! Volumes that the kernel mounts, from the claim to the Pod, with a real kubelet: on a node in a virtual machine with
//! Debian's stock kernel, beside nodes whose kernel has neither NFS nor SMB.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{ListParams, ResourceExt};
use mooring_contract::names::labels;
use mooring_harness::guest_node::{MACHINE_NODE, with_machine_node};
use mooring_harness::provisioner::{Provisioner, user_of};
use mooring_harness::{Scope, wait_until};
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

/// Longest until the new node's mounter has reported what it can mount.
const READY_LIMIT: Duration = Duration::from_mins(3);

/// The value of each node's label for a client.
async fn said(scope: &Scope, client: &str) -> Result<Vec<(String, String)>> {
    let key = format!("{}{client}", labels::NODE_CLIENT_PREFIX);
    let nodes = Api::<Node>::all(scope.client.clone())
        .list(&ListParams::default())
        .await?;
    let word = |node: &Node| node.labels().get(&key).cloned().unwrap_or_default();
    Ok(nodes.items.iter().map(|node| (node.name_any(), word(node))).collect())
}

/// Waits until only the machine's label says that it can mount a client's volumes.
async fn ready_on_the_machine_alone(scope: &Scope, client: &str) -> Result<()> {
    let what = format!("{MACHINE_NODE} and no other node to be ready for {client}");
    wait_until(&what, READY_LIMIT, async || {
        let said = said(scope, client).await?;
        let want = |name: &str| {
            if name == MACHINE_NODE {
                labels::READY
            } else {
                labels::NOT_READY
            }
        };
        ensure!(said.iter().all(|(name, word)| word == want(name)), "{said:?}");
        Ok(Some(()))
    })
    .await
}

fn node_of(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

/// Creates a claim of the class, lets one Pod write to it and another read it, neither of which names a node, and
/// deletes everything.
async fn written_and_read(scope: &Scope, provisioner: &Provisioner, fs_type: &str) -> Result<String> {
    let claimed = Instant::now();
    let mut claim = mooring_harness::provisioner::claim("data", &provisioner.class, "1Mi");
    claim["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    let uid = scope.claim_with(None, &claim).await?;
    scope.claim_bound("data").await?;
    note(format!("{fs_type}: a volume after {}", spoken(claimed.elapsed())));

    // The Pod can't be scheduled while the only suitable node is cordoned.
    scope.kubectl(["cordon", MACHINE_NODE])?;
    let write = format!(
        "grep ' /data {fs_type} ' /proc/mounts; echo from the writer >/data/letter; sync /data/letter; sleep 1000000"
    );
    let mut writer = user_of("writer", "data", &write);
    writer["spec"]["containers"][0]["startupProbe"] =
        json!({"exec": {"command": ["test", "-s", "/data/letter"]}, "periodSeconds": 2, "failureThreshold": 150});
    scope.apply(&writer.to_string())?;
    scope.event("writer", "PersistentVolume's node affinity").await?;
    scope.kubectl(["uncordon", MACHINE_NODE])?;
    let opened = Instant::now();
    let writer = scope.pod_ready("writer").await?;
    ensure!(
        node_of(&writer) == MACHINE_NODE,
        "the writer is on {}",
        node_of(&writer)
    );
    note(format!(
        "{fs_type}: a Pod that had written after {}",
        spoken(opened.elapsed())
    ));
    let mounts = scope.mounts_on_machine()?;
    ensure!(
        mounts.len() == 1 && mounts[0].contains(&format!(" - {fs_type} ")) && mounts[0].contains("nosuid"),
        "{mounts:?}"
    );

    scope.apply(&user_of("reader", "data", "grep 'from the writer' /data/letter").to_string())?;
    let reader = scope.pod_succeeded("reader").await?;
    ensure!(
        node_of(&reader) == MACHINE_NODE,
        "the reader is on {}",
        node_of(&reader)
    );

    for pod in ["writer", "reader"] {
        scope.delete(&format!("pod/{pod}"))?;
    }
    for pod in ["writer", "reader"] {
        scope.pod_gone(pod).await?;
    }
    let mounts = scope.mounts_on_machine()?;
    ensure!(mounts.is_empty(), "still mounted: {mounts:?}");
    scope.claim_gone("data").await?;
    scope.nothing_left(&uid).await?;
    Ok(uid)
}

#[test]
fn claims_that_only_a_stock_kernel_can_mount_bring_their_pods_to_the_node_that_has_one() {
    with_machine_node("vm-node", async |scope| {
        scope.require_mooring().await?;
        let nfs = scope.storage_server("nfs", "node-1", &Value::Null).await?;
        let (_, smb) = scope.smb_example().await?;
        for client in ["nfs", "smb"] {
            ready_on_the_machine_alone(&scope, client).await?;
        }

        // The volumes' directories are created where the export can be mounted, on the same node.
        let export = format!("{}:/open", nfs.address);
        let example = scope.provisioner_named("-nfs").example("nfs.yaml")?;
        let provisioner = example
            .key("backend-volume", format!("client=nfs,source={export}"))
            // A worker would have the export mounted, on the node where nothing is to be mounted in the end.
            .key("workers", "0")
            .key("source", export);
        provisioner.apply().await?;
        let list = ["sh", "-euc", "ls /srv/open | grep -v lost+found || true"];
        Box::pin(written_and_read(&scope, &provisioner, "nfs4")).await?;
        ensure!(scope.exec("nfs", list)?.is_empty(), "{}", scope.exec("nfs", list)?);

        // Its image does not mount anything, and is only on the other node.
        let provisioner = smb.key("node-selector", "kubernetes.io/hostname=node-1");
        provisioner.apply().await?;
        let list = ["sh", "-euc", "ls /srv/volumes"];
        let before = scope.exec("samba", list)?;
        Box::pin(written_and_read(&scope, &provisioner, "cifs")).await?;
        ensure!(scope.exec("samba", list)? == before, "{}", scope.exec("samba", list)?);
        Ok(())
    });
}
