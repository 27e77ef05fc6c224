//! Whether a hanging server delays other volumes: mounts, unmounts and statistics of volumes that do not use it,
//! through the installed shim. They are measured while the server's own volumes hang and are requested again and again,
//! and while nothing hangs, in alternating blocks of rounds.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mooring_contract::names::FLEX_EXECUTABLE;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::mounts::{call_out, enter, format};
use super::options::WHOLE_LIMIT;
use super::summary::Summary;
use mooring_harness::Scope;
use mooring_harness::children::{start, tied};
use mooring_harness::nodes::{POOL, driver_directory};
use mooring_testbed::progress::{Step, say};
use mooring_testbed::target::Target;

/// Rounds until the server is stopped or continued.
const BLOCK: usize = 25;

/// Mounts from the hung server that are always under way: those before the circuit breaker trips wait, the others are
/// refused.
const ASKERS: usize = 4;

/// Longest until a mount that was requested from a hung server has ended.
const LATE_LIMIT: Duration = Duration::from_mins(3);

/// Pause before a block, in which the mounter can notice the hung server.
const SETTLE: Duration = Duration::from_secs(2);

/// The volumes that are measured.
const KINDS: [&str; 2] = ["local", "sshfs of another server"];

/// The measured calls.
const CALLS: [&str; 3] = ["mount", "statistics", "unmount"];

/// Measures this many rounds with, and as many without, a hanging server.
pub(super) async fn run(target: &Target, rounds: usize) -> Result<()> {
    mooring_harness::run(target.clone(), WHOLE_LIMIT, "bench-hung", async |scope| {
        scope.require_mooring().await?;
        let fine = Box::pin(scope.ssh_server_called("fine", "node-1", &["data"])).await?;
        let hung = Box::pin(scope.ssh_server_called("hung", "node-1", &["used", "late"])).await?;
        scope.volume("used", &hung.volume("used"))?;
        let script = "while :; do date >>/data/dates; done";
        let main = json!([{
            "name": "main", "image": "busybox:1", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }]);
        scope.pod("used", "node-1", "used", json!({"containers": main}))?;
        scope.pod_ready("used").await?;
        let local = json!({"client": "local", "source": format!("{}-hung.img", scope.namespace)});
        scope.volume("local", &local)?;
        scope.volume("fine", &fine.volume("data"))?;
        let mut slow = hung.volume("late");
        slow["mount-options"] = "ConnectTimeout=600".into();
        let late: Vec<_> = (0..ASKERS).map(|asker| format!("late-{asker}")).collect();
        for name in &late {
            scope.volume(name, &slow)?;
        }
        // The mounter asks the API who wrote the volumes.
        let mut claims = vec!["local", "fine"];
        claims.extend(late.iter().map(String::as_str));
        let pod = scope.refused_pod("mounts", 1, &claims).await?;
        let options = |options: &Value, secret: &Value| {
            let mut options = pod.options(options);
            for (key, value) in secret.as_object().into_iter().flatten() {
                let value = STANDARD.encode(value.as_str().unwrap_or_default());
                options[format!("kubernetes.io/secret/{key}")] = value.into();
            }
            options.to_string()
        };
        let target = |claim: &str| Path::new(&pod.volumes).join(scope.volume_name(claim));
        let sources = Sources {
            shim: driver_directory(scope.own_cluster()?).join(FLEX_EXECUTABLE),
            image: format!("{}-hung.img", scope.namespace),
            volumes: [
                (target("local"), options(&local, &Value::Null)),
                (target("fine"), options(&fine.volume("data"), &fine.secret())),
            ],
            late: late.iter().map(|name| target(name)).collect(),
            late_options: options(&slow, &hung.secret()),
        };
        let samples = Box::pin(by_turns(&scope, sources, rounds)).await?;
        say(table(&samples));
        scope.delete("pod/used")?;
        scope.pod_gone("used").await
    })
    .await
}

/// The volumes to mount.
struct Sources {
    shim: PathBuf,
    /// The image file of the volume of the pool.
    image: String,
    /// Target and options of each of [`KINDS`].
    volumes: [(PathBuf, String); KINDS.len()],
    /// Targets of the hung server's volumes.
    late: Vec<PathBuf>,
    late_options: String,
}

/// Seconds without and with a hanging server, by kind and call.
type Samples = [Block; 2];

/// Seconds of one block, of all blocks without, or of all with a hanging server.
type Block = [[Vec<f64>; CALLS.len()]; KINDS.len()];

async fn by_turns(scope: &Scope, sources: Sources, rounds: usize) -> Result<Samples> {
    let init = scope.own_cluster()?.init_of(1)?;
    let (turn, turns) = channel();
    let (done, results) = channel();
    // A thread of its own, since it can't return from the namespaces that it enters.
    let worker = std::thread::spawn(move || {
        enter(init)?;
        work(&sources, &turns, &done)
    });
    let mut step = Step::begin("mounts beside a hung server");
    let mut samples = Samples::default();
    let blocks = rounds.div_ceil(BLOCK);
    // The very first block only warms up: pages are read, and client Pods start.
    let mut all = vec![(false, false)];
    all.extend((0..blocks).flat_map(|_| [(false, true), (true, true)]));
    for (number, (hangs, counts)) in all.into_iter().enumerate() {
        step.update(&format!("block {number} of {}", 2 * blocks));
        let stopped = if hangs { Some(scope.stop("hung").await?) } else { None };
        if hangs {
            tokio::time::sleep(SETTLE).await;
        }
        if turn.send(hangs).is_err() {
            break;
        }
        let block = loop {
            match results.try_recv() {
                Ok(block) => break Some(block),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => break None,
                Err(std::sync::mpsc::TryRecvError::Empty) => tokio::time::sleep(SETTLE / 20).await,
            }
        };
        drop(stopped);
        let Some(block) = block else { break };
        if counts {
            add(&mut samples[usize::from(hangs)], block);
        }
    }
    drop(turn);
    match worker.join() {
        Ok(result) => result?,
        Err(_) => bail!("the thread that mounts panicked"),
    }
    step.done("");
    Ok(samples)
}

fn add(samples: &mut Block, block: Block) {
    for (all, of_kind) in samples.iter_mut().zip(block) {
        for (all, of_call) in all.iter_mut().zip(of_kind) {
            all.extend(of_call);
        }
    }
}

fn work(sources: &Sources, turns: &Receiver<bool>, done: &Sender<Block>) -> Result<()> {
    format(&sources.image)?;
    // Whether a server hangs while volumes of it are requested.
    for hangs in turns {
        unmount_late(sources)?;
        let askers = hangs.then(|| Askers::start(sources)).transpose()?;
        let mut block = Block::default();
        for _ in 0..BLOCK {
            for ((directory, options), times) in sources.volumes.iter().zip(&mut block) {
                let target = directory.to_string_lossy().into_owned();
                let mount = || {
                    std::fs::create_dir_all(directory)?;
                    call_out(&sources.shim, &["mount", &target, options])
                };
                // The kubelet may remove an empty directory of a Pod that it refused, just before the mount.
                let mounted = mount().or_else(|_| mount())?;
                let looked = look(directory)?;
                let unmounted = call_out(&sources.shim, &["unmount", &target])?;
                for (times, took) in times.iter_mut().zip([mounted, looked, unmounted]) {
                    times.push(took.as_secs_f64());
                }
            }
        }
        drop(askers);
        if done.send(block).is_err() {
            break;
        }
    }
    for (directory, _) in &sources.volumes {
        let _ = std::fs::remove_dir(directory);
    }
    let _ = std::fs::remove_file(Path::new(POOL).join(&sources.image));
    unmount_late(sources)
}

/// Unmounts what was requested while the server hung. It answers again, so a mount may have succeeded, or may still be
/// under way.
fn unmount_late(sources: &Sources) -> Result<()> {
    let deadline = Instant::now() + LATE_LIMIT;
    for directory in &sources.late {
        while let Err(error) = call_out(&sources.shim, &["unmount", &directory.to_string_lossy()]) {
            if Instant::now() > deadline {
                return Err(error);
            }
            std::thread::sleep(SETTLE);
        }
        let _ = std::fs::remove_dir(directory);
    }
    Ok(())
}

fn look(directory: &Path) -> Result<Duration> {
    let started = Instant::now();
    let found = nix::sys::statfs::statfs(directory).context("failed to ask for statistics")?;
    let took = started.elapsed();
    ensure!(found.blocks() > 0, "a file system without room");
    Ok(took)
}

/// Requests for mounts from the hung server, repeated as a kubelet does while they fail.
struct Askers(Vec<Child>);

impl Askers {
    fn start(sources: &Sources) -> Result<Self> {
        let mut askers = Self(Vec::new());
        for directory in &sources.late {
            let script = "while :; do mkdir -p \"$2\"; \"$1\" mount \"$2\" \"$3\" >/dev/null; sleep 0.2; done";
            let mut ask = tied("sh")?;
            ask.args(["-c", script, "sh"])
                .arg(&sources.shim)
                .arg(directory)
                .arg(&sources.late_options)
                .stdin(Stdio::null())
                .process_group(0);
            askers.0.push(start(ask).context("failed to ask for a volume")?);
        }
        std::thread::sleep(SETTLE);
        Ok(askers)
    }
}

impl Drop for Askers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Together with the call that it waits for.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

/// The value that one of a hundred samples exceeds.
fn high(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last * 99).div_ceil(100)).copied().unwrap_or_default()
}

fn table(samples: &Samples) -> String {
    let mut text = "| | nothing hangs: median, 99 % below | a server hangs: median, 99 % below | \
                    times as long: median, 99 % below |\n\
                    | --- | --- | --- | --- |\n"
        .to_owned();
    for (kind, name) in KINDS.iter().enumerate() {
        for (call, what) in CALLS.iter().enumerate() {
            let [without, with] = [0, 1].map(|hangs| {
                let times = &samples[hangs][kind][call];
                let median = Summary::of(times).map_or(0.0, |summary| summary.median);
                (median * 1000.0, high(times) * 1000.0)
            });
            let row = format!(
                "| {what}, {name} | {:.2} ms, {:.2} ms | {:.2} ms, {:.2} ms | {:.2}, {:.2} |\n",
                without.0,
                without.1,
                with.0,
                with.1,
                with.0 / without.0,
                with.1 / without.1,
            );
            text.push_str(&row);
        }
    }
    let count = samples[0][0][0].len();
    text + &format!("\n{count} of each, with and without.\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_of_a_hundred_exceeds_it() {
        let samples: Vec<_> = (1..=200).map(f64::from).collect();
        assert!((super::high(&samples) - 199.0).abs() < 0.5);
        assert!((super::high(&[3.0]) - 3.0).abs() < 0.1);
    }
}
