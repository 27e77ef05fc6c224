//! kube-proxy is restarted again and again: on the testbed's nodes it has what it needs to recognize the rules that it
//! wrote earlier. Without that, Services stopped working after its second start, and tests failed. Alone: other tests
//! on the node need its rules.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::{Scope, wait_until};
use serde_json::Value;

const NODE: &str = "node-1";

const LIMIT: Duration = Duration::from_mins(2);

/// A Pod that asks the web server.
const CLIENT: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "busybox:1", command: [sleep, "1000000"]}]
"#;

fn ask(scope: &Scope, address: &str) -> Result<String> {
    scope.exec(
        "client",
        ["timeout", "5", "wget", "-q", "-O", "-", &format!("http://{address}/")],
    )
}

/// When kube-proxy last wrote the rules, from its own metrics.
fn written(scope: &Scope) -> Result<String> {
    let path = format!("/api/v1/nodes/http:{NODE}:10256/proxy/healthz");
    let health: Value = serde_json::from_str(&scope.kubectl(["get", "--raw", &path])?)?;
    let written = health["status"]["IPv4"]["lastUpdated"].as_str().context("no time")?;
    ensure!(!written.starts_with("0001"), "not yet");
    Ok(written.to_owned())
}

#[test]
fn a_service_is_reached_after_each_start_of_kube_proxy() {
    on_own_nodes("kube-proxy", async |scope| {
        let address = scope.web_server(NODE).await?;
        scope.apply(CLIENT)?;
        scope.pod_ready("client").await?;
        wait_until("the Service to be reached", LIMIT, async || {
            Ok(Some(ask(&scope, &address)?))
        })
        .await?;
        for start in 1..=3 {
            let before = wait_until("the time of kube-proxy's rules", LIMIT, async || {
                written(&scope).map(Some)
            })
            .await?;
            scope.own_cluster()?.kill_in_node(1, "kube-proxy")?;
            wait_until("kube-proxy to write the rules again", LIMIT, async || {
                Ok((written(&scope)? != before).then_some(()))
            })
            .await?;
            let what = format!("the Service to be reached after start {start}");
            let said = wait_until(&what, LIMIT, async || Ok(Some(ask(&scope, &address)?))).await?;
            ensure!(said == "served\n", "{said}");
        }
        Ok(())
    });
}
