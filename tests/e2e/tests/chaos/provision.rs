//! Provisioning while the controller is killed, and how many API writes a claim costs. Alone, since both concern the
//! whole cluster.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::Api;
use kube::api::ListParams;
use mooring_harness::audit::{Write, listed};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, MAKER, until};
use mooring_harness::{Scope, in_namespace, wait_until};

/// Writes that the controller may need to provision a claim's volume, and until both are gone; docs/ARCHITECTURE.md
/// lists them. Every claim has to keep to this number. Other components' writes don't count.
const MADE: usize = 6;
const WHOLE_LIFE: usize = 10;

/// Proves: P1
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

        // The same again while they are deleted.
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

/// The controller's writes until a claim is bound and its Pod gone, and those from its creation to its end.
async fn life(scope: &Scope, name: &str, class: &str, account: Option<&str>) -> Result<(Vec<Write>, Vec<Write>)> {
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
    let made = scope.controller_writes(name, &uid, account)?;
    scope.claim_gone(name).await?;
    scope.nothing_left(&uid).await?;
    Ok((made, scope.controller_writes(name, &uid, account)?))
}

/// Fails if a claim's life costs more than its budget, and lists the writes.
fn within_budget(made: &[Write], whole: &[Write], tokens: usize) {
    let stored = |writes: &[Write]| writes.iter().filter(|write| !write.is_token()).count();
    assert!(
        stored(made) > 3 && whole.len() > made.len(),
        "they are not counted: {}",
        listed(whole)
    );
    assert!(
        stored(made) <= MADE,
        "more than {MADE} writes to make a volume: {}",
        listed(made)
    );
    assert!(
        stored(whole) <= WHOLE_LIFE,
        "more than {WHOLE_LIFE} writes for a whole life: {}",
        listed(whole)
    );
    assert!(
        whole.len() - stored(whole) <= tokens,
        "more than {tokens} tokens: {}",
        listed(whole)
    );
}

/// Proves: P7
#[test]
fn a_claim_s_volume_costs_six_api_writes_to_make_and_four_to_remove() {
    on_own_nodes("budget", async |scope| {
        let provisioner = scope.provisioner().printing();
        provisioner.apply().await?;
        for name in ["a", "b", "c"] {
            let (made, whole) = life(&scope, name, &provisioner.class, None).await?;
            within_budget(&made, &whole, 0);
        }
        Ok(())
    });
}

/// Proves: P7
#[test]
fn an_image_that_makes_its_volume_itself_costs_the_controller_one_token_more_per_run() {
    on_own_nodes("budget-maker", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("service-account-name", MAKER)
            .on_provision("pv create --option client=sshfs --option source=nobody@192.0.2.1:/x");
        provisioner.apply().await?;
        let (made, whole) = life(&scope, "a", &provisioner.class, Some(MAKER)).await?;
        within_budget(&made, &whole, 2);
        Ok(())
    });
}
