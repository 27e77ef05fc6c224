//! A node that is gone for Kubernetes while its Pod goes on writing: Ceph keeps that from the volume before another
//! node gets it. It takes a third node, which none of the services is on.

use anyhow::{Context, Result, ensure};

use super::{CLAIMS, TRIAL, Trial, pod, wait_until};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::command::output;
use mooring_testbed::node;
use mooring_testbed::progress::{note, step};
use mooring_testbed::target::Target;

/// What the Pod on that node does. It ends if a write fails.
const WRITE: &str = "echo before >/data/letter; while echo on >>/data/letter && sync; do sleep 1; done; exit 1";

/// What an administrator sets on a node that does not come back by itself.
const TAINT: &str = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";

/// The node that is spared for this, if the testbed has one.
fn spared(target: &Target) -> Option<(&Cluster, u8)> {
    let cluster = target.own_cluster()?;
    let nodes = cluster.description.nodes;
    (nodes > 2).then_some((cluster, nodes))
}

/// Keeps the services from the spared node while they are put on the others.
pub(crate) fn spare<T>(target: &Target, put: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some((_, index)) = spared(target) else {
        return put();
    };
    let name = node::name(index);
    output(&mut target.kubectl(["cordon", &name]))?;
    let done = put();
    output(&mut target.kubectl(["uncordon", &name]))?;
    done
}

pub(super) fn run(trial: &Trial<'_>) -> Result<()> {
    let Some((cluster, index)) = spared(trial.target) else {
        note("  .. no node is lost: that takes three (`cargo testbed up --nodes 3` first)");
        return Ok(());
    };
    let lost = Lost {
        trial,
        cluster,
        index,
        node: node::name(index),
    };
    let services = lost.services()?;
    if !services.is_empty() {
        note(format!("  .. no node is lost: {} has {services}", lost.node));
        return Ok(());
    }
    let ran = lost.run();
    lost.back()?;
    ran
}

struct Lost<'a> {
    trial: &'a Trial<'a>,
    cluster: &'a Cluster,
    index: u8,
    node: String,
}

impl Lost<'_> {
    fn run(&self) -> Result<()> {
        let Self { trial, node, .. } = self;
        let name = "cinder-fenced";
        let pod_of = |node: &str| format!("{name}-{node}");
        step(&format!("a Pod on {node} that goes on writing"), |_| {
            trial.put(&CLAIMS[0].named(name, 1))?;
            trial.put(&pod(name, node, WRITE))?;
            trial.ready(&pod_of(node))
        })?;
        let listed = self.blocklist()?;
        step(
            &format!("{node} is lost for Kubernetes, and the Pod still writes"),
            |_| {
                self.signal_kubelet("-STOP")?;
                wait_until("the node to be not ready", || {
                    let ready = trial.kubectl(&[
                        "get",
                        "node",
                        node,
                        "-o",
                        "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}",
                    ])?;
                    ensure!(ready != "True", "it is");
                    Ok(())
                })?;
                ensure!(self.writes()?, "the Pod has stopped writing already");
                trial.kubectl(&["taint", "node", node, TAINT])?;
                trial
                    .kubectl(&["-n", TRIAL, "delete", "pod", &pod_of(node), "--wait=false"])
                    .map(drop)
            },
        )?;
        step("a Pod on node-1 gets the volume, and nobody else writes to it", |_| {
            let reads = "grep before /data/letter && cp /data/letter /data/seen && sync && sleep 100000";
            trial.put(&pod(name, "node-1", reads))?;
            trial.ready(&pod_of("node-1"))?;
            ensure!(self.blocklist()? > listed, "Ceph's blocklist is as long as before");
            wait_until("the lost Pod to fail", || {
                ensure!(!self.writes()?, "it still writes");
                Ok(())
            })
        })?;
        step(&format!("{node} is back, and gets the volume again"), |_| {
            self.back()?;
            trial.delete_pod(&pod_of("node-1"))?;
            trial.put(&pod(name, node, "cmp /data/letter /data/seen && sleep 100000"))?;
            trial.ready(&pod_of(node))
        })
    }

    /// The services' Pods there.
    fn services(&self) -> Result<String> {
        let on_node = format!("--field-selector=spec.nodeName={}", self.node);
        self.trial
            .kubectl(&["-n", super::NAMESPACE, "get", "pods", "-o", "name", &on_node])
    }

    /// The kubelet goes on, and the node may have Pods.
    fn back(&self) -> Result<()> {
        let Self { trial, node, .. } = self;
        self.signal_kubelet("-CONT")?;
        let taints = trial.kubectl(&["get", "node", node, "-o", "jsonpath={.spec.taints[*].key}"])?;
        if taints.contains("out-of-service") {
            trial.kubectl(&["taint", "node", node, &format!("{TAINT}-")])?;
        }
        trial
            .kubectl(&[
                "wait",
                "--for=condition=Ready",
                "--timeout=120s",
                &format!("node/{node}"),
            ])
            .map(drop)
    }

    fn signal_kubelet(&self, signal: &str) -> Result<()> {
        let script = format!("kill {signal} $(pidof kubelet)");
        output(&mut self.cluster.on_host(self.index, "sh", ["-c", &script])?)
            .map(drop)
            .with_context(|| format!("failed to send {signal} to the kubelet of {}", self.node))
    }

    /// Whether the Pod's process is there.
    fn writes(&self) -> Result<bool> {
        // Brackets: it is not to find itself.
        let script = "grep -sl '[e]cho before' /proc/[0-9]*/cmdline || true";
        let found = output(&mut self.cluster.on_host(self.index, "sh", ["-c", script])?)?;
        Ok(!found.is_empty())
    }

    /// How many clients Ceph keeps out.
    fn blocklist(&self) -> Result<usize> {
        let ceph = "ceph --conf /run/ceph/ceph.conf osd blocklist ls";
        let asked = ["-n", super::NAMESPACE, "exec", "ceph-mon-0", "--", "sh", "-c", ceph];
        Ok(self
            .trial
            .kubectl(&asked)?
            .lines()
            .filter(|line| line.contains(":0/"))
            .count())
    }
}
