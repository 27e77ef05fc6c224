//! Mounts of the same kind of volume (an ext4 image file on a loop device, `nosuid,nodev`) in three ways: with the
//! installed shim and mounter, with the system calls that the mounter makes, and with mount(8).
//!
//! One thread inside node-1's namespaces does all three in turn, each with an image file and a directory of its own.
//! The time of a program lasts from before its start until it has ended.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mooring_contract::names::FLEX_EXECUTABLE;
use mooring_mounter::sys::{Kernel, NewMount, Sys};
use mooring_mounter::volume::job::Secrets;
use mooring_mounter::volume::mount_options::MountFlags;
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use serde_json::json;

use super::report::{Timing, compared};
use super::shim::{CALL, time};
use mooring_harness::Scope;
use mooring_harness::nodes::{POOL, driver_directory, read_call_out};
use mooring_testbed::command::{command, output};
use mooring_testbed::namespaces::workbench;

pub(super) const MOUNT: &str = "mount";
const UNMOUNT: &str = "unmount";
pub(super) const OURS: &str = "shim and mounter";
pub(super) const CALLS: &str = "the same system calls";
pub(super) const PROGRAM: &str = "mount(8)";

/// Measures `rounds` mounts and unmounts of each kind.
pub(super) async fn measure(scope: &Scope, rounds: usize) -> Result<Vec<Timing>> {
    let cluster = scope.own_cluster()?;
    let init = cluster.init_of(1)?;
    let shim = driver_directory(cluster).join(FLEX_EXECUTABLE);
    let image = |way: &str| format!("{}-{way}.img", scope.namespace);
    // The mounter asks the API who wrote the volume.
    let ours = json!({"client": "local", "source": image("ours")});
    scope.volume("ours", &ours)?;
    let pod = scope.refused_pod("mounts", 1, &["ours"]).await?;
    let options = pod.options(&ours).to_string();
    let target = Path::new(&pod.volumes).join(scope.volume_name("ours"));
    let beside = |way: &str| Path::new("/var/lib/mooring").join(format!("{}-{way}", scope.namespace));
    let ways = [
        (OURS, "ours", target),
        (CALLS, "calls", beside("calls")),
        (PROGRAM, "program", beside("program")),
    ]
    .map(|(who, short, directory)| Way {
        who,
        shim: shim.clone(),
        options: options.clone(),
        image: image(short),
        directory,
    });
    // A thread of its own, since it can't return from the namespaces that it enters.
    let worker = std::thread::spawn(move || {
        let entered = enter(init)?;
        measure_here(&entered, &ways, &shim, rounds)
    });
    match worker.join() {
        Ok(result) => result,
        Err(_) => bail!("the thread that mounts panicked"),
    }
}

/// The PID namespaces of programs that a thread starts.
pub(super) struct Entered {
    own: File,
    node: File,
}

/// Enters a mount namespace with a node's folders and the machine's programs. Programs started after this are in its
/// PID namespace as well, so that its /proc is right.
pub(super) fn enter(init: i32) -> Result<Entered> {
    let open = |path: &Path| File::open(path).with_context(|| format!("failed to open {}", path.display()));
    let mounts = open(&workbench(init)?)?;
    let entered = Entered {
        own: open(Path::new("/proc/thread-self/ns/pid"))?,
        node: open(Path::new(&format!("/proc/{init}/ns/pid")))?,
    };
    unshare(CloneFlags::CLONE_FS).context("failed to have a working directory of our own")?;
    start_programs_in(&entered.node)?;
    setns(mounts, CloneFlags::CLONE_NEWNS).context("failed to enter the node's mount namespace")?;
    Ok(entered)
}

fn start_programs_in(namespace: &File) -> Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWPID).context("failed to change the PID namespace of programs")
}

impl Entered {
    /// Does what starts threads, which the kernel refuses to a thread whose programs are in another PID namespace.
    fn with_threads<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        start_programs_in(&self.own)?;
        let done = act();
        start_programs_in(&self.node)?;
        done
    }
}

struct Way {
    who: &'static str,
    shim: PathBuf,
    /// What the shim is given, as a kubelet gives it.
    options: String,
    image: String,
    directory: PathBuf,
}

fn measure_here(entered: &Entered, ways: &[Way; 3], shim: &Path, rounds: usize) -> Result<Vec<Timing>> {
    for way in ways {
        format(&way.image)?;
    }
    let mut samples: [(Vec<f64>, Vec<f64>); 3] = Default::default();
    let mut call_outs = Vec::new();
    for round in 0..rounds {
        for turn in 0..ways.len() {
            let at = (round + turn) % ways.len();
            let way = &ways[at];
            // The kubelet may remove an empty directory of a Pod that it refused, just before the mount.
            let mounted = way.make_and_mount(entered).or_else(|_| way.make_and_mount(entered));
            let mounted = mounted.with_context(|| format!("failed to mount by {}", way.who))?;
            ensure!(is_mounted(&way.directory)?, "nothing was mounted by {}", way.who);
            let unmounted = way
                .unmount()
                .with_context(|| format!("failed to unmount by {}", way.who))?;
            ensure!(!is_mounted(&way.directory)?, "nothing was unmounted by {}", way.who);
            samples[at].0.push(mounted.as_secs_f64());
            samples[at].1.push(unmounted.as_secs_f64());
        }
        call_outs.push(time(shim, &CALL)?.as_secs_f64());
    }
    for way in ways {
        let _ = std::fs::remove_dir(&way.directory);
        let _ = std::fs::remove_file(Path::new(POOL).join(&way.image));
    }
    let by = |what, samples: &dyn Fn(usize) -> Vec<f64>| {
        let all = ways.iter().enumerate();
        let timings = all.filter_map(|(at, way)| Timing::of(what, way.who, &samples(at)));
        compared(timings.collect(), CALLS)
    };
    let mut timings = by(MOUNT, &|at| samples[at].0.clone());
    timings.extend(by(UNMOUNT, &|at| samples[at].1.clone()));
    timings.extend(Timing::of("call-out that does nothing", OURS, &call_outs));
    Ok(timings)
}

/// Makes an image file with the file system that the mounter would make.
pub(super) fn format(image: &str) -> Result<()> {
    let path = Path::new(POOL).join(image);
    std::fs::create_dir_all(POOL).context("failed to make the pool")?;
    let file = File::create(&path).with_context(|| format!("failed to make {}", path.display()))?;
    file.set_len(64 << 20)
        .context("failed to give an image file its size")?;
    let options = [
        "-q",
        "-F",
        "-b",
        "4096",
        "-m",
        "0",
        "-E",
        "nodiscard,lazy_itable_init=0",
    ];
    output(command("mkfs.ext4", options).arg(&path))?;
    Ok(())
}

/// By its device, which differs from that of the directory above.
fn is_mounted(directory: &Path) -> Result<bool> {
    let device = |path: &Path| -> Result<u64> {
        let metadata = std::fs::metadata(path).with_context(|| format!("failed to look at {}", path.display()))?;
        Ok(std::os::unix::fs::MetadataExt::dev(&metadata))
    };
    let above = directory.parent().unwrap_or(Path::new("/"));
    Ok(directory.exists() && device(directory)? != device(above)?)
}

impl Way {
    /// The time is that of the mount only.
    fn make_and_mount(&self, entered: &Entered) -> Result<Duration> {
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("failed to make {}", self.directory.display()))?;
        self.mount(entered)
    }

    fn mount(&self, entered: &Entered) -> Result<Duration> {
        match self.who {
            OURS => call_out(&self.shim, &["mount", &self.directory.to_string_lossy(), &self.options]),
            // The new mount is made by a thread.
            CALLS => entered.with_threads(|| {
                let started = Instant::now();
                let image = Kernel.open_image(Path::new(POOL), &self.image)?;
                let device = Kernel.attach_loop(&image, false)?;
                let mount = Kernel.new_mount(&NewMount {
                    fs_type: "ext4".to_owned(),
                    source: device.path.display().to_string(),
                    options: Vec::new(),
                    credentials: Secrets::default(),
                    flags: MountFlags::safe(),
                })?;
                let directory = Kernel.open_or_make_directory(&self.directory, 0o755)?;
                Kernel.attach(&mount, &directory)?;
                Ok(started.elapsed())
            }),
            _ => {
                let mut mount = command("mount", ["-t", "ext4", "-o", "loop,nosuid,nodev"]);
                mount.arg(Path::new(POOL).join(&self.image)).arg(&self.directory);
                timed(&mut mount)
            }
        }
    }

    fn unmount(&self) -> Result<Duration> {
        match self.who {
            OURS => call_out(&self.shim, &["unmount", &self.directory.to_string_lossy()]),
            CALLS => {
                let started = Instant::now();
                umount2(&self.directory, MntFlags::UMOUNT_NOFOLLOW).context("umount2 failed")?;
                Ok(started.elapsed())
            }
            _ => timed(command("umount", [] as [&str; 0]).arg(&self.directory)),
        }
    }
}

/// A call that has to succeed.
pub(super) fn call_out(shim: &Path, args: &[&str]) -> Result<Duration> {
    let started = Instant::now();
    let run = Command::new(shim).args(args).stdin(Stdio::null()).output();
    let took = started.elapsed();
    let answer = read_call_out(&run.context("failed to run the shim")?)?;
    ensure!(
        answer.status() == "Success",
        "{} was answered: {}",
        args[0],
        answer.message()
    );
    Ok(took)
}

fn timed(command: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    output(command)?;
    Ok(started.elapsed())
}
