//! The mounter and its shim in the machine, called as a kubelet calls them.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::{FLEX_DRIVER_DIR, FLEX_EXECUTABLE, FLEX_SOCKET};
use mooring_mounter::worker::BUSY;
use serde_json::Value;

use super::{Machine, Put, Ran};
use crate::Scope;
use crate::nodes::{CallOut, read_call_out};
use mooring_testbed::images;
use mooring_testbed::layout::{Layout, repository};
use mooring_testbed::namespaces::find_init;

/// The kubelet's root, which process 1 of the machine has set up.
const KUBELET: &str = "/var/lib/kubelet";

const PLUGINS: &str = "/plugins";

/// The exit code of the call that runs in the background, once it has ended; its answer is beside it.
const BEGUN: &str = "/run/begun-mount";

/// Longest call: the shim itself gives up after two minutes.
const CALL_LIMIT: Duration = Duration::from_mins(3);

impl Machine {
    /// A machine beside a node of the testbed's own cluster, with the programs of Mooring's images in it.
    pub fn beside(scope: &Scope, node: &str) -> Result<Self> {
        scope.own_cluster()?;
        let init = find_init(&Layout::from_env()?, node)?.with_context(|| format!("{node} does not run"))?;
        let programs = repository().join(images::program_folder()?);
        let put = |name: &str, to| Put {
            from: programs.join(name),
            to,
        };
        Self::boot(init, &[put("mounter", "/mounter"), put(FLEX_EXECUTABLE, "/vcs")])
    }

    /// Starts the mounter as in its Pod: in a mount namespace that shares the kubelet's root, and in a network that
    /// reaches nothing. So it takes every volume for an administrator's.
    pub fn start_mounter(&mut self, flags: &[&str]) -> Result<()> {
        let flags: Vec<_> = flags.iter().map(|flag| quoted(flag)).collect();
        let driver = format!("{PLUGINS}/{FLEX_DRIVER_DIR}");
        self.sh(&format!(
            "mkdir -p {PLUGINS} /var/lib/mooring
             rm -f {driver}/{FLEX_SOCKET}
             unshare -m -n -u --propagation shared /mounter serve --standalone --kubelet-root={KUBELET} --plugin-dir={PLUGINS} --shim=/vcs \
                --listen=0.0.0.0:9810 {} >>/run/mounter.log 2>&1 &
             for _ in $(seq 200); do
                 [ -S {driver}/{FLEX_SOCKET} ] && [ -x {driver}/{FLEX_EXECUTABLE} ] && exit 0
                 sleep 0.1
             done
             cat /run/mounter.log
             exit 1",
            flags.join(" ")
        ))?;
        Ok(())
    }

    pub fn mounter_log(&mut self) -> Result<String> {
        self.sh("cat /run/mounter.log")
    }

    /// Runs the shim as the kubelet does, and reads its answer as the kubelet does.
    pub fn call(&mut self, args: &[&str]) -> Result<CallOut> {
        answered(self.run(&format!("exec {}", Self::shim(args)), CALL_LIMIT)?)
    }

    fn shim(args: &[&str]) -> String {
        let args: Vec<_> = args.iter().map(|arg| quoted(arg)).collect();
        format!("{PLUGINS}/{FLEX_DRIVER_DIR}/{FLEX_EXECUTABLE} {}", args.join(" "))
    }

    /// A volume's directory, with a path as the kubelet makes it.
    pub fn target(volume: &str) -> PathBuf {
        [KUBELET, "pods", "machine", "volumes", FLEX_DRIVER_DIR, volume]
            .iter()
            .collect()
    }

    /// A file of a volume.
    pub fn path(volume: &str, file: &str) -> String {
        Self::target(volume).join(file).to_string_lossy().into_owned()
    }

    /// Creates a volume's directory and mounts there, as the kubelet does.
    pub fn mount(&mut self, volume: &str, options: &Value) -> Result<CallOut> {
        let target = Self::target(volume);
        let target = target.to_string_lossy();
        self.sh(&format!("mkdir -p {}", quoted(&target)))?;
        self.call(&["mount", &target, &options.to_string()])
    }

    /// [`Self::mount`], which this does not wait for.
    pub fn begin_mount(&mut self, volume: &str, options: &Value) -> Result<()> {
        let target = Self::target(volume);
        let target = target.to_string_lossy();
        let shim = Self::shim(&["mount", &target, &options.to_string()]);
        self.sh(&format!(
            "mkdir -p {}; rm -f {BEGUN}
             ({shim} >{BEGUN}.said; echo $? >{BEGUN}.code; mv {BEGUN}.code {BEGUN}) >/dev/null 2>&1 &",
            quoted(&target)
        ))?;
        Ok(())
    }

    /// Whether the call of [`Self::begin_mount`] has no answer yet.
    pub fn is_mounting(&mut self) -> Result<bool> {
        Ok(self.run(&format!("[ ! -e {BEGUN} ]"), CALL_LIMIT)?.code == 0)
    }

    /// Waits for the answer to the call of [`Self::begin_mount`].
    pub fn end_mount(&mut self) -> Result<CallOut> {
        let script = format!("until [ -e {BEGUN} ]; do sleep 0.1; done; cat {BEGUN}.said; exit $(cat {BEGUN})");
        answered(self.run(&script, CALL_LIMIT)?)
    }

    /// Mounts a volume, which has to succeed.
    pub fn mounted(&mut self, volume: &str, options: &Value) -> Result<()> {
        let answer = self.mount(volume, options)?;
        if answer.status() == "Success" {
            return Ok(());
        }
        anyhow::bail!(
            "{options} is not mounted: {}\n{}",
            answer.message(),
            self.mounter_log()?
        )
    }

    /// Unmounts a volume and removes its directory, as the kubelet does.
    pub fn unmount(&mut self, volume: &str) -> Result<CallOut> {
        let target = Self::target(volume);
        let target = target.to_string_lossy();
        let answer = self.call(&["unmount", &target])?;
        if answer.status() == "Success" {
            self.sh(&format!("rmdir {}", quoted(&target)))?;
        }
        Ok(answer)
    }

    /// Unmounts a volume, which has to succeed.
    pub fn unmounted(&mut self, volume: &str) -> Result<()> {
        let answer = self.unmount(volume)?;
        ensure!(answer.status() == "Success", "{volume} stays: {}", answer.message());
        Ok(())
    }

    /// How many of the mounter's workers have a task.
    pub fn busy_workers(&mut self) -> Result<usize> {
        let names = self.sh("cat /proc/[0-9]*/comm 2>/dev/null || true")?;
        let busy = names.lines().filter(|name| name.as_bytes() == BUSY.to_bytes());
        Ok(busy.count())
    }

    /// Lines of the machine's mount table for a volume.
    pub fn mounts(&mut self, volume: &str) -> Result<Vec<String>> {
        let table = self.sh("cat /proc/self/mountinfo")?;
        let ours = format!("/{FLEX_DRIVER_DIR}/{volume} ");
        Ok(table
            .lines()
            .filter(|line| line.contains(&ours))
            .map(str::to_owned)
            .collect())
    }
}

fn answered(ran: Ran) -> Result<CallOut> {
    read_call_out(&Output {
        status: ExitStatus::from_raw(ran.code << 8),
        stdout: ran.output.into_bytes(),
        stderr: Vec::new(),
    })
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
