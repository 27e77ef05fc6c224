//! A thousand volumes are mounted, used and unmounted while everything involved is killed: the mounter, its workers,
//! mkfs, the shim. It is the real mounter and the real shim, called as the kubelet calls them, with retries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_harness::nodes::{CallOut, on_own_nodes_within};
use mooring_harness::own_mounter::OwnMounter;
use mooring_harness::processes::kill_all;
use mooring_harness::random::Random;
use mooring_harness::{Limit, wait_until};
use mooring_testbed::command::{command, output};
use mooring_testbed::progress::note;
use serde_json::json;

/// Number of mounts and unmounts, and how many times that `MOORING_TESTBED_CYCLES` is where it is set: these cycles are
/// shorter than those of other tests.
const CYCLES: usize = 1000;
const SHORTER: usize = 10;

/// Number of volumes in use at once, each with a thread that acts as the kubelet.
const LANES: usize = 4;

/// Longest that one mount or unmount may take to succeed, with all retries.
const LIMIT: Duration = Duration::from_mins(1);

/// Pause between tries: shorter than the real kubelet's.
const RETRY: Duration = Duration::from_millis(20);

/// Time limit of [`CYCLES`] cycles.
const WHOLE_LIMIT: Duration = Duration::from_mins(4);

/// What the lanes and the killer share.
struct Field {
    /// The killer locks it for writing while it restarts the mounter.
    mounter: RwLock<OwnMounter>,
    /// How many there are to be, and how many have begun.
    wanted: usize,
    cycles: AtomicUsize,
    over: AtomicBool,
    kills: Mutex<BTreeMap<&'static str, usize>>,
}

impl Field {
    fn with<T>(&self, act: impl FnOnce(&OwnMounter) -> Result<T>) -> Result<T> {
        act(&self.mounter.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, what: &'static str) {
        let mut kills = self.kills.lock().unwrap_or_else(PoisonError::into_inner);
        *kills.entry(what).or_default() += 1;
    }

    /// Repeats a call until it succeeds, as the kubelet does.
    fn insist(&self, what: &str, mut ask: impl FnMut(&OwnMounter) -> Result<CallOut>) -> Result<()> {
        let limit = Limit::of(LIMIT);
        loop {
            let answer = self.with(&mut ask)?;
            if answer.status() == "Success" {
                return Ok(());
            }
            ensure!(!limit.is_over(), "{what} does not succeed: {answer:?}");
            std::thread::sleep(RETRY);
        }
    }
}

/// A volume of a lane, and its content.
#[derive(Clone)]
struct Volume {
    name: String,
    fs_type: &'static str,
    written: Option<String>,
}

/// One thread that acts as the kubelet.
struct Lane<'a> {
    field: &'a Field,
    number: usize,
    random: Random,
    volumes: Vec<Volume>,
    made: usize,
    /// Process 1 of the node, and the folders as the machine sees them.
    pool: PathBuf,
}

impl Lane<'_> {
    fn run(&mut self) -> Result<()> {
        while !self.field.over.load(Ordering::SeqCst)
            && self.field.cycles.fetch_add(1, Ordering::SeqCst) < self.field.wanted
        {
            self.cycle().with_context(|| {
                format!(
                    "lane {}: {}",
                    self.number,
                    self.field.with(|mounter| Ok(mounter.log())).unwrap_or_default()
                )
            })?;
        }
        Ok(())
    }

    fn cycle(&mut self) -> Result<()> {
        let index = self.choose()?;
        let volume = self.volumes[index].clone();
        let pod = format!("pod-{}", self.number);
        let target = self.field.with(|mounter| Ok(mounter.target(&pod, &volume.name)))?;
        let inside = self.field.with(|mounter| Ok(mounter.on_node(&target)))?;
        let text = target.to_string_lossy().into_owned();
        let options = json!({"client": "local", "source": volume.name, "fs-type": volume.fs_type}).to_string();
        std::fs::create_dir_all(&inside).with_context(|| format!("failed to make {}", inside.display()))?;
        let call = ["mount", text.as_str(), options.as_str()];
        if self.random.one_in(5) {
            let after = Duration::from_micros(self.random.below(30_000));
            self.field.with(|mounter| mounter.call_cut_short(&call, after))?;
            self.field.count("shim");
        }
        // A Pod that is deleted before its volume is mounted: the kubelet unmounts it without ever having seen it
        // mounted.
        let given_up = self.random.one_in(6);
        if given_up {
            self.field.with(|mounter| mounter.call(&call))?;
        } else {
            self.field.insist("mount", |mounter| mounter.call(&call))?;
            self.field.with(|mounter| {
                let there = mounter.mounts(&format!(" {text} "))?;
                ensure!(there.len() == 1, "mounted {} times: {there:?}", there.len());
                Ok(())
            })?;
            self.used(index, &inside)?;
        }
        self.field
            .insist("unmount", |mounter| mounter.call(&["unmount", &text]))?;
        self.field.with(|mounter| {
            let left = mounter.mounts(&format!(" {text} "))?;
            ensure!(left.is_empty(), "left mounted: {left:?}");
            Ok(())
        })?;
        std::fs::remove_dir(&inside).with_context(|| format!("failed to remove {}", inside.display()))?;
        Ok(())
    }

    /// One of the lane's volumes, or a new one with an empty image. Old ones are removed, so that the pool stays small.
    fn choose(&mut self) -> Result<usize> {
        if self.volumes.len() >= 2 && !self.random.one_in(3) {
            return Ok(usize::try_from(self.random.below(self.volumes.len() as u64))?);
        }
        if self.volumes.len() >= 3 {
            let old = self.volumes.remove(0);
            self.remove(&old)?;
        }
        self.made += 1;
        let name = format!("{}-{}.img", self.number, self.made);
        let file = std::fs::File::create(self.pool.join(&name))?;
        file.set_len(24 << 20)?;
        self.volumes.push(Volume {
            name,
            fs_type: "ext4",
            written: None,
        });
        Ok(self.volumes.len() - 1)
    }

    /// Checks that the earlier content is complete, and writes something new.
    fn used(&mut self, index: usize, inside: &Path) -> Result<()> {
        let file = inside.join("content");
        let volume = &mut self.volumes[index];
        if let Some(written) = &volume.written {
            let read = std::fs::read_to_string(&file).with_context(|| format!("{} lost its content", volume.name))?;
            ensure!(read == *written, "{} has other content than was written", volume.name);
        }
        let content = format!("{:016x}", self.random.draw()).repeat(4096);
        std::fs::write(&file, &content)?;
        volume.written = Some(content);
        Ok(())
    }

    /// Checks that the file system is sound, whatever was killed while it was made or used; then removes it.
    fn remove(&self, volume: &Volume) -> Result<()> {
        let image = self.pool.join(&volume.name);
        if volume.written.is_some() {
            // The kernel detaches the loop device from the file a moment after the last unmount.
            output(&mut command(
                "e2fsck",
                ["-f".as_ref(), "-n".as_ref(), image.as_os_str()],
            ))
            .with_context(|| format!("the file system of {} is not sound", volume.name))?;
            ensure!(!self.mark(volume).exists(), "{} is marked as half made", volume.name);
        }
        std::fs::remove_file(&image)?;
        let _ = std::fs::remove_file(self.mark(volume));
        Ok(())
    }

    fn mark(&self, volume: &Volume) -> PathBuf {
        self.pool.join(format!(".{}.formatting", volume.name))
    }
}

/// How long to look for something to kill.
const HUNT: Duration = Duration::from_millis(300);

/// Kills one thing after the other until all cycles are done.
fn killer(field: &Field, mut random: Random) -> Result<()> {
    while !field.over.load(Ordering::SeqCst) && field.cycles.load(Ordering::SeqCst) < field.wanted {
        std::thread::sleep(Duration::from_micros(20_000 + random.below(180_000)));
        let mounter_runs = |what| field.with(|mounter| mounter.processes(what));
        // Workers and programs live for a few milliseconds.
        let caught = |look: &dyn Fn(&OwnMounter) -> Result<Vec<i32>>| {
            let until = Instant::now() + HUNT;
            loop {
                let found = field.with(look)?;
                if !found.is_empty() || Instant::now() > until {
                    return anyhow::Ok(found);
                }
            }
        };
        match random.below(5) {
            0 => {
                let workers = caught(&OwnMounter::busy_workers)?;
                if !workers.is_empty() {
                    kill_all(&workers);
                    field.count("worker");
                }
            }
            1 => {
                let programs = caught(&|mounter| mounter.processes("mkfs."))?;
                if !programs.is_empty() {
                    kill_all(&programs);
                    field.count("mkfs");
                }
            }
            2 => {
                // Including the one that waits.
                let workers = mounter_runs("worker")?;
                if !workers.is_empty() {
                    kill_all(&workers);
                    field.count("any worker");
                }
            }
            // Most often the mounter: its calls are cut off in the middle.
            _ => {
                kill_all(&mounter_runs("serve")?);
                field.count("mounter");
                std::thread::sleep(Duration::from_micros(random.below(50_000)));
                let mut mounter = field.mounter.write().unwrap_or_else(PoisonError::into_inner);
                mounter.start()?;
            }
        }
    }
    Ok(())
}

/// Proves: M1, M2
#[test]
fn a_thousand_mounts_with_random_kills_leave_everything_as_it_was() {
    let said = std::env::var("MOORING_TESTBED_CYCLES").ok();
    let cycles = said
        .and_then(|text| text.parse().ok())
        .map_or(CYCLES, |cycles: usize| cycles * SHORTER);
    let limit = WHOLE_LIMIT * u32::try_from(cycles.div_ceil(CYCLES)).unwrap();
    on_own_nodes_within(2 * limit, "chaos-cycles", async |scope| {
        let seed = Random::seed();
        note(format!("seed {seed}, {cycles} cycles"));
        let started = Instant::now();
        let mut mounter = OwnMounter::new(&scope, "cycles", &["--call-timeout=20s"], "")?;
        let root = mounter.root().to_string_lossy().into_owned();
        // In memory: this does not test the disk.
        scope.on_node(1, &format!("mount -t tmpfs -o size=512m pool {root}/pool"))?;
        let pool = mounter.on_node(&mounter.root().join("pool"));
        mounter.start()?;
        let ours = |mounter: &OwnMounter| mounter.mounts(&root);
        let before = ours(&mounter)?;
        let field = Field {
            mounter: RwLock::new(mounter),
            wanted: cycles,
            cycles: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            kills: Mutex::default(),
        };
        let mut random = Random::new(seed);
        let results: Vec<Result<Vec<Volume>>> = std::thread::scope(|threads| {
            let lanes: Vec<_> = (0..LANES)
                .map(|number| {
                    let mut lane = Lane {
                        field: &field,
                        number,
                        random: random.split(),
                        volumes: Vec::new(),
                        made: 0,
                        pool: pool.clone(),
                    };
                    let field = &field;
                    threads.spawn(move || {
                        let ran = lane.run();
                        if ran.is_err() {
                            field.over.store(true, Ordering::SeqCst);
                        }
                        ran.map(|()| lane.volumes)
                    })
                })
                .collect();
            let killing = killer(&field, random.split());
            if killing.is_err() {
                field.over.store(true, Ordering::SeqCst);
            }
            let mut results: Vec<_> = lanes.into_iter().map(joined).collect();
            results.push(killing.map(|()| Vec::new()));
            results
        });
        let kills = field.kills.into_inner().unwrap_or_else(PoisonError::into_inner);
        note(format!("kills: {kills:?}; {} s", started.elapsed().as_secs()));
        let volumes: Vec<Volume> = results.into_iter().collect::<Result<Vec<_>>>()?.concat();
        for what in ["mounter", "worker", "any worker", "mkfs", "shim"] {
            ensure!(
                kills.contains_key(what),
                "no {what} was ever killed, so nothing was tried"
            );
        }

        let mut mounter = field.mounter.into_inner().unwrap_or_else(PoisonError::into_inner);
        wait_until("all to be as before", Duration::from_mins(2), async || {
            let now = ours(&mounter)?;
            ensure!(now == before, "mounts are left: {now:#?}");
            let loops = scope.on_node(
                1,
                &format!("cat /sys/block/loop*/loop/backing_file 2>/dev/null | grep {root} || true"),
            )?;
            ensure!(loops.is_empty(), "loop devices are left: {loops}");
            let workers = mounter.busy_workers()?;
            ensure!(workers.is_empty(), "workers are left: {workers:?}");
            let programs = mounter.processes("mkfs.")?;
            ensure!(programs.is_empty(), "mkfs is left: {programs:?}");
            Ok(Some(()))
        })
        .await?;
        let mut names: Vec<_> = std::fs::read_dir(&pool)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        // A volume that was given up half made still has its mark.
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        let mut wanted: Vec<_> = volumes.iter().map(|volume| volume.name.clone()).collect();
        wanted.sort();
        assert_eq!(names, wanted);
        for number in 0..LANES {
            let pods = mounter
                .root()
                .join(format!("kubelet/pods/pod-{number}/volumes/mooring.dev~vcs"));
            let left: Vec<_> = std::fs::read_dir(mounter.on_node(&pods))?.collect();
            assert!(left.is_empty(), "directories are left: {left:?}");
        }
        assert!(mounter.runs()?);
        mounter.kill()?;
        no_process_left(&mounter).await
    });
}

/// The kernel ends the workers of a mounter that was killed, after it.
async fn no_process_left(mounter: &OwnMounter) -> Result<()> {
    let limit = Duration::from_mins(2);
    wait_until("no process of the mounter to be left", limit, async || {
        let left = mounter.processes("")?;
        ensure!(left.is_empty(), "{left:?} are there");
        Ok(Some(()))
    })
    .await
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| anyhow::bail!("a lane panicked"))
}
