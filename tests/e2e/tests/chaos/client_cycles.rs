//! Volumes that a client container serves, and local ones, mounted, used and unmounted again and again while the kubelet, the mounter and
//! the client container are killed at random: the node's mount table is as before. The installed mounter and its shim, called as a
//! kubelet calls them. `MOORING_TESTBED_CYCLES` says how many cycles.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, ResourceExt as _};
use mooring_contract::names::{NAMESPACE, labels};
use mooring_harness::clients::{client_pods_of, image_of_its_own, remove_image};
use mooring_harness::lots::Lots;
use mooring_harness::nodes::{CallOut, POOL, on_own_nodes_within};
use mooring_harness::processes::{has_ended, kill_all, name_of};
use mooring_harness::{Scope, wait_until};
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

/// Longest until what took a mount away is written down: the kubelet logs that it unmounts after it has begun to.
const TOLD_LIMIT: Duration = Duration::from_secs(5);

/// Longest for a killed process to be gone, and the FUSE connection that it held.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What is killed.
const VICTIMS: [&str; 4] = ["mounter", "kubelet", "client container", "FUSE program"];

/// How often a client container is killed before its Pod is deleted as well, with force.
const RESTARTS: i32 = 2;

/// What the lanes and the killer share.
struct Field {
    scope: Scope,
    done: AtomicUsize,
    over: AtomicBool,
    /// Kills of programs that serve mounts: how many were begun, and of how many the processes are gone.
    kills_begun: AtomicUsize,
    kills_over: AtomicUsize,
}

/// What had been done to mounts at one moment.
#[derive(Clone, Copy)]
struct Moment {
    kubelet_log: u64,
    kills_over: usize,
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
    fn now(&self) -> Result<Moment> {
        Ok(Moment {
            kubelet_log: self.kubelet_log()?.metadata()?.len(),
            kills_over: self.kills_over.load(Ordering::SeqCst),
        })
    }

    fn kubelet_log(&self) -> Result<File> {
        let path = self.scope.own_cluster()?.layout.logs(NODE).join("kubelet.log");
        File::open(&path).with_context(|| format!("failed to open {}", path.display()))
    }

    /// Whether a kubelet has begun to unmount this volume since then: one that starts does so with volumes of Pods that it does not know.
    fn unmounted_by_kubelet(&self, name: &str, since: Moment) -> Result<bool> {
        let mut log = self.kubelet_log()?;
        log.seek(SeekFrom::Start(since.kubelet_log))?;
        let mut text = Vec::new();
        log.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text
            .lines()
            .any(|line| line.contains("UnmountVolume") && line.contains(name)))
    }

    /// A mount that was called successful can't be used. Fails unless the test itself took it away: by a kill of what served it, or by a
    /// kubelet that it had started anew.
    fn taken_away(&self, name: &str, served: bool, since: Moment) -> Result<()> {
        let deadline = Instant::now() + TOLD_LIMIT;
        loop {
            let killed = served && self.kills_begun.load(Ordering::SeqCst) > since.kills_over;
            if killed || self.unmounted_by_kubelet(name, since)? {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "since its mount was asked for, no kubelet unmounted it and nothing that serves it was killed"
            );
            std::thread::sleep(RETRY);
        }
    }

    /// One kubelet's thread, with a volume of its own in this directory. `served`: by a program that is killed.
    fn lane(&self, name: &str, volumes: &str, options: &str, served: bool) -> Result<()> {
        let scope = &self.scope;
        let target = format!("{volumes}/{name}");
        let mut number = 0;
        while !self.over.load(Ordering::SeqCst) {
            number += 1;
            // A kubelet that starts may unmount it at any moment, so what is written goes where it was seen to be the volume, and
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
                let mut asked = self.now()?;
                insist(&format!("mount {number} of {name}"), || {
                    scope.on_node(1, &format!("mkdir -p {target}"))?;
                    asked = self.now()?;
                    scope.call_out(1, &["mount", &target, options])
                })?;
                let Err(error) = scope.on_node(1, &used) else { break };
                self.taken_away(name, served, asked).with_context(|| {
                    format!("mount {number} of {name} was called successful and can't be used: {error:#}")
                })?;
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
            if self.kill_one(victim, image).await.unwrap_or_default() {
                *kills.entry(victim).or_default() += 1;
            }
        }
        Ok(kills)
    }

    /// Kills one of them; whether there was any.
    async fn kill_one(&self, victim: &str, image: &str) -> Result<bool> {
        let scope = &self.scope;
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
        self.kills_begun.fetch_add(1, Ordering::SeqCst);
        let killed = self.kill_serving(&api, victim, image).await;
        // Also where it failed half-way: there is one killer, so all that were begun are over.
        self.kills_over
            .store(self.kills_begun.load(Ordering::SeqCst), Ordering::SeqCst);
        killed
    }

    async fn kill_serving(&self, api: &Api<Pod>, victim: &str, image: &str) -> Result<bool> {
        let mut any = false;
        for pod in client_pods_of(&self.scope, image).await? {
            let mut pids = self.scope.processes_of(NAMESPACE, &pod.name_any()).await?;
            if victim == "FUSE program" {
                pids.retain(|&pid| name_of(pid) == "sshfs");
            }
            any |= !pids.is_empty();
            kill_all(&pids);
            let gone = async || Ok(pids.iter().all(|&pid| has_ended(pid)).then_some(()));
            wait_until("killed processes to be gone", END_LIMIT, gone).await?;
            if victim == "client container" && restarts(&pod) >= RESTARTS {
                api.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
                    .await?;
            }
        }
        Ok(any)
    }
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

/// Proves: M2
#[test]
fn mounts_of_client_containers_with_random_kills_leave_the_mount_table_as_it_was() {
    let said = std::env::var("MOORING_TESTBED_CYCLES").ok();
    let cycles = said.and_then(|text| text.parse().ok()).unwrap_or(CYCLES);
    // The servers and the end take a while beside the cycles.
    let limit = 2 * WHOLE_LIMIT + CYCLE_LIMIT * u32::try_from(cycles).unwrap();
    on_own_nodes_within(limit, "chaos-client-cycles", async |scope| {
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
        let volumes = scope.pod_directory(1)?;
        let field = Arc::new(Field {
            scope: scope.clone(),
            done: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            kills_begun: AtomicUsize::new(0),
            kills_over: AtomicUsize::new(0),
        });
        let mut lanes = tokio::task::JoinSet::new();
        for (number, name) in names.iter().enumerate() {
            let (field, name, options) = (Arc::clone(&field), name.clone(), options(number, name)?);
            let volumes = volumes.clone();
            lanes.spawn_blocking(move || {
                let ran = field.lane(&name, &volumes, &options, number > 0);
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
