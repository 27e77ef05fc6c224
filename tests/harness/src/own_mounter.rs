//! A mounter for one test, which runs as a process of a node rather than in a Pod: it can be killed, starved and
//! restarted in milliseconds. Nothing else uses its kubelet root, plugin directory and pool.
//!
//! As in its container, it has a mount namespace of its own, which shares the kubelet's root with the node. It has no
//! Kubernetes API, so it takes every volume for an administrator's (`--standalone`).

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::{FLEX_DRIVER_DIR, FLEX_EXECUTABLE, FLEX_SOCKET};
use mooring_mounter::worker::BUSY;
use serde_json::Value;

use super::nodes::{CallOut, read_call_out};
use super::processes::kill_all;
use super::scope::Scope;
use super::waits::Limit;
use mooring_testbed::images;
use mooring_testbed::layout::{Layout, repository};
use mooring_testbed::namespaces::find_init;

/// The node that it runs on.
const NODE: u8 = 1;

/// Longest wait for its socket, on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(2);

/// How often to look for its socket.
const PERIOD: Duration = Duration::from_millis(2);

/// A mounter for one test. It ends when this is dropped; its folder is removed with the test.
pub struct OwnMounter {
    scope: Scope,
    /// Its folder, as the node sees it.
    root: PathBuf,
    /// The same folder as the machine sees it: without what is mounted there.
    outside: PathBuf,
    /// Process 1 of the node.
    init: i32,
    flags: Vec<String>,
    set_up: String,
    child: Option<Child>,
    /// The mount namespaces of all mounters that were started.
    namespaces: Vec<PathBuf>,
}

impl OwnMounter {
    /// A mounter in a folder of its own, not started yet. `set_up` is a shell script that removes things from its mount
    /// namespace; `$root` is the folder.
    pub fn new(scope: &Scope, name: &str, flags: &[&str], set_up: &str) -> Result<Self> {
        let layout = Layout::from_env()?;
        let folder = format!("var/lib/mooring/{}-{name}", scope.namespace);
        let mounter = Self {
            scope: scope.clone(),
            root: Path::new("/").join(&folder),
            outside: layout.node("node-1").join(&folder),
            init: find_init(&layout, "node-1")?.context("node-1 does not run")?,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            set_up: set_up.to_owned(),
            child: None,
            namespaces: Vec::new(),
        };
        for part in ["kubelet", "plugins", "pool"] {
            std::fs::create_dir_all(mounter.outside.join(part))?;
        }
        Ok(mounter)
    }

    /// Its folder, as the node sees it: `kubelet`, `plugins`, `pool`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Replaces the flags, from the next start on.
    pub fn flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    }

    /// Replaces the set-up script, from the next start on.
    pub fn set_up(&mut self, set_up: &str) {
        set_up.clone_into(&mut self.set_up);
    }

    /// A path on the node, with everything that is mounted there, as the machine can reach it.
    pub fn on_node(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc")
            .join(self.init.to_string())
            .join("root")
            .join(relative)
    }

    /// A volume's directory, with a path as the kubelet makes it.
    pub fn target(&self, pod: &str, volume: &str) -> PathBuf {
        let relative = format!("kubelet/pods/{pod}/volumes/{FLEX_DRIVER_DIR}/{volume}");
        self.root.join(relative)
    }

    /// Starts it, and waits until its socket exists.
    pub fn start(&mut self) -> Result<()> {
        self.kill()?;
        // A killed mounter leaves its socket behind.
        let socket = self.outside.join("plugins").join(FLEX_DRIVER_DIR).join(FLEX_SOCKET);
        let _ = std::fs::remove_file(&socket);
        let shim = self.outside.join("plugins").join(FLEX_DRIVER_DIR).join(FLEX_EXECUTABLE);
        let root = self.root.to_string_lossy();
        let programs = repository().join(images::program_folder()?);
        let script = format!(
            "root={root}\n{}\nexec {} serve --standalone --kubelet-root=$root/kubelet --plugin-dir=$root/plugins \
             --pool-dir=$root/pool --shim={} --status-socket=$root/status.sock --listen=127.0.0.1:0 \"$@\"",
            self.set_up,
            programs.join("mounter").display(),
            programs.join(FLEX_EXECUTABLE).display(),
        );
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.outside.join("log"))
            .context("failed to open the mounter's log")?;
        let mut enter = self.scope.own_cluster()?.in_node(
            NODE,
            "unshare",
            [
                "--mount",
                "--propagation=unchanged",
                "--",
                "sh",
                "-euc",
                &script,
                "mounter",
            ],
        )?;
        enter
            .args(&self.flags)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut child = enter.spawn().context("failed to start a mounter")?;
        let limit = Limit::of(START_LIMIT);
        // A first start writes the shim after the socket.
        while !socket.exists() || !shim.exists() {
            let ended = child.try_wait()?;
            if ended.is_some() || limit.is_over() {
                let _ = child.kill();
                let _ = child.wait();
                anyhow::bail!("the mounter does not start ({ended:?}):\n{}", self.log());
            }
            std::thread::sleep(PERIOD);
        }
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        self.child = Some(child);
        let pid = std::fs::read_to_string(children)?.trim().parse()?;
        self.namespaces
            .push(mount_namespace(pid).context("the mounter has no namespace")?);
        Ok(())
    }

    /// Ends it like a crash; its workers stay as they are.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        // By its folder: another test's mounter may have got the number of a namespace that is gone.
        kill_all(&self.processes(&format!("--kubelet-root={}/kubelet", self.root.display()))?);
        child.wait().context("failed to wait for the mounter")?;
        Ok(())
    }

    pub fn runs(&mut self) -> Result<bool> {
        Ok(match &mut self.child {
            Some(child) => child.try_wait()?.is_none(),
            None => false,
        })
    }

    /// Its processes, and those that earlier starts left behind, with an argument that contains this text. They are
    /// recognized by their mount namespace.
    pub fn processes(&self, argument: &str) -> Result<Vec<i32>> {
        let all = std::fs::read_dir("/proc").context("failed to list processes")?;
        let pids = all
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_own = |pid: &i32| {
            // The test that rules out most of them comes first: some of the processes live for only a few milliseconds.
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // A process that has ended has no arguments.
            !arguments.is_empty()
                && String::from_utf8_lossy(&arguments).contains(argument)
                && mount_namespace(*pid).is_some_and(|namespace| self.namespaces.contains(&namespace))
                // The kernel gives the number of a mount namespace that is gone to the next one, such as a container's.
                && namespace(*pid, "pid") == namespace(self.init, "pid")
        };
        Ok(pids.filter(is_own).collect())
    }

    /// Its workers that have a task.
    pub fn busy_workers(&self) -> Result<Vec<i32>> {
        let is_busy = |pid: &i32| {
            let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim_ascii() == BUSY.to_bytes()
        };
        Ok(self.processes("worker")?.into_iter().filter(is_busy).collect())
    }

    /// Runs its shim as the kubelet does.
    pub fn call(&self, args: &[&str]) -> Result<CallOut> {
        let run = self.shim(args).output().context("failed to run the shim")?;
        read_call_out(&run)
    }

    /// Runs its shim and kills it after a while; none if it ended before.
    pub fn call_cut_short(&self, args: &[&str], after: Duration) -> Result<Option<CallOut>> {
        let mut child = self
            .shim(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to run the shim")?;
        std::thread::sleep(after);
        let _ = child.kill();
        let run: Output = child.wait_with_output()?;
        if run.status.signal().is_some() {
            return Ok(None);
        }
        read_call_out(&run).map(Some)
    }

    fn shim(&self, args: &[&str]) -> Command {
        let mut shim = Command::new(self.outside.join("plugins").join(FLEX_DRIVER_DIR).join(FLEX_EXECUTABLE));
        shim.args(args).stdin(Stdio::null());
        shim
    }

    /// Creates a volume's directory and mounts there, as the kubelet does.
    pub fn mount(&self, pod: &str, volume: &str, options: &Value) -> Result<CallOut> {
        let target = self.target(pod, volume);
        std::fs::create_dir_all(self.on_node(&target))?;
        self.call(&["mount", &target.to_string_lossy(), &options.to_string()])
    }

    /// Unmounts a volume and removes its directory, as the kubelet does.
    pub fn unmount(&self, pod: &str, volume: &str) -> Result<CallOut> {
        let target = self.target(pod, volume);
        let call_out = self.call(&["unmount", &target.to_string_lossy()])?;
        if call_out.status() == "Success" {
            let removed = std::fs::remove_dir(self.on_node(&target));
            ensure!(removed.is_ok(), "{} is not empty: {removed:?}", target.display());
        }
        Ok(call_out)
    }

    /// Lines of the node's mount table that contain this text.
    pub fn mounts(&self, text: &str) -> Result<Vec<String>> {
        let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.init))?;
        let ours = |line: &&str| line.contains(text);
        Ok(table.lines().filter(ours).map(str::to_owned).collect())
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(self.outside.join("log")).unwrap_or_default();
        mooring_testbed::command::last_lines(&text, 40)
    }
}

fn mount_namespace(pid: i32) -> Option<PathBuf> {
    namespace(pid, "mnt")
}

fn namespace(pid: i32, kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

impl Drop for OwnMounter {
    fn drop(&mut self) {
        let ended = self.kill();
        // If the test failed, its volumes are still mounted, and keep loop devices busy.
        let script = format!(
            "for point in $(awk '$5 ~ \"^{0}/\" {{print $5}}' /proc/self/mountinfo | sort -r); do umount -l \
             \"$point\"; done",
            self.root.display()
        );
        let cleared = self.scope.on_node(NODE, &script);
        if let Err(error) = ended.and(cleared.map(drop)) {
            mooring_testbed::progress::note(format!("what a test's mounter did was not cleared away: {error:#}"));
        }
    }
}
