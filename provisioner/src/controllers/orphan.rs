//! Finds the runs that belong to nothing any more, and has them settled: see [`crate::operation::orphan`].

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use crate::apply::live::{Remains, remains};
use crate::apply::{self, ApplyError, Shared};
use crate::cache::expectations::Fact;
use crate::operation::decision::Decision;
use crate::operation::orphan::{ObservedOrphans, Orphans, plan};

/// Name of this loop in its spans.
const CONTROLLER: &str = "orphans";

/// How long changes are gathered before the runs are looked through.
const GATHER: Duration = Duration::from_secs(5);

/// Looks through the runs whenever some have changed, until `stop`.
pub(super) async fn run(shared: Shared, resync: Duration, stop: CancellationToken) {
    let mut known = BTreeSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.cache.runs_changed() => {}
            () = tokio::time::sleep(resync.min(shared.limits.orphan_age)) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(GATHER) => {}
        }
        let orphans = shared.cache.orphans();
        for run in known.difference(&orphans).flat_map(|uid| shared.cache.runs_of(uid)) {
            shared.limiter.gone(run.meta().uid.as_deref().unwrap_or_default());
        }
        known.clone_from(&orphans);
        for uid in orphans {
            let span = info_span!("reconcile", controller = CONTROLLER, object.uid = uid);
            if let Err(error) = Box::pin(settle(&shared, &uid)).instrument(span).await {
                warn!(
                    claim.uid = uid,
                    error = error.chain(),
                    "failed to settle an orphaned run; trying again"
                );
            }
        }
    }
}

/// Looks at the runs of one object that is gone, and does the next thing.
pub(crate) async fn settle(shared: &Shared, uid: &str) -> Result<(), ApplyError> {
    let runs = shared.cache.runs_of(uid);
    let runs = Orphans::of(&runs);
    let Some(run) = runs.subject() else {
        return Ok(());
    };
    let config = run.config().and_then(|reference| reference.parse().ok());
    let config = config.and_then(|reference| shared.context.configs.get(&reference));
    let decide = |has_other_volume| {
        let seen = ObservedOrphans {
            runs: &runs,
            uid,
            has_other_volume,
            config: config.as_ref(),
            reclaimed: shared.expectations.is(&run.uid(), Fact::Reclaimed),
            kube_api: &shared.context.settings.kube_api,
            limits: &shared.limits,
        };
        plan(&seen, Timestamp::now())
    };
    let step = async {
        if let Decision::Rest | Decision::Wait { say: None, .. } = decide(false) {
            return Ok(());
        }
        let remains = remains(shared, run, uid).await?;
        if remains == Remains::Owner {
            return Ok(());
        }
        info!(run = run.place(), "settling the runs of an object that is gone");
        let decision = decide(remains == Remains::OtherVolume);
        apply::carry_out(shared, run, None, decision).await.map(drop)
    };
    let carrier = run.meta().uid.clone().unwrap_or_default();
    shared.limiter.looking(&carrier, Box::pin(step)).await
}
