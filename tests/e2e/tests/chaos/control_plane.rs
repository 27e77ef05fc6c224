//! Provisioning and deleting while Kubernetes' own control plane is killed. One at a time: the whole cluster is
//! affected.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::{ListParams, ResourceExt};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::{Scope, wait_until};

/// The control plane restarts after a second or two. Then every component reconnects at its own pace.
const LIMIT: Duration = Duration::from_mins(3);

const CLAIMS: [&str; 4] = ["a", "b", "c", "d"];

/// Waits until a call gets through again.
async fn api_answers(scope: &Scope) -> Result<()> {
    wait_until("the API server to answer", LIMIT, async || {
        scope.kubectl(["get", "--raw", "/readyz"])?;
        Ok(Some(()))
    })
    .await
}

/// Names of the PVs of this test's claims.
async fn volumes(scope: &Scope) -> Result<Vec<String>> {
    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    let all = volumes.list(&ListParams::default()).await?.items;
    let ours = all.iter().filter(|volume| {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim.is_some_and(|claim| claim.namespace.as_deref() == Some(&scope.namespace))
    });
    let mut names: Vec<String> = ours.map(ResourceExt::name_any).collect();
    names.sort();
    Ok(names)
}

/// Proves: P1
#[test]
fn etcd_and_the_api_server_killed_while_volumes_are_made_and_removed_leave_one_a_claim_and_then_none() {
    on_own_nodes("control-plane", async |scope| {
        let cluster = scope.own_cluster()?.clone();
        let provisioner = scope
            .provisioner()
            .printing()
            .on_provision("sleep 2; pv options client=sshfs source=nobody@192.0.2.1:/x")
            .on_delete("sleep 2");
        provisioner.apply().await?;
        let mut uids = Vec::new();
        for name in CLAIMS {
            uids.push(scope.claim(name, &provisioner.class, "1Gi").await?);
        }
        scope.runs("provision", &uids[0]).await?;
        cluster.kill_in_control_plane("etcd")?;
        api_answers(&scope).await?;
        cluster.kill_in_control_plane("kube-apiserver")?;
        api_answers(&scope).await?;
        let mut wanted: Vec<String> = uids.iter().map(|uid| format!("pvc-{uid}")).collect();
        wanted.sort();
        wait_until("each claim to have its volume", LIMIT, async || {
            for name in CLAIMS {
                scope.claim_bound(name).await?;
            }
            let volumes = volumes(&scope).await?;
            anyhow::ensure!(volumes == wanted, "{volumes:?}");
            let left = scope.left_of(&uids).await?;
            anyhow::ensure!(left.is_empty(), "there are {}", left.join(", "));
            Ok(Some(()))
        })
        .await?;

        for name in CLAIMS {
            scope.delete(&format!("persistentvolumeclaim/{name}"))?;
        }
        scope.runs("delete", &uids[0]).await?;
        cluster.kill_in_control_plane("kube-apiserver")?;
        cluster.kill_in_control_plane("etcd")?;
        api_answers(&scope).await?;
        wait_until("nothing to be left", LIMIT, async || {
            let volumes = volumes(&scope).await?;
            anyhow::ensure!(volumes.is_empty(), "{volumes:?}");
            let left = scope.left_of(&uids).await?;
            anyhow::ensure!(left.is_empty(), "there are {}", left.join(", "));
            Ok(Some(()))
        })
        .await
    });
}
