//! The node on whose disk an image makes its volumes.

use std::time::Duration;

use flex_provisioner::config::{ProvisionerConfig, VolumeSourceKind};
use flex_provisioner::process::call::Answer as _;
use flex_provisioner::volume::topology::{Node, mark_of_unable};
use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::time::{Instant, sleep};

use super::error::RigError;
use crate::say::say;

/// How often the nodes are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// Waits up to `limit` for a node that can: that of a new cluster, or with a new mounter, takes some time.
pub(super) async fn wait_for(cluster: &Client, config: &ProvisionerConfig, limit: Duration) -> Result<Node, RigError> {
    let api: Api<ApiNode> = Api::all(cluster.clone());
    let backend = config.backend_volume.as_ref();
    let client = backend.map_or("", |backend| backend.client.as_str());
    let deadline = Instant::now() + limit;
    let mut is_told = false;
    loop {
        let nodes = api
            .list(&ListParams::default())
            .await
            .or_failed_to("list", "nodes", "")?;
        let mut unfit = Vec::new();
        for node in nodes {
            let Some(why) = why_unfit(&node, client) else {
                return Ok(as_node(&node));
            };
            unfit.push(format!("{}: {why}", node.name_any()));
        }
        let error = RigError::NoNode {
            client: client.to_owned(),
            nodes: unfit.join("; "),
        };
        if Instant::now() > deadline {
            return Err(error);
        }
        if !is_told {
            say(&format!("waiting up to {} s: {error}", limit.as_secs()));
            is_told = true;
        }
        sleep(PERIOD).await;
    }
}

fn as_node(node: &ApiNode) -> Node {
    Node {
        name: node.name_any(),
        labels: node.labels().clone(),
    }
}

/// Why no volume for this client can be made on a node; nothing if one can.
fn why_unfit(node: &ApiNode, client: &str) -> Option<String> {
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        return Some("it is cordoned".to_owned());
    }
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|found| found.type_ == "Ready");
    if ready.is_none_or(|ready| ready.status != "True") {
        let why = ready.and_then(|ready| ready.message.as_deref());
        return Some(why.unwrap_or("its kubelet has not said that it is ready").to_owned());
    }
    // The images' runs have it by FlexVolume.
    let mark = mark_of_unable(&as_node(node), client, VolumeSourceKind::FlexVolume)?;
    let why = node.annotations().get(&mark);
    Some(why.map_or_else(|| format!("its label {mark} says so"), Clone::clone))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::why_unfit;

    #[test]
    fn a_node_that_can_t_says_why() {
        let why = |metadata: Value, spec: Value, ready: Value| {
            let pressure = json!({"type": "MemoryPressure", "status": "False"});
            let status = json!({"conditions": [pressure, ready]});
            let node = json!({"metadata": metadata, "spec": spec, "status": status});
            why_unfit(&serde_json::from_value(node).unwrap(), "pool")
        };
        let ready = json!({"type": "Ready", "status": "True", "message": "kubelet is posting ready status"});
        assert_eq!(why(json!({}), json!({}), ready.clone()), None);
        let other = json!({"labels": {"client.mooring.dev/nfs": "not-ready"}});
        assert_eq!(why(other, json!({}), ready.clone()), None);
        let cordoned = why(json!({}), json!({"unschedulable": true}), ready.clone());
        assert_eq!(cordoned.as_deref(), Some("it is cordoned"));
        let down = json!({"type": "Ready", "status": "Unknown", "message": "no heartbeat"});
        assert_eq!(why(json!({}), json!({}), down).as_deref(), Some("no heartbeat"));
        let starting = why(json!({}), json!({}), json!({"type": "DiskPressure", "status": "False"}));
        assert!(starting.unwrap().contains("has not said"));
        let labels = json!({"client.mooring.dev/pool": "not-ready"});
        let unable = json!({"labels": labels, "annotations": {"client.mooring.dev/pool": "no disk"}});
        assert_eq!(why(unable, json!({}), ready.clone()).as_deref(), Some("no disk"));
        let silent = why(json!({"labels": labels}), json!({}), ready);
        assert!(silent.unwrap().contains("client.mooring.dev/pool"));
    }
}
