//! Limits of client containers: one for all volumes of a client, or one for each volume where configured, with the
//! configured memory; and what happens to volumes when the memory is used up. Alone: every mounter of the cluster is
//! replaced.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::Api;
use kube::api::{ListParams, ResourceExt};
use mooring_contract::names::{CSI_DRIVER, NAMESPACE, annotations, labels};
use mooring_harness::clients::{client_pods_of, image_of_its_own, remove_image};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::processes::{first_to_go, name_of, oom_score_adj};
use mooring_harness::provisioner::TEST_LABEL;
use mooring_harness::rollout::Installed;
use mooring_harness::{Scope, wait_until};
use mooring_program::reasons;
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Longest wait for a volume to be usable again: the kubelet may wait before it restarts a container.
const LIMIT: Duration = Duration::from_mins(2);

/// What a Pod leaves of the node's processors, in thousandths of one: less than a client Pod requests.
const LEFT: u64 = 10;

/// Settings of the mounter for this test.
const SETTINGS: [(&str, &str); 5] = [
    ("MOORING_CLIENT_POD_PER_VOLUME", "sshfs"),
    ("MOORING_CLIENT_CPU_REQUEST", "sshfs=20m"),
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

/// What Pods request of the node's processors, in thousandths of one.
fn requested(scope: &Scope) -> Result<u64> {
    let on_node = format!("--field-selector=spec.nodeName={NODE},status.phase!=Succeeded,status.phase!=Failed");
    let each = r#"jsonpath={range .items[*].spec.containers[*]}{.resources.requests.cpu}{"\n"}{end}"#;
    let requests = scope.kubectl(["get", "pods", "-A", &on_node, "-o", each])?;
    let in_thousandths = |request: &str| match request.strip_suffix('m') {
        Some(thousandths) => thousandths.parse(),
        None => request.parse().map(|whole: u64| whole * 1000),
    };
    let requests = requests.lines().filter(|request| !request.is_empty());
    requests
        .map(|request| in_thousandths(request).with_context(|| request.to_owned()))
        .sum()
}

/// Waits until the node has no Pod whose request it soon gets back: one that ends, or a client Pod, which is idle.
async fn all_stay(scope: &Scope) -> Result<()> {
    let pods: Api<Pod> = Api::all(scope.client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={NODE}"));
    wait_until("client Pods to be gone, and Pods that end", LIMIT, async || {
        let mut passing = pods.list(&on_node).await?.items;
        passing.retain(|pod| pod.metadata.deletion_timestamp.is_some() || pod.labels().contains_key(labels::CLIENT));
        let names: Vec<_> = passing.iter().map(ResourceExt::name_any).collect();
        ensure!(names.is_empty(), "{} are there", names.join(", "));
        Ok(Some(()))
    })
    .await
}

/// A Pod waits for its volume for as long as a Pod has taken the node's room for another client Pod, which is not ended.
async fn full_node_waits(scope: &Scope) -> Result<()> {
    all_stay(scope).await?;
    let processors = scope.kubectl(["get", "node", NODE, "-o", "jsonpath={.status.allocatable.cpu}"])?;
    let processors: u64 = processors.parse().context(processors.clone())?;
    let free = processors * 1000 - requested(scope)? - LEFT;
    let main = json!([{
        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
        "resources": {"requests": {"cpu": format!("{free}m")}},
    }]);
    scope.pod("bystander", NODE, "", json!({"containers": main, "volumes": []}))?;
    let bystander = scope.pod_ready("bystander").await?.uid();
    scope.pod("waits", NODE, "c", Value::Null)?;
    let event = scope.event("waits", "this node has no room for it").await?;
    ensure!(
        event
            .message
            .as_ref()
            .is_some_and(|said| said.contains("it requests cpu 20m ")),
        "{event:?}"
    );
    // Only a Pod that runs is ready, and it is the same.
    assert_eq!(scope.pod_ready("bystander").await?.uid(), bystander);
    starts_once(scope, "waits", async || gone(scope, "bystander").await).await
}

/// The same for as long as an administrator's quota lets Mooring's namespace have no client Pod more.
async fn quota_waits(scope: &Scope) -> Result<()> {
    let quota = Quota::set(scope).await?;
    scope.pod("waits", NODE, "d", Value::Null)?;
    scope.event("waits", "exceeded quota").await?;
    starts_once(scope, "waits", async || {
        drop(quota);
        Ok(())
    })
    .await
}

/// That a Pod does not run before this is done, and then starts by itself.
async fn starts_once(scope: &Scope, pod: &str, done: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    let pods = scope.api::<Pod>();
    let waiting = pods.get(pod).await?;
    let phase = waiting.status.as_ref().and_then(|status| status.phase.as_deref());
    ensure!(phase == Some("Pending"), "{pod} is {phase:?}");
    done().await?;
    let started = Instant::now();
    assert_eq!(scope.pod_ready(pod).await?.uid(), waiting.uid());
    note(format!(
        "a Pod whose client Pod has room is ready after {}",
        spoken(started.elapsed())
    ));
    gone(scope, pod).await
}

/// A quota for client Pods, which is gone when this is dropped.
struct Quota<'a>(&'a Scope);

impl<'a> Quota<'a> {
    const NAME: &'static str = "no-client-pods";

    async fn set(scope: &'a Scope) -> Result<Self> {
        let class = json!({"scopeName": "PriorityClass", "operator": "In", "values": ["mooring-client"]});
        scope.apply_anywhere(
            &json!({
                "apiVersion": "v1", "kind": "ResourceQuota",
                "metadata": {"name": Self::NAME, "namespace": NAMESPACE, "labels": {TEST_LABEL: scope.namespace}},
                "spec": {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [class]}},
            })
            .to_string(),
        )?;
        let set = Self(scope);
        let quotas: Api<ResourceQuota> = Api::namespaced(scope.client.clone(), NAMESPACE);
        wait_until("the quota to be in force", LIMIT, async || {
            let status = quotas.get(Self::NAME).await?.status;
            Ok(status.and_then(|status| status.hard).map(drop))
        })
        .await?;
        Ok(set)
    }
}

impl Drop for Quota<'_> {
    fn drop(&mut self) {
        let delete = ["-n", NAMESPACE, "delete", "resourcequota", Self::NAME];
        if let Err(error) = self.0.kubectl(delete) {
            note(format!("the quota for client Pods stays: {error:#}"));
        }
    }
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
        installed.set(&SETTINGS).await?;
        // The new mounter registers again, and the kubelet changes the limit of a driver that it knows.
        wait_until("the node's limit of volumes", LIMIT, async || {
            Ok((most_volumes(&scope)? == "40").then_some(()))
        })
        .await?;
        full_node_waits(&scope).await?;
        quota_waits(&scope).await?;

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
            assert_eq!(resources["requests"], json!({"cpu": "20m", "memory": "48Mi"}));
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
