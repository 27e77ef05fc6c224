//! Many claims at once, most of them on storage that fails or hangs: the others are not affected. Alone, since it fills
//! the cluster.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, ResourceExt};
use mooring_contract::names::labels;
use mooring_harness::backend::PRINT;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim};
use mooring_harness::{Scope, in_namespace_within, wait_until};
use mooring_testbed::progress::note;

/// Claims of each kind: 200 together.
const HEALTHY: usize = 70;
const FAILING: usize = 40;
const HANGING: usize = 90;

/// Claims of the healthy kind before the others start.
const ALONE: usize = 24;

/// Provisioning Pods of the healthy kind at once, and of the hanging kind.
const AT_ONCE: usize = 6;
const HANGING_AT_ONCE: usize = 8;

/// Longest wait for all of them: the test is about who waits for whom, not about how long it takes.
const LIMIT: Duration = Duration::from_mins(10);

/// Time limit of the test, which waits like this four times.
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

/// Waits until all claims of the class are bound, `count` more than before. Returns how long that took, and how many
/// Pods ran for them on average from the first bound claim on, while there were more claims than places.
async fn bound(scope: &Scope, kind: &Provisioner, before: usize, count: usize) -> Result<(Duration, f64)> {
    let started = Instant::now();
    let mut seen = Vec::new();
    wait_until(&format!("{count} claims to be bound"), LIMIT, async || {
        let (bound, open) = by_phase(scope, &kind.class).await?;
        if open.len() > 2 * AT_ONCE && bound.len() > before {
            seen.push(at_work(scope, &kind.name).await?);
        }
        Ok((bound.len() == before + count).then_some(()))
    })
    .await?;
    ensure!(!seen.is_empty(), "it was over before anybody looked");
    #[allow(clippy::cast_precision_loss)] // a handful of Pods
    let mean = seen.iter().sum::<usize>() as f64 / seen.len() as f64;
    Ok((started.elapsed(), mean))
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
fn of_200_claims_those_that_fail_or_hang_delay_no_other_and_all_leave_nothing() {
    in_namespace_within(WHOLE_LIMIT, "scale-claims", async |scope| {
        scope.require_mooring().await?;
        let kind = |end: &str, script: &str, at_once: usize| {
            let provisioner = scope.provisioner_named(end).on_pool(script);
            provisioner.key("max-parallel", at_once.to_string())
        };
        let healthy = kind("-ok", PRINT, AT_ONCE);
        let failing = kind("-fails", "echo 'never works'; exit 1", 2);
        let hanging = kind("-hangs", "sleep 100000", HANGING_AT_ONCE).key("timeout", "1h");
        for kind in [&healthy, &failing, &hanging] {
            kind.apply().await?;
        }

        let mut good = claims(&scope, &healthy, "alone", ALONE).await?;
        let (alone, busy_alone) = bound(&scope, &healthy, 0, ALONE).await?;

        // The bad ones start first.
        let mut bad = claims(&scope, &hanging, "hangs", HANGING).await?;
        bad.extend(claims(&scope, &failing, "fails", FAILING).await?);
        good.extend(claims(&scope, &healthy, "ok", HEALTHY).await?);
        let (crowd, busy_crowd) = bound(&scope, &healthy, ALONE, HEALTHY).await?;
        let each = |time: Duration, count: usize| time / u32::try_from(count).unwrap_or(u32::MAX);
        note(format!(
            "a healthy claim took {:?} alone and {:?} in the crowd; Pods at work on them: {busy_alone:.1} and \
             {busy_crowd:.1}",
            each(alone, ALONE),
            each(crowd, HEALTHY)
        ));
        // They are served while all the others still wait.
        for (kind, count) in [(&failing, FAILING), (&hanging, HANGING)] {
            let (bound, open) = by_phase(&scope, &kind.class).await?;
            ensure!(bound.is_empty() && open.len() == count, "{} are bound", bound.len());
        }
        let hang = at_work(&scope, &hanging.name).await?;
        ensure!(
            hang == HANGING_AT_ONCE,
            "{hang} of those that hang are at work, not {HANGING_AT_ONCE}"
        );
        scope.event("fails-0", "never works").await?;
        // If they waited for the others, fewer Pods would have run at once.
        ensure!(
            busy_crowd >= 0.7 * busy_alone,
            "{busy_crowd:.1} Pods at work on the healthy ones, but {busy_alone:.1} without the others"
        );
        one_each(&scope, &healthy, &good).await?;

        let all: Vec<_> = good.union(&bad).cloned().collect();
        all_gone(&scope, &all).await
    });
}
