//! How much memory a client container takes for each further volume: the resident memory of its processes with one
//! volume mounted and with more. Pages that several of them share count once (`Pss`).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, ResourceExt as _};
use mooring_contract::names::{NAMESPACE, labels};
use serde_json::{Value, json};

use super::options::WHOLE_LIMIT;
use mooring_harness::provisioner::user_of;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::progress::{Step, say};
use mooring_testbed::target::Target;

/// One whose program takes some MiB per volume, and one whose program takes some tens of MiB.
const CLIENTS: [&str; 2] = ["sshfs", "glusterfs"];

/// The node that everything runs on.
const NODE: &str = "node-1";

/// Pause before a container is measured.
const CALM: Duration = Duration::from_secs(3);

/// Longest wait for earlier client Pods to go.
const LIMIT: Duration = Duration::from_mins(1);

/// Measures all clients with this many more volumes than one.
pub(super) async fn run(target: &Target, volumes: usize) -> Result<()> {
    let mut table = format!(
        "| client | with one volume | with {} | each more |\n| --- | --- | --- | --- |\n",
        volumes + 1
    );
    for client in CLIENTS {
        let mut step = Step::begin(format!("memory of {client}"));
        let mut found = None;
        mooring_harness::run(target.clone(), WHOLE_LIMIT, &format!("bench-{client}"), async |scope| {
            scope.require_mooring().await?;
            no_client_pods(&scope, client).await?;
            let claims: Vec<_> = (0..=volumes).map(|number| format!("data-{number}")).collect();
            make(&scope, client, &claims).await?;
            let (first, more) = claims.split_first().context("no claims")?;
            use_it(&scope, first).await?;
            let one = memory(&scope, client).await?;
            for claim in more {
                step.update(claim);
                use_it(&scope, claim).await?;
            }
            found = Some((one, memory(&scope, client).await?));
            Ok(())
        })
        .await?;
        let (one, all) = found.context("nothing was measured")?;
        let each = (all - one) / super::summary::number(volumes);
        let row = format!("| `{client}` | {one:.1} MiB | {all:.1} MiB | {each:.1} MiB |\n");
        table.push_str(&row);
        step.done("");
    }
    say(table);
    Ok(())
}

/// Creates claims, each with a volume of the client.
async fn make(scope: &Scope, client: &str, claims: &[String]) -> Result<()> {
    if client == "sshfs" {
        let names: Vec<_> = claims.iter().map(String::as_str).collect();
        let server = scope.ssh_server(NODE, &names).await?;
        for claim in claims {
            scope.volume(claim, &server.volume(claim))?;
        }
        return Ok(());
    }
    let server = scope.storage_server(client, NODE, &Value::Null).await?;
    let source = format!("{}:/volumes", server.address);
    for claim in claims {
        scope.volume(claim, &json!({"client": client, "source": source}))?;
    }
    Ok(())
}

/// A Pod that has written and read something.
async fn use_it(scope: &Scope, claim: &str) -> Result<()> {
    let mut user = user_of(claim, claim, "sleep 1000000");
    user["spec"]["nodeName"] = NODE.into();
    scope.apply(&user.to_string())?;
    scope.pod_ready(claim).await?;
    let script = format!("head -c 4m /dev/zero >/data/{claim} && cat /data/{claim} >/dev/null");
    scope.exec(claim, ["sh", "-c", &script]).map(drop)
}

async fn client_pods(scope: &Scope, client: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let of_client = ListParams::default()
        .labels(&format!("{}={client}", labels::CLIENT))
        .fields(&format!("spec.nodeName={NODE}"));
    Ok(pods.list(&of_client).await?.items)
}

/// Waits until there are none: a client container keeps memory of what it did before.
async fn no_client_pods(scope: &Scope, client: &str) -> Result<()> {
    wait_until("earlier client Pods to go", LIMIT, async || {
        Ok(client_pods(scope, client).await?.is_empty().then_some(()))
    })
    .await
}

/// The memory of a client's only client Pod, in MiB.
async fn memory(scope: &Scope, client: &str) -> Result<f64> {
    tokio::time::sleep(CALM).await;
    let pods = client_pods(scope, client).await?;
    ensure!(pods.len() == 1, "{} client Pods for {client}", pods.len());
    let processes = scope.processes_of(NAMESPACE, &pods[0].name_any()).await?;
    let all = processes.into_iter().filter_map(shared_once);
    let kib: u64 = all.sum();
    Ok(u32::try_from(kib).map_or(f64::INFINITY, f64::from) / 1024.0)
}

/// Resident memory of a process in KiB, with its share of shared pages; none if the process has ended.
fn shared_once(pid: i32) -> Option<u64> {
    let all = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}
