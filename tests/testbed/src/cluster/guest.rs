//! The cluster's node in a virtual machine: started beside the other nodes, and removed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Cluster;
use crate::base_images::BUSYBOX;
use crate::command::output;
use crate::images::{HOST, TAG};
use crate::layout::{make_folder, write_file};
use crate::lock::Lock;
use crate::node::guest::{Monitor, Selinux, scripts};
use crate::node::{self, MACHINE, PAUSE_IMAGE};
use crate::pki::Authority;
use crate::progress::{note, spoken, step};
use crate::wait::{Look, wait_for};
use crate::{namespaces, network};

/// Longest wait for its processes to end.
const END_LIMIT: Duration = Duration::from_mins(1);

/// Longest until one of its programs has logged something: it takes ten seconds, and half a minute on a busy machine.
const LIFE_LIMIT: Duration = Duration::from_secs(90);

/// How often to try to start it.
const STARTS: u32 = 3;

/// The image that runs on every node.
const MOUNTER: &str = "mounter";

/// A file that exists from the machine's start to its removal.
const STARTED: &str = "started";

/// The node whose images it gets.
const IMAGES_OF: u8 = 1;

impl Cluster {
    /// Starts the node in a virtual machine, in place of an existing one. It has the images that every node has, the
    /// mounter's, and these of node-1: Mooring's by their names alone, others by their whole names. Returns when it is
    /// ready.
    pub fn start_machine(&self, images: &[&str]) -> Result<()> {
        self.start_machine_with(Selinux::Off, images)
    }

    /// [`Self::start_machine`] with SELinux on or off.
    pub fn start_machine_with(&self, selinux: Selinux, images: &[&str]) -> Result<()> {
        self.remove_machine()?;
        let _lock = Lock::cluster(&self.layout)?;
        let name = node::name(MACHINE);
        let authority = Authority::open(&self.layout.pki())?;
        let started = Instant::now();
        step(&format!("make {name}"), |progress| {
            let usual = [BUSYBOX, PAUSE_IMAGE].map(str::to_owned);
            let named = [&[MOUNTER], images].concat();
            let named = named.iter().map(|image| {
                if image.contains('/') {
                    (*image).to_owned()
                } else {
                    format!("{HOST}/{image}:{TAG}")
                }
            });
            let images: Vec<_> = usual.into_iter().chain(named).collect();
            let block = self.description.block;
            let recipe = node::guest::recipe(&self.binaries, block, &self.digests(&images)?)?;
            if !node::guest::has_disk(&self.layout, &recipe) {
                let mut archives = Vec::new();
                for image in images {
                    progress.update(&image);
                    archives.push(self.exported(&image)?);
                }
                progress.update("disk");
                node::guest::make_disk(&self.layout, &self.binaries, &authority, block, &archives, &recipe)?;
            }
            node::guest::prepare(&self.layout, &self.binaries, selinux)
        })?;
        step(&format!("start {name}"), |_| self.boot_machine())?;
        step(&format!("{name} ready"), |_| self.wait_for_node(MACHINE))?;
        note(format!("{name} was ready after {}", spoken(started.elapsed())));
        Ok(())
    }

    /// Starts the machine until it shows signs of life: under qemu's translation, the stock kernel has hung before its
    /// first program.
    fn boot_machine(&self) -> Result<()> {
        let name = node::name(MACHINE);
        write_file(&self.layout.machine(&name).join(STARTED), "")?;
        let mut starts = 1;
        loop {
            node::guest::start(&self.layout, self.description.block)?;
            let what = format!("{name} to come up");
            let alive = wait_for(
                &what,
                LIFE_LIMIT,
                &[self.layout.logs(&name).join("console.log")],
                || {
                    if node::guest::shows_life(&self.layout) {
                        Look::Ready(())
                    } else {
                        Look::NotYet("its kernel alone".to_owned())
                    }
                },
            );
            match alive {
                Err(error) if starts < STARTS => note(format!("{name} is started again: {error}")),
                alive => return Ok(alive?),
            }
            starts += 1;
            let init = namespaces::find_init(&self.layout, &name)?;
            namespaces::end_inits(&Vec::from_iter(init), END_LIMIT)?;
        }
    }

    /// Runs a shell script beside the processes of the running machine; returns what it printed. Errors are those of
    /// [`scripts::run`].
    pub fn on_machine(&self, script: &str) -> Result<String> {
        scripts::run(&self.layout, script)
    }

    /// What the machine's kernel has said on its console, in all starts: empty if it never started.
    pub fn machine_console(&self) -> String {
        let console = self.layout.logs(&node::name(MACHINE)).join("console.log");
        let said = std::fs::read(console).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Where disks are plugged into the running machine.
    pub fn machine_monitor(&self) -> Result<Monitor> {
        Monitor::open(&self.layout)
    }

    /// The digests of these images on the other node, one per line.
    fn digests(&self, images: &[String]) -> Result<String> {
        let listed = output(&mut self.in_node(IMAGES_OF, "ctr", ["-n", "k8s.io", "images", "list"])?)?;
        let is_wanted = |line: &&str| images.iter().any(|image| line.split_whitespace().next() == Some(image));
        let digest = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        Ok(listed
            .lines()
            .filter(is_wanted)
            .map(|line| digest(line) + "\n")
            .collect())
    }

    /// An image from the other node, as an archive among the files that the machine is started from.
    fn exported(&self, image: &str) -> Result<PathBuf> {
        let folder = self.layout.machine(&node::name(MACHINE));
        make_folder(&folder)?;
        let archive = folder.join(format!("{}.tar", image.replace(['/', ':'], "_")));
        // With `--local`, ctr writes the archive itself: what containerd sends it is sometimes cut off at the end,
        // without an error.
        let mut export = self.in_node(IMAGES_OF, "ctr", ["-n", "k8s.io", "images", "export", "--local"])?;
        output(export.arg(&archive).arg(image)).with_context(|| {
            format!(
                "{} has no image {image}: they are named as their folders in images/, or testbed- and that in \
                 tests/images/, and `cargo testbed install` loads them",
                node::name(IMAGES_OF)
            )
        })?;
        Ok(archive)
    }

    /// Removes the machine, its Node and its Pods, and keeps its disk in its first state; returns whether there was a
    /// machine.
    pub fn remove_machine(&self) -> Result<bool> {
        let _lock = Lock::cluster(&self.layout)?;
        let name = node::name(MACHINE);
        let init = namespaces::find_init(&self.layout, &name)?;
        let started = self.layout.machine(&name).join(STARTED);
        if init.is_none() && !started.exists() {
            return Ok(false);
        }
        namespaces::end_inits(&Vec::from_iter(init), END_LIMIT)?;
        network::disconnect_machine(&self.layout, self.description.block, MACHINE);
        output(&mut self.kubectl(["delete", "node", &name, "--ignore-not-found"]))?;
        // No kubelet will report that they ended.
        let here = format!("--field-selector=spec.nodeName={name}");
        let mut pods = self.kubectl(["delete", "pods", "--all-namespaces", &here]);
        output(pods.args(["--force", "--grace-period=0", "--wait=false"]))?;
        let _ = std::fs::remove_file(started);
        Ok(true)
    }
}
