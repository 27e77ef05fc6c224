//! The oldest Kubernetes that Mooring supports: there the kubelet mounts volumes with CSI alone.

use mooring_harness::provisioner::user_of;
use mooring_harness::{in_namespace, open_target, skip};
use serde_json::json;

/// A group that no file has by itself.
const GROUP: &str = "2017";

#[test]
fn the_oldest_kubernetes_mounts_volumes_by_csi_alone() {
    let target = open_target().unwrap();
    let cluster = target.own_cluster();
    if cluster.is_none_or(|cluster| cluster.description.releases.control_plane.is_complete()) {
        return skip("the cluster has another version of Kubernetes");
    }
    in_namespace("oldest", async |scope| {
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
        scope.file_is("user", "/data/file", "kept\n").await?;
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
