//! Volumes that a client container serves, and local ones, mounted, used and unmounted again and again while the kubelet, the mounter and
//! the client container are killed at random: the node's mount table is as before. The installed mounter and its shim, called as a
//! kubelet calls them. `MOORING_TESTBED_CYCLES` says how many cycles.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, ResourceExt as _};
use mooring_contract::names::{FLEX_DRIVER_DIR, NAMESPACE, labels};
use mooring_testbed::harness::clients::{client_pods_of, image_of_its_own, remove_image};
use mooring_testbed::harness::nodes::{CallOut, POOL, on_own_nodes};
use mooring_testbed::harness::processes::{kill_all, name_of};
use mooring_testbed::harness::{Scope, wait_until};
use mooring_testbed::lots::Lots;
use mooring_testbed::progress::{note, spoken};
use serde_json::json;

const NODE: &str = "node-1";

/// Cycles of mount and unmount unless the environment says otherwise.
const CYCLES: usize = 100;

/// How many volumes are worked on at once, each by a kubelet's thread of its own. The first is a local one.
const LANES: usize = 8;

/// Longest that one mount or unmount may take to succeed, tried again and again, and for all to be as before.
const LIMIT: Duration = Duration::from_mins(3);

/// Longest for all of it, and for each cycle more.
const WHOLE_LIMIT: Duration = Duration::from_mins(10);
const CYCLE_LIMIT: Duration = Duration::from_secs(5);

/// How often the kubelet tries again: sooner than the real one.
const RETRY: Duration = Duration::from_millis(200);

/// What is killed.
const VICTIMS: [&str; 4] = ["mounter", "kubelet", "client container", "FUSE program"];

/// How often a client container is killed before its Pod is deleted as well, with force.
const RESTARTS: i32 = 2;

/// What the lanes and the killer share.
struct Field {
    scope: Scope,
    done: AtomicUsize,
    over: AtomicBool,
}

/// Asks until the answer is good, as the kubelet does. While a mounter is replaced there may be none at all.
fn insist(what: &str, mut ask: impl FnMut() -> Result<CallOut>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = ask();
        if answer.as_ref().is_ok_and(|answer| answer.status() == "Success") {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{what} does not succeed: {answer:?}");
        std::thread::sleep(RETRY);
    }
}

impl Field {
    /// One kubelet's thread, with a volume of its own.
    fn lane(&self, name: &str, options: &str) -> Result<()> {
        let scope = &self.scope;
        let namespace = &scope.namespace;
        let target = format!("/var/lib/kubelet/pods/{namespace}/volumes/{FLEX_DRIVER_DIR}/{name}");
        let mut number = 0;
        while !self.over.load(Ordering::SeqCst) {
            number += 1;
            // Not at once where its program was killed just now. A kubelet that starts unmounts volumes of Pods that it does not know:
            // such a one is mounted again. It may do so at any moment, so what is written goes where it was seen to be the volume, and
            // never into the node's directory below.
            let used = format!(
                "there=$(grep -c ' {target} ' /proc/self/mountinfo) || true
                 [ \"$there\" = 1 ] || {{ echo \"mounted $there times\" >&2; exit 1; }}
                 timeout -s KILL 30 sh -euc '
                    cd {target}
                    [ \"$(stat -c %d .)\" != \"$(stat -c %d /var/lib/kubelet)\" ] || {{ echo unmounted meanwhile >&2; exit 1; }}
                    echo {number} >count
                    [ \"$(cat count)\" = {number} ]'"
            );
            let deadline = Instant::now() + LIMIT;
            loop {
                insist(&format!("mount {number} of {name}"), || {
                    scope.on_node(1, &format!("mkdir -p {target}"))?;
                    scope.call_out(1, &["mount", &target, options])
                })?;
                let Err(error) = scope.on_node(1, &used) else { break };
                ensure!(Instant::now() < deadline, "{name} can't be used: {error:#}");
                std::thread::sleep(RETRY);
            }
            insist(&format!("unmount {number} of {name}"), || {
                scope.call_out(1, &["unmount", &target])
            })?;
            // As the kubelet does; one that starts may have done it already.
            scope.on_node(1, &format!("rmdir {target} || [ ! -e {target} ]"))?;
            self.done.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Kills one thing or another until so many cycles are done and each was killed; how often each was.
    async fn kill(&self, mut lots: Lots, image: &str, cycles: usize) -> Result<BTreeMap<&'static str, usize>> {
        let limit = WHOLE_LIMIT + CYCLE_LIMIT * u32::try_from(cycles)?;
        let started = Instant::now();
        let mut kills = BTreeMap::new();
        while self.done.load(Ordering::SeqCst) < cycles || kills.len() < VICTIMS.len() {
            if self.over.load(Ordering::SeqCst) {
                break;
            }
            ensure!(
                started.elapsed() < limit,
                "{} cycles, and these kills: {kills:?}, after {}",
                self.done.load(Ordering::SeqCst),
                spoken(limit)
            );
            tokio::time::sleep(Duration::from_millis(1000 + lots.below(3000))).await;
            let drawn = VICTIMS[usize::try_from(lots.below(VICTIMS.len() as u64))?];
            let missing = VICTIMS.into_iter().find(|victim| !kills.contains_key(victim));
            let victim = missing.unwrap_or(drawn);
            // The one before may not be there again.
            if kill(&self.scope, victim, image).await.unwrap_or_default() {
                *kills.entry(victim).or_default() += 1;
            }
        }
        Ok(kills)
    }
}

/// Kills one of them; whether there was any.
async fn kill(scope: &Scope, victim: &str, image: &str) -> Result<bool> {
    let api: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let at_once = DeleteParams::default().grace_period(0);
    if victim == "kubelet" {
        scope.own_cluster()?.kill_in_node(1, victim)?;
        return Ok(true);
    }
    if victim == "mounter" {
        let name = scope.mounter(NODE).await?;
        kill_all(&scope.processes_of(NAMESPACE, &name).await?);
        // Replaced, which spares the kubelet's growing pauses.
        api.delete(&name, &at_once).await?;
        return Ok(true);
    }
    let mut any = false;
    for pod in client_pods_of(scope, image).await? {
        let mut pids = scope.processes_of(NAMESPACE, &pod.name_any()).await?;
        if victim == "FUSE program" {
            pids.retain(|&pid| name_of(pid) == "sshfs");
        }
        any |= !pids.is_empty();
        kill_all(&pids);
        if victim == "client container" && restarts(&pod) >= RESTARTS {
            api.delete(&pod.name_any(), &at_once).await?;
        }
    }
    Ok(any)
}

fn restarts(pod: &Pod) -> i32 {
    let states = pod
        .status
        .iter()
        .flat_map(|status| &status.container_statuses)
        .flatten();
    states.map(|state| state.restart_count).sum()
}

/// All mounts of the node: where they are and of which type, but for what is another one in each Pod and container of the same kind.
fn mounts(scope: &Scope) -> Result<Vec<String>> {
    let table = scope.on_node(1, "cat /proc/self/mountinfo")?;
    let is_id = |part: &str| {
        let hex = |c: char| c.is_ascii_hexdigit() || c == '-';
        let drawn = part.starts_with("cni-") || part.starts_with("kube-api-access-");
        drawn || part.len() >= 32 && part.chars().all(hex)
    };
    let mut lines: Vec<_> = table
        .lines()
        .map(|line| {
            let place = line.split(' ').nth(4).unwrap_or_default();
            let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next());
            let parts: Vec<_> = place
                .split('/')
                .map(|part| if is_id(part) { "*" } else { part })
                .collect();
            format!("{} {}", parts.join("/"), kind.unwrap_or_default())
        })
        .collect();
    lines.sort();
    Ok(lines)
}

#[test]
fn mounts_of_client_containers_with_random_kills_leave_the_mount_table_as_it_was() {
    on_own_nodes("chaos-client-cycles", async |scope| {
        let said = std::env::var("MOORING_TESTBED_CYCLES").ok();
        let cycles = said.and_then(|text| text.parse().ok()).unwrap_or(CYCLES);
        let seed = Lots::seed();
        note(format!("seed {seed}, {cycles} cycles"));
        let names: Vec<_> = (0..LANES)
            .map(|number| format!("{}-{number}", scope.namespace))
            .collect();
        let on_server: Vec<_> = names.iter().map(String::as_str).collect();
        let server = scope.ssh_server(NODE, &on_server).await?;
        let image = image_of_its_own(&scope, "cycles")?;
        let options = |number: usize, name: &str| -> Result<String> {
            if number == 0 {
                scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{name}"))?;
                return Ok(json!({"client": "local", "source": name}).to_string());
            }
            let mut options = json!({"client": "sshfs", "source": server.source(name), "client-image": image});
            for (key, value) in server.secret().as_object().into_iter().flatten() {
                let value = STANDARD.encode(value.as_str().unwrap_or_default());
                options[format!("kubernetes.io/secret/{key}")] = value.into();
            }
            Ok(options.to_string())
        };
        // Without client Pods that others have used, which go when they are idle.
        let before = settled(&scope).await?;
        let started = Instant::now();
        let field = Arc::new(Field {
            scope: scope.clone(),
            done: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let mut lanes = tokio::task::JoinSet::new();
        for (number, name) in names.iter().enumerate() {
            let (field, name, options) = (Arc::clone(&field), name.clone(), options(number, name)?);
            lanes.spawn_blocking(move || {
                let ran = field.lane(&name, &options);
                // Whoever fails ends it for all.
                field.over.fetch_or(ran.is_err(), Ordering::SeqCst);
                ran
            });
        }
        let kills = field.kill(Lots::new(seed), &image, cycles).await;
        field.over.store(true, Ordering::SeqCst);
        while let Some(ran) = lanes.join_next().await {
            ran.context("a lane panicked")??;
        }
        let done = field.done.load(Ordering::SeqCst);
        note(format!(
            "{done} cycles, kills: {:?}; {}",
            kills?,
            spoken(started.elapsed())
        ));

        wait_until("the mounter to be ready", LIMIT, async || {
            Ok((scope.mounter_status(NODE).await?["ready"] == true).then_some(()))
        })
        .await?;
        wait_until("all to be as before", LIMIT, async || {
            let clients = client_pods_of(&scope, &image).await?;
            ensure!(clients.is_empty(), "{} client Pods are left", clients.len());
            let now = mounts(&scope)?;
            let more: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
            let less: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
            ensure!(
                now == before,
                "{} mounts instead of {}; new are {more:#?}, gone are {less:#?}",
                now.len(),
                before.len()
            );
            ensure!(scope.loop_devices()?.is_empty(), "loop devices are left");
            Ok(Some(()))
        })
        .await?;
        remove_image(&scope, &image)
    });
}

/// The node's mounts once no client Pod is on it.
async fn settled(scope: &Scope) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let clients = ListParams::default()
        .labels(&format!("{}={}", labels::COMPONENT, labels::COMPONENT_CLIENT))
        .fields(&format!("spec.nodeName={NODE}"));
    wait_until("client Pods of before to go", LIMIT, async || {
        let mounts = mounts(scope)?;
        Ok(pods.list(&clients).await?.items.is_empty().then_some(mounts))
    })
    .await
}
