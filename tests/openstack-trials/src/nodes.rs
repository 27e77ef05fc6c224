//! Nodes that lose their power, one after the other and then with all of the cluster, under the running services.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::NAMESPACE;
use super::trial::{Things, Trial};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::command::output;
use mooring_testbed::node;
use mooring_testbed::progress::{note, step};
use mooring_testbed::target::Target;
use mooring_testbed::wait::{Look, wait_for};

/// The component by which services and storage are on nodes of their own.
pub(super) const COMPONENT: &str = "node-roles";

const ROLES: [&str; 2] = ["control", "storage"];

/// Longest until the kubelet of a started node has replaced all containers.
const LIMIT: std::time::Duration = std::time::Duration::from_mins(5);

/// Gives the testbed's nodes their roles, if there are enough: the last one is for storage, the others for control.
/// Returns whether there are.
pub(super) fn label(target: &Target) -> Result<bool> {
    let Some(nodes) = target.own_cluster().map(|cluster| cluster.description.nodes) else {
        return Ok(false);
    };
    for index in (1..=nodes).filter(|_| nodes > 1) {
        let role = ROLES[usize::from(index == nodes)];
        let label = format!("{NAMESPACE}.mooring.dev/{role}=true");
        output(&mut target.kubectl(["label", "--overwrite", "node", &node::name(index), &label]))?;
    }
    Ok(nodes > 1)
}

/// Cuts each node's power and gives it back, and then that of everything.
pub(super) fn kill_each(trial: &Trial<'_>, things: &Things) -> Result<()> {
    let Some(cluster) = trial.target.own_cluster() else {
        note("  .. no node is killed: the cluster is not the testbed's own");
        return Ok(());
    };
    let nodes = cluster.description.nodes;
    for index in 1..=nodes {
        let name = node::name(index);
        let before = containers(trial.target, &name)?;
        ensure!(!before.is_empty(), "{name} has no Pod of the services");
        step(
            &format!("{name} loses its power, with {} Pods", before.len()),
            |progress| {
                cluster.power_off(index)?;
                if nodes > 1 && index == nodes {
                    progress.update("services without storage");
                    trial.use_services("answer", &[])?;
                }
                progress.update("start it again");
                cluster.power_on(index)?;
                heals(trial, things, &before)
            },
        )?;
    }
    all_at_once(cluster, trial, things)
}

fn all_at_once(cluster: &Cluster, trial: &Trial<'_>, things: &Things) -> Result<()> {
    let mut before = BTreeMap::new();
    for index in 1..=cluster.description.nodes {
        before.extend(containers(trial.target, &node::name(index))?);
    }
    step("the whole cluster loses its power", |progress| {
        cluster.power_cycle_all()?;
        progress.update("wait until all are ready");
        heals(trial, things, &before)
    })
}

/// All Pods are ready again, in other containers than before, and everything is there.
fn heals(trial: &Trial<'_>, things: &Things, before: &BTreeMap<String, String>) -> Result<()> {
    let old: BTreeSet<_> = before.values().collect();
    let count = trial.pods()?.len();
    wait_for("the containers to be replaced", LIMIT, &[], || {
        match containers(trial.target, "") {
            Ok(now) => match now.iter().find(|(_, container)| old.contains(container)) {
                Some((pod, _)) => Look::NotYet(format!("{pod} has the status of before")),
                None => Look::Ready(()),
            },
            Err(error) => Look::NotYet(format!("{error:#}")),
        }
    })?;
    trial.all_ready(count, "")?;
    trial.check(things)
}

/// The Pods of a node that stay, or those of all nodes, each with its container's id.
fn containers(target: &Target, node: &str) -> Result<BTreeMap<String, String>> {
    let path = "jsonpath={range .items[?(@.metadata.ownerReferences[0].kind!=\"Job\")]}\
                {.metadata.name} {.status.containerStatuses[0].containerID}{\"\\n\"}{end}";
    let mut get = target.kubectl(["-n", NAMESPACE, "get", "pods", "-o", path]);
    if !node.is_empty() {
        get.arg(format!("--field-selector=spec.nodeName={node}"));
    }
    let lines = output(&mut get)?;
    let pairs = lines.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs.map(|(pod, id)| (pod.to_owned(), id.to_owned())).collect())
}
