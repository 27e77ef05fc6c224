//! The whole run: set-up, the order of measurements, and the report.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;

use super::audit::{Counts, Window};
use super::burst::{self, Outcome};
use super::observer::Observer;
use super::options::{Options, WHOLE_LIMIT};
use super::peer::{Peer, USUAL_THREADS};
use super::processes::{CONTROLLER, MOUNTER, Snapshot, WORKER, between, snapshot};
use super::report::{Aim, Burst, FORMAT, Machine, ProcessUse, Report, Requests, Summary, Timing};
use super::summary::number;
use super::systems::{BARE, LOCAL, MOORING, System, World};
use super::{audit, claims, mounts, pods};
use mooring_harness::Scope;
use mooring_testbed::binaries::ensure_peer;
use mooring_testbed::cluster::Cluster;
use mooring_testbed::images::{HOST, TAG};
use mooring_testbed::progress::{Step, note};
use mooring_testbed::target::Target;

/// The first phase of a burst.
const BOUND: &str = "claims bound";
/// The second phase of a burst.
const REMOVED: &str = "volumes removed";

/// Pause before the first measurement.
const CALM: Duration = Duration::from_secs(5);

/// Measures everything, on the testbed's own cluster with Mooring installed.
pub async fn measure(target: &Target, options: &Options) -> Result<Report> {
    if !options.skip_peer {
        ensure_peer()?;
    }
    let mut report = None;
    mooring_harness::run(target.clone(), WHOLE_LIMIT, "bench", async |scope| {
        scope.require_mooring().await?;
        let peer = (!options.skip_peer).then(|| Peer::of(&scope));
        // Boxed, since it is large.
        let measured = Box::pin(in_scope(&scope, peer.as_ref(), options)).await;
        let removed = peer.as_ref().map_or(Ok(()), Peer::remove);
        report = Some(measured?);
        removed
    })
    .await?;
    report.context("nothing was measured")
}

struct Gathered<'a> {
    cluster: &'a Cluster,
    world: &'a World,
    times: Vec<Timing>,
    /// Rates by phase, system and size.
    rates: Vec<(&'static str, String, usize, f64)>,
    requests: Vec<Requests>,
    milliseconds: BTreeMap<String, BTreeMap<String, f64>>,
    loaded: Snapshot,
    notes: Vec<String>,
}

async fn in_scope(scope: &Scope, peer: Option<&Peer<'_>>, options: &Options) -> Result<Report> {
    let started = Instant::now();
    let cluster = scope.own_cluster()?;
    let step = Step::begin("set the classes up");
    let systems = set_up(scope, peer).await?;
    let world = World {
        scope: scope.clone(),
        observer: Observer::start(&scope.client, &scope.namespace).await?,
        nodes: cluster.description.nodes,
    };
    step.done("");
    let mut gathered = Gathered {
        cluster,
        world: &world,
        times: Vec::new(),
        rates: Vec::new(),
        requests: Vec::new(),
        milliseconds: BTreeMap::new(),
        loaded: Snapshot::new(),
        notes: Vec::new(),
    };

    let mut step = Step::begin("mounts");
    step.update("");
    gathered.times.extend(mounts::measure(scope, options.mounts).await?);
    step.done("");
    // One round of each first for each node, which does not count: images are unpacked, pages are read, workers start.
    let mut step = Step::begin("claims one after another");
    claims::measure(&world, &systems, world.nodes.into(), "first", &mut step).await?;
    tokio::time::sleep(CALM).await;
    let (idle, idle_after) = gathered.idle(Duration::from_secs(options.idle)).await?;
    gathered
        .times
        .extend(claims::measure(&world, &systems, options.claims, "one", &mut step).await?);
    step.done("");
    let mut step = Step::begin("Pods with a fresh claim");
    gathered
        .times
        .extend(pods::measure(&world, &systems, options.pods, &mut step).await?);
    step.done("");
    gathered.bursts(&systems, peer, options).await?;
    tokio::time::sleep(CALM).await;
    let after = snapshot(&cluster.layout, &world.leader()?)?;
    gathered.report(options, started, &[idle, idle_after, after])
}

/// Creates the classes; returns the systems.
async fn set_up(scope: &Scope, peer: Option<&Peer<'_>>) -> Result<Vec<System>> {
    let printing = scope.provisioner().printing();
    printing.apply().await?;
    let local = scope
        .provisioner_named("-local")
        .key("image", format!("{HOST}/provisioner-local:{TAG}"))
        .key("backend-volume", "client=pool")
        .key("volume-source", "flexVolume")
        .key("volume-binding-mode", "WaitForFirstConsumer");
    local.apply().await?;
    let mut systems = vec![
        System::bare(scope),
        System::mooring(MOORING, &printing.class, false),
        System::mooring(LOCAL, &local.class, true),
    ];
    if let Some(peer) = peer {
        peer.install()?;
        systems.push(System::peer(super::processes::PEER, &peer.name, &peer.name));
    }
    Ok(systems)
}

impl Gathered<'_> {
    /// Does nothing for a while; returns the processes before and after.
    async fn idle(&mut self, time: Duration) -> Result<(Snapshot, Snapshot)> {
        let leader = self.world.leader()?;
        let before = snapshot(&self.cluster.layout, &leader)?;
        let from = Timestamp::now();
        tokio::time::sleep(time).await;
        let window = Window {
            from,
            until: Timestamp::now(),
        };
        let after = snapshot(&self.cluster.layout, &leader)?;
        let counts = audit::count(&self.cluster.layout, window, true)?;
        self.requests.push(Requests {
            phase: "idle".to_owned(),
            who: "a minute of nothing".to_owned(),
            volumes: 0,
            by_client: per(&counts, minutes(time)),
        });
        Ok((before, after))
    }

    async fn bursts(&mut self, systems: &[System], peer: Option<&Peer<'_>>, options: &Options) -> Result<()> {
        for (round, &size) in options.bursts.iter().enumerate() {
            for (at, system) in systems.iter().enumerate() {
                self.burst(system, size, &format!("many-{round}-{at}")).await?;
            }
        }
        if let Some(peer) = peer {
            peer.apply(options.peer_threads)?;
            let name = format!("{}, {} threads", super::processes::PEER, options.peer_threads);
            let raised = System::peer(&name, &peer.name, &peer.name);
            for (round, &size) in options.bursts.iter().enumerate() {
                self.burst(&raised, size, &format!("raised-{round}")).await?;
            }
            peer.apply(USUAL_THREADS)?;
        }
        Ok(())
    }

    /// One burst. A failure of the peer does not end the run.
    async fn burst(&mut self, system: &System, size: usize, prefix: &str) -> Result<()> {
        let step = Step::begin(format!("{size} at once: {}", system.name));
        let outcome = match burst::run(self.world, &self.cluster.layout, system, size, prefix).await {
            Ok(outcome) => outcome,
            Err(error) if system.name.starts_with(super::processes::PEER) => {
                let text = format!("{size} at once by {}: {error:#}", system.name);
                note(&text);
                self.notes.push(text);
                return Ok(());
            }
            Err(error) => return Err(error.context(format!("{size} at once by {}", system.name))),
        };
        step.done(&format!(
            "{:.2} a second made, {:.2} removed",
            outcome.made.per_second, outcome.removed.per_second
        ));
        self.take(system, size, &outcome)
    }

    fn take(&mut self, system: &System, size: usize, outcome: &Outcome) -> Result<()> {
        for (what, phase) in [(BOUND, &outcome.made), (REMOVED, &outcome.removed)] {
            // A Pod that has ended disappears with its object, so its removal shows nothing.
            if what == REMOVED && system.class.is_none() {
                continue;
            }
            self.rates.push((what, system.name.clone(), size, phase.per_second));
            let counts = audit::count(&self.cluster.layout, phase.window, false)?;
            self.requests.push(Requests {
                phase: if what == BOUND { "provision" } else { "delete" }.to_owned(),
                who: system.name.clone(),
                volumes: size,
                by_client: per(&counts, number(size)),
            });
        }
        let [before, loaded, after] = &outcome.processes;
        for process in after.keys() {
            let taken = u32::try_from(between(before, after, process)).map_or(f64::INFINITY, f64::from);
            let of_process = self.milliseconds.entry(process.clone()).or_default();
            // The largest burst is the last one, and overwrites the others.
            of_process.insert(system.name.clone(), taken / number(size));
        }
        for (process, taken) in loaded {
            let kept = self.loaded.entry(process.clone()).or_default();
            if taken.resident > kept.resident {
                *kept = *taken;
            }
        }
        Ok(())
    }

    fn report(self, options: &Options, started: Instant, [idle, idle_after, after]: &[Snapshot; 3]) -> Result<Report> {
        let bursts = bursts(&self.rates);
        let idle_time = minutes(Duration::from_secs(options.idle));
        let processes: Vec<_> = after
            .iter()
            .map(|(process, taken)| {
                let resident = |snapshot: &Snapshot| mib(snapshot.get(process).map_or(0, |taken| taken.resident));
                let while_idle = u32::try_from(between(idle, idle_after, process)).map_or(f64::INFINITY, f64::from);
                ProcessUse {
                    process: process.clone(),
                    processes: taken.processes,
                    idle_mib: resident(idle_after),
                    loaded_mib: resident(&self.loaded),
                    after_mib: mib(taken.resident),
                    idle_ms_per_minute: while_idle / idle_time,
                    ms_per_volume: self.milliseconds.get(process).cloned().unwrap_or_default(),
                }
            })
            .collect();
        Ok(Report {
            format: FORMAT,
            machine: machine(self.cluster)?,
            options: options.clone(),
            seconds: started.elapsed().as_secs_f64(),
            aims: aims(&self.times, &bursts, &processes),
            times: self.times,
            bursts,
            requests: self.requests,
            processes,
            notes: self.notes,
        })
    }
}

/// The rates of bursts of one size together.
fn bursts(rates: &[(&'static str, String, usize, f64)]) -> Vec<Burst> {
    let of = |what: &str, who: &str, size: usize| -> Vec<f64> {
        let same = rates
            .iter()
            .filter(|one| one.0 == what && one.1 == who && one.2 == size);
        same.map(|one| one.3).collect()
    };
    let mut found: Vec<Burst> = Vec::new();
    for (what, who, size, _) in rates {
        if found
            .iter()
            .any(|one| one.what == *what && one.who == *who && one.size == *size)
        {
            continue;
        }
        let own = of(what, who, *size);
        // Removing a volume takes a Pod as well.
        let ratios: Vec<_> = own
            .iter()
            .zip(of(BOUND, BARE, *size))
            .map(|(own, bare)| own / bare)
            .collect();
        if let Some(per_second) = Summary::of(&own) {
            found.push(Burst {
                what: (*what).to_owned(),
                who: who.clone(),
                size: *size,
                per_second,
                over_bare: Summary::of(&ratios).filter(|_| who != BARE),
            });
        }
    }
    found
}

fn aims(times: &[Timing], bursts: &[Burst], processes: &[ProcessUse]) -> Vec<Aim> {
    let time = |what: &str, who: &str| times.iter().find(|time| time.what == what && time.who == who);
    let over = |what, who| time(what, who).and_then(|time| time.over.as_ref());
    let largest = |name: &str| {
        let of = processes.iter().find(|process| process.process == name);
        of.map(|process| process.idle_mib.max(process.loaded_mib).max(process.after_mib))
    };
    let mounter = largest(MOUNTER).map(|daemon| daemon + largest(WORKER).unwrap_or_default());
    let slowest = bursts
        .iter()
        .filter(|burst| burst.what == BOUND && burst.who == MOORING);
    let slowest = slowest.map(|burst| burst.per_second.median).reduce(f64::min);
    let milliseconds = |seconds: f64| seconds * 1000.0;
    let program = time(mounts::MOUNT, mounts::PROGRAM).map(|time| milliseconds(time.seconds.median));
    let ours = time(mounts::MOUNT, mounts::OURS).map(|time| milliseconds(time.seconds.median));
    let at_most = |what: &str, aim: f64, measured: Option<f64>, unit: &str| {
        measured.map(|measured| Aim {
            what: what.to_owned(),
            aim,
            measured,
            unit: unit.to_owned(),
            met: measured <= aim,
        })
    };
    let rate = slowest.map(|measured| Aim {
        what: "claims a second in a burst, at least".to_owned(),
        aim: 2.0,
        measured,
        unit: "/s".to_owned(),
        met: measured >= 2.0,
    });
    [
        at_most(
            "claim → Bound over a bare Pod, at most",
            1.3,
            over(claims::BOUND, MOORING).map(|over| over.ratio.median),
            "times",
        ),
        at_most(
            "claim → Bound, at most",
            1.0,
            time(claims::BOUND, MOORING).map(|time| time.seconds.median),
            "s",
        ),
        at_most(
            "selected node → Bound, local, at most",
            60.0,
            time(claims::BOUND, LOCAL).map(|time| milliseconds(time.seconds.median)),
            "ms",
        ),
        rate,
        at_most(
            "mount over the same system calls, at most",
            2.0,
            over(mounts::MOUNT, mounts::OURS).map(|over| milliseconds(over.seconds.median)),
            "ms more",
        ),
        program.and_then(|program| at_most("mount, at most what mount(8) takes", program, ours, "ms")),
        at_most("mounter's memory, at most", 8.0, mounter, "MiB"),
        at_most("controller's memory, at most", 24.0, largest(CONTROLLER), "MiB"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn per(counts: &Counts, share: f64) -> BTreeMap<String, BTreeMap<String, f64>> {
    let verbs = |verbs: &BTreeMap<String, usize>| {
        let each = verbs.iter().map(|(verb, count)| (verb.clone(), number(*count) / share));
        each.collect()
    };
    counts
        .iter()
        .map(|(client, counts)| (client.clone(), verbs(counts)))
        .collect()
}

fn minutes(time: Duration) -> f64 {
    // Never zero, since it divides.
    time.as_secs_f64().max(1.0) / 60.0
}

fn mib(kib: u64) -> f64 {
    u32::try_from(kib).map_or(f64::INFINITY, f64::from) / 1024.0
}

fn machine(cluster: &Cluster) -> Result<Machine> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    Ok(Machine {
        cores: std::thread::available_parallelism()
            .context("failed to count the processors")?
            .get(),
        nodes: cluster.description.nodes,
        system: name.unwrap_or("Linux").trim_matches('"').to_owned(),
        cgroups: if unified { "v2" } else { "v1" }.to_owned(),
    })
}
