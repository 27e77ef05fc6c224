//! A full process table and a full disk, in a client container and for the mounter: mounted volumes keep working, new
//! ones are refused with a reason, and succeed later without help. Alone: every volume of the node is affected.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::ResourceExt as _;
use mooring_contract::names::NAMESPACE;
use mooring_harness::clients::{client_pods_of, image_of_its_own, remove_image};
use mooring_harness::nodes::{POOL, on_own_nodes};
use mooring_harness::processes::{Limited, kill_all, name_of};
use mooring_harness::{Scope, wait_until};
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Longest wait for a volume that the kubelet tries again: its own backoff grows to two minutes.
const LIMIT: Duration = Duration::from_mins(4);

/// Volumes of one server, with a client container that no other test uses.
struct Volumes {
    image: String,
    pod: String,
}

impl Volumes {
    /// Starts the server and mounts one of the volumes.
    async fn new(scope: &Scope, claims: &[&str]) -> Result<Self> {
        let server = scope.ssh_server(NODE, claims).await?;
        let image = image_of_its_own(scope, "full")?;
        for &claim in claims {
            let mut options = server.volume(claim);
            options["client-image"] = image.clone().into();
            scope.volume(claim, &options)?;
        }
        scope.writer("user", NODE, claims.first().context("no claim")?)?;
        scope.pod_ready("user").await?;
        let pods = client_pods_of(scope, &image).await?;
        ensure!(pods.len() == 1, "{} client Pods", pods.len());
        let pod = pods[0].name_any();
        Ok(Self { image, pod })
    }

    async fn pids(&self, scope: &Scope) -> Result<Vec<i32>> {
        scope.processes_of(NAMESPACE, &self.pod).await
    }

    /// Waits until process 1 has restarted the agent, or has tried several times in vain.
    async fn tried_to_restart(&self, scope: &Scope, before: i32) -> Result<()> {
        wait_until("the agent to be restarted", LIMIT, async || {
            let log = scope.kubectl(["-n", NAMESPACE, "logs", &self.pod])?;
            ensure!(log.contains("the agent ended and is started again"), "it has not ended");
            let refusals = log.matches("trying again").count();
            let pids = self.pids(scope).await?;
            let is_back = pids.iter().any(|&pid| pid != before && name_of(pid) == AGENT);
            ensure!(is_back || refusals > 3, "refused {refusals} times");
            Ok(Some(()))
        })
        .await
    }

    /// Fails if the client container has restarted.
    async fn untouched(&self, scope: &Scope) -> Result<()> {
        let pods = client_pods_of(scope, &self.image).await?;
        let status = pods.first().and_then(|pod| pod.status.as_ref());
        let containers = status.and_then(|status| status.container_statuses.as_ref());
        let restarts = containers.and_then(|all| all.first()).map(|one| one.restart_count);
        ensure!(
            pods.len() == 1 && restarts == Some(0),
            "{} client Pods, {restarts:?} restarts",
            pods.len()
        );
        Ok(())
    }

    async fn remove(self, scope: &Scope) -> Result<()> {
        wait_until("the client Pod to be deleted", LIMIT, async || {
            Ok(client_pods_of(scope, &self.image).await?.is_empty().then_some(()))
        })
        .await?;
        remove_image(scope, &self.image)
    }
}

async fn starts(scope: &Scope, pod: &str) -> Result<()> {
    wait_until(&format!("{pod} to start by itself"), LIMIT, async || {
        scope.pod_ready(pod).await.map(Some)
    })
    .await?;
    scope.exec(pod, ["touch", "/data/f"]).map(drop)
}

async fn goes(scope: &Scope, pod: &str) -> Result<()> {
    scope.delete(&format!("pod/{pod}"))?;
    scope.pod_gone(pod).await
}

/// Process name of the agent: it is started by a link to its supervisor's program.
const AGENT: &str = "exe";

/// Checks that a volume in use can still be written.
async fn written_on(scope: &Scope, user: &str) -> Result<()> {
    let before = scope.written(user)?;
    wait_until(&format!("{user} to write on"), LIMIT, async || {
        Ok((scope.written(user)? > before + 3).then_some(()))
    })
    .await
}

#[test]
fn a_client_container_that_can_have_no_more_processes_serves_what_it_has_and_says_why_it_takes_nothing_new() {
    on_own_nodes("chaos-pids", async |scope| {
        let volumes = Volumes::new(&scope, &["used", "late"]).await?;
        let limited = Limited::now(&volumes.pids(&scope).await?)?;
        scope.pod("late", NODE, "late", Value::Null)?;
        scope.event("late", "as many processes as it may").await?;
        written_on(&scope, "user").await?;
        volumes.untouched(&scope).await?;

        // Even if its agent ends and can't be restarted: if process 1 ended, all mounts would be gone.
        let mut pids = volumes.pids(&scope).await?.into_iter();
        let agent = pids.find(|&pid| name_of(pid) == AGENT).context("no agent")?;
        kill_all(&[agent]);
        volumes.tried_to_restart(&scope, agent).await?;
        written_on(&scope, "user").await?;
        volumes.untouched(&scope).await?;
        drop(limited);
        starts(&scope, "late").await?;
        volumes.untouched(&scope).await?;
        scope.stopped_and_intact("user").await?;
        for pod in ["user", "late"] {
            goes(&scope, pod).await?;
        }
        volumes.remove(&scope).await
    });
}

/// Proves: M1
#[test]
fn a_mounter_that_can_have_no_more_processes_answers_and_goes_on_when_it_can() {
    on_own_nodes("chaos-pids-mounter", async |scope| {
        for name in ["used", "late"] {
            let file = scope.volume_name(name);
            scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{file}"))?;
            scope.volume(name, &json!({"client": "local", "source": file}))?;
        }
        scope.writer("user", NODE, "used")?;
        scope.pod_ready("user").await?;
        let mounter = scope.mounter(NODE).await?;
        let pids = scope.processes_of(NAMESPACE, &mounter).await?;
        let limited = Limited::now(&pids)?;
        // Including the worker that waits for the next task, and one that was started before the limit.
        let pids = scope.processes_of(NAMESPACE, &mounter).await?;
        let workers: Vec<_> = pids.iter().copied().filter(|&pid| is_worker(pid)).collect();
        ensure!(!workers.is_empty(), "no worker among {pids:?}");
        kill_all(&workers);
        scope.pod("late", NODE, "late", Value::Null)?;
        scope.event("late", "failed to start a worker").await?;
        ensure!(scope.mounter_status(NODE).await?["ready"] == true);
        written_on(&scope, "user").await?;
        drop(limited);
        starts(&scope, "late").await?;
        assert_eq!(scope.mounter(NODE).await?, mounter);
        for pod in ["user", "late"] {
            goes(&scope, pod).await?;
        }
        Ok(())
    });
}

fn is_worker(pid: i32) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command.split(|&byte| byte == 0).any(|word| word == b"worker")
}

/// Puts the agent's records on a full disk, as the client container sees it.
const FILL: &str = "mkdir /tmp/full && mount -t tmpfs -o size=64k full /tmp/full && cp -a /run/mooring/mounts/. /tmp/full/
    mount --move /tmp/full /run/mooring/mounts; dd if=/dev/zero of=/run/mooring/mounts/.ballast bs=1k 2>/dev/null || true";

#[test]
fn a_client_container_whose_disk_is_full_serves_what_it_has_revives_it_and_says_why_it_takes_nothing_new() {
    on_own_nodes("chaos-disk", async |scope| {
        let volumes = Volumes::new(&scope, &["used", "late"]).await?;
        let inside = |script: &str| scope.elsewhere(NAMESPACE).exec(&volumes.pod, ["sh", "-euc", script]);
        inside(FILL)?;
        scope.pod("late", NODE, "late", Value::Null)?;
        scope.event("late", "No space left on device").await?;
        written_on(&scope, "user").await?;
        let serving: Vec<_> = volumes.pids(&scope).await?;
        let serving: Vec<_> = serving.into_iter().filter(|&pid| name_of(pid) == "sshfs").collect();
        ensure!(serving.len() == 1, "{serving:?}");
        kill_all(&serving);
        wait_until("the volume to be in use again", LIMIT, async || {
            scope.exec("user", ["touch", "/data/again"]).map(Some)
        })
        .await?;
        inside("rm /run/mooring/mounts/.ballast")?;
        starts(&scope, "late").await?;
        volumes.untouched(&scope).await?;
        for pod in ["user", "late"] {
            goes(&scope, pod).await?;
        }
        volumes.remove(&scope).await
    });
}
