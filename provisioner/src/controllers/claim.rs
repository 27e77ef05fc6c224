//! Brings every claim of Mooring's to its volume, and every one that is deleted on the way to its end.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use mooring_contract::names::annotations;
use tokio_util::sync::CancellationToken;

use super::retry::Retries;
use super::serving::{config_for, not_known};
use crate::apply::live::{look_up, make};
use crate::apply::{self, ApplyError, Shared};
use crate::cache::store::key;
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::operation::decision::First;
use crate::operation::observed::ObservedClaim;
use crate::operation::provision;
use crate::operation::record::Record;
use crate::operation::words::waiting;
use crate::run::kind::Kind;
use crate::run::pod;

/// Name of this controller in metrics.
const NAME: &str = "claims";

struct Work {
    shared: Shared,
    retries: Retries,
}

/// Works until `stop`; what has been begun then is brought to its end.
pub async fn run(
    shared: Shared,
    queued: impl Stream<Item = ObjectRef<PersistentVolumeClaim>> + Send + 'static,
    stop: CancellationToken,
) {
    let concurrency = shared.context.settings.max_in_flight;
    let reader = shared.cache.claims.clone();
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

async fn reconcile(claim: Arc<PersistentVolumeClaim>, work: Arc<Work>) -> Result<Action, ApplyError> {
    let done = Box::pin(act(&claim, &work.shared)).await;
    let action = work.retries.settle(&ObjectRef::from_obj(&*claim).to_string(), done);
    work.shared.context.metrics.reconciled(NAME, action.1);
    action.0
}

/// Looks at one claim as it is known, and does the next thing.
pub(crate) async fn act(claim: &PersistentVolumeClaim, shared: &Shared) -> Result<Action, ApplyError> {
    let Some(uid) = claim.metadata.uid.clone() else {
        return Ok(Action::await_change());
    };
    if shared.expectations.is_old(&claim.metadata) {
        // The watch brings what was written last, and that wakes this again.
        return Ok(Action::await_change());
    }
    let cache = &shared.cache;
    let record = match Record::on(claim) {
        Ok(record) => record,
        Err(error) => {
            let note = waiting(Kind::Provision, error.to_string());
            shared.context.events.publish(&claim.object_ref(&()), note);
            return Ok(Action::await_change());
        }
    };
    let class_name = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_deref())
        .unwrap_or_default();
    let class = cache.classes.get(&ObjectRef::new(class_name));
    let config = config_for(shared, class.as_deref(), class_name, record.as_ref());
    let namespace = pods_in(&config, record.as_ref());
    if let Some(namespace) = namespace.as_deref().filter(|namespace| !cache.knows_pods_of(namespace)) {
        // Only claims that a Pod was or is to be made for.
        let concerned =
            record.is_some() || (config.is_ok() && claim.annotations().contains_key(annotations::STORAGE_PROVISIONER));
        return Ok(not_known(shared, &claim.object_ref(&()), namespace, concerned));
    }
    let find = |operation: Kind| {
        namespace
            .as_deref()
            .and_then(|namespace| cache.pod(namespace, &pod::name(operation, &uid)))
    };
    let (provision_pod, delete_pod) = (find(Kind::Provision), find(Kind::Delete));
    let departed = cache.departed(&uid);
    let nodes = |name: &str| cache.node(name);
    let mut volumes = cache.volumes_of(&uid);
    let (mut looked_up, mut made) = (false, false);
    loop {
        let now = Timestamp::now();
        let planned = {
            let mut seen = ObservedClaim {
                claim,
                record: record.as_ref(),
                class: class.as_deref(),
                config: &config,
                unserved_since: now,
                provision_pod: provision_pod.as_deref(),
                delete_pod: delete_pod.as_deref(),
                departed: departed.as_ref(),
                volumes: &volumes,
                looked_up,
                nodes: &nodes,
                kube_api: &shared.context.settings.kube_api,
                limits: &shared.limits,
            };
            if provision::is_unserved(&seen) {
                seen.unserved_since = shared.expectations.unserved_since(&uid, now);
            } else {
                shared.expectations.served(&uid);
            }
            provision::plan(&seen, now)
        };
        let decision = match planned {
            Ok(decision) => decision,
            Err(First::LookUp) if !looked_up => {
                volumes = look_up(shared, &uid, volumes).await?;
                looked_up = true;
                continue;
            }
            // Bound at once to what was made: the binder would do it with more writes, at 20 a second for the whole cluster.
            Err(First::MakeVolume(volume)) if !made => {
                volumes = make(shared, &volume, &uid).await?;
                looked_up = true;
                made = true;
                continue;
            }
            // Done already, and not seen yet.
            Err(first @ (First::LookUp | First::MakeVolume(_))) => {
                forget_places(shared, &uid, None);
                tracing::debug!(claim = key(claim), decision = ?first);
                return Ok(Action::requeue(Duration::from_secs(1)));
            }
        };
        forget_places(shared, &uid, decision.begins());
        tracing::debug!(claim = key(claim), ?decision);
        return apply::claim(shared, claim, record, decision).await;
    }
}

/// The namespace of a claim's Pods: where the record says that they are, else where they would be.
fn pods_in(config: &Result<Arc<ProvisionerConfig>, NoConfig>, record: Option<&Record>) -> Option<String> {
    let recorded = record.and_then(|record| record.pod.split_once('/'));
    recorded
        .map(|(namespace, _)| namespace.to_owned())
        .or_else(|| config.as_ref().ok().map(|config| config.reference.namespace.clone()))
}

/// Leaves the queues in which nothing is waited for any more: a claim that is deleted while it waits to be served waits to be undone
/// from then on.
fn forget_places(shared: &Shared, uid: &str, begins: Option<Kind>) {
    for operation in Kind::ALL {
        if begins != Some(operation) {
            shared.limiter.forget(&pod::name(operation, uid));
        }
    }
}

#[allow(clippy::needless_pass_by_value)] // the signature is the library's
fn error_policy(claim: Arc<PersistentVolumeClaim>, error: &ApplyError, work: Arc<Work>) -> Action {
    work.retries
        .failed(NAME, &ObjectRef::from_obj(&*claim).to_string(), error)
}
