//! What users see of a volume whose server hangs, where Kubernetes has the gate `CSIVolumeHealth` on.

use std::time::Duration;

use anyhow::Result;
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::{Scope, wait_until};
use serde_json::Value;

const NODE: &str = "node-1";

/// The kubelet asks every 10 s here, and waits 10 s for a volume's answer. The rest is for a busy machine.
const SEEN_LIMIT: Duration = Duration::from_mins(2);

/// Longest until a mount that failed is tried again.
const HEAL_LIMIT: Duration = Duration::from_mins(3);

/// The conditions of a Pod's volume, as the API shows them.
fn conditions(scope: &Scope, pod: &str) -> Result<String> {
    let conditions = "jsonpath={.status.volumeHealth[?(@.name==\"data\")].healthConditions[*]}";
    scope.kubectl(["get", "pod", pod, "-o", conditions])
}

/// Waits until a Pod's volume has a condition with all of these words.
async fn ails(scope: &Scope, pod: &str, words: &[&str]) -> Result<()> {
    wait_until(&format!("{pod} to have {words:?}"), SEEN_LIMIT, async || {
        let seen = conditions(scope, pod)?;
        Ok(words.iter().all(|word| seen.contains(word)).then_some(()))
    })
    .await
}

/// Waits until a Pod's volume has no condition.
async fn is_well(scope: &Scope, pod: &str) -> Result<()> {
    wait_until(&format!("{pod} to have no condition"), SEEN_LIMIT, async || {
        Ok(conditions(scope, pod)?.is_empty().then_some(()))
    })
    .await
}

/// Proves: M1
#[test]
fn a_hung_server_is_seen_on_the_pods_that_have_or_want_its_volumes_until_it_answers() {
    on_own_nodes("mount-health", async |scope| {
        let hung = scope.ssh_server_called("hung", "node-2", &["used", "next"]).await?;
        let fine = scope.ssh_server_called("fine", "node-2", &["data"]).await?;
        for (name, options) in [
            ("used", hung.volume("used")),
            ("next", hung.volume("next")),
            ("other", fine.volume("data")),
        ] {
            scope.csi_volume(name, &options, &Value::Null)?;
        }
        for name in ["used", "other"] {
            scope.pod(name, NODE, name, Value::Null)?;
        }
        for name in ["used", "other"] {
            scope.pod_ready(name).await?;
        }
        let stopped = scope.stop("hung").await?;
        scope.pod("next", NODE, "next", Value::Null)?;
        ails(&scope, "used", &["Inaccessible", &hung.address]).await?;
        ails(&scope, "next", &["Inaccessible", "NotMounted", &hung.address]).await?;
        is_well(&scope, "other").await?;

        drop(stopped);
        is_well(&scope, "used").await?;
        wait_until("next to start by itself", HEAL_LIMIT, async || {
            scope.exec("next", ["touch", "/data/f"]).map(Some)
        })
        .await?;
        is_well(&scope, "next").await?;
        for name in ["used", "next", "other"] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
        }
        Ok(())
    });
}
