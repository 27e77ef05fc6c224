//! The cluster that tests run on.

use std::sync::Mutex;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

use mooring_testbed::command::output;
use mooring_testbed::layout::Layout;
use mooring_testbed::target::{EXISTING_VARIABLE, Target, TargetArgs};

/// The cluster that tests run on; starts the testbed's own if it does not run.
pub fn open_target() -> Result<Target> {
    // Tests of one program start at once: the first one starts the cluster, the others wait for it.
    static OPENED: Mutex<Option<Target>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(target) = &*opened {
        return Ok(target.clone());
    }
    let args = TargetArgs {
        existing: std::env::var_os(EXISTING_VARIABLE).is_some(),
        ..TargetArgs::default()
    };
    let target = args.open(&Layout::from_env()?)?;
    *opened = Some(target.clone());
    Ok(target)
}

/// A client of the cluster, with all rights or as a user who has only what RBAC gives.
pub async fn client(target: &Target, user: Option<(&str, &[&str])>) -> Result<Client> {
    let kubeconfig = match &target.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    }
    .context("failed to read the kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("failed to understand the kubeconfig")?;
    if let Some((user, groups)) = user {
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|&group| group.to_owned()).collect());
    }
    Client::try_from(config).context("failed to make a client")
}

/// The names of the nodes that take Pods without tolerations.
pub(super) fn nodes_for_pods(target: &Target) -> Result<Vec<String>> {
    let listed = output(&mut target.kubectl(["get", "nodes", "-o", "json", "--request-timeout=20s"]))?;
    let listed: Value = serde_json::from_str(&listed).context("kubectl printed no JSON")?;
    let nodes = listed["items"].as_array().cloned().unwrap_or_default();
    let nodes = nodes.into_iter().map(serde_json::from_value::<Node>);
    let nodes: Vec<_> = nodes.collect::<Result<_, _>>().context("kubectl printed no nodes")?;
    Ok(names_of_takers(nodes))
}

/// The names of those nodes that take Pods without tolerations.
pub(super) fn names_of_takers(nodes: Vec<Node>) -> Vec<String> {
    let takers = nodes.into_iter().filter(takes_pods);
    takers.filter_map(|node| node.metadata.name).collect()
}

/// Whether Pods without tolerations may run there.
fn takes_pods(node: &Node) -> bool {
    let spec = node.spec.clone().unwrap_or_default();
    let taints = spec.taints.unwrap_or_default();
    spec.unschedulable != Some(true) && taints.iter().all(|taint| taint.effect == "PreferNoSchedule")
}
