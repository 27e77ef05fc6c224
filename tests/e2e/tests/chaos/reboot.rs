//! What a node has after a power cut. One at a time: all Pods of the node are affected.

use std::time::Duration;

use mooring_harness::nodes::{POOL, PowerCut, on_own_nodes};
use mooring_harness::wait_until;
use serde_json::json;

/// The kubelet has to notice that its Pods are gone, then start Mooring's Pods, then the user's.
const LIMIT: Duration = Duration::from_mins(3);

#[test]
fn a_pod_has_its_local_volume_again_after_its_node_lost_power() {
    on_own_nodes("chaos-power", async |scope| {
        scope.require_mooring().await?;
        let cluster = scope.own_cluster()?.clone();
        let index = cluster.description.nodes;
        let node = format!("node-{index}");
        let file = scope.volume_name("data");
        scope.on_node(index, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
        scope.volume("data", &json!({"client": "local", "source": file}))?;
        let script = "date >>/data/starts && sync && sleep 1000000";
        let main = json!([{
            "name": "main", "image": "busybox:1", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }]);
        scope.pod("user", &node, "data", json!({"containers": main}))?;
        scope.pod_ready("user").await?;
        wait_until("the first start to be noted", LIMIT, async || {
            Ok((scope.exec("user", ["cat", "/data/starts"])?.lines().count() == 1).then_some(()))
        })
        .await?;

        let cut = PowerCut::of(&cluster, index)?;
        wait_until("no loop device to be left", LIMIT, async || {
            Ok(scope.loop_devices()?.is_empty().then_some(()))
        })
        .await?;
        cut.end()?;

        wait_until(
            "the Pod to have been started a second time on its volume",
            LIMIT,
            async || {
                let starts = scope.exec("user", ["cat", "/data/starts"])?;
                anyhow::ensure!(starts.lines().count() == 2, "starts: {starts:?}");
                Ok(Some(()))
            },
        )
        .await?;
        assert_eq!(scope.mounts_on(index)?.len(), 1);
        Ok(())
    });
}
