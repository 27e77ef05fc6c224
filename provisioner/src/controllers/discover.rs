//! Has images list what their storage can serve, and keeps the `VolumeSnapshotClass`es of what they listed.
//!
//! One loop looks at all ConfigMaps that promise to discover: there are few, and next to nothing is done about each. It
//! is woken by watches, and by the clock when the next run is due. What it reads goes to [`Discoveries`]; the
//! StorageClasses are kept by [`super::config`].
//!
//! [`Discoveries`]: crate::config::discovered::Discoveries

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use mooring_contract::discovered::Discovered;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, info, info_span, warn};

use super::retry::{Pace, woken};
use crate::apply::{self, ApplyError, ConfigMeta, Shared};
use crate::cache::work_queue::WorkQueue;
use crate::config::discovered::{Ending, Endings, Listing, Listings};
use crate::config::storage_class::config_of;
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::operation::describe::describe;
use crate::operation::discover::{DiscoverFailure, Due, ObservedDiscovery, due_after, plan, result, run_of};
use crate::process::events::{Note, reasons};
use crate::process::metrics::OperationResult;
use crate::run::Run;
use crate::run::outcome::Category;
use crate::time::elapsed;
use crate::volume::snapshot_class::{self, SnapshotClassAction};

const CONTROLLER: &str = "discoveries";

/// Longest time without a look: a safeguard.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Looks at all ConfigMaps whenever something has changed or is due, until `stop`.
pub(super) async fn run(shared: Shared, queue: WorkQueue, stop: CancellationToken) {
    let mut changes = shared.context.configs.subscribe();
    let mut reported = Reported::default();
    let mut next = Instant::now();
    let mut pace = Pace::new();
    while woken(&stop, &mut changes, queue.configs_queued(), next).await {
        let (after, is_well) = Box::pin(look(&shared, &mut reported))
            .instrument(info_span!("turn", controller = CONTROLLER))
            .await;
        shared.context.metrics.turned(CONTROLLER, is_well);
        next = pace.next(is_well, after);
    }
}

/// The run of each ConfigMap of whose end users and metrics know.
#[derive(Debug, Default)]
pub(crate) struct Reported(BTreeMap<ConfigRef, ReportedRun>);

#[derive(Debug)]
struct ReportedRun {
    uid: String,
    /// The version of the ConfigMap that it was for, and when the next one is due, if a worker has carried it out.
    due: Option<(String, Due)>,
}

impl Reported {
    fn due(&self, config: &ProvisionerConfig) -> Option<Due> {
        let (fingerprint, due) = self.0.get(&config.reference)?.due.as_ref()?;
        (*fingerprint == config.fingerprint).then_some(*due)
    }
}

/// One look at everything: when to look again, and whether nothing failed.
pub(crate) async fn look(shared: &Shared, reported: &mut Reported) -> (Duration, bool) {
    let configs = &shared.context.configs;
    if !configs.is_synced() {
        return (LOOK_AGAIN, true);
    }
    let all = configs.all();
    reported
        .0
        .retain(|reference, _| all.iter().any(|config| config.reference == *reference));
    let (mut after, mut is_well) = (LOOK_AGAIN, true);
    let (mut answers, mut endings) = (Listings::new(), Endings::new());
    for config in &all {
        if !shared.cache.knows_runs_of(&config.reference.namespace) {
            // Their list wakes this.
            continue;
        }
        let run = shared.cache.run(&config.reference.namespace, &run_of(config));
        if let Some(run) = &run
            && run.fingerprint() == Some(config.fingerprint.as_str())
            && let Some(result) = result(run)
        {
            report(shared, reported, config, run, &result);
            let failure = result.as_ref().err().map(|failure| failure.why.clone());
            endings.insert(config.reference.clone(), ending(config, failure));
            if let Ok(discovered) = result {
                let listing = Listing {
                    config_uid: config.uid.clone(),
                    discovered: Arc::new(discovered),
                };
                answers.insert(config.reference.clone(), listing);
            }
        }
        let due = reported.due(config);
        let look = Box::pin(act(shared, config, run.as_ref(), due)).instrument(span(config));
        match shared.limiter.looking(&config.uid, look).await {
            Ok(due) => after = after.min(due.unwrap_or(LOOK_AGAIN)),
            Err(error) => {
                is_well = false;
                if error.is_lasting() {
                    endings.insert(config.reference.clone(), ending(config, Some(error.chain())));
                }
                if error.category() != "conflict" {
                    warn!(
                        error = error.chain(),
                        config = %config.reference,
                        "failed to see to a discovery; trying again"
                    );
                }
            }
        }
    }
    let discovering = all
        .iter()
        .filter(|config| config.offers(Operation::Discover))
        .map(|config| (config.reference.clone(), config.uid.clone()))
        .collect();
    shared.context.discoveries.update(&discovering, answers, endings);
    for action in snapshot_classes(shared, &all) {
        if let Err(error) = apply::snapshot_class::carry_out(shared, action).await {
            is_well = false;
            warn!(
                error = error.chain(),
                "failed to see to a VolumeSnapshotClass; trying again"
            );
        }
    }
    (after, is_well)
}

fn ending(config: &ProvisionerConfig, failure: Option<String>) -> Ending {
    Ending {
        config_uid: config.uid.clone(),
        fingerprint: config.fingerprint.clone(),
        failure,
    }
}

/// The span of all that is done about one ConfigMap: what is logged in it says which that is.
fn span(config: &ProvisionerConfig) -> Span {
    info_span!(
        "reconcile",
        controller = CONTROLLER,
        object.namespace = config.reference.namespace,
        object.name = config.reference.name,
        object.uid = config.uid
    )
}

/// Does the next thing about a ConfigMap's run; returns when to look again.
async fn act(
    shared: &Shared,
    config: &Arc<ProvisionerConfig>,
    run: Option<&Run>,
    due: Option<Due>,
) -> Result<Option<Duration>, ApplyError> {
    let seen = ObservedDiscovery {
        config,
        run,
        due,
        kube_api: &shared.context.settings.kube_api,
        limits: &shared.limits,
    };
    let decision = plan(&seen, Timestamp::now());
    // A moment later than due, so that the clock has surely passed it.
    let due = decision.due().map(|after| after + Duration::from_millis(100));
    tracing::debug!(config = %config.reference, ?decision);
    let subject = ConfigMeta::from(&**config);
    apply::carry_out(shared, &subject, None, decision).await.map(|_| due)
}

/// Says once how a run has ended.
fn report(
    shared: &Shared,
    reported: &mut Reported,
    config: &ProvisionerConfig,
    run: &Run,
    result: &Result<Discovered, DiscoverFailure>,
) {
    let known = reported.0.get(&config.reference);
    if known.is_some_and(|known| known.uid == run.uid()) {
        return;
    }
    let due = due_after(config, run, result, Timestamp::now());
    let told = ReportedRun {
        uid: run.uid().into_owned(),
        due: run.is_on_worker().then(|| (config.fingerprint.clone(), due)),
    };
    reported.0.insert(config.reference.clone(), told);
    let (ended, category) = match result {
        Ok(_) => (OperationResult::Done, ""),
        Err(DiscoverFailure {
            outcome: Outcome::GiveUp,
            category,
            ..
        }) => (OperationResult::GivenUp, category.as_str()),
        Err(failure) => (OperationResult::Retry, failure.category.as_str()),
    };
    let took = elapsed(run.made(), run.ended());
    shared
        .context
        .metrics
        .operation_ended(Operation::Discover, ended, category, took);
    match result {
        Ok(discovered) => info!(
            config = %config.reference,
            classes = discovered.classes.len(),
            "discovered what the storage can serve"
        ),
        Err(failure) => {
            let events = describe(Operation::Discover).events;
            let reason = match failure.category {
                Category::Timeout => reasons::TIMED_OUT,
                _ => events.failed,
            };
            let then = match failure.outcome {
                Outcome::GiveUp => "it is not tried again until the ConfigMap changes",
                Outcome::Done | Outcome::Retry => "it will be tried again",
            };
            let text = format!(
                "{} failed: {}; the storage classes stay as they are, and {then}",
                events.doing, failure.why
            );
            apply::report_config(shared, config, Note::warning(reason, events.action, text));
        }
    }
}

/// What to do about the `VolumeSnapshotClass`es, where the cluster has any.
fn snapshot_classes(shared: &Shared, configs: &[Arc<ProvisionerConfig>]) -> Vec<SnapshotClassAction> {
    let cache = &shared.cache;
    if !cache.knows_snapshots() {
        return Vec::new();
    }
    let (classes, there) = (cache.classes.state(), cache.snapshots.classes.state());
    let contents = cache.snapshots.contents.state();
    let names = contents
        .iter()
        .filter_map(|content| content.spec.volume_snapshot_class_name.clone());
    let used: BTreeSet<String> = names.collect();
    let config_in_force = |reference: &ConfigRef| configs.iter().find(|config| config.reference == *reference);
    snapshot_class::plan(
        classes.iter().map(AsRef::as_ref),
        there.iter().map(AsRef::as_ref),
        |class| config_in_force(&config_of(class)?).map(AsRef::as_ref),
        &shared.context.settings.config_namespaces,
        &used,
    )
}
