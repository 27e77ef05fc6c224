//! The oldest Kubernetes that Mooring supports: the cluster says what it is without, and the rest works. There the
//! kubelet mounts volumes with CSI alone.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use mooring_contract::names::{CLUSTER_FEATURES, NAMESPACE};
use mooring_harness::provisioner::user_of;
use mooring_harness::{Scope, in_namespace, open_target, skip, wait_until};
use mooring_testbed::binaries::Release;
use serde_json::json;
use std::time::Duration;

/// Longest until the controller has asked the API server.
const FEATURES_LIMIT: Duration = Duration::from_mins(1);

/// A group that no file has by itself.
const GROUP: &str = "2017";

/// The cluster says what it has.
async fn features(scope: &Scope) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let data = wait_until("the cluster's features", FEATURES_LIMIT, async || {
        let found = maps.get(CLUSTER_FEATURES).await?.data.unwrap_or_default();
        Ok((!found.is_empty()).then_some(found))
    })
    .await?;
    let version = data.get("kubernetes").context("no version")?;
    ensure!(version == Release::Oldest.version(), "{version}");
    for feature in ["claim-users", "flexvolume", "volume-attributes-classes"] {
        let said = data.get(feature).with_context(|| format!("no {feature}"))?;
        ensure!(said.starts_with("no: "), "{feature}: {said}");
    }
    Ok(())
}

#[test]
fn the_oldest_kubernetes_has_volumes_and_says_what_it_is_without() {
    let target = open_target().unwrap();
    let cluster = target.own_cluster();
    if cluster.is_none_or(|cluster| cluster.description.releases.control_plane != Release::Oldest) {
        return skip("the cluster has another version of Kubernetes");
    }
    in_namespace("oldest", async |scope| {
        features(&scope).await?;
        // In a namespace besides Mooring's own, where an administrator lets the mounters see runs.
        let provisioner = scope.provisioner().example("local.yaml")?;
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "64Mi").await?;
        let mut user = user_of("user", "data", "echo kept >/data/file; sleep 1000000");
        user["spec"]["securityContext"] = json!({
            "runAsNonRoot": true, "runAsUser": 1017, "runAsGroup": 1017, "fsGroup": GROUP.parse::<u32>()?,
        });
        scope.apply(&user.to_string())?;
        scope.pod_ready("user").await?;
        let group = scope.exec("user", ["stat", "-c", "%g", "/data/file"])?;
        assert_eq!(group.trim(), GROUP);

        scope.volume("old", &json!({"client": "nfs", "source": "10.0.0.1:/x"}))?;
        scope.pod("old", "node-1", "old", json!({}))?;
        scope
            .event("old", "before Kubernetes 1.36, a mounter sees no Pod of namespace")
            .await?;
        scope.delete("pod/old")?;
        scope.pod_gone("old").await?;

        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}
