//! Says in a ConfigMap what of Mooring this cluster has, and what it is without: Kubernetes before 1.36 lacks some of what
//! Mooring uses.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use mooring_contract::names::CLUSTER_FEATURES;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::retry::Pace;
use crate::apply::Shared;
use crate::process::call::{Answer as _, CallError, GONE, Tolerant as _};
use crate::process::objects::Objects;

/// How often the API server is asked. Its version changes when somebody updates the cluster.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

/// The API group of admission policies.
const ADMISSION: &[&str] = &["admissionregistration.k8s.io/v1"];

/// The key with the version of the API server.
const VERSION: &str = "kubernetes";

const HAS: &str = "yes";

/// What a cluster may be without.
struct Feature {
    /// Key in the ConfigMap.
    key: &'static str,
    /// The kind that the API server then has.
    kind: &'static str,
    /// Its group, with the versions that Mooring reads.
    apis: &'static [&'static str],
    /// Why the cluster is without it, and what follows.
    without: &'static str,
}

const FEATURES: [Feature; 6] = [
    Feature {
        key: "claim-users",
        kind: "MutatingAdmissionPolicy",
        apis: ADMISSION,
        without: "no: it takes MutatingAdmissionPolicy, so Kubernetes 1.36. Images get no username and no groups.",
    },
    // No kind tells it. Both are on by default since the same version.
    Feature {
        key: "flexvolume",
        kind: "MutatingAdmissionPolicy",
        apis: ADMISSION,
        without: "no: it takes constrained impersonation, so Kubernetes 1.36. FlexVolumes are mounted for the runs in \
                  Mooring's own namespace alone: give volumes volume-source: csi. A Pod that is deleted while its \
                  storage is silent waits for that.",
    },
    Feature {
        key: "volume-attributes-classes",
        kind: "VolumeAttributesClass",
        apis: &["storage.k8s.io/v1"],
        without: "no: it takes Kubernetes 1.34. The operation modify is never run.",
    },
    Feature {
        key: "snapshots",
        kind: "VolumeSnapshotContent",
        apis: &["snapshot.storage.k8s.io/v1"],
        without: "no: the cluster has no snapshot API. Install the CRDs and the snapshot-controller of \
                  kubernetes-csi/external-snapshotter.",
    },
    Feature {
        key: "group-snapshots",
        kind: "VolumeGroupSnapshotContent",
        apis: &["groupsnapshot.storage.k8s.io/v1"],
        without: "no: the cluster has no API of group snapshots in version v1. Install the CRDs of \
                  kubernetes-csi/external-snapshotter, and its snapshot-controller with the gate CSIVolumeGroupSnapshot.",
    },
    Feature {
        key: "claims-of-other-namespaces",
        kind: "ReferenceGrant",
        apis: &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"],
        without: "no: the cluster has no ReferenceGrants. A claim copies volumes of its own namespace alone; for others, \
                  install the Gateway API, and turn on Kubernetes' gate CrossNamespaceVolumeDataSource.",
    },
];

/// Looks from time to time, until `stop`.
pub(super) async fn run(shared: Shared, stop: CancellationToken) {
    let (client, settings) = (&shared.context.client, &shared.context.settings);
    let mut pace = Pace::new();
    let mut next = Instant::now();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep_until(next) => {}
        }
        let looked = look(client, &settings.namespace).await;
        if let Err(error) = &looked {
            warn!(
                error = error as &dyn std::error::Error,
                "failed to say in ConfigMap {CLUSTER_FEATURES} what this cluster can do; trying again"
            );
        }
        next = pace.next(looked.is_ok(), LOOK_AGAIN);
    }
}

/// Asks the API server, and writes what has changed.
async fn look(client: &Client, namespace: &str) -> Result<(), CallError> {
    let version = client.apiserver_version().await;
    let version = version.or_failed_to("read", "version of", "the API server")?;
    let mut kinds = BTreeMap::new();
    for api in FEATURES.iter().flat_map(|feature| feature.apis) {
        if !kinds.contains_key(api) {
            kinds.insert(*api, served(client, api).await?);
        }
    }
    let has = |api: &str, kind: &str| kinds[api].iter().any(|served| served == kind);
    let data = said(&version.git_version, has);
    write(client, namespace, data).await
}

/// The kinds of a group that the API server has.
async fn served(client: &Client, api: &'static str) -> Result<Vec<String>, CallError> {
    let list = client.list_api_group_resources(api).await;
    let list = list.or_failed_to("list", "kinds of", api).unless(GONE)?;
    let resources = list.into_iter().flat_map(|list| list.resources);
    Ok(resources.map(|resource| resource.kind).collect())
}

fn said(version: &str, has: impl Fn(&str, &str) -> bool) -> BTreeMap<String, String> {
    let features = FEATURES.iter().map(|feature| {
        let is_there = feature.apis.iter().any(|api| has(api, feature.kind));
        let text = if is_there { HAS } else { feature.without };
        (feature.key.to_owned(), text.to_owned())
    });
    features.chain([(VERSION.to_owned(), version.to_owned())]).collect()
}

async fn write(client: &Client, namespace: &str, data: BTreeMap<String, String>) -> Result<(), CallError> {
    let config_maps: Objects<ConfigMap> = Objects::within(client, namespace);
    let mut found = config_maps.read_own(CLUSTER_FEATURES).await?;
    if found.data.as_ref() == Some(&data) {
        return Ok(());
    }
    let without = data.iter().filter(|(key, text)| *key != VERSION && *text != HAS);
    let without: Vec<_> = without.map(|(key, _)| key.as_str()).collect();
    info!(
        kubernetes = data[VERSION],
        without = without.join(","),
        "ConfigMap {CLUSTER_FEATURES} says what of Mooring this cluster is without"
    );
    found.data = Some(data);
    config_maps.replace(&found).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::said;

    #[test]
    fn a_cluster_has_what_its_api_server_serves_and_the_rest_has_a_reason() {
        let data = said("v1.33.13", |api, kind| {
            (api, kind) == ("storage.k8s.io/v1", "VolumeAttributesClass")
        });
        assert_eq!(data["kubernetes"], "v1.33.13");
        assert_eq!(data["volume-attributes-classes"], "yes");
        for lacked in ["claim-users", "flexvolume", "snapshots", "group-snapshots"] {
            assert!(data[lacked].starts_with("no: "), "{lacked}");
        }
    }
}
