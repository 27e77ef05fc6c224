//! Mounts, uses and unmounts volumes again and again, some served by a client container and one local, while the
//! kubelet, the mounter and the client container are killed at random. The node's mount table must be as before. It is
//! the installed mounter and its shim, called as a kubelet calls them. `MOORING_TESTBED_CYCLES` sets the number of
//! cycles.

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
use mooring_harness::nodes::{CallOut, POOL, on_own_nodes_within};
use mooring_harness::processes::{has_ended, kill_all, name_of};
use mooring_harness::random::Random;
use mooring_harness::volumes::RefusedPod;
use mooring_harness::{Limit, Scope, wait_until};
use mooring_testbed::progress::{note, spoken};
use serde_json::json;

const NODE: &str = "node-1";

/// Number of mounts and unmounts, unless the environment has another.
const CYCLES: usize = 100;

/// Number of volumes in use at once, each with a thread that acts as the kubelet. The first is local.
const LANES: usize = 8;

/// Longest that one mount or unmount may take to succeed, with all retries, and longest wait for everything to be as
/// before.
const LIMIT: Duration = Duration::from_mins(3);

/// Time limit of the test, and what each further cycle adds.
const WHOLE_LIMIT: Duration = Duration::from_mins(10);
const CYCLE_LIMIT: Duration = Duration::from_secs(5);

/// Pause between tries: shorter than the real kubelet's.
const RETRY: Duration = Duration::from_millis(200);

/// Longest wait for a log entry about an unmount: the kubelet begins to unmount before it logs that.
const TOLD_LIMIT: Duration = Duration::from_secs(30);

/// Longest wait for a killed process and its FUSE connection to be gone.
const END_LIMIT: Duration = Duration::from_mins(1);

/// What the test kills.
const VICTIMS: [&str; 4] = ["mounter", "kubelet", "client container", "FUSE program"];

/// How often a client container is killed before its Pod is force-deleted as well.
const RESTARTS: i32 = 2;

/// What the lanes and the killer share.
struct Field {
    scope: Scope,
    done: AtomicUsize,
    over: AtomicBool,
    /// Kills of programs that serve mounts: how many were begun, and for how many the processes are gone.
    kills_begun: AtomicUsize,
    kills_over: AtomicUsize,
}

/// Counts of what had been done to mounts at one moment.
#[derive(Clone, Copy)]
struct Moment {
    kubelet_log: u64,
    kills_over: usize,
}

/// Repeats a call until it succeeds, as the kubelet does. While a mounter is replaced, there may be no answer at all.
fn insist(what: &str, mut ask: impl FnMut() -> Result<CallOut>) -> Result<()> {
    let limit = Limit::of(LIMIT);
    loop {
        let answer = ask();
        if answer.as_ref().is_ok_and(|answer| answer.status() == "Success") {
            return Ok(());
        }
        ensure!(!limit.is_over(), "{what} does not succeed: {answer:?}");
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

    /// Whether a kubelet has begun to unmount this volume since then: a kubelet that starts does so with volumes of
    /// Pods that it does not know.
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

    /// Called when a successful mount can't be used. Fails unless the test caused that: it killed what served the
    /// mount, or a kubelet that it had restarted unmounted it.
    fn taken_away(&self, name: &str, served: bool, since: Moment) -> Result<()> {
        let limit = Limit::of(TOLD_LIMIT);
        loop {
            let killed = served && self.kills_begun.load(Ordering::SeqCst) > since.kills_over;
            if killed || self.unmounted_by_kubelet(name, since)? {
                return Ok(());
            }
            ensure!(
                !limit.is_over(),
                "since its mount was asked for, no kubelet unmounted it and nothing that serves it was killed"
            );
            std::thread::sleep(RETRY);
        }
    }

    /// Acts as one thread of the kubelet, with one volume in this directory. `served`: by a program that the test
    /// kills.
    fn lane(&self, name: &str, volumes: &str, options: &str, served: bool) -> Result<()> {
        let scope = &self.scope;
        let target = format!("{volumes}/{name}");
        let mut number = 0;
        while !self.over.load(Ordering::SeqCst) {
            number += 1;
            // A starting kubelet may unmount the volume at any moment. So this writes below a path that was seen to be
            // the volume, and never into the node's directory below it.
            let used = format!(
                "there=$(grep -c ' {target} ' /proc/self/mountinfo) || true
                 [ \"$there\" = 1 ] || {{ echo \"mounted $there times\" >&2; exit 1; }}
                 timeout -s KILL 30 sh -euc '
                    cd {target}
                    [ \"$(stat -c %d .)\" != \"$(stat -c %d /var/lib/kubelet)\" ] || {{ echo unmounted meanwhile >&2; exit 1; }}
                    echo {number} >count
                    [ \"$(cat count)\" = {number} ]'"
            );
            let limit = Limit::of(LIMIT);
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
                ensure!(!limit.is_over(), "{name} can't be used: {error:#}");
                std::thread::sleep(RETRY);
            }
            insist(&format!("unmount {number} of {name}"), || {
                scope.call_out(1, &["unmount", &target])
            })?;
            // As the kubelet does. A starting kubelet may have done it already.
            scope.on_node(1, &format!("rmdir {target} || [ ! -e {target} ]"))?;
            self.done.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Kills one victim after the other until this many cycles are done and each victim was killed; returns how often
    /// each was.
    async fn kill(&self, mut random: Random, image: &str, cycles: usize) -> Result<BTreeMap<&'static str, usize>> {
        let limit = WHOLE_LIMIT + CYCLE_LIMIT * u32::try_from(cycles)?;
        let whole = Limit::of(limit);
        let mut kills = BTreeMap::new();
        while self.done.load(Ordering::SeqCst) < cycles || kills.len() < VICTIMS.len() {
            if self.over.load(Ordering::SeqCst) {
                break;
            }
            ensure!(
                !whole.is_over(),
                "{} cycles, and these kills: {kills:?}, after {}",
                self.done.load(Ordering::SeqCst),
                spoken(limit)
            );
            tokio::time::sleep(Duration::from_millis(1000 + random.below(3000))).await;
            let drawn = VICTIMS[usize::try_from(random.below(VICTIMS.len() as u64))?];
            let missing = VICTIMS.into_iter().find(|victim| !kills.contains_key(victim));
            let victim = missing.unwrap_or(drawn);
            // The victim may not be back since the last kill.
            if self.kill_one(victim, image).await.unwrap_or_default() {
                *kills.entry(victim).or_default() += 1;
            }
        }
        Ok(kills)
    }

    /// Kills one victim; whether there was one to kill.
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
            // Its Pod is replaced, which avoids the kubelet's growing backoff.
            api.delete(&name, &at_once).await?;
            return Ok(true);
        }
        self.kills_begun.fetch_add(1, Ordering::SeqCst);
        let killed = self.kill_serving(&api, victim, image).await;
        // Also if it failed half-way: there is only one killer, so all kills that were begun are over.
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

/// All mounts of the node: path and type, without what differs between Pods and containers of the same kind.
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
    // Starting the servers and the checks at the end take time besides the cycles.
    let limit = 2 * WHOLE_LIMIT + CYCLE_LIMIT * u32::try_from(cycles).unwrap();
    on_own_nodes_within(limit, "chaos-client-cycles", async |scope| {
        let seed = Random::seed();
        note(format!("seed {seed}, {cycles} cycles"));
        let names: Vec<_> = (0..LANES)
            .map(|number| format!("{}-{number}", scope.namespace))
            .collect();
        let on_server: Vec<_> = names.iter().map(String::as_str).collect();
        let server = scope.ssh_server(NODE, &on_server).await?;
        let image = image_of_its_own(&scope, "cycles")?;
        let described = |number: usize, name: &str| match number {
            0 => json!({"client": "local", "source": name}),
            _ => json!({"client": "sshfs", "source": server.source(name), "client-image": image}),
        };
        let options = |number: usize, name: &str, pod: &RefusedPod| -> Result<String> {
            if number == 0 {
                return Ok(pod.options(&described(number, name)).to_string());
            }
            let mut options = pod.options(&described(number, name));
            for (key, value) in server.secret().as_object().into_iter().flatten() {
                let value = STANDARD.encode(value.as_str().unwrap_or_default());
                options[format!("kubernetes.io/secret/{key}")] = value.into();
            }
            Ok(options.to_string())
        };
        scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{}", names[0]))?;
        let claims: Vec<_> = (0..LANES).map(|number| number.to_string()).collect();
        for (number, claim) in claims.iter().enumerate() {
            scope.volume(claim, &described(number, &names[number]))?;
        }
        // Without client Pods that earlier tests used, which are deleted when they are idle.
        let before = settled(&scope).await?;
        let started = Instant::now();
        let claims: Vec<_> = claims.iter().map(String::as_str).collect();
        let pod = scope.refused_pod("cycles", 1, &claims).await?;
        let field = Arc::new(Field {
            scope: scope.clone(),
            done: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            kills_begun: AtomicUsize::new(0),
            kills_over: AtomicUsize::new(0),
        });
        let mut lanes = tokio::task::JoinSet::new();
        for (number, name) in names.iter().enumerate() {
            let (field, name, options) = (Arc::clone(&field), name.clone(), options(number, name, &pod)?);
            let volumes = pod.volumes.clone();
            lanes.spawn_blocking(move || {
                let ran = field.lane(&name, &volumes, &options, number > 0);
                // The first failure ends all lanes.
                field.over.fetch_or(ran.is_err(), Ordering::SeqCst);
                ran
            });
        }
        let kills = field.kill(Random::new(seed), &image, cycles).await;
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
    wait_until("earlier client Pods to go", LIMIT, async || {
        let mounts = mounts(scope)?;
        Ok(pods.list(&clients).await?.items.is_empty().then_some(mounts))
    })
    .await
}
