//! Provisioning while its controller is killed, and what a claim costs the API server: alone, since both are the whole
//! cluster's.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::Api;
use kube::api::ListParams;
use mooring_testbed::harness::provisioner::{CONFIG_NAMESPACE, until};
use mooring_testbed::harness::{Scope, in_namespace, wait_until};

/// API writes that the controller may need to make a claim's volume, and until nothing of both is left.
const MADE: u64 = 6;
const WHOLE_LIFE: u64 = 12;

#[test]
fn a_leader_killed_at_any_moment_leaves_one_volume_for_a_claim_and_nothing_after_it() {
    in_namespace("leader", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .on_provision("sleep 2; pv options client=sshfs source=nobody@192.0.2.1:/x");
        provisioner.apply().await?;
        let mut uids = Vec::new();
        for name in ["a", "b", "c", "d"] {
            uids.push(scope.claim(name, &provisioner.class, "1Gi").await?);
        }
        let leader = scope.leader()?;
        scope.kubectl(["-n", "mooring", "delete", "pod", &leader, "--grace-period=0", "--force"])?;
        for name in ["a", "b", "c", "d"] {
            scope.claim_bound(name).await?;
        }
        wait_until("another leader", Duration::from_mins(1), async || {
            Ok((scope.leader()? != leader).then_some(()))
        })
        .await?;
        let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
        let all = volumes.list(&ListParams::default()).await?.items;
        let of_class = all.iter().filter(|volume| {
            let spec = volume.spec.as_ref();
            spec.and_then(|spec| spec.storage_class_name.as_ref()) == Some(&provisioner.class)
        });
        assert_eq!(of_class.count(), 4, "one volume for each claim");

        // And again while they are deleted.
        for name in ["a", "b", "c", "d"] {
            scope.delete(&format!("persistentvolumeclaim/{name}"))?;
        }
        let leader = scope.leader()?;
        scope.kubectl(["-n", "mooring", "delete", "pod", &leader, "--grace-period=0", "--force"])?;
        for uid in &uids {
            scope.nothing_left(uid).await?;
        }
        Ok(())
    });
}

/// Requests of the controller that change something, Events and the Lease apart: the one are told in their own time, the
/// other is renewed by the clock.
fn writes(metrics: &str) -> Result<u64> {
    let mut sum = 0;
    for line in metrics.lines() {
        let counted = line.starts_with("mooring_provisioner_api_requests_total{")
            && ["create", "update", "patch", "delete"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
            && !["events", "leases"]
                .iter()
                .any(|kind| line.contains(&format!("resource=\"{kind}\"")));
        if counted {
            let count = line.rsplit(' ').next().unwrap_or_default();
            sum += count.parse::<u64>().with_context(|| line.to_owned())?;
        }
    }
    Ok(sum)
}

/// Writes until a claim is bound and its Pod gone, and from its creation to its end.
async fn life(scope: &Scope, name: &str, class: &str) -> Result<(u64, u64)> {
    let before = writes(&scope.metrics()?)?;
    let uid = scope.claim(name, class, "1Gi").await?;
    scope.claim_bound(name).await?;
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
    let gone = |pod: Option<&Pod>| pod.is_none();
    until(
        &pods,
        &format!("provision-{uid}"),
        "to be gone",
        Duration::from_mins(1),
        gone,
    )
    .await?;
    let made = writes(&scope.metrics()?)? - before;
    scope.claim_gone(name).await?;
    scope.nothing_left(&uid).await?;
    Ok((made, writes(&scope.metrics()?)? - before))
}

#[test]
fn a_claim_s_volume_costs_six_api_writes_to_make_and_as_many_to_remove() {
    in_namespace("budget", async |scope| {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        // The least of three: somebody else may be using the cluster.
        let mut least = (u64::MAX, u64::MAX);
        for name in ["a", "b", "c"] {
            let (made, whole) = life(&scope, name, &provisioner.class).await?;
            least = (least.0.min(made), least.1.min(whole));
        }
        let (made, whole) = least;
        assert!(made > 3 && whole > made, "{made}, {whole}: they are not counted");
        assert!(made <= MADE, "{made} writes to make a volume, the budget is {MADE}");
        assert!(
            whole <= WHOLE_LIFE,
            "{whole} writes for a whole life, the budget is {WHOLE_LIFE}"
        );
        Ok(())
    });
}
