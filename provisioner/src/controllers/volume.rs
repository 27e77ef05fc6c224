//! Deletes the volumes whose claims are gone.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use mooring_contract::names::annotations;
use tokio_util::sync::CancellationToken;

use super::retry::Retries;
use super::serving::{config_for, elsewhere, not_known};
use crate::apply::{self, ApplyError, Shared};
use crate::config::ConfigRef;
use crate::config::store::NoConfig;
use crate::operation::delete::plan_volume;
use crate::operation::observed::ObservedVolume;
use crate::operation::record::Record;
use crate::operation::words::waiting;
use crate::run::kind::Kind;
use crate::run::pod;
use crate::volume::persistent_volume::{self, is_ours};

/// Name of this controller in metrics.
const NAME: &str = "volumes";

struct Work {
    shared: Shared,
    retries: Retries,
}

/// Works until `stop`; what has been begun then is brought to its end.
pub async fn run(
    shared: Shared,
    queued: impl Stream<Item = ObjectRef<PersistentVolume>> + Send + 'static,
    stop: CancellationToken,
) {
    let concurrency = shared.context.settings.max_in_flight;
    let reader = shared.cache.volumes.clone();
    let work = Arc::new(Work {
        shared,
        retries: Retries::default(),
    });
    Controller::for_stream(futures::stream::pending(), reader)
        .with_config(Config::default().concurrency(concurrency))
        .reconcile_on(queued)
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, error_policy, work)
        // Each result has been logged and counted where it was had.
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(volume: Arc<PersistentVolume>, work: Arc<Work>) -> Result<Action, ApplyError> {
    if !is_ours(&volume) {
        return Ok(Action::await_change());
    }
    let done = Box::pin(act(&volume, &work.shared)).await;
    let action = work.retries.settle(&volume.name_any(), done);
    work.shared.context.metrics.reconciled(NAME, action.1);
    action.0
}

/// Looks at one PV as it is known, and does the next thing.
pub(crate) async fn act(volume: &PersistentVolume, shared: &Shared) -> Result<Action, ApplyError> {
    if shared.expectations.is_old(&volume.metadata) {
        // The watch brings what was written last, and that wakes this again.
        return Ok(Action::await_change());
    }
    let cache = &shared.cache;
    let own_uid = volume.uid().unwrap_or_default();
    // What the watch shows of a PV that was let go is over, until it has caught up. In this order: a PV that is gone is forgotten only
    // after it has left what is watched.
    if shared.expectations.is_let_go(&own_uid) || !cache.has_volume(&volume.name_any(), &own_uid) {
        return Ok(Action::await_change());
    }
    let spec = volume.spec.clone().unwrap_or_default();
    let claim = spec.claim_ref.unwrap_or_default();
    let uid = claim.uid.unwrap_or_default();
    let record = match Record::on(volume) {
        Ok(record) => record,
        Err(error) => {
            let note = waiting(Kind::Delete, error.to_string());
            shared.context.events.publish(&volume.object_ref(&()), note);
            return Ok(Action::await_change());
        }
    };
    let class_name = spec.storage_class_name.unwrap_or_default();
    let class = cache.classes.get(&ObjectRef::new(&class_name));
    // A volume stays with the ConfigMap that made it, whatever has become of its class.
    let made_by: Option<ConfigRef> = volume
        .annotations()
        .get(annotations::CONFIG)
        .and_then(|text| text.parse().ok());
    let config = match made_by {
        Some(_) if !shared.context.configs.is_synced() => Err(NoConfig::NotReadYet),
        Some(reference) => {
            let missing = NoConfig::Missing {
                class: class_name,
                reference: reference.clone(),
            };
            elsewhere(shared, shared.context.configs.get(&reference).ok_or(missing))
        }
        None => config_for(shared, class.as_deref(), &class_name, record.as_ref()),
    };
    let namespace = match (&record, &config) {
        (Some(record), _) => record.pod.split_once('/').map(|(namespace, _)| namespace.to_owned()),
        (None, Ok(config)) => Some(config.reference.namespace.clone()),
        (None, Err(_)) => None,
    };
    if let Some(namespace) = namespace.as_deref().filter(|namespace| !cache.knows_pods_of(namespace)) {
        return Ok(not_known(shared, &volume.object_ref(&()), namespace, record.is_some()));
    }
    let name = pod::name(Kind::Delete, &uid);
    let delete_pod = namespace.as_deref().and_then(|namespace| cache.pod(namespace, &name));
    let claimed = cache.has_claim(
        claim.namespace.as_deref().unwrap_or_default(),
        claim.name.as_deref().unwrap_or_default(),
        &uid,
    );
    let now = Timestamp::now();
    let away_since = persistent_volume::host_of(volume).and_then(|host| {
        if cache.node_by_host(host).is_some() {
            shared.expectations.is_back(host);
            return None;
        }
        Some(shared.expectations.away_since(host, now))
    });
    let decision = plan_volume(
        &ObservedVolume {
            volume,
            record: record.as_ref(),
            class: class.as_deref(),
            config: &config,
            delete_pod: delete_pod.as_deref(),
            claimed,
            by_host: &|host| cache.node_by_host(host),
            away_since,
            kube_api: &shared.context.settings.kube_api,
            limits: &shared.limits,
        },
        now,
    );
    if decision.begins() != Some(Kind::Delete) {
        shared.limiter.forget(&name);
    }
    tracing::debug!(volume = volume.name_any(), ?decision);
    apply::volume(shared, volume, record, decision).await
}

#[allow(clippy::needless_pass_by_value)] // the signature is the library's
fn error_policy(volume: Arc<PersistentVolume>, error: &ApplyError, work: Arc<Work>) -> Action {
    work.retries.failed(NAME, &volume.name_any(), error)
}
