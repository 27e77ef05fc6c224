//! The cluster as a whole: start, stop and access.

mod down;
mod guest;
pub mod remains;
pub mod status;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

pub use down::{LoopDevice, down, loop_devices, loop_devices_anywhere};

use crate::base_images::{self, Archive};
use crate::binaries::{Binaries, Releases, ensure_binaries};
use crate::command::{command, output, output_with_input};
use crate::control_plane::{self, ApiLimits, CONTROLLER_MANAGER};
use crate::image_store::{HELD, ImageStore};
use crate::layout::{CONTROL_PLANE, Layout, make_folder, write_file};
use crate::lock::Lock;
use crate::network::{Block, make_bridge};
use crate::node::Flavour;
use crate::packages::{check_machine, ensure_packages};
use crate::pki::Authority;
use crate::progress::{say, spoken, step};
use crate::spec::{InitSpec, read_json};
use crate::wait::{Look, wait_for};
use crate::{cgroup, disk_space, dns, namespaces, node};

/// The description of a running cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Description {
    /// Its addresses.
    pub block: Block,
    pub nodes: u8,
    #[serde(default)]
    pub flavour: Flavour,
    #[serde(default)]
    pub releases: Releases,
}

/// What a cluster has to be like; what is not said is as it runs, or as usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    pub flavour: Option<Flavour>,
    pub releases: Option<Releases>,
}

/// Number of nodes by default: enough that one node can read what another wrote.
pub const USUAL_NODES: u8 = 2;

/// Longest wait for the API server from its start, on a busy machine.
const API_LIMIT: Duration = Duration::from_mins(2);
/// Longest wait for a node to be ready.
const NODE_LIMIT: Duration = Duration::from_mins(2);

#[derive(Debug, Clone)]
pub struct Cluster {
    pub layout: Layout,
    pub binaries: Binaries,
    pub description: Description,
}

/// Starts the cluster, or continues the running one; starts nodes that it lacks. If there is an image store, new nodes
/// start with its images.
pub fn up(layout: &Layout, nodes: u8, wanted: Wanted, store: Option<&ImageStore>) -> Result<Cluster> {
    ensure!(
        (1..=node::MAX_NODES).contains(&nodes),
        "--nodes {nodes} is not possible: 1 to {} are",
        node::MAX_NODES
    );
    let started = Instant::now();
    check_machine()?;
    let before = running(layout)?;
    if before.is_none() {
        disk_space::check(&layout.state)?;
    }
    ensure_packages()?;
    let releases = before.map(|cluster| cluster.releases).or(wanted.releases);
    let binaries = ensure_binaries(releases.unwrap_or_default())?;
    let images = base_images::small()?;
    let _lock = Lock::cluster(layout)?;
    let cluster = match running(layout)? {
        Some(description) => Cluster {
            layout: layout.clone(),
            binaries,
            description,
        },
        None => start_control_plane(layout, binaries, wanted.flavour.unwrap_or_default())?,
    };
    let Description { flavour, releases, .. } = cluster.description;
    ensure!(
        wanted.flavour.is_none_or(|wanted| wanted == flavour),
        "the nodes of the cluster that runs are {flavour:?} ones: take it away first, with `cargo testbed down`"
    );
    ensure!(
        wanted.releases.is_none_or(|wanted| wanted == releases),
        "the cluster that runs is Kubernetes {} with nodes of {}: take it away first, with `cargo testbed down`",
        releases.control_plane.version(),
        releases.nodes.version()
    );
    let cluster = match start_nodes(cluster, nodes, &images, store) {
        Ok(cluster) => cluster,
        Err(error) => {
            return Err(error.context(
                "the cluster did not come up; it was left as it is for you to look at: see `cargo testbed logs`, and \
                 take it away with `cargo testbed down`",
            ));
        }
    };
    say(format!(
        "The cluster is up: {} node{}{}, Kubernetes {} ({}).",
        cluster.description.nodes,
        if cluster.description.nodes == 1 { "" } else { "s" },
        if releases.nodes == releases.control_plane {
            String::new()
        } else {
            format!(" of Kubernetes {}", releases.nodes.version())
        },
        releases.control_plane.version(),
        spoken(started.elapsed())
    ));
    Ok(cluster)
}

/// The running cluster, for commands that need one.
pub fn connect(layout: &Layout) -> Result<Cluster> {
    check_machine()?;
    let Some(description) = running(layout)? else {
        bail!("no testbed cluster runs: bring one up with `cargo testbed up`");
    };
    Ok(Cluster {
        layout: layout.clone(),
        binaries: ensure_binaries(description.releases)?,
        description,
    })
}

/// The description of the cluster whose control plane runs.
pub fn running(layout: &Layout) -> Result<Option<Description>> {
    let control_plane = namespaces::find_init(layout, CONTROL_PLANE)?;
    if control_plane.is_none() || !layout.description().is_file() {
        return Ok(None);
    }
    read_json(&layout.description()).map(Some)
}

fn start_control_plane(layout: &Layout, binaries: Binaries, flavour: Flavour) -> Result<Cluster> {
    if down::remove(layout)? {
        say("  ok removed the remains of an earlier cluster");
    }
    make_folder(&layout.state)?;
    let block = step("make the cluster's network", |_| make_bridge(layout))?;
    let description = Description {
        block,
        nodes: 0,
        flavour,
        releases: binaries.releases,
    };
    let cluster = Cluster {
        layout: layout.clone(),
        binaries,
        description,
    };
    let started = (|| {
        let authority = Authority::open(&layout.pki())?;
        control_plane::start(layout, &cluster.binaries, &authority, block)?.go()?;
        cluster.save()
    })();
    if let Err(error) = started {
        down::remove(layout)?;
        return Err(error.context("failed to start the control plane; everything was removed again"));
    }
    Ok(cluster)
}

fn start_nodes(mut cluster: Cluster, nodes: u8, images: &[Archive], store: Option<&ImageStore>) -> Result<Cluster> {
    let layout = cluster.layout.clone();
    let Description { block, flavour, .. } = cluster.description;
    let wanted = nodes.max(cluster.description.nodes);
    let mut fresh = Vec::new();
    let authority = Authority::open(&layout.pki())?;
    for index in 1..=wanted {
        if namespaces::find_init(&layout, &node::name(index))?.is_none() {
            if let Some(store) = store {
                let folder = layout.node(&node::name(index));
                store.give(&folder.join("var/lib/containerd"), &folder.join(HELD))?;
            }
            node::start(&layout, &cluster.binaries, &authority, block, index, flavour)
                .with_context(|| format!("failed to start {}", node::name(index)))?;
            fresh.push(index);
        }
    }
    cluster.description.nodes = wanted;
    cluster.save()?;
    if !fresh.is_empty() {
        step("start the control plane", |_| cluster.wait_for_api())?;
        let names = dns::manifest(block).to_string();
        output_with_input(&mut cluster.kubectl(["apply", "-f", "-"]), names.as_bytes())
            .context("failed to set the cluster's DNS up")?;
        step("load the sandbox image", |_| {
            fresh
                .iter()
                .try_for_each(|&index| images.iter().try_for_each(|image| cluster.import(index, image)))
        })?;
    }
    step("nodes ready", |_| {
        (1..=wanted).try_for_each(|index| cluster.wait_for_node(index))
    })?;
    Ok(cluster)
}

impl Cluster {
    fn save(&self) -> Result<()> {
        let text = serde_json::to_string(&self.description).context("failed to write the description as JSON")?;
        write_file(&self.layout.description(), text)
    }

    /// The built kubectl with the administrator's kubeconfig.
    pub fn kubectl<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> std::process::Command {
        let mut kubectl = command(self.binaries.path("kubectl"), args);
        kubectl.env("KUBECONFIG", self.layout.kubeconfig());
        kubectl
    }

    fn control_plane_logs(&self) -> Vec<PathBuf> {
        ["init", "etcd", "kube-apiserver"]
            .map(|name| self.layout.logs(CONTROL_PLANE).join(format!("{name}.log")))
            .into()
    }

    fn node_logs(&self, index: u8) -> Vec<PathBuf> {
        ["init", "containerd", "kubelet"]
            .map(|name| self.layout.logs(&node::name(index)).join(format!("{name}.log")))
            .into()
    }

    fn wait_for_api(&self) -> Result<()> {
        Ok(wait_for(
            "the API server",
            API_LIMIT,
            &self.control_plane_logs(),
            || match output(&mut self.kubectl(["get", "--raw", "/readyz"])) {
                Ok(_) => Look::Ready(()),
                Err(error) => Look::NotYet(error.to_string()),
            },
        )?)
    }

    fn wait_for_node(&self, index: u8) -> Result<()> {
        let node = node::name(index);
        // A node's not-ready taint is removed a moment after the node is ready.
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status} \
                    {.spec.taints[?(@.effect!=\"PreferNoSchedule\")].key}";
        // The kubelet itself is asked too: for a while, the status of a dead one still says "ready".
        let health = format!("/api/v1/nodes/{node}/proxy/healthz");
        let logs = self.node_logs(index);
        Ok(wait_for(&format!("{node} to be ready"), NODE_LIMIT, &logs, || {
            match output(&mut self.kubectl(["get", "node", &node, "-o", path])) {
                Ok(status) if status.trim() == "True" => {}
                Ok(status) => return Look::NotYet(format!("Ready and taints are {status:?}")),
                Err(error) => return Look::NotYet(error.to_string()),
            }
            match output(&mut self.kubectl(["get", "--raw", &health])) {
                Ok(_) => Look::Ready(()),
                Err(error) => Look::NotYet(error.to_string()),
            }
        })?)
    }

    /// A command that runs inside a node: with its folders, and in its network, UTS, IPC and PID namespaces. The
    /// programs are the machine's, even if the node itself has none: see [`namespaces::workbench`].
    pub fn in_node<S: AsRef<std::ffi::OsStr>>(
        &self,
        index: u8,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<std::process::Command> {
        let pid = self.init_of(index)?;
        let mut enter = Self::enter(pid, &namespaces::workbench(pid)?);
        enter.arg(self.binaries.path(program)).args(args);
        Ok(enter)
    }

    /// A command that runs on a node as the kubelet runs it: the node itself must have the program.
    pub fn on_host<S: AsRef<std::ffi::OsStr>>(
        &self,
        index: u8,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<std::process::Command> {
        let pid = self.init_of(index)?;
        let mut enter = Self::enter(pid, &PathBuf::from(format!("/proc/{pid}/ns/mnt")));
        enter.arg(program).args(args);
        Ok(enter)
    }

    /// Process 1 of a node, by its number on this machine.
    pub fn init_of(&self, index: u8) -> Result<i32> {
        let node = node::name(index);
        namespaces::find_init(&self.layout, &node)?
            .with_context(|| format!("{node} does not run: `cargo testbed up` starts it"))
    }

    fn enter(pid: i32, mounts: &Path) -> std::process::Command {
        let mut enter = command("nsenter", ["--target", &pid.to_string()]);
        enter.arg(format!("--mount={}", mounts.display()));
        enter.args(["--net", "--uts", "--ipc", "--pid", "--"]);
        enter
    }

    /// Kills a program of a node (`kubelet`, `containerd`, `kube-proxy`) with SIGKILL; the node's init process restarts
    /// it a second later. Fails if it does not run.
    pub fn kill_in_node(&self, index: u8, program: &str) -> Result<()> {
        self.kill(&node::name(index), program)
    }

    /// Kills a program of the control plane, as [`Cluster::kill_in_node`] does.
    pub fn kill_in_control_plane(&self, program: &str) -> Result<()> {
        self.kill(CONTROL_PLANE, program)
    }

    /// Kills the API server. Returns when the next one is ready.
    pub fn restart_api_server(&self) -> Result<()> {
        self.kill_in_control_plane("kube-apiserver")?;
        self.wait_for_api()
    }

    /// Has kube-controller-manager keep to other limits, by starting it anew.
    pub fn limit_controller_manager(&self, limits: ApiLimits) -> Result<()> {
        let mut spec = InitSpec::load(&self.layout, CONTROL_PLANE)?;
        let mut processes = spec.processes.iter_mut();
        let process = processes.find(|process| process.name == CONTROLLER_MANAGER);
        limits.apply(
            &mut process
                .context("the control plane has no kube-controller-manager")?
                .args,
        );
        spec.save(&self.layout, CONTROL_PLANE)?;
        self.kill_in_control_plane(CONTROLLER_MANAGER)
    }

    fn kill(&self, role: &str, program: &str) -> Result<()> {
        let init = namespaces::find_init(&self.layout, role)?.with_context(|| format!("{role} does not run"))?;
        let pids = namespaces::find_in_namespace(init, program)?;
        ensure!(!pids.is_empty(), "{program} does not run on {role}");
        namespaces::end(&pids, Duration::from_secs(10))
    }

    /// Ends a node with everything on it, like a power cut, and starts it again; its files stay. Returns when it is
    /// ready.
    pub fn power_cycle(&self, index: u8) -> Result<()> {
        self.power_off(index)?;
        self.power_on(index)
    }

    /// Ends a node with everything on it, like a power cut; its files stay.
    pub fn power_off(&self, index: u8) -> Result<()> {
        let node = node::name(index);
        let init = namespaces::find_init(&self.layout, &node)?;
        down::end_nodes(init.as_slice(), &self.layout.node(&node))?;
        // After a start, a kernel has no control groups. For each one, the kubelet would look for its container for
        // some seconds before it registers its node.
        cgroup::remove(&node::cgroup_of(&self.layout, index))
    }

    /// Starts a node that is off. Returns when it is ready.
    pub fn power_on(&self, index: u8) -> Result<()> {
        let authority = Authority::open(&self.layout.pki())?;
        let Description { block, flavour, .. } = self.description;
        node::start(&self.layout, &self.binaries, &authority, block, index, flavour)?;
        self.wait_for_node(index)
    }

    /// Ends all nodes and the control plane, like a power cut, and starts them again; their files stay. Returns when
    /// all nodes are ready.
    pub fn power_cycle_all(&self) -> Result<()> {
        let Description { block, nodes, .. } = self.description;
        if let Some(init) = namespaces::find_init(&self.layout, CONTROL_PLANE)? {
            namespaces::end_inits(&[init], Duration::from_mins(1))?;
        }
        (1..=nodes).try_for_each(|index| self.power_off(index))?;
        let authority = Authority::open(&self.layout.pki())?;
        control_plane::start(&self.layout, &self.binaries, &authority, block)?.go()?;
        self.wait_for_api()?;
        (1..=nodes).try_for_each(|index| self.power_on(index))
    }

    /// Lets all nodes pull from a registry whose certificate is of the cluster's own authority.
    pub fn trust_registry(&self, host: &str) -> Result<()> {
        (1..=self.description.nodes).try_for_each(|index| node::trust_registry(&self.layout, &node::name(index), host))
    }

    /// Loads an image into a node's containerd under its full name.
    pub fn import(&self, index: u8, image: &Archive) -> Result<()> {
        let what = format!("{} to take the image {}", node::name(index), image.name);
        Ok(wait_for(&what, Duration::from_mins(1), &self.node_logs(index), || {
            let path = image.path.to_string_lossy();
            let args = ["-n", "k8s.io", "images", "import", "--index-name", &image.name, &path];
            let run = self
                .in_node(index, "ctr", args)
                .and_then(|mut ctr| Ok(output(&mut ctr)?));
            match run {
                Ok(_) => Look::Ready(()),
                Err(error) => Look::NotYet(format!("{error:#}")),
            }
        })?)
    }
}
