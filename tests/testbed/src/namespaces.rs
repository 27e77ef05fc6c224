//! Starts our init processes in namespaces of their own, and finds them again.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use crate::layout::{Layout, make_folder};
use crate::progress::note;

/// First argument of an init process; see [`crate::init`].
pub const INIT_COMMAND: &str = "internal-init";

/// The program that init processes run.
const PROGRAM: &str = "testbed";

/// An init process that waits for [`Waiting::go`].
pub struct Waiting {
    /// Its process id on this machine.
    pub pid: i32,
    stdin: std::process::ChildStdin,
}

impl Waiting {
    /// Lets it continue. If this is dropped without that, it ends.
    pub fn go(mut self) -> Result<()> {
        self.stdin
            .write_all(b"go\n")
            .with_context(|| format!("the init process {} ended too early", self.pid))
    }
}

/// Starts this program as the init process of `role`: process 1 of new namespaces.
pub fn start_init(layout: &Layout, role: &str, namespaces: CloneFlags) -> Result<Waiting> {
    let logs = layout.logs(role);
    make_folder(&logs)?;
    let log_path = logs.join("init.log");
    let log = File::options()
        .create(true)
        .append(true)
        .open(&log_path)
        .with_context(|| format!("failed to open {}", log_path.display()))?;
    let mut command = Command::new(testbed_program()?);
    command
        .arg0("testbed")
        .arg(INIT_COMMAND)
        .args(arguments(layout, role))
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(log.try_clone().context("failed to share the log")?)
        .stderr(log);
    // Namespaces belong to a thread. So a thread of its own leaves ours, starts the child in the new ones, and ends;
    // the rest of this program stays where it was. (The child, not the thread, becomes process 1.)
    let spawned = std::thread::spawn(move || -> Result<_> {
        unshare(namespaces).with_context(|| format!("failed to make the namespaces {namespaces:?}"))?;
        command.spawn().context("failed to start the init process")
    })
    .join();
    let Ok(spawned) = spawned else {
        bail!("the thread that starts the init process of {role} panicked");
    };
    let mut child = spawned?;
    let pid = i32::try_from(child.id()).context("the process id is not valid")?;
    let stdin = child.stdin.take().context("the init process has no input")?;
    Ok(Waiting { pid, stdin })
}

/// The program `testbed`: this one, or the one that cargo built beside the bench or a test.
fn testbed_program() -> Result<PathBuf> {
    let this = std::env::current_exe().context("failed to find this program itself")?;
    let beside = match this.parent() {
        Some(deps) if deps.ends_with("deps") => deps.with_file_name(PROGRAM),
        // Not by its path: cargo may have built another program there since this one was started, and removed it.
        _ if this
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(PROGRAM)) =>
        {
            return Ok(PathBuf::from("/proc/self/exe"));
        }
        _ => this.with_file_name(PROGRAM),
    };
    ensure!(
        beside.is_file(),
        "{} does not exist: build it with `cargo build -p mooring-testbed-cli`",
        beside.display()
    );
    Ok(beside)
}

fn arguments(layout: &Layout, role: &str) -> [String; 2] {
    [layout.state.to_string_lossy().into_owned(), role.to_owned()]
}

/// The running init processes of a cluster: role and process id. They are found by their arguments in `/proc`, so this
/// needs no records.
pub fn find_inits(layout: &Layout) -> Result<Vec<(String, i32)>> {
    let mut found: Vec<_> = all_inits()?
        .into_iter()
        .filter(|init| init.state == layout.state)
        .map(|init| (init.role, init.pid))
        .collect();
    found.sort();
    Ok(found)
}

/// Whether any cluster of this machine runs.
pub fn any_init() -> Result<bool> {
    Ok(!all_inits()?.is_empty())
}

#[derive(Debug, PartialEq, Eq)]
struct Init {
    state: PathBuf,
    role: String,
    pid: i32,
}

fn all_inits() -> Result<Vec<Init>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")
        .context("failed to list processes")?
        .flatten()
    {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end while they are listed.
        let Ok(cmdline) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        found.extend(init_of(&String::from_utf8_lossy(&cmdline), pid));
    }
    Ok(found)
}

fn init_of(cmdline: &str, pid: i32) -> Option<Init> {
    let mut words = cmdline.split_terminator('\0').skip(1);
    if words.next()? != INIT_COMMAND {
        return None;
    }
    Some(Init {
        state: words.next()?.into(),
        role: words.next()?.to_owned(),
        pid,
    })
}

/// Process id of the init process of `role`, if it runs.
pub fn find_init(layout: &Layout, role: &str) -> Result<Option<i32>> {
    Ok(find_inits(layout)?
        .into_iter()
        .find(|(found, _)| found == role)
        .map(|(_, pid)| pid))
}

/// The mount namespace in which the machine's programs work on a node's folders, by the node's init process. On a plain
/// node, it is the node's own; an immutable node keeps another one open (see `init/root.rs`).
pub fn workbench(init: i32) -> Result<PathBuf> {
    let open = std::fs::read_dir(format!("/proc/{init}/fd")).with_context(|| format!("process {init} is gone"))?;
    let is_namespace =
        |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("mnt:["));
    let kept = open.flatten().map(|entry| entry.path()).find(is_namespace);
    Ok(kept.unwrap_or_else(|| PathBuf::from(format!("/proc/{init}/ns/mnt"))))
}

/// The processes of a program in the PID namespace of `init`, by the name of its executable. Containers' processes have
/// namespaces of their own, so they are not included.
pub fn find_in_namespace(init: i32, program: &str) -> Result<Vec<i32>> {
    let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = namespace(init).with_context(|| format!("process {init} is gone"))?;
    let runs = |pid: &i32| {
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&cmdline);
        let executable = cmdline.split('\0').next().unwrap_or_default();
        Path::new(executable).file_name().is_some_and(|name| name == program)
    };
    Ok(std::fs::read_dir("/proc")
        .context("failed to list processes")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(runs)
        .filter(|&pid| namespace(pid).as_ref() == Some(&wanted))
        .collect())
}

/// Kills the init processes of clusters or nodes and waits until they are gone, with everything in their namespaces.
pub fn end_inits(inits: &[i32], limit: Duration) -> Result<()> {
    // Opened before, since the kernel uses the numbers again.
    let connections = open_connections(fuse_mounts(inits).into_iter().map(|mount| mount.connection).collect());
    send_kill(inits);
    // Otherwise a daemon that is killed waits for itself if it is the last to have a disk mounted that is a file of its
    // own file system, and so does whatever asks for the loop devices.
    for connection in connections {
        // Most have ended by themselves.
        let abort = openat(&connection, "abort", OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty());
        let _ = abort.map(|abort| File::from(abort).write_all(b"1"));
    }
    until_ended(inits, limit)
}

/// Kills processes and waits until they are gone.
pub fn end(pids: &[i32], limit: Duration) -> Result<()> {
    send_kill(pids);
    until_ended(pids, limit)
}

fn send_kill(pids: &[i32]) {
    for &pid in pids {
        // It may have ended by itself meanwhile.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

fn until_ended(pids: &[i32], limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    for &pid in pids {
        while is_running(pid) {
            if Instant::now() > deadline {
                bail!(
                    "process {pid} does not end, most likely because a process in its namespace hangs in the kernel: \
                     see `cat /proc/{pid}/stack`"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// A mount of a FUSE file system.
#[derive(Debug, PartialEq, Eq)]
pub struct FuseMount {
    /// The kernel's number of its connection, which is the minor number of the file system's device.
    connection: u32,
    /// Its path in the mount namespace where it is.
    pub point: PathBuf,
}

/// The FUSE mounts that processes and their descendants see.
pub fn fuse_mounts(pids: &[i32]) -> Vec<FuseMount> {
    let mut found = Vec::new();
    let (mut pids, mut looked) = (pids.to_vec(), BTreeSet::new());
    while let Some(pid) = pids.pop() {
        pids.extend(children_of(pid));
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap_or_default();
        if !looked.insert(namespace) {
            continue;
        }
        let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        found.extend(table.lines().filter_map(fuse_mount));
    }
    found
}

/// The children of all threads of a process.
fn children_of(pid: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let listed = threads
        .flatten()
        .map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let listed: Vec<_> = listed.filter_map(Result::ok).collect();
    let words = listed.iter().flat_map(|children| children.split_whitespace());
    words.filter_map(|child| child.parse().ok()).collect()
}

/// The FUSE mount in a line of a mount table.
fn fuse_mount(line: &str) -> Option<FuseMount> {
    let (mounted, file_system) = line.split_once(" - ")?;
    let fs_type = file_system.split(' ').next()?;
    if fs_type != "fuse" && !fs_type.starts_with("fuse.") {
        return None;
    }
    let mut words = mounted.split(' ').skip(2);
    Some(FuseMount {
        connection: words.next()?.strip_prefix("0:")?.parse().ok()?,
        point: words.nth(1)?.into(),
    })
}

/// The kernel's folders of FUSE connections. What is written to a file in one is about that connection, whichever has its
/// number then.
fn open_connections(numbers: BTreeSet<u32>) -> Vec<OwnedFd> {
    if numbers.is_empty() {
        return Vec::new();
    }
    // They are mounted in a mount namespace of this thread's own, so that nothing is left.
    let opening = std::thread::spawn(move || -> nix::Result<Vec<OwnedFd>> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let folder = Path::new("/sys/fs/fuse/connections");
        let (private, none) = (MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>);
        mount(none, "/", none, private, none)?;
        mount(Some("none"), folder, Some("fusectl"), MsFlags::empty(), none)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folders = numbers.iter().map(|number| folder.join(number.to_string()));
        Ok(folders
            .filter_map(|folder| open(&folder, flags, Mode::empty()).ok())
            .collect())
    });
    match opening.join() {
        Ok(Ok(connections)) => connections,
        Ok(Err(error)) => {
            note(format!(
                "failed to open the kernel's folder of FUSE connections: {error}"
            ));
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

fn is_running(pid: i32) -> bool {
    // A child of this program stays as a zombie until it is waited for.
    let _ = nix::sys::wait::waitpid(Pid::from_raw(pid), Some(nix::sys::wait::WaitPidFlag::WNOHANG));
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .starts_with('Z')
    })
}

#[cfg(test)]
mod tests {
    use super::{FuseMount, fuse_mount, init_of};

    #[test]
    fn a_fuse_mount_is_known_by_its_type() {
        let line = "36 35 0:257 / /exports rw,nosuid shared:7 - fuse.sshfs u@h:/ rw,user_id=0";
        let mount = FuseMount {
            connection: 257,
            point: "/exports".into(),
        };
        assert_eq!(fuse_mount(line), Some(mount));
        assert_eq!(fuse_mount(&line.replace("fuse.sshfs", "fusectl")), None);
        assert_eq!(fuse_mount(&line.replace("fuse.sshfs", "ext4")), None);
    }

    #[test]
    fn an_init_process_is_recognized_by_its_arguments() {
        let init = |line: &str| init_of(&line.replace(' ', "\0"), 7).map(|init| (init.state, init.role, init.pid));
        assert_eq!(
            init("/bin/testbed internal-init /var/lib/x node-1 "),
            Some(("/var/lib/x".into(), "node-1".into(), 7))
        );
        assert_eq!(init("vi internal-init "), None);
        assert_eq!(init(""), None);
    }
}
