//! What tests do on the nodes themselves. They must leave nothing there.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use mooring_contract::names::{CSI_VOLUMES_DIR, FLEX_DRIVER_DIR, FLEX_EXECUTABLE, NAMESPACE};
use serde_json::Value;

pub use super::which_nodes::{on_own_nodes, on_own_nodes_within, on_two_nodes};

use super::connection::names_of_takers;
use super::waiting::wait_for;

use super::scope::{Scope, said_by};
use super::waits::wait_until;
use mooring_testbed::cluster::{self, Cluster};
use mooring_testbed::layout::Layout;
use mooring_testbed::progress::note;

/// The driver's directory in the plugin directory of the testbed's kubelets, as a node sees it.
pub fn driver_directory(cluster: &Cluster) -> PathBuf {
    Path::new(cluster.description.flavour.plugin_dir()).join(FLEX_DRIVER_DIR)
}

/// [`driver_directory`] of one node, as this machine sees it.
pub fn driver_directory_outside(node: &str) -> Result<PathBuf> {
    let cluster = cluster::connect(&Layout::from_env()?)?;
    let directory = driver_directory(&cluster);
    Ok(cluster.layout.node(node).join(directory.strip_prefix("/")?))
}

/// The pool of local volumes on every node.
pub const POOL: &str = "/var/lib/mooring/pool";

/// Longest wait until things that a test used on a node are gone.
const LEFT_LIMIT: Duration = Duration::from_mins(2);

/// What the shim printed, and how it ended.
#[derive(Debug)]
pub struct CallOut {
    pub code: i32,
    pub answer: Value,
}

impl CallOut {
    pub fn status(&self) -> &str {
        self.answer["status"].as_str().unwrap_or_default()
    }

    /// The answer's message; empty if it has none.
    pub fn message(&self) -> &str {
        self.answer["message"].as_str().unwrap_or_default()
    }

    /// Fails unless it is a refusal whose message contains all these words.
    pub fn refused(&self, words: &[&str]) -> Result<()> {
        let all = words.iter().all(|word| self.message().contains(word));
        ensure!(self.status() == "Failure" && all, "not {words:?}: {self:?}");
        Ok(())
    }
}

impl Scope {
    /// The testbed's own cluster, for what tests can't do to another one.
    pub fn own_cluster(&self) -> Result<&Cluster> {
        self.target.own_cluster().context(
            "this test works on the nodes themselves, so it needs the testbed's own: run it without --existing",
        )
    }

    /// The name of a node on which tests' Pods can run, counted from 1. A cluster other than the testbed's own may have
    /// fewer nodes, so two indexes may get the same one.
    pub async fn node(&self, index: u8) -> Result<String> {
        if self.target.own_cluster().is_some() {
            return Ok(format!("node-{index}"));
        }
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await;
        let names = names_of_takers(nodes.context("failed to list nodes")?.items);
        ensure!(!names.is_empty(), "no node of this cluster takes Pods");
        Ok(names[usize::from(index.saturating_sub(1)) % names.len()].clone())
    }

    /// Fails if a node of the testbed's own cluster has one of these programs: the test would prove nothing there. The
    /// nodes of another cluster can't be entered.
    pub fn nodes_lack(&self, programs: &str) -> Result<()> {
        let Some(cluster) = self.target.own_cluster() else {
            return Ok(());
        };
        for node in 1..=cluster.description.nodes {
            let found = self.on_node(node, &format!("command -v {programs} || echo none"))?;
            ensure!(found == "none\n", "node-{node} has {found}");
        }
        Ok(())
    }

    /// Runs a shell script with a node's folders and in its namespaces, but with the machine's shell and programs: an
    /// immutable node has neither. Returns what it printed.
    pub fn on_node(&self, index: u8, script: &str) -> Result<String> {
        said_by(&mut self.own_cluster()?.in_node(index, "sh", ["-euc", script])?)
    }

    /// Makes a Pod directory that the kubelet does not know, named after the namespace; returns where that Pod has its
    /// volumes of our driver. Every two seconds, the kubelet removes the directories of unknown Pods, but not where one
    /// of the volumes is mounted. It takes a link to a mounted directory for such a volume; so this directory appears
    /// together with such a link.
    pub fn pod_directory(&self, index: u8) -> Result<String> {
        let ours = &self.namespace;
        let pod = format!("/var/lib/kubelet/pods/{ours}");
        let volumes = format!("{pod}/volumes/{FLEX_DRIVER_DIR}");
        self.on_node(
            index,
            &format!(
                "made=/var/lib/kubelet/{ours}
                 mkdir -p $made/volumes/{FLEX_DRIVER_DIR} $made/volumes/testbed~kept
                 ln -s /proc $made/volumes/testbed~kept/kept
                 mv -T $made {pod}"
            ),
        )?;
        Ok(volumes)
    }

    /// Runs the installed shim on a node as the kubelet does, and reads its answer as the kubelet does.
    ///
    /// # Errors
    /// Also if standard output is anything but one JSON object, or if the exit code does not fit the answer.
    pub fn call_out(&self, index: u8, args: &[&str]) -> Result<CallOut> {
        let shim = driver_directory(self.own_cluster()?).join(FLEX_EXECUTABLE);
        self.call_out_of(index, &shim.to_string_lossy(), args)
    }

    /// [`Self::call_out`] with another shim than the installed one.
    pub fn call_out_of(&self, index: u8, shim: &str, args: &[&str]) -> Result<CallOut> {
        let _waiting = wait_for(format!("{shim} {} on node-{index}", args.join(" ")));
        let run = self.own_cluster()?.on_host(index, shim, args)?.output();
        read_call_out(&run.with_context(|| format!("failed to run {shim}"))?)
    }

    /// Lines of a node's mount table for volumes of this test: those whose PersistentVolume's name begins with the
    /// namespace's.
    pub fn mounts_on(&self, index: u8) -> Result<Vec<String>> {
        let table = self.on_node(index, "cat /proc/self/mountinfo")?;
        let ours = [FLEX_DRIVER_DIR, CSI_VOLUMES_DIR].map(|driver| format!("/{driver}/{}", self.namespace));
        Ok(table
            .lines()
            .filter(|line| ours.iter().any(|volumes| line.contains(volumes)))
            .map(str::to_owned)
            .collect())
    }

    /// Loop devices over files whose names begin with the namespace's.
    pub fn loop_devices(&self) -> Result<Vec<String>> {
        // All nodes of one machine share the kernel's loop devices.
        let ours = format!(
            "for file in /sys/block/loop*/loop/backing_file; do \
             if grep -q '/{}' \"$file\" 2>/dev/null; then echo \"$file\"; fi; done",
            self.namespace
        );
        Ok(self.on_node(1, &ours)?.lines().map(str::to_owned).collect())
    }

    /// The name of the mounter's Pod on a node.
    pub async fn mounter(&self, node: &str) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let selector = ListParams::default()
            .labels("app.kubernetes.io/name=mounter")
            .fields(&format!("spec.nodeName={node}"));
        let pods = pods.list(&selector).await?.items;
        let alive = pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
        alive
            .and_then(|pod| pod.metadata.name)
            .with_context(|| format!("no mounter runs on {node}: is Mooring installed?"))
    }

    /// The status page of a node's mounter.
    pub async fn mounter_status(&self, node: &str) -> Result<Value> {
        let pod = self.mounter(node).await?;
        self.status_of(NAMESPACE, &pod)
    }

    /// The metrics of a node's mounter, as Prometheus reads them.
    pub async fn mounter_metrics(&self, node: &str) -> Result<String> {
        let pod = self.mounter(node).await?;
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9810/proxy/metrics");
        let request = http::Request::get(path).body(Vec::new())?;
        let text = self.client.request_text(request).await;
        text.with_context(|| format!("failed to read the metrics of {pod}"))
    }

    /// The status page of a mounter, by its Pod.
    pub fn status_of(&self, namespace: &str, pod: &str) -> Result<Value> {
        let text = self.elsewhere(namespace).exec(pod, ["/mounter", "status", "--json"])?;
        serde_json::from_str(&text).with_context(|| format!("the status of {pod} is not JSON: {text}"))
    }

    /// Fails if a volume of this test is still on a node after half a minute. Then removes what the test itself put
    /// there: everything named after its namespace in the pool, in Mooring's and the kubelet's folders, and in `/run`.
    pub(super) async fn clean_nodes(&self) -> Result<()> {
        let Some(cluster) = self.target.own_cluster() else {
            return Ok(());
        };
        let nodes = 1..=cluster.description.nodes;
        wait_until(
            "mounts, loop devices and directories to be gone",
            LEFT_LIMIT,
            async || {
                for node in nodes.clone() {
                    let mounts = self.mounts_on(node)?;
                    ensure!(mounts.is_empty(), "still mounted: {}", mounts.join("\n"));
                    let script = format!(
                        "cd /var/lib/kubelet/pods && ls -d */volumes/{FLEX_DRIVER_DIR}/{ours}* \
                         */volumes/{CSI_VOLUMES_DIR}/{ours}* || true",
                        ours = self.namespace
                    );
                    let directories = self.on_node(node, &format!("({script}) 2>/dev/null"))?;
                    ensure!(directories.is_empty(), "still there: {directories}");
                }
                let loops = self.loop_devices()?;
                ensure!(loops.is_empty(), "still in use: {}", loops.join(", "));
                Ok(Some(()))
            },
        )
        .await?;
        for node in nodes {
            self.remove_made(node)?;
        }
        Ok(())
    }
}

impl Scope {
    fn remove_made(&self, node: u8) -> Result<()> {
        let ours = &self.namespace;
        let script = format!(
            "for point in $(awk '$5 ~ \"/{ours}\" {{print $5}}' /proc/self/mountinfo | sort -r); do umount \"$point\"; done
             rm -rf {POOL}/{ours}* /var/lib/mooring/{ours}* /var/lib/kubelet/pods/{ours}* /run/{ours}*"
        );
        self.on_node(node, &script)?;
        Ok(())
    }
}

/// A node without power. The power is back when this is dropped, whatever happened to the test.
pub struct PowerCut {
    cluster: Cluster,
    index: u8,
    over: bool,
}

impl PowerCut {
    /// Cuts the power of a node.
    pub fn of(cluster: &Cluster, index: u8) -> Result<Self> {
        let cut = Self {
            cluster: cluster.clone(),
            index,
            over: false,
        };
        cut.cluster.power_off(index)?;
        Ok(cut)
    }

    /// Restores the power, and waits until the node is ready.
    pub fn end(mut self) -> Result<()> {
        self.over = true;
        self.cluster.power_on(self.index)
    }
}

impl Drop for PowerCut {
    fn drop(&mut self) {
        if !self.over
            && let Err(error) = self.cluster.power_on(self.index)
        {
            note(format!("node-{} is not back: {error:#}", self.index));
        }
    }
}

/// Parses what a shim has printed.
pub fn read_call_out(run: &Output) -> Result<CallOut> {
    let printed = String::from_utf8_lossy(&run.stdout);
    let complaints = String::from_utf8_lossy(&run.stderr);
    ensure!(
        complaints.is_empty(),
        "the shim wrote on standard error, which the kubelet takes for a part of the answer: {complaints}"
    );
    let answer: Value =
        serde_json::from_str(&printed).with_context(|| format!("the answer is not one JSON object: {printed:?}"))?;
    let call_out = CallOut {
        code: run.status.code().unwrap_or(-1),
        answer,
    };
    match (call_out.code, call_out.status()) {
        // After any other exit code, the kubelet writes the arguments, with their secrets, into its log.
        (0, "Success" | "Failure" | "Not supported") => Ok(call_out),
        (code, status) => bail!("status {status:?} and exit code {code} do not belong together: {printed}"),
    }
}
