//! Many claims at once, most of them on storage that fails or hangs: the others are not affected. Alone, since it fills
//! the cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, ResourceExt};
use mooring_contract::names::labels;
use mooring_harness::backend::PRINT;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim};
use mooring_harness::{Scope, in_namespace_within, wait_until};

/// Claims of each kind: several times their places, and 90 together, with those of a kind that fills its places until it
/// may go on.
const HEALTHY: usize = 24;
const FAILING: usize = 20;
const HANGING: usize = 40;

/// Provisioning Pods of the healthy kind at once, and of the hanging kind.
const AT_ONCE: usize = 6;
const HANGING_AT_ONCE: usize = 8;

/// Longest wait for all of them: the test is about who waits for whom, not about how long it takes.
const LIMIT: Duration = Duration::from_mins(10);

/// Time limit of the whole test.
const WHOLE_LIMIT: Duration = Duration::from_mins(40);

/// Creates claims; returns their uids.
async fn claims(scope: &Scope, kind: &Provisioner, prefix: &str, count: usize) -> Result<BTreeSet<String>> {
    let api: Api<PersistentVolumeClaim> = scope.api();
    futures::stream::iter(0..count)
        .map(|index| {
            let (api, class) = (api.clone(), kind.class.clone());
            async move {
                let wanted = claim(&format!("{prefix}-{index}"), &class, "1Gi");
                let wanted = serde_json::from_value(wanted).context("a bad claim")?;
                let made = api.create(&PostParams::default(), &wanted).await?;
                made.uid().context("a claim without a uid")
            }
        })
        .buffer_unordered(16)
        .try_collect()
        .await
}

/// The claims of a class that are bound, and those that are not.
async fn by_phase(scope: &Scope, class: &str) -> Result<(Vec<PersistentVolumeClaim>, Vec<PersistentVolumeClaim>)> {
    let api: Api<PersistentVolumeClaim> = scope.api();
    let all = api.list(&ListParams::default()).await?.items;
    let of_class = all.into_iter().filter(|claim| {
        let spec = claim.spec.as_ref();
        spec.and_then(|spec| spec.storage_class_name.as_deref()) == Some(class)
    });
    Ok(of_class.partition(|claim| {
        let status = claim.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Bound")
    }))
}

/// Provisioning Pods of a ConfigMap that are not over.
async fn at_work(scope: &Scope, config: &str) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
    let ours = ListParams::default().labels(&format!("{}={config}", labels::CONFIG_NAME));
    let pods = pods.list(&ours).await?.items;
    let over = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    Ok(pods.len() - pods.iter().filter(over).count())
}

/// Waits until this many claims of the class are bound.
async fn bound(scope: &Scope, kind: &Provisioner, count: usize) -> Result<()> {
    wait_until(&format!("{count} claims to be bound"), LIMIT, async || {
        let (bound, _) = by_phase(scope, &kind.class).await?;
        Ok((bound.len() == count).then_some(()))
    })
    .await
}

/// Waits until a ConfigMap has this many Pods at work, and never has more.
async fn places_taken(scope: &Scope, kind: &Provisioner, places: usize) -> Result<()> {
    let what = format!("{} to have {places} Pods at work", kind.name);
    let most = wait_until(&what, LIMIT, async || {
        Ok(Some(at_work(scope, &kind.name).await?).filter(|now| *now >= places))
    })
    .await?;
    ensure!(most == places, "{most} Pods of {} are at work, not {places}", kind.name);
    Ok(())
}

/// Checks that every claim has a volume of its own, every volume one claim, and that the backend has the same number.
async fn one_each(scope: &Scope, kind: &Provisioner, uids: &BTreeSet<String>) -> Result<()> {
    let (bound, _) = by_phase(scope, &kind.class).await?;
    let volume = |claim: &PersistentVolumeClaim| claim.spec.as_ref()?.volume_name.clone();
    let of_claims: BTreeSet<_> = bound.iter().filter_map(volume).collect();
    let named: BTreeSet<_> = uids.iter().map(|uid| format!("pvc-{uid}")).collect();
    ensure!(of_claims == named, "claims are bound to volumes of others");

    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    let mut volumes = volumes.list(&ListParams::default()).await?.items;
    volumes.retain(|volume| {
        let spec = volume.spec.as_ref();
        spec.and_then(|spec| spec.storage_class_name.as_deref()) == Some(&kind.class)
    });
    ensure!(volumes.len() == uids.len(), "{} volumes", volumes.len());
    let claim = |volume: &PersistentVolume| volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone();
    let claimed: BTreeSet<_> = volumes.iter().filter_map(claim).collect();
    ensure!(claimed == *uids, "volumes and claims are not one to one");

    if scope.target.own_cluster().is_some() {
        let mut made = scope.on_backend("pvc-")?;
        made.retain(|path| uids.iter().any(|uid| path.ends_with(uid)));
        ensure!(made.len() == uids.len(), "{} on the backend", made.len());
    }
    Ok(())
}

/// Deletes all claims and waits until nothing is left of them anywhere.
async fn all_gone(scope: &Scope, uids: &[String]) -> Result<()> {
    let api: Api<PersistentVolumeClaim> = scope.api();
    let all = ListParams::default();
    api.delete_collection(&DeleteParams::default(), &all).await?;
    wait_until("all claims to be gone", LIMIT, async || {
        let left = api.list_metadata(&all).await?.items.len();
        ensure!(left == 0, "{left} are there");
        Ok(Some(()))
    })
    .await?;
    let volumes: Api<PersistentVolume> = Api::all(scope.client.clone());
    wait_until("nothing to be left of them", LIMIT, async || {
        let mut left = scope.left_of(uids).await?;
        let volumes = volumes.list_metadata(&all).await?.items;
        left.extend(volumes.iter().map(ResourceExt::name_any));
        left.extend(scope.on_backend("pvc-")?);
        left.retain(|name| uids.iter().any(|uid| name.contains(uid.as_str())));
        ensure!(left.is_empty(), "{} are left, such as {}", left.len(), left[0]);
        Ok(Some(()))
    })
    .await
}

/// Proves: P1, P3
#[test]
fn of_90_claims_those_that_fail_or_hang_delay_no_other_and_all_leave_nothing() {
    in_namespace_within(WHOLE_LIMIT, "scale-claims", async |scope| {
        scope.require_mooring().await?;
        let kind = |end: &str, script: &str, at_once: usize| {
            let provisioner = scope.provisioner_named(end).on_pool(script);
            provisioner.key("max-parallel", at_once.to_string())
        };
        let waiting = format!("until [ -e /tmp/go ]; do sleep 0.1; done\n{PRINT}");
        let healthy = kind("-ok", PRINT, AT_ONCE);
        let slow = kind("-slow", &waiting, AT_ONCE).key("timeout", "1h");
        let failing = kind("-fails", "echo 'never works'; exit 1", 2);
        let hanging = kind("-hangs", "sleep 100000", HANGING_AT_ONCE).key("timeout", "1h");
        for kind in [&healthy, &slow, &failing, &hanging] {
            kind.apply().await?;
        }

        // The bad ones start first.
        let mut bad = claims(&scope, &hanging, "hangs", HANGING).await?;
        places_taken(&scope, &hanging, HANGING_AT_ONCE).await?;
        bad.extend(claims(&scope, &failing, "fails", FAILING).await?);
        let good = claims(&scope, &healthy, "ok", HEALTHY).await?;
        // The runs of the others take no place from this ConfigMap's.
        let held = claims(&scope, &slow, "slow", AT_ONCE).await?;
        places_taken(&scope, &slow, AT_ONCE).await?;
        bound(&scope, &healthy, HEALTHY).await?;
        // They are served while all the others still wait.
        for (kind, count) in [(&failing, FAILING), (&hanging, HANGING), (&slow, AT_ONCE)] {
            let (bound, open) = by_phase(&scope, &kind.class).await?;
            ensure!(bound.is_empty() && open.len() == count, "{} are bound", bound.len());
        }
        places_taken(&scope, &hanging, HANGING_AT_ONCE).await?;
        scope.event("fails-0", "never works").await?;
        one_each(&scope, &healthy, &good).await?;
        for uid in &held {
            scope.runs("provision", uid).await?;
            scope.let_run_go_on("provision", uid)?;
        }
        bound(&scope, &slow, AT_ONCE).await?;
        one_each(&scope, &slow, &held).await?;

        let good: BTreeSet<_> = good.union(&held).cloned().collect();
        let all: Vec<_> = good.union(&bad).cloned().collect();
        all_gone(&scope, &all).await
    });
}
