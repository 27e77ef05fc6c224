//! Brings every claim of Mooring's to its volume, and every one that is deleted on the way to its end.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use mooring_contract::names::annotations;
use tokio_util::sync::CancellationToken;

use crate::apply::live::{look_up, make};
use crate::apply::{self, ApplyError, Shared};
use crate::cache::store::key;
use crate::config::store::NoConfig;
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::controllers::retry::Retries;
use crate::operation::decision::{ClaimDecision, Decision, First, ForClaim};
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
    let record = match record_of(claim) {
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
        forget_places(shared, &uid, begins(&decision));
        tracing::debug!(claim = key(claim), ?decision);
        return apply::claim(shared, claim, record, decision).await;
    }
}

fn record_of(claim: &PersistentVolumeClaim) -> Result<Option<Record>, crate::operation::record::RecordError> {
    let text = claim.annotations().get(annotations::OPERATION);
    text.map(|text| Record::parse(text)).transpose()
}

/// The ConfigMap in force for a class; where the class is gone, the one that the record names.
pub(crate) fn config_for(
    shared: &Shared,
    class: Option<&StorageClass>,
    class_name: &str,
    record: Option<&Record>,
) -> Result<Arc<ProvisionerConfig>, NoConfig> {
    if let Some(class) = class {
        let found = elsewhere(shared, shared.context.configs.for_class(class));
        if let Err(NoConfig::Unclaimed { class, .. } | NoConfig::Elsewhere { class, .. }) = &found {
            let (claims, volumes) = (shared.cache.claims.state(), shared.cache.volumes.state());
            let another_s = another_s_config(&claims, &volumes, class, |namespace| honours(shared, namespace));
            if let Some(reference) = another_s {
                return Err(NoConfig::Elsewhere {
                    class: class.clone(),
                    reference,
                    is_at_work: true,
                });
            }
        }
        return found;
    }
    if !shared.context.configs.is_synced() {
        return Err(NoConfig::NotReadYet);
    }
    let reference: Option<ConfigRef> = record.and_then(|record| record.config.parse().ok());
    let Some(reference) = reference else {
        return Err(NoConfig::Unclaimed {
            class: class_name.to_owned(),
            label: class_name.to_owned(),
        });
    };
    let missing = NoConfig::Missing {
        class: class_name.to_owned(),
        reference: reference.clone(),
    };
    elsewhere(shared, shared.context.configs.get(&reference).ok_or(missing))
}

/// Whether ConfigMaps of this namespace are this Mooring's business.
fn honours(shared: &Shared, namespace: &str) -> bool {
    shared.context.settings.config_namespaces.contains(namespace)
}

/// A ConfigMap that is not known because it is not looked for may be another Mooring's.
pub(crate) fn elsewhere(
    shared: &Shared,
    found: Result<Arc<ProvisionerConfig>, NoConfig>,
) -> Result<Arc<ProvisionerConfig>, NoConfig> {
    match found {
        Err(NoConfig::Missing { class, reference }) if !honours(shared, &reference.namespace) => {
            Err(NoConfig::Elsewhere {
                class,
                reference,
                is_at_work: false,
            })
        }
        found => found,
    }
}

/// The ConfigMap of another Mooring by which volumes of a class are being made or have been made, if there is one.
fn another_s_config(
    claims: &[Arc<PersistentVolumeClaim>],
    volumes: &[Arc<PersistentVolume>],
    class: &str,
    honours: impl Fn(&str) -> bool,
) -> Option<ConfigRef> {
    let begun = claims.iter().filter_map(|claim| {
        let of_class = claim.spec.as_ref()?.storage_class_name.as_deref() == Some(class);
        let record = record_of(claim).ok().flatten().filter(|_| of_class)?;
        record.config.parse().ok()
    });
    let made = volumes.iter().filter_map(|volume| {
        let of_class = volume.spec.as_ref()?.storage_class_name.as_deref() == Some(class);
        let config = volume.annotations().get(annotations::CONFIG).filter(|_| of_class)?;
        config.parse().ok()
    });
    begun.chain(made).find(|config: &ConfigRef| !honours(&config.namespace))
}

/// The namespace of a claim's Pods: where the record says that they are, else where they would be.
fn pods_in(config: &Result<Arc<ProvisionerConfig>, NoConfig>, record: Option<&Record>) -> Option<String> {
    let recorded = record.and_then(|record| record.pod.split_once('/'));
    recorded
        .map(|(namespace, _)| namespace.to_owned())
        .or_else(|| config.as_ref().ok().map(|config| config.reference.namespace.clone()))
}

/// The Pods of a namespace have not been listed, so nothing can be decided that depends on them.
pub(crate) fn not_known(shared: &Shared, object: &ObjectReference, namespace: &str, concerned: bool) -> Action {
    // What has a record of a namespace that is not honoured here is in the hands of a Mooring that honours it.
    if concerned && honours(shared, namespace) {
        let text = format!(
            "the Pods of namespace {namespace} can't be watched: bind ClusterRole flex-provisioner-configs in it"
        );
        shared.context.events.publish(object, waiting(Kind::Provision, text));
    }
    // Their list wakes everybody.
    Action::await_change()
}

/// The operation that a decision begins.
fn begins(decision: &ClaimDecision) -> Option<Kind> {
    match decision {
        Decision::Start(start) => Some(start.operation),
        Decision::Rest
        | Decision::Wait { .. }
        | Decision::Supply { .. }
        | Decision::Note(_)
        | Decision::Fail(_)
        | Decision::Stop(_)
        | Decision::Tidy(_)
        | Decision::Own(ForClaim::Accept(_) | ForClaim::Refuse(_) | ForClaim::Reschedule(_) | ForClaim::Undone(_)) => {
            None
        }
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use serde_json::{Value, json};

    use super::another_s_config;
    use crate::operation::tests::record;

    /// A claim in the hands of the Mooring whose ConfigMap this is.
    fn claim(class: &str, config: &str) -> Arc<PersistentVolumeClaim> {
        let record = record(&json!({"config": config})).to_text();
        let claim = json!({
            "metadata": {"annotations": {"mooring.dev/operation": record}}, "spec": {"storageClassName": class},
        });
        Arc::new(serde_json::from_value(claim).unwrap())
    }

    fn volume(class: &str, annotations: &Value) -> Arc<PersistentVolume> {
        let volume = json!({"metadata": {"annotations": annotations}, "spec": {"storageClassName": class}});
        Arc::new(serde_json::from_value(volume).unwrap())
    }

    #[test]
    fn a_class_is_another_mooring_s_if_that_makes_or_made_volumes_of_it() {
        let honours = |namespace: &str| namespace == "ours";
        let by = |config: &str| json!({"mooring.dev/config": config});
        for (claims, volumes, found) in [
            (vec![], vec![], None),
            (vec![claim("gold", "theirs/c")], vec![], Some("theirs/c")),
            (vec![claim("silver", "theirs/c")], vec![], None),
            (vec![claim("gold", "ours/c")], vec![volume("gold", &by("ours/c"))], None),
            (vec![], vec![volume("gold", &by("theirs/c"))], Some("theirs/c")),
            (
                vec![],
                vec![volume("silver", &by("theirs/c")), volume("gold", &json!({}))],
                None,
            ),
        ] {
            let seen = another_s_config(&claims, &volumes, "gold", honours);
            assert_eq!(
                seen.map(|config| config.to_string()).as_deref(),
                found,
                "{claims:?} {volumes:?}"
            );
        }
    }
}
