//! Limits of client containers: one for all volumes of a client, or one for each volume where configured, with the
//! configured memory; and what happens to volumes when the memory is used up. Alone: every mounter of the cluster is
//! replaced.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ResourceExt as _;
use mooring_contract::names::{CSI_DRIVER, NAMESPACE, annotations};
use mooring_harness::clients::{client_pods_of, image_of_its_own, remove_image};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::processes::{first_to_go, name_of, oom_score_adj};
use mooring_harness::rollout::Installed;
use mooring_harness::{Scope, wait_until};
use mooring_program::reasons;
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Longest wait for a volume to be usable again: the kubelet may wait before it restarts a container.
const LIMIT: Duration = Duration::from_mins(2);

/// What a Pod requests of the node's processors, and what a client Pod of GlusterFS leaves of them, in thousandths of one:
/// there is no room for both.
const BYSTANDER: u64 = 600;
const LEFT: u64 = 500;

/// Settings of the mounter for this test.
const SETTINGS: [(&str, &str); 4] = [
    ("MOORING_CLIENT_POD_PER_VOLUME", "sshfs"),
    ("MOORING_CLIENT_MEMORY_REQUEST", "sshfs=48Mi"),
    ("MOORING_CLIENT_MEMORY_LIMIT", "512Mi,sshfs=96Mi"),
    ("MOORING_MAX_VOLUMES", "40"),
];

/// How many volumes with CSI the scheduler lets the node have; empty where there is no limit.
fn most_volumes(scope: &Scope) -> Result<String> {
    let of_driver = format!("{{.spec.drivers[?(@.name==\"{CSI_DRIVER}\")].allocatable.count}}");
    scope.kubectl(["get", "csinode", NODE, "-o", &format!("jsonpath={of_driver}")])
}

/// A Pod that uses all of these volumes.
fn user(scope: &Scope, name: &str, claims: &[&str]) -> Result<()> {
    let volumes = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
    let mounts = claims
        .iter()
        .map(|claim| json!({"name": claim, "mountPath": format!("/data/{claim}")}));
    let main = json!([{
        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
        "volumeMounts": mounts.collect::<Vec<_>>(),
    }]);
    let spec = json!({"containers": main, "volumes": volumes.collect::<Vec<_>>()});
    scope.pod(name, NODE, "", spec)
}

async fn gone(scope: &Scope, name: &str) -> Result<()> {
    scope.delete(&format!("pod/{name}"))?;
    scope.pod_gone(name).await
}

/// The client Pod of a volume.
async fn of_volume(scope: &Scope, image: &str, claim: &str) -> Result<Pod> {
    let volume = scope.volume_name(claim);
    let mut pods = client_pods_of(scope, image).await?;
    pods.retain(|pod| pod.annotations().get(annotations::VOLUME) == Some(&volume));
    ensure!(pods.len() == 1, "{} client Pods for {volume}", pods.len());
    pods.pop().context("no client Pod")
}

/// Uses memory in a client container until the kernel kills a process: like the agent's own, not before other Pods'.
fn take_all_memory(scope: &Scope, pod: &str) {
    let script = "echo 0 >/proc/self/oom_score_adj; exec tail /dev/zero";
    // It fails, whichever process is killed.
    let _ = scope.elsewhere(NAMESPACE).exec(pod, ["sh", "-c", script]);
}

/// How its client container ended last: the number of restarts, and the reason.
fn last_end(pod: &Pod) -> (i32, String) {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    let Some(container) = statuses.and_then(|all| all.first()) else {
        return (0, String::new());
    };
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let reason = last.and_then(|last| last.reason.clone()).unwrap_or_default();
    (container.restart_count, reason)
}

/// Waits until a Pod can write to its volume.
async fn can_write(scope: &Scope, pod: &str) -> Result<()> {
    wait_until(&format!("{pod} to have its volume again"), LIMIT, async || {
        scope.exec(pod, ["sh", "-c", "echo well >/data/well && cat /data/well"])?;
        Ok(Some(()))
    })
    .await
}

/// A volume whose client Pod, of GlusterFS, requests this much waits where a Pod has taken that, and ends no Pod.
async fn full_node_waits(scope: &Scope, cpu: &str) -> Result<()> {
    let requests = json!({"requests": {"cpu": format!("{BYSTANDER}m")}});
    let main = json!([{
        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"], "resources": requests,
    }]);
    scope.pod("bystander", NODE, "", json!({"containers": main, "volumes": []}))?;
    let bystander = scope.pod_ready("bystander").await?.uid();
    let too_large = json!({"client": "glusterfs", "source": "192.0.2.1:/x"});
    scope.volume("too-large", &too_large)?;
    scope.pod("too-large", NODE, "too-large", Value::Null)?;
    let event = scope.event("too-large", "this node has no room for it").await?;
    ensure!(
        event
            .message
            .as_ref()
            .is_some_and(|said| said.contains(&format!("it requests cpu {cpu} "))),
        "{event:?}"
    );
    // Only a Pod that runs is ready, and it is the same.
    assert_eq!(scope.pod_ready("bystander").await?.uid(), bystander);
    gone(scope, "too-large").await?;
    gone(scope, "bystander").await
}

#[test]
fn client_containers_keep_to_their_number_and_memory_and_one_out_of_memory_affects_no_other() {
    on_own_nodes("chaos-bounds", async |scope| {
        scope.require_mooring().await?;
        let claims = ["a", "b", "c", "d", "e"];
        let server = scope.ssh_server(NODE, &claims).await?;
        let image = image_of_its_own(&scope, "bounds")?;
        for claim in claims {
            let mut options = server.volume(claim);
            options["client-image"] = image.clone().into();
            scope.volume(claim, &options)?;
        }
        user(&scope, "all", &claims)?;
        scope.pod_ready("all").await?;
        let pods = client_pods_of(&scope, &image).await?;
        assert_eq!(pods.len(), 1, "of {} volumes", claims.len());
        assert!(!pods[0].annotations().contains_key(annotations::VOLUME));
        gone(&scope, "all").await?;

        assert_eq!(most_volumes(&scope)?, "");
        let installed = Installed::now(&scope).await?;
        let processors = scope.kubectl(["get", "node", NODE, "-o", "jsonpath={.status.allocatable.cpu}"])?;
        let processors: u64 = processors.parse().context(processors.clone())?;
        let cpu = format!("{}m", processors * 1000 - LEFT);
        let request = format!("glusterfs={cpu}");
        let settings = SETTINGS.iter().copied();
        let settings: Vec<_> = settings
            .chain([("MOORING_CLIENT_CPU_REQUEST", request.as_str())])
            .collect();
        installed.set(&settings).await?;
        // The new mounter registers again, and the kubelet changes the limit of a driver that it knows.
        wait_until("the node's limit of volumes", LIMIT, async || {
            Ok((most_volumes(&scope)? == "40").then_some(()))
        })
        .await?;
        full_node_waits(&scope, &cpu).await?;

        for claim in ["a", "b"] {
            scope.pod(claim, NODE, claim, Value::Null)?;
        }
        for claim in ["a", "b"] {
            scope.pod_ready(claim).await?;
        }
        for claim in ["a", "b"] {
            let pod = of_volume(&scope, &image, claim).await?;
            let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
            let resources = json!(container.and_then(|container| container.resources.clone()));
            assert_eq!(resources["limits"], json!({"memory": "96Mi"}));
            assert_eq!(resources["requests"], json!({"cpu": "10m", "memory": "48Mi"}));
        }

        // The kernel kills the program of one volume, and later the whole container.
        let of_b = of_volume(&scope, &image, "b").await?;
        for (victim, restarts) in [("sshfs", 0), ("mounter", 1)] {
            let pod = of_volume(&scope, &image, "a").await?.name_any();
            let processes = scope.processes_of(NAMESPACE, &pod).await?;
            for &pid in &processes {
                let score = oom_score_adj(pid)?;
                ensure!(
                    score <= 0,
                    "the kernel ends {} before other Pods: {score}",
                    name_of(pid)
                );
            }
            for &pid in processes.iter().filter(|&&pid| name_of(pid) == victim) {
                first_to_go(pid)?;
            }
            take_all_memory(&scope, &pod);
            can_write(&scope, "a").await?;
            wait_until("the client container to be counted", LIMIT, async || {
                let (count, reason) = last_end(&of_volume(&scope, &image, "a").await?);
                ensure!(count == restarts, "started again {count} times: {reason}");
                ensure!(count == 0 || reason == "OOMKilled", "it ended by {reason}");
                Ok(Some(()))
            })
            .await?;
        }
        let event = scope.event("a", "the volume was mounted again").await?;
        ensure!(event.reason.as_deref() == Some(reasons::VOLUME_REVIVED), "{event:?}");
        // The other client Pods were not affected.
        assert_eq!(of_volume(&scope, &image, "b").await?.uid(), of_b.uid());
        assert_eq!(last_end(&of_volume(&scope, &image, "b").await?).0, 0);
        can_write(&scope, "b").await?;
        for claim in ["a", "b"] {
            gone(&scope, claim).await?;
        }
        installed.roll_back().await?;
        drop(installed);
        wait_until("idle client Pods to be deleted", LIMIT, async || {
            Ok(client_pods_of(&scope, &image).await?.is_empty().then_some(()))
        })
        .await?;
        remove_image(&scope, &image)
    });
}
